"""Child processes: how a child starts, talks with its launcher and ends, and how its death is reported.

A child is a new interpreter, or a fork of a `ForkServer`, itself a new interpreter. The launcher itself is never
forked, and the user's `__main__` is not imported again. Launcher and child exchange pickled messages over a socket
pair. The code that runs in the child is in `child_main`.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, ClassVar, NamedTuple

from tpufeed import errors
from tpufeed.errors import LoaderError, TpufeedError
from tpufeed.processes.channel import open_channel
from tpufeed.processes.limits import failure_message

# A worker has one core. Libraries that would start one thread per core read these variables when they are imported.
_ONE_THREAD = dict.fromkeys(("OPENCV_FOR_THREADS_NUM", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# torch_tpu sets this to 1 for its children. A worker that imports torch for an op of the user would open the TPU.
_NO_DEVICE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
_COMMAND = (sys.executable, "-P", "-m", "tpufeed.processes.child_main")
_KILLED_SECONDS = 5.0  # for a child that was killed or has closed its end to exit: it may dump core
_OUTPUT_BYTES = 2000
# A shutdown, Slurm (--signal) or a terminal sends these to all processes, but only the launcher should act on them.
LAUNCHERS_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class ChildDiedError(Exception):  # internal: the caller says what the child was for
    """A child has closed its end: it has ended, or is about to end."""


class Failure(NamedTuple):
    """An error on its way to the launcher: the name of a class of `tpufeed.errors`, and a text.

    The error itself cannot be sent: some errors take other arguments than their text, and tracebacks cannot be pickled.
    """

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException, what: str = "") -> "Failure":
        """Return the Failure for an error. If the error is not tpufeed's, its text is `what` and its traceback."""
        if isinstance(error, TpufeedError):
            kind = next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
            return cls(kind.__name__, str(error))
        text = failure_message(error) if isinstance(error, Exception) else f"it was told to end, by {error!r}"
        return cls(LoaderError.__name__, f"{what}{text}")

    def error(self) -> TpufeedError:
        """Return the error for the launcher to raise."""
        kind: type[TpufeedError] = getattr(errors, self.kind)
        error = kind.__new__(kind)  # bypass the constructor, which may take other arguments
        error.args = (self.text,)
        return error


class Signal(NamedTuple):
    """An order to a fork server: send a signal to one of its forks."""

    fork: int
    number: int


class Forked(NamedTuple):
    """A fork server's message about one of its forks: it has started, or it has ended with `code`."""

    fork: int
    pid: int
    code: int | None


