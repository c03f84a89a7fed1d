"""What runs in Beam's worker processes; they import it by name."""

import os
import signal
import sys
from pathlib import Path

from tpufeed.engines.engine import Progress, ReportProgress

FUSE = "TPUFEED_TEST_FUSE"  # a file that is there until one has died of it


def fall_once(image, rng):
    """An op that changes nothing, and kills the first worker process of Beam's that comes to it."""
    fuse = os.environ.get(FUSE)
    if fuse and "sdk_worker_main" in " ".join(sys.orig_argv):
        try:
            Path(fuse).rename(f"{fuse}-{os.getpid()}")
        except FileNotFoundError:
            return image
        os.kill(os.getpid(), signal.SIGKILL)
    return image


def wait_for_the_launcher(context: str, task: int, report_progress: ReportProgress) -> None:
    """Says how far it is, then ends when that has been heard."""
    report_progress(Progress(task, 10 * task, 0))
    while not Path(context, "heard").exists():
        Path(context, f"pid-{os.getpid()}").touch()
