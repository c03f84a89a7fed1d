"""`compact`: fewer shards with the same samples."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpufeed
from tests.builds.grown import PARTS, files_of, records_of, shards_of
from tests.dataset.damaging import flip
from tpufeed.builds.compact import Run, compact_layout, find_runs
from tpufeed.dataset.manifest import IndexFile, Manifest, Shard, Split, Variant
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import (
    BuildError,
    DatasetNotFoundError,
    DuplicateWriterError,
    OptionError,
    TpufeedError,
)


def a_manifest(sizes, usual, hosts=1):
    shards = tuple(Shard(f"{number}.tfrecord", size, number, size // 100) for number, size in enumerate(sizes))
    records = sum(shard.records for shard in shards)
    split = Split(records, (), (Variant(shards, IndexFile("i", 128 + 8 * (records + len(shards)), 7)),))
    return Manifest(
        run_id="r",
        tool_version="0",
        splits={"train": split},
        class_names=(),
        features=(FeatureSpec("image/encoded", "bytes"),),
        options={"shard_bytes": usual, "hosts": hosts},
        input_digest="",
        rejects={},
        images={},
        odd={},
    )


@given(st.lists(st.integers(0, 2000), max_size=12), st.sampled_from([1, 1, 1, 2, 3]))
def test_runs_are_of_small_shards_and_cover_each_shard_once(sizes, hosts):
    manifest = a_manifest(sizes, 1000, hosts)
    runs = find_runs(manifest).get("train", [])
    for run in runs:
        assert all(size < 500 for size in sizes[run.start : run.stop])
        assert 0 < run.shards < run.stop - run.start
        assert run.shards <= sum(size // 100 for size in sizes[run.start : run.stop])
    layout = compact_layout(manifest, {"train": runs})["train"]
    old, made = [], 0
    for piece in layout:
        if piece.of_part:
            run = next(run for run in runs if run.start == len(old))
            assert (piece.start, piece.stop) == (made, made + run.shards)
            old += range(run.start, run.stop)
            made = piece.stop
        else:
            old += range(piece.start, piece.stop)
    assert old == list(range(len(sizes)))
    assert find_runs(a_manifest([900, 1000, 700], 1000)) == {}
    assert find_runs(a_manifest([900, 300, 300, 400, 700, 100], 1000))["train"] == [Run(1, 4, 1)]


def test_fewer_shards_hold_the_same_samples_in_the_same_order(url):
    before, old, counts = files_of(url), records_of(url), len(shards_of(url))
    digests = open_dataset(url).manifest
    result = tpufeed.compact(url, workers=1)
    assert (result.version, result.url) == (PARTS + 1, str(url))
    assert result.shards < result.shards_before
    assert len(shards_of(url)) < counts
    assert records_of(url) == old == records_of(url, version=PARTS)
    assert tpufeed.verify(url, decode="all").records == 40
    after = files_of(url)
    assert {name for name, data in before.items() if after[name] != data} == {Path("manifest.json")}
    now = open_dataset(url).manifest
    for name in ("features", "class_names", "options", "images", "rejects", "input_digest", "markers"):
        assert getattr(now, name) == getattr(digests, name)
    assert [split.class_counts for split in now.splits.values()] == [s.class_counts for s in digests.splits.values()]
    assert (now.history[-1].kind, now.history[-1].records) == ("compact", {})


def test_what_is_compact_stays_as_it_is(url):
    tpufeed.compact(url, workers=1)
    before = files_of(url)
    again = tpufeed.compact(url, workers=1)
    assert (again.version, again.shards, again.copied_bytes) == (PARTS + 1, again.shards_before, 0)
    assert files_of(url) == before


def test_appends_go_on_behind_a_compaction(url, folders, tmp_path):
    tpufeed.compact(url, workers=1)
    assert tpufeed.append(folders[2], url, workers=1).skipped == 8
    more = tmp_path / "more"
    shutil.copytree(folders[2], more)
    for path in list(more.glob("*/*.jpg")):
        path.rename(path.with_name(f"new {path.name}"))
    before = records_of(url)
    result = tpufeed.append(more, url, workers=1)
    assert (result.manifest.number, sum(s.records for s in result.manifest.splits.values())) == (PARTS + 2, 48)
    tpufeed.compact(url, workers=1)
    for place, records in before.items():
        assert records_of(url)[place][: len(records)] == records
    assert tpufeed.verify(url).records == 48


def test_all_variants_of_a_cache_are_joined_alike(url, tmp_path):
    cache = tmp_path / "c"
    options = {"size": 32, "variants": 2, "shard_bytes": "20KB", "encode": "jpeg", "workers": 1}
    base = tmp_path / "base"
    shutil.copytree(url, base)
    shutil.copy(base / "_tpufeed/versions/1.json", base / "manifest.json")
    tpufeed.cache.warmup(base, cache, **options)
    tpufeed.cache.warmup(url, tmp_path / "whole", **options)
    shutil.copy(url / "manifest.json", base / "manifest.json")
    tpufeed.cache.warmup(base, cache, **options)
    records = records_of(cache)
    assert records == records_of(tmp_path / "whole")
    manifest = cache / "manifest.json"  # a usual size at which all of its shards are small
    manifest.write_text(manifest.read_text().replace('"shard_bytes": 20000', '"shard_bytes": 90000'))
    result = tpufeed.compact(cache, workers=1)
    assert result.shards < result.shards_before
    assert records_of(cache) == records
    assert tpufeed.verify(cache, decode="all").records == 80
    tpufeed.prune(cache)
    assert tpufeed.verify(cache).records == 80


def test_a_cache_of_what_was_compacted_covers_it(url, tmp_path):
    cache = tpufeed.cache.warmup(url, tmp_path / "c", size=32, workers=1).url
    tpufeed.compact(url, workers=1)
    shards = [path for path in files_of(cache) if path.suffix == ".tfrecord"]
    result = tpufeed.cache.warmup(url, cache, size=32, workers=1)
    assert (result.images, result.earlier_images, result.manifest.number) == (40, 40, 2)
    assert [path for path in files_of(cache) if path.suffix == ".tfrecord"] == shards
    assert result.manifest.cache.source_digest == open_dataset(url).content_digest
    again = files_of(cache)
    tpufeed.cache.warmup(url, cache, size=32, workers=1)
    assert files_of(cache) == again
    tpufeed.verify(cache)


def test_damage_is_not_copied(url):
    shard = shards_of(url)[1]
    flip(url / shard.name, shard.bytes // 2)
    before = (url / "manifest.json").read_bytes()
    with pytest.raises(TpufeedError, match=shard.name):
        tpufeed.compact(url, workers=1)
    assert (url / "manifest.json").read_bytes() == before


@pytest.fixture
def interrupted(url, monkeypatch):
    """A compaction that ended before its version was published."""

    def stop(*_):
        raise BuildError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("tpufeed.builds.run.publish", stop)
        with pytest.raises(BuildError, match="stopped"):
            tpufeed.compact(url, workers=1)
    assert open_dataset(url).number == PARTS
    return url


def test_an_interrupted_compaction_is_finished_by_its_command(interrupted):
    records = records_of(interrupted)
    assert tpufeed.compact(interrupted, workers=1).version == PARTS + 1
    assert records_of(interrupted) == records
    tpufeed.verify(interrupted)


def test_an_append_waits_for_a_compaction_and_a_compaction_for_an_append(interrupted, folders, tmp_path):
    more = tmp_path / "more"
    shutil.copytree(folders[0], more / "x")
    before = files_of(interrupted)
    with pytest.raises(DuplicateWriterError, match="--overwrite"):
        tpufeed.append(more, interrupted, workers=1)
    assert files_of(interrupted) == before
    assert tpufeed.append(more, interrupted, overwrite=True, workers=1).manifest.number == PARTS + 1
    assert tpufeed.compact(interrupted, workers=1).version == PARTS + 2
    assert tpufeed.verify(interrupted).records == 48


def test_a_compaction_during_an_append_says_so(url, folders, tmp_path, monkeypatch):
    more = tmp_path / "more"
    shutil.copytree(folders[0], more / "x")
    with monkeypatch.context() as patch:
        patch.setattr("tpufeed.builds.run.publish", lambda *_: (_ for _ in ()).throw(BuildError("stopped")))
        with pytest.raises(BuildError, match="stopped"):
            tpufeed.append(more, url, workers=1)
    before = files_of(url)
    with pytest.raises(DuplicateWriterError, match=f"version {PARTS + 1}"):
        tpufeed.compact(url, workers=1)
    assert files_of(url) == before
    assert tpufeed.compact(url, overwrite=True, workers=1).version == PARTS + 1
    assert tpufeed.verify(url).records == 40


def test_what_cannot_be_compacted_or_pruned_says_so(url, tmp_path):
    for function in (tpufeed.compact, tpufeed.prune):
        with pytest.raises(DatasetNotFoundError, match="nothing"):
            function(tmp_path / "nothing")
    with pytest.raises(OptionError, match="keep"):
        tpufeed.prune(url, keep=0)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for shard in url.glob("*.tfrecord"):
        shutil.copy(shard, foreign)
    tpufeed.adopt(foreign)
    with pytest.raises(OptionError, match="adopted"):
        tpufeed.compact(foreign)
    assert tpufeed.prune(foreign).removed == ()


@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_in_other_stores(scheme, folders, tmp_path):
    """`local` is fsspec's: it replaces nothing under a precondition."""
    url = f"{scheme}://{tmp_path}/d"
    tpufeed.shard(folders[0], url, shard_bytes="200KB", workers=1)
    for folder in folders[1:]:
        tpufeed.append(folder, url, workers=1)
    records = records_of(url)
    assert tpufeed.compact(url, workers=1).version == PARTS + 1
    assert records_of(url) == records
    assert tpufeed.prune(url).kept == (PARTS + 1,)
    assert tpufeed.verify(url).records == 40
