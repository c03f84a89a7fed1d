"""Commands that build on one core do so in one process: two more for each of hundreds take minutes to start."""

import os


def take_one_core() -> None:
    """To be run by a child process before its program."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
