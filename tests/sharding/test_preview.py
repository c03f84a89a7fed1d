"""`preview_shard` says what `shard` will do, and changes nothing."""

import shutil
from pathlib import Path

import pytest

import tpufeed
from tests.sharding.previews import preview_shard
from tpufeed.errors import BuildError, NoInputsError, SourceError, TooManyRejectsError, TpufeedError
from tpufeed.storage.local import LocalStore


def state_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "options",
    [
        {"shard_bytes": "100KB"},
        {"shards": 4, "hosts": 2, "splits": "train=0.8,val=0.2"},
        {"images": tpufeed.Images(encode="png"), "shard_bytes": "300KB"},
    ],
    ids=["bytes", "shards", "images"],
)
def test_it_foretells_the_build(options, photo_folder, tmp_path):
    preview = preview_shard(photo_folder, tmp_path / "d", **options)
    assert list(tmp_path.iterdir()) == []
    result = tpufeed.shard(photo_folder, tmp_path / "d", workers=1, **options)
    splits = result.manifest.splits
    assert {name: (split.inputs, split.shards) for name, split in preview.splits.items()} == {
        name: (split.records, len(split.variants[0].shards)) for name, split in splits.items()
    }
    assert preview.bytes == pytest.approx(result.bytes, rel=0.1)
    sizes = [shard.bytes for shard in splits["train"].variants[0].shards]
    assert max(sizes) <= 1.3 * min(sizes)  # a few photographs each
    assert [warning.split(" shards")[0] for warning in preview.warnings] == [
        warning.split(" shards")[0] for warning in result.warnings
    ]


def test_what_it_says(photo_folder, odd_folder, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "photos")
    shutil.copytree(odd_folder, tmp_path / "photos", dirs_exist_ok=True)
    before = state_of(tmp_path)
    preview = preview_shard(tmp_path / "photos", tmp_path / "d", workers=2)
    assert state_of(tmp_path) == before
    assert (preview.source, preview.destination) == (str(tmp_path / "photos"), str(tmp_path / "d"))
    assert (preview.splits["train"].inputs, preview.listed.listed_twice) == (105, 0)
    assert preview.classes == len([path for path in (tmp_path / "photos").iterdir() if path.is_dir()])
    all_files = [path for path in (tmp_path / "photos").rglob("*") if path.is_file()]
    files = [path for path in all_files if path.suffix in (".jpg", ".jpeg", ".png", ".webp")]
    assert sum(preview.listed.ignored_files.values()) == len(all_files) - len(files) > 0
    assert preview.source_bytes == sum(path.stat().st_size for path in files)
    assert preview.probed == 64
    assert 0 <= preview.probed_rejects <= 6
    assert 0 < preview.seconds < 600
    assert preview.free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)


def test_nobody_knows_what_fits_into_memory(photo_folder, tmp_path):
    assert preview_shard(photo_folder, f"memory://{tmp_path}").free_bytes is None


def test_what_stands_at_the_destination_stays(build_options, photo_folder, undisturbed, unfinished):
    for place in (unfinished, Path(undisturbed.url)):
        before = state_of(place)
        shards = len(undisturbed.manifest.splits["train"].variants[0].shards)
        assert preview_shard(photo_folder, place, **build_options).splits["train"].shards == shards
        assert preview_shard(photo_folder, place, shards=3, overwrite=True).splits["train"].shards == 3
        assert state_of(place) == before


def _another_build(photos, finished, place):
    shutil.copytree(finished, place)
    return {"seed": 1}


def _a_changed_source(photos, finished, place):
    shutil.copytree(finished, place)
    next(photos.glob("*/*.jpg")).unlink()
    return {"shard_bytes": "40KB", "splits": "train=0.8,val=0.2"}


def _the_beginnings_of_another(photos, finished, place):
    shutil.copytree(finished, place)
    (place / "manifest.json").unlink()
    return {"seed": 1}


def _a_manifest_of_something_else(photos, finished, place):
    place.mkdir()
    (place / "manifest.json").write_text("{}")
    return {"overwrite": True}


def _files_of_others(photos, finished, place):
    place.mkdir()
    (place / "train-00000-of-00001.tfrecord").write_text("mine")
    return {}


def _the_source_itself(photos, finished, place):
    place.symlink_to(photos)
    return {}


def _images_that_are_none(photos, finished, place):
    for path in sorted(photos.glob("*/*.jpg"))[:20]:
        path.write_text("no photograph")
    return {}


def _classes_that_are_none(photos, finished, place):
    return {"classes": ["cat"], "max_rejects": "20%"}


def _nothing_but_rejects(photos, finished, place):
    return {"classes": ["nothing"], "max_rejects": "100%"}


def _an_engine_that_cannot_see_it(photos, finished, place):
    return {"engine": "ray", "dst": "memory://preview"}


@pytest.mark.parametrize(
    "way",
    [
        _another_build,
        _a_changed_source,
        _the_beginnings_of_another,
        _a_manifest_of_something_else,
        _files_of_others,
        _the_source_itself,
        _images_that_are_none,
        _classes_that_are_none,
        _nothing_but_rejects,
        _an_engine_that_cannot_see_it,
    ],
)
def test_what_the_build_refuses_is_refused(way, photo_folder, undisturbed, tmp_path):
    photos, place = tmp_path / "photos", tmp_path / "d"
    shutil.copytree(photo_folder, photos)
    options = {"dst": place, **way(photos, undisturbed.url, place)}
    before = state_of(tmp_path)
    with pytest.raises(TpufeedError) as foretold:
        preview_shard(photos, **options)
    assert state_of(tmp_path) == before
    with pytest.raises(type(foretold.value)) as raised:
        tpufeed.shard(photos, workers=None if "engine" in options else 1, **options)
    assert raised.type is foretold.type
    if foretold.type not in (BuildError, TooManyRejectsError):  # which count what they have met
        assert str(raised.value) == str(foretold.value)


def test_no_room_is_foretold(photo_folder, monkeypatch, tmp_path):
    monkeypatch.setattr(LocalStore, "free_bytes", lambda _: 1000)
    for make in (preview_shard, tpufeed.shard):
        with pytest.raises(BuildError, match=r"0\.0 MB"):
            make(photo_folder, tmp_path / "d")


def test_a_table_whose_images_are_missing(tmp_path):
    (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"{n}.jpg,a\n" for n in range(5)))
    with pytest.raises(BuildError, match=r"0\.jpg"):
        preview_shard(tmp_path / "t.csv", tmp_path / "d", images=tpufeed.Images(presize=64))


def test_sources_are_checked(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoInputsError):
        preview_shard(tmp_path / "empty", tmp_path / "d")
    with pytest.raises(SourceError, match="nowhere"):
        preview_shard(tmp_path / "nowhere", tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
