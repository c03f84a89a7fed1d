"""What runs on the nodes of the tests' Ray cluster; workers import it by name."""

import os
import signal
import time
from pathlib import Path

from tpufeed.engines.engine import Progress, ReportProgress

GATE = "TPUFEED_TEST_GATE"  # in the environment of the cluster only


def gate(image, rng):
    """An op that changes nothing. While there is a file `gate`, it says where it is and waits."""
    import ray  # the fixtures of other engines' tests read this file, too

    folder = os.environ.get(GATE)
    if folder and Path(folder, "gate").exists():
        Path(folder, f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}").touch()
        while Path(folder, "gate").exists():
            time.sleep(0.01)
    return image


def stay(context: str, task: int, report_progress: ReportProgress) -> None:
    """Says who it is, then does not let itself be interrupted."""
    Path(context, f"pid-{os.getpid()}").touch()
    while True:
        try:
            time.sleep(600)
        except BaseException:  # noqa: BLE001
            Path(context, "asked").touch()


def count_slowly(context: str, task: int, report_progress: ReportProgress) -> None:
    """Its progress is heard before it has ended, for which it waits."""
    report_progress(Progress(1, 10, 0))
    while not Path(context, "heard").exists():
        time.sleep(0.05)
        report_progress(Progress(1, 10, 0))


def stand_still_once(context: str, task: int, report_progress: ReportProgress) -> None:
    """As on a dead network drive, the first time."""
    report_progress(Progress(1, 1, 0))
    marker = Path(context, f"pid-{os.getpid()}")
    if not list(Path(context).glob("pid-*")):
        marker.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
