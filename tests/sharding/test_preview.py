"""`preview_shard` says what `shard` will do, and changes nothing."""

import shutil

import pytest

import tpufeed
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sharding.build import preview_shard


def state_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "options",
    [
        {"shard_bytes": "100KB"},
        {"shards": 4, "hosts": 2, "split": "train=0.8,val=0.2"},
        {"presize": 64, "shard_bytes": "40KB"},
        {"encode": "png", "shard_bytes": "300KB"},
        {"policy": {"greyscale": "rgb"}, "shard_bytes": "200KB"},
    ],
    ids=str,
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
    assert (preview.splits["train"].inputs, preview.listed_twice) == (105, 0)
    assert preview.classes == len([path for path in (tmp_path / "photos").iterdir() if path.is_dir()])
    all_files = [path for path in (tmp_path / "photos").rglob("*") if path.is_file()]
    files = [path for path in all_files if path.suffix in (".jpg", ".jpeg", ".png", ".webp")]
    assert sum(preview.ignored_files.values()) == len(all_files) - len(files) > 0
    assert preview.source_bytes == sum(path.stat().st_size for path in files)
    assert preview.probed == 64
    assert 0 <= preview.probed_rejects <= 6
    assert 0 < preview.seconds < 600
    assert preview.free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)


def test_nobody_knows_what_fits_into_memory(photo_folder, tmp_path):
    assert preview_shard(photo_folder, f"memory://{tmp_path}").free_bytes is None


def test_what_stands_at_the_destination_stays(photo_folder, undisturbed, unfinished):
    before = state_of(unfinished)
    assert preview_shard(photo_folder, unfinished, shards=3).splits["train"].shards == 3
    assert state_of(unfinished) == before


def test_a_table_whose_images_are_missing(tmp_path):
    (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"{n}.jpg,a\n" for n in range(5)))
    preview = preview_shard(tmp_path / "t.csv", tmp_path / "d", presize=64)
    assert (preview.splits["train"].inputs, preview.source_bytes, preview.probed) == (5, 0, 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shard_bytes": "1KB"}, OptionError, "a shard of 1000 bytes cannot hold"),
        ({"shards": 0}, OptionError, "shards are a multiple"),
        ({"workers": 0}, OptionError, "workers are at least 1, not 0"),
        ({"label": "kind"}, OptionError, "no column 'kind'"),
    ],
)
def test_options_are_checked(options, error, message, photo_folder, tmp_path):
    with pytest.raises(error, match=message):
        preview_shard(photo_folder, tmp_path / "d", **options)
    assert list(tmp_path.iterdir()) == []


def test_sources_are_checked(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoInputsError):
        preview_shard(tmp_path / "empty", tmp_path / "d")
    with pytest.raises(SourceError, match="does not exist"):
        preview_shard(tmp_path / "nowhere", tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