class Child:
    """A child process, and the launcher's end of its socket.

    The child imports the module of `entry` at once, and waits until `begin` tells it what to run. When this process
    dies, its end of the socket closes and the child exits. A fork of this process may keep that end open, so the child
    also watches the process itself.

    Args:
        entry: "module:function".
        descriptors: files that are open in the child under the same numbers. Open them after `fill_streams`.
        variables: environment variables to add to those of this process.
        patience_seconds: how long `send` waits for a child that does not read. None: forever. `receive` waits no
            longer than this for the rest of a message.
        apart: give the child a new process group, so that all its children end with it, and a file to print to.
        one_thread: libraries in the child start no threads, and torch loads no backend of a device.
    """

    process: "subprocess.Popen[bytes] | ForkedProcess"
    _words: ClassVar[tuple[str, ...]] = ()
    _apart = False
    _output: IO[bytes] | None = None
    _garbled = ""  # how its stream of messages broke off

    def __init__(
        self,
        entry: str,
        *,
        descriptors: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
        patience_seconds: float | None = None,
        apart: bool = False,
        one_thread: bool = True,
    ) -> None:
        def start(end: socket.socket) -> "subprocess.Popen[bytes]":
            # The user's own numbers of threads win over ours.
            ours_first, ours_last = (_ONE_THREAD, _NO_DEVICE) if one_thread else ({}, {})
            environment = {**ours_first, **os.environ, **ours_last, **(variables or {})}
            # With -P the child finds the same modules as this process, never those in the current folder.
            # Python ignores entries that are not strings, such as a Path.
            environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path if isinstance(path, str))
            # These signals stay blocked in the child until it has installed its handlers.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *LAUNCHERS_SIGNALS})
            try:
                return subprocess.Popen(
                    [*_COMMAND, str(end.fileno()), entry, str(os.getpid()), *self._words],
                    pass_fds=[end.fileno(), *descriptors],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    start_new_session=apart,
                    env=environment,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

        fill_streams()
        if apart:
            # This needs no folder for temporary files: a container may have none.
            self._output = os.fdopen(os.memfd_create("tpufeed-worker-output"), "w+b")
        self._apart = apart
        self._launch(start, patience_seconds)

    def _launch(
        self,
        start: "Callable[[socket.socket], subprocess.Popen[bytes] | ForkedProcess]",
        patience_seconds: float | None,
    ) -> None:
        self._channel, theirs = open_channel(patience_seconds)
        try:
            self.process = start(theirs)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM):
                raise LoaderError(no_room(error)) from error
            raise
        finally:
            theirs.close()

    def fileno(self) -> int:
        """Return the descriptor of our end, for waiting for messages."""
        return self._channel.fileno()

    def begin(self, entry: str, context: Any) -> None:
        """Let the child call `function(context, connection)` of "module:function" once, and then end.

        `receive` returns what the function sends. When the launcher ends, the function gets EOFError.
        """
        self.send((entry, context))

    def send(self, message: Any, descriptor: int | None = None) -> None:
        """Send a message, and then a descriptor. If the child is dead, `receive` raises, not this.

        Raises:
            TimeoutError: the child has not read for `patience_seconds`.
        """
        try:
            self._channel.send(message)
            if descriptor is not None:
                self._channel.send_descriptor(descriptor)
        # SO_SNDTIMEO ends with EAGAIN. A part of the message may have been sent, so no other can follow it.
        except BlockingIOError:
            self.hang_up()
            raise TimeoutError from None
        except OSError:
            return
        except BaseException:  # e.g. Ctrl-C: half a message has been sent, and no other can follow it
            self.hang_up()
            raise

    def receive(self) -> Any:
        """Return the child's next message.

        Raises:
            ChildDiedError: there will be no more messages.
            TpufeedError: the child's error, if it has sent a `Failure`.
        """
        message = self._next_message()
        if isinstance(message, Failure):
            raise message.error()
        return message

    def _next_message(self) -> Any:
        try:
            return self._channel.recv()
        except EOFError:
            raise ChildDiedError from None
        except Exception as error:  # pickle raises anything
            broken = isinstance(error, TimeoutError)
            self._garbled = "in the middle of a message" if broken else f"with a message that is damaged ({error!r})"
            self.hang_up()  # the next messages cannot be read
            raise ChildDiedError from error

    def ending(self, seconds: float = _KILLED_SECONDS) -> tuple[int | None, str]:
        """Return how a child that sends nothing more has ended: its exit code, and a description.

        The code is None if the child is still alive after `seconds`, or has stopped within a message.
        """
        if self._garbled:
            return None, self._garbled
        code = self.wait(seconds)
        if code is None:
            return None, "with its socket closed"
        if code >= 0:
            return code, f"with exit code {code}"
        names = {each.value: each.name for each in signal.Signals}
        return code, f"by {names.get(-code, f'signal {-code}')}"

    def output(self) -> str:
        """Return the end of the output of a child that is `apart`."""
        assert self._output is not None, "other children print to their launcher's output"
        size = os.fstat(self._output.fileno()).st_size
        end = os.pread(self._output.fileno(), _OUTPUT_BYTES, max(0, size - _OUTPUT_BYTES))
        return end.decode(errors="replace").strip()

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the child has not ended after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(max(0.0, seconds))
        return None

    def hang_up(self) -> None:
        """Shut the socket down, even if others hold our end: the child exits, and a thread that listens wakes up."""
        with suppress(OSError, TypeError):  # it may have been closed
            self._channel.hang_up()

    def close(self) -> None:
        """Close our end, and the file of the child's output."""
        self._channel.close()
        if self._output is not None:
            self._output.close()

    def kill(self) -> None:
        """Kill the child and, if it is `apart`, all its children. A child that waits for a dead drive dies later."""
        if self._apart:
            with suppress(ProcessLookupError, PermissionError):
                # It leads its own session, so its process group has its number.
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()


