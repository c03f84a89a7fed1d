"""What the destination holds already: this cache, another, a dataset, an unfinished build; and too little room."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

import tpufeed
from tpufeed.cache import warmup
from tpufeed.dataset.manifest import encode_manifest
from tpufeed.errors import BuildError, DatasetExistsError, DatasetNotFoundError, DuplicateWriterError, OptionError
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop
from tpufeed.storage.local import LocalStore

SIDE = 32
OPTIONS = {"size": SIDE, "variants": 3, "shard_bytes": "40KB", "workers": 1}
_watched: dict[str, list[str]] = {}


def _watch(event, args):
    """Note each change below a folder that is watched: mtimes do not show a file that comes and goes."""
    changes = event in ("os.mkdir", "os.rmdir", "os.link", "os.remove", "os.rename", "shutil.rmtree", "os.truncate")
    if _watched and (changes or (event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR))):
        for folder, seen in _watched.items():
            if any(isinstance(arg, str | os.PathLike) and str(arg).startswith(folder) for arg in args):
                seen.append(f"{event} {args}")


sys.addaudithook(_watch)


@pytest.fixture
def changes_in():
    """`changes_in(folder)`: a list to which every change from now on is added."""

    def watch(folder):
        return _watched.setdefault(str(folder), [])

    yield watch
    _watched.clear()


def state_of(folder):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns, path.stat().st_ino)
        for path in (folder, *folder.rglob("*"))
    }


def state_of_files(folder):
    """Return the state of the files only: a plan is written to a folder that is removed again."""
    return {path: state for path, state in state_of(folder).items() if not path.is_dir()}


@pytest.fixture(scope="module")
def cached(source, tmp_path_factory):
    """A cache; not to be changed."""
    return warmup(source, tmp_path_factory.mktemp("places") / "cache", **OPTIONS)


@pytest.fixture
def place(cached, tmp_path):
    """A copy of `cached`."""
    shutil.copytree(cached.url, tmp_path / "c")
    return tmp_path / "c"


@pytest.mark.parametrize("way_out", [{}, {"overwrite": True}], ids=str)
def test_a_complete_cache_is_recognised_and_nothing_is_written(way_out, source, cached, place, changes_in):
    before, changes = state_of(place), changes_in(place)
    again = warmup(source, place, **{**OPTIONS, "workers": 2}, **way_out)
    assert changes == []
    assert state_of(place) == before
    assert list(place.parent.iterdir()) == [place]
    assert encode_manifest(again.manifest) == encode_manifest(cached.manifest)
    assert again.images == again.earlier_images == cached.images


def test_what_the_watch_would_see(source, place, changes_in):
    changes = changes_in(place)
    warmup(source, place, **{**OPTIONS, "seed": 1}, overwrite=True)
    assert {change.split()[0] for change in changes} >= {"os.mkdir", "os.link", "os.remove", "open"}


CHANGES = [
    ({"size": 33}, "size of RandomResizedCrop"),
    (
        {"size": None, "ops": [RandomResizedCrop(SIDE), HorizontalFlip(0.25)]},
        "p of HorizontalFlip",
    ),
    (
        {"size": None, "ops": [RandomResizedCrop(SIDE)]},
        "ops, number 2",
    ),
    ({"live": [HorizontalFlip()]}, "live"),
    ({"variants": 2}, "variants"),
    ({"encode": "jpeg"}, "encode .*quality"),
    ({"seed": 5}, "seed"),
    ({"shard_bytes": "50KB"}, "shard_bytes"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[str(change) for change, _ in CHANGES])
def test_another_cache_in_the_same_place_is_refused_by_what_differs(change, message, source, place, changes_in):
    changes = changes_in(place)
    with pytest.raises(DatasetExistsError, match=message) as caught:
        warmup(source, place, **{**OPTIONS, **change})
    assert "--overwrite" in str(caught.value)
    assert changes == []


def test_another_source_is_refused(damaged_source, source, place):
    with pytest.raises(DatasetExistsError, match=damaged_source[1]):
        warmup(damaged_source[1], place, **OPTIONS)


def test_the_folder_of_adopted_shards_is_no_place_for_their_cache(source, tmp_path):
    shutil.copytree(source, tmp_path / "theirs", ignore=shutil.ignore_patterns("*.json*", "*.npy", "_tpufeed"))
    tpufeed.adopt(tmp_path / "theirs", tmp_path / "adopted")
    with pytest.raises(OptionError, match=f"{tmp_path}/theirs"):
        warmup(tmp_path / "adopted", tmp_path / "theirs", **OPTIONS)


def test_a_source_that_was_copied_elsewhere_is_the_same(source, place, changes_in, tmp_path):
    shutil.copytree(source, tmp_path / "copy")
    changes = changes_in(place)
    assert warmup(tmp_path / "copy", place, **OPTIONS).seconds == 0
    assert changes == []


def test_a_dataset_in_the_same_place_is_refused(source, photo_folder, changes_in, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", workers=1)
    changes = changes_in(tmp_path / "d")
    with pytest.raises(DatasetExistsError, match="not a cache"):
        warmup(source, tmp_path / "d", **OPTIONS)
    assert changes == []


@pytest.mark.parametrize("way_out", [{}, {"overwrite": True}], ids=str)
def test_a_cache_never_takes_the_place_of_its_source(way_out, source, changes_in, tmp_path):
    shutil.copytree(source, tmp_path / "d")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    changes = changes_in(tmp_path)
    for src, dst in (("d", "d"), ("link", "d"), ("d", "link"), ("d", "d/../d/")):
        with pytest.raises(OptionError, match="itself"):
            warmup(tmp_path / src, tmp_path / dst, **OPTIONS, **way_out)
    assert changes == []


def test_overwrite_replaces_another_cache(source, place, bytes_of, tmp_path):
    other = {**OPTIONS, "seed": 5, "shard_bytes": "60KB"}
    done = warmup(source, place, **other, overwrite=True)
    fresh = warmup(source, tmp_path / "fresh", **other)
    assert bytes_of(place) == bytes_of(fresh.url)
    assert done.manifest.cache == fresh.manifest.cache
    assert {path.name for path in place.rglob("*")} == {path.name for path in Path(fresh.url).rglob("*")}


def test_overwrite_that_cannot_be_planned_costs_nothing(source, place, tmp_path):
    before = state_of_files(place)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetNotFoundError):
        warmup(tmp_path / "empty", place, **OPTIONS, overwrite=True)
    with pytest.raises(OptionError):
        warmup(source, place, ops=[], overwrite=True)
    with pytest.raises(OptionError):
        warmup(source, place, **{**OPTIONS, "shard_bytes": 1000}, overwrite=True)
    assert state_of_files(place) == before


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "index"])
def test_a_complete_cache_that_is_damaged_is_not_taken_for_sound(damage, source, cached, place, bytes_of, changes_in):
    variant = cached.manifest.splits["val"].variants[1]
    file = place / (variant.index.name if damage == "index" else variant.shards[0].name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    if damage != "gone":
        file.write_bytes(data[:100] if damage == "cut" else data)
    changes, is_lost = changes_in(place), damage in ("gone", "cut")
    if not is_lost:
        with pytest.raises(DatasetExistsError, match=f"tpufeed verify {place}"):
            warmup(source, place, **OPTIONS)
        assert changes == []
    warmup(source, place, **OPTIONS, overwrite=not is_lost)
    assert bytes_of(place) == bytes_of(cached.url)


def test_of_a_large_cache_sizes_alone_are_looked_at(source, cached, place, monkeypatch):
    monkeypatch.setattr("tpufeed.cache.recipe._READ_WHOLE_BYTES", 1000)
    shard = place / cached.manifest.splits["val"].variants[1].shards[0].name
    assert warmup(source, place, **OPTIONS).seconds == 0
    os.truncate(shard, 100)
    assert warmup(source, place, **OPTIONS).seconds == 0
    assert shard.stat().st_size > 100


@pytest.mark.parametrize("manifest", [b"{", b'{"format":"tpufeed-dataset","format_version":99}'])
def test_a_manifest_that_cannot_be_read(manifest, source, cached, place, bytes_of):
    (place / "manifest.json").write_bytes(manifest)
    with pytest.raises(tpufeed.errors.ManifestError):
        warmup(source, place, **OPTIONS)
    warmup(source, place, **OPTIONS, overwrite=True)
    assert bytes_of(place) == bytes_of(cached.url)


def test_the_beginnings_of_another_cache(source, cached, place, bytes_of):
    (place / "manifest.json").unlink()
    before = bytes_of(place)
    other = {**OPTIONS, "seed": 5}
    with pytest.raises(DuplicateWriterError, match="seed"):
        warmup(source, place, **other)
    assert bytes_of(place) == before
    assert warmup(source, place, **OPTIONS).earlier_images == cached.images


def test_the_beginnings_of_a_build_of_another_kind(source, photo_folder, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", workers=1)
    (tmp_path / "d/manifest.json").unlink()
    with pytest.raises(DuplicateWriterError, match="command"):
        warmup(source, tmp_path / "d", **OPTIONS)
    with pytest.raises(DatasetNotFoundError, match=f"{tmp_path}/d"):
        warmup(tmp_path / "d", tmp_path / "c", **OPTIONS)
    assert not (tmp_path / "c").exists()


def test_a_foreign_file_under_a_name_of_the_cache_is_not_touched(source, cached, tmp_path):
    name = cached.manifest.splits["train"].variants[2].shards[0].name
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / name).write_bytes(b"years of work")
    with pytest.raises(DuplicateWriterError, match=name):
        warmup(source, tmp_path / "c", **OPTIONS)
    assert [path.name for path in (tmp_path / "c").iterdir()] == [name]


def test_no_room(source, place, monkeypatch, tmp_path):
    """Before anything is written, and before anything is removed."""
    monkeypatch.setattr(LocalStore, "free_bytes", lambda _: 10_000)
    with pytest.raises(BuildError, match=r"0\.6 MB"):
        warmup(source, tmp_path / "n", **OPTIONS)
    assert not (tmp_path / "n").exists()
    before = state_of_files(place)
    with pytest.raises(BuildError, match=r"1\.\d MB"):
        warmup(source, place, **{**OPTIONS, "variants": 6}, overwrite=True)
    assert state_of_files(place) == before
    done = warmup(source, place, **{**OPTIONS, "seed": 9}, overwrite=True)  # the old one's room is enough for it
    assert done.seconds > 0


def test_the_names_of_kaggle_are_for_samples_with_a_class(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "t.csv").write_text("path,label\n0.png,a\n1.png,b\n2.png,\n")
    tpufeed.shard(tmp_path / "t.csv", tmp_path / "d", unlabelled="keep", workers=1)
    options = {"size": 8, "names": "kaggle", "encode": "jpeg", "workers": 1}
    with pytest.raises(OptionError, match="samples without one"):
        warmup(tmp_path / "d", tmp_path / "c", **options)
    view = tpufeed.open_dataset(tmp_path / "d").select(classes=["a", "b"])
    assert warmup(view, tmp_path / "c", **options).images == 2


def test_no_work_that_could_be_spared(source, tmp_path):
    """Without a plan nothing may stay: not even a folder."""
    with pytest.raises(OptionError, match="--shard-size"):
        warmup(source, tmp_path / "a/b/c", ops=[CenterCrop(SIDE)], shard_bytes="1KB", workers=1)
    assert list(tmp_path.iterdir()) == []
