"""`prune`: the files that no kept version has are gone."""

import pytest

import tpufeed
from tests.builds.grown import PARTS, files_of, records_of, shards_of
from tpufeed.dataset.reader import find_versions, open_dataset
from tpufeed.errors import BuildError, DatasetNotFoundError, ObjectChangedError


def test_what_no_kept_version_names_is_removed(url, folders):
    tpufeed.compact(url, workers=1)
    records, before = records_of(url), files_of(url)
    told = tpufeed.prune(url, dry_run=True)
    assert files_of(url) == before
    done = tpufeed.prune(url)
    assert done == told
    assert (done.kept, done.removed) == ((PARTS + 1,), tuple(range(1, PARTS + 1)))
    after = files_of(url)
    assert len(before) - len(after) == done.files + PARTS
    assert sum(map(len, before.values())) - sum(map(len, after.values())) > done.bytes > 0
    assert records_of(url) == records
    assert tpufeed.verify(url).records == 40
    named = {shard.name for split in ("train", "val") for shard in shards_of(url, split)}
    assert {str(path) for path in after if path.suffix == ".tfrecord"} == named
    assert tpufeed.append(folders[1], url, workers=1).skipped == 8  # what was appended stays known
    assert tpufeed.prune(url).removed == ()


def test_kept_versions_can_be_read(url):
    old, middle = open_dataset(url, version=2), open_dataset(url, version=4)
    records = {number: records_of(url, number) for number in (4, 5)}
    done = tpufeed.prune(url, keep=2)
    assert (done.kept, done.removed) == ((4, 5), (1, 2, 3))
    for number, found in records.items():
        assert records_of(url, number) == found
        assert tpufeed.verify(url, version=number).shards
    with pytest.raises(DatasetNotFoundError, match="version 3"):
        open_dataset(url, version=3)
    middle.check_current()
    with pytest.raises(ObjectChangedError, match="version 2"):
        old.check_current()


def test_pruning_that_was_interrupted_is_finished(url, monkeypatch):
    tpufeed.compact(url, workers=1)
    store = open_dataset(url).store
    real, left = type(store).delete, [4]

    def delete(self, name, version=""):
        if not left[0]:
            raise BuildError("stopped")
        left[0] -= name.endswith((".tfrecord", ".npy"))
        real(self, name, version)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "delete", delete)
        with pytest.raises(BuildError, match="stopped"):
            tpufeed.prune(url)
    assert find_versions(store, open_dataset(url)) == [PARTS + 1]  # no version that is not whole can be opened
    tpufeed.verify(url)
    assert tpufeed.prune(url).removed == tuple(range(1, PARTS + 1))
    named = {shard.name for split in ("train", "val") for shard in shards_of(url, split)}
    assert {str(path) for path in files_of(url) if path.suffix == ".tfrecord"} == named


def test_overwriting_removes_parts_versions_and_what_a_prune_has_left(url, folders, tmp_path, monkeypatch):
    tpufeed.compact(url, workers=1)
    tpufeed.prune(url, keep=2)
    with monkeypatch.context() as patch:
        patch.setattr("tpufeed.builds.run.publish", lambda *_: (_ for _ in ()).throw(BuildError("stopped")))
        with pytest.raises(BuildError, match="stopped"):
            tpufeed.append(folders[0].parent, url, workers=1)
    tpufeed.shard(folders[0], url, overwrite=True, workers=1)
    tpufeed.shard(folders[0], tmp_path / "fresh", workers=1)
    assert files_of(url).keys() == files_of(tmp_path / "fresh").keys()
    assert tpufeed.verify(url).records == 8
