"""A task at which a worker hangs the first time; worker processes import it by name."""

import os
import signal
from pathlib import Path

from tpufeed.engines.engine import Progress, ReportProgress


def stop_once(context: str, task: int, report_progress: ReportProgress) -> None:
    """Task 1 stands still, as on a dead network drive, until it is killed."""
    marker = Path(context, "hung")
    if task == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    report_progress(Progress(1, 1, 0))
