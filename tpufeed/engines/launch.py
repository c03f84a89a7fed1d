"""Starting worker processes, afresh: nothing is forked, and the user's `__main__` is not imported again."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

# A worker is a core's worth: libraries that would start a thread a core have to be told, before they are imported.
_ONE_THREAD = dict.fromkeys(("OPENCV_FOR_THREADS_NUM", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_WATCH_SECONDS = 1.0


def launch_worker(
    entry: str, descriptors: Sequence[int] = (), variables: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], Connection]:
    """A worker process that imports the module of `entry` and waits for its job, with our end of its socket.

    When this process dies, its end closes and the worker leaves. A fork of this process may keep that end open: so the
    worker also watches the process itself.

    Args:
        entry: "module:function".
        descriptors: that are open there under the same numbers; made after `fill_streams`.
        variables: of its environment, beside this process'.
    """
    fill_streams()
    ours, theirs = socket.socketpair()
    environment = {**_ONE_THREAD, **os.environ, **(variables or {})}
    environment["PYTHONPATH"] = search_path()
    with theirs, _blocked_sigint():
        try:
            # -P: the same modules as here, never those that happen to lie in the working folder.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tpufeed.engines.worker", str(theirs.fileno()), entry, str(os.getpid())],
                pass_fds=[theirs.fileno(), *descriptors],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except BaseException:
            ours.close()
            raise
    return process, Connection(ours.detach())


def search_path() -> str:
    """PYTHONPATH for a process started with -P: where modules are found here."""
    return os.pathsep.join(path or "." for path in sys.path)


@contextmanager
def _blocked_sigint() -> Iterator[None]:
    """A process that starts here is deaf to Ctrl-C until it has said what that should do."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fill_streams() -> None:
    """Open /dev/null as each standard stream that is closed, for as long as this process lives.

    Its number would go to the next file or socket that is opened. A worker would lose that, as it has streams of its
    own under these numbers, and what a library prints would end up in it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def wait_for_end(launcher: int) -> None:
    """Return when the process of this id, which has started this one, is dead. For a daemon thread.

    A pipe or socket between the two says so at once, but not where the launcher has forked: that fork holds its end
    open. PR_SET_PDEATHSIG would come when the launcher's *thread* ends that has started this process.
    """
    parent = os.getppid()  # the launcher, unless a script that starts Python stays between the two
    while os.getppid() == parent and _lives(launcher):
        time.sleep(_WATCH_SECONDS)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
