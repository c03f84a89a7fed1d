"""What a build asks of any engine, and what it does itself."""

import threading

import pytest

import tpufeed
from tests.engines.contract import SHARD, build_serially, bytes_of
from tpufeed.dataset.naming import report_name
from tpufeed.engines.choice import SerialEngine
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
