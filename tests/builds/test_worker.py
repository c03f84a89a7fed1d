import time

from tests.engines.contract import wait_until
from tpufeed.builds import worker
from tpufeed.builds.worker import Output
from tpufeed.engines.engine import Progress


def test_a_put_says_that_it_goes_on_for_as_long_as_a_slow_line_takes(monkeypatch):
    monkeypatch.setattr(worker, "_PULSE_SECONDS", 0.01)
    said = []
    output = Output([], said.append, [])
    output.add(images=3)
    with output.putting(3_500):  # 0.035 seconds at the slowest
        wait_until(lambda: len(said) == 4)
        time.sleep(0.1)
    assert said == [Progress(3, 0, 0), *[Progress(0, 0, 0)] * 3]
    with output.putting(10**12):
        wait_until(lambda: len(said) > 10)
    after = len(said)
    time.sleep(0.05)
    assert len(said) == after
