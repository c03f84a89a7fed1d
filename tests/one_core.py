"""Keep commands to one core, so that they build in one process: to start more for hundreds of them takes minutes."""

import os


def take_one_core() -> None:
    """Limit this process to one core; a child runs it before its program."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