class ForkServer(Child):
    """A child that imports once what its forks need. A `Fork` is a child, too.

    A fork starts in a tenth of the time of a new interpreter, and shares the memory of all that the server has imported
    and prepared. Forks are killed when the server ends. The server has no threads, so no fork inherits a locked lock.
    Server and forks ignore signals that are meant for the launcher. If `prepare` fails, each fork's `receive` raises
    the error. Not thread-safe.

    Args:
        entry: entry of the forks, as in `Child`.
        prepare: "module:function", called once in the server before it forks, as `function(context)`.
        context: argument of `prepare`.
        descriptors: as in `Child`.
        variables: as in `Child`.
        patience_seconds: as in `Child`.
    """

    _words = ("forks",)

    def __init__(
        self,
        entry: str,
        prepare: str,
        context: Any,
        *,
        descriptors: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        super().__init__(entry, descriptors=descriptors, variables=variables, patience_seconds=patience_seconds)
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._forks = 0
        try:
            self.begin(prepare, context)
        except BaseException:
            stop_all([self], 0.0)
            raise

    def fork(self, end: socket.socket) -> "ForkedProcess":
        """Fork a child that listens at this end of a socket. If the server is dead, the fork's `receive` raises."""
        self._forks += 1
        self.send(self._forks, end.fileno())
        return ForkedProcess(self, self._forks)

    def pid(self, fork: int) -> int:
        """Return the process id of a fork, after waiting for its start, or 0 if it could not start."""
        with suppress(ChildDiedError):
            while fork not in self._pids and self._hear(_KILLED_SECONDS):
                pass
        return self._pids.get(fork, 0)

    def wait_for(self, fork: int, seconds: float) -> int | None:
        """Return the exit code of a fork, or None if it has not ended after `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            while fork not in self._codes:
                if not self._hear(max(0.0, deadline - time.monotonic())):
                    return None
        except ChildDiedError:  # the forks are killed with the server
            return self.wait(deadline - time.monotonic())
        return self._codes[fork]

    def send_signal(self, fork: int, number: int) -> None:
        """Send a signal to a fork, unless it has ended: only the server knows if the process id is still the fork's."""
        with suppress(TimeoutError):
            self.send(Signal(fork, number))

    def _hear(self, seconds: float) -> bool:
        """Receive a message about a fork, and return False without one after `seconds`."""
        try:
            if not self._channel.poll(seconds):  # Ctrl-C here leaves the connection intact, and `kill` can use it
                return False
        except OSError:
            raise ChildDiedError from None
        try:
            news: Forked = self._next_message()
        except ChildDiedError:
            raise
        except BaseException:  # e.g. Ctrl-C within a message: the next messages cannot be read
            self.close()
            raise
        self._pids[news.fork] = news.pid
        if news.code is not None:
            self._codes[news.fork] = news.code
        return True


class Fork(Child):
    """A child process forked by a server. It ends when the server does, or earlier.

    Args:
        server: the server that forks it.
        patience_seconds: as in `Child`.
    """

    def __init__(self, server: ForkServer, patience_seconds: float | None = None) -> None:
        self._launch(server.fork, patience_seconds)


class ForkedProcess:
    """A process that a `ForkServer` has forked, with the methods of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, number: int) -> None:
        self._server = server
        self._number = number

    @property
    def pid(self) -> int:
        """Process id, or 0 if the process could not start."""
        return self._server.pid(self._number)

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises TimeoutExpired."""
        code = self._server.wait_for(self._number, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a fork", timeout)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        self._server.send_signal(self._number, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self._server.send_signal(self._number, signal.SIGKILL)


def stop_all(children: Sequence[Child], patience_seconds: float, terminate: bool = False) -> None:
    """End children, all at the same time.

    Args:
        children: children to end. They may already be dead.
        patience_seconds: time that they have to exit by themselves before they are killed.
        terminate: also send SIGTERM, to interrupt a child in the middle of its work.
    """
    try:
        for child in children:
            # A child does not notice that our end closes if a fork of this process also holds it, so hang up first.
            child.hang_up()
            child.close()
            if terminate:
                child.process.terminate()
        _wait_for_all(children, patience_seconds)
    finally:  # even if Ctrl-C comes again
        for child in children:
            child.kill()
    _wait_for_all(children, _KILLED_SECONDS)


def _wait_for_all(children: Sequence[Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for child in children:
        child.wait(deadline - time.monotonic())


def no_room(error: OSError) -> str:
    """Return the message for a process that could not be started."""
    return (
        f"the system has no room for one more worker process: {error.strerror}. Use fewer, or raise the limit of "
        "processes (`ulimit -u`, or pids of the container) or of memory"
    )


def fill_streams() -> None:
    """Open /dev/null for each standard stream that is closed, for the lifetime of this process.

    Otherwise the next file or socket that is opened would get its number. A child could not inherit that file, because
    it has its own streams under these numbers, and libraries would print into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
