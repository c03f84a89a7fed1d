"""What a build asks of any engine, and what it does itself."""

import errno
import fcntl
import os
import shutil
import threading

import pytest

import tpufeed
from tests.engines.contract import SHARD, build_serially, bytes_of
from tpufeed.cache import warmup
from tpufeed.dataset.naming import report_name
from tpufeed.dataset.verify import verify
from tpufeed.engines.choice import SerialEngine
from tpufeed.errors import TpufeedError
from tpufeed.storage import local
from tpufeed.storage.store import open_store

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build_serially(tmp_path_factory.mktemp("built"))


def test_a_build_that_fails_has_stopped_its_engine_while_the_error_is_held(built, tmp_path):
    class Engine(SerialEngine):
        stopped = False

        def run(self, job, tasks):
            try:
                yield from super().run(job, tasks)
            finally:
                self.stopped = True

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.images:
            raise Stop

    engine = Engine()
    with pytest.raises(Stop) as caught:  # whose traceback holds the engine's generator
        tpufeed.shard(built.photos, tmp_path / "d", engine=engine, listener=stop, **SHARD)
    assert engine.stopped
    assert caught.tb is not None


def test_the_reports_of_a_build_are_read_side_by_side_at_its_end(built, tmp_path, monkeypatch):
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)
    store, met = type(open_store(str(tmp_path))), []
    read = store.read_document

    def read_both(self, name, version=""):
        if threading.current_thread().name.startswith("tpufeed-reports") and name in map(report_name, range(2)):
            met.append(both.wait())
        return read(self, name, version)

    monkeypatch.setattr(store, "read_document", read_both)
    tpufeed.shard(built.photos, tmp_path / "d", engine=SerialEngine(), **SHARD)
    assert sorted(met) == [0, 1]
    assert bytes_of(tmp_path / "d") == bytes_of(built.dataset)


def tree(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def refuse(code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("command", ["shard", "overwrite", "append", "warmup", "adopt"])
def test_a_folder_that_cannot_take_a_build_is_refused_before_anything_is_written(
    command, photo_folder, dataset_url, copy, tmp_path, monkeypatch
):
    """A disk without hard links that has no other name for that, as rclone's mounts."""
    monkeypatch.setattr(os, "link", refuse(errno.EIO))
    monkeypatch.setattr(local, "find_mount", lambda _: ("/mnt", "fuse.rclone"))
    (tmp_path / "records").mkdir()
    shutil.copy(next(copy.glob("*.tfrecord")), tmp_path / "records/train.tfrecord")
    before = tree(tmp_path)
    run = {
        "shard": lambda: tpufeed.shard(photo_folder, tmp_path / "d", workers=1),
        "overwrite": lambda: tpufeed.shard(photo_folder, copy, overwrite=True, workers=1),
        "append": lambda: tpufeed.append(photo_folder, copy, workers=1),
        "warmup": lambda: warmup(dataset_url, tmp_path / "d", size=32, workers=1),
        "adopt": lambda: tpufeed.adopt(tmp_path / "records", tmp_path / "d"),
    }
    with pytest.raises(TpufeedError, match=r"/mnt \(fuse.rclone\) cannot make a hard link"):
        run[command]()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("lack", ["hard links", "flock"])
def test_a_folder_for_one_writer_takes_a_build_with_a_warning(lack, photo_folder, tmp_path, monkeypatch):
    if lack == "flock":
        monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    else:
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    options = {"splits": "train=0.7,val=0.3", "workers": 1}
    built = tpufeed.shard(photo_folder, tmp_path / "d", **options)
    again = tpufeed.shard(photo_folder, tmp_path / "d", seed=1, overwrite=True, **options)
    cache = warmup(tmp_path / "d", tmp_path / "cache", size=32, workers=1)
    for result in (built, again, cache):
        (warning,) = (each for each in result.warnings if "one command at a time" in each)
        assert lack in warning
        assert result.url in warning
        assert verify(result.url).records == 40
    assert not list(tmp_path.glob("*/_tpufeed/tmp"))
