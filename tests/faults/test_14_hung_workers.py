"""Class 14, the hung worker. Killed ones and such as have no memory: `tests/sharding/test_faults_workers.py`."""

from pathlib import Path

from tpufeed.engines.engine import Done, Job
from tpufeed.engines.processes import ProcessEngine


def test_a_worker_that_says_nothing_is_replaced(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    engine = ProcessEngine(2, silence_seconds=3)
    events = list(engine.run(Job("hanging:stop_once", str(tmp_path)), range(3)))
    assert (tmp_path / "hung").exists()
    assert sorted(event.number for event in events if isinstance(event, Done)) == [0, 1, 2]
