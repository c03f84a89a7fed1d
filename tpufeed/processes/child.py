"""Child processes: how one starts, talks with its launcher and ends, and how the launcher reports one that has died.

A child is a new interpreter, or a fork of a `ForkServer`, which is one. The launcher itself is never forked, and the
user's `__main__` is not imported again. Launcher and child talk over a socket pair, in pickled messages. The code that
runs in the child is in `child_main`.
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

# A worker has one core: libraries that would start one thread per core have to be told before they are imported.
_ONE_THREAD = dict.fromkeys(("OPENCV_FOR_THREADS_NUM", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# torch_tpu sets this to 1 for its children. A worker that imports torch, for an op of the user, would open the TPU.
_NO_DEVICE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
_COMMAND = (sys.executable, "-P", "-m", "tpufeed.processes.child_main")
_KILLED_SECONDS = 5.0  # for a child that was killed, or has closed its end, to be gone, dumping its core perhaps
_OUTPUT_BYTES = 2000
# Sent to all processes though only the launcher should act: by a machine that shuts down, Slurm (--signal), a terminal.
LAUNCHERS_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class ChildDiedError(Exception):  # internal: the caller says what the child was for
    """A child has closed its end: it has ended, or is about to."""


class Failure(NamedTuple):
    """An error on its way to the launcher: the name of a class of `tpufeed.errors`, and a text.

    The error itself could not be sent: the arguments of some errors are not their text, and a traceback has no pickle.
    """

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException, what: str = "") -> "Failure":
        """Return an error as a Failure. The text of an error that is not tpufeed's is `what` and its traceback."""
        if isinstance(error, TpufeedError):
            kind = next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
            return cls(kind.__name__, str(error))
        text = failure_message(error) if isinstance(error, Exception) else f"it was told to end, by {error!r}"
        return cls(LoaderError.__name__, f"{what}{text}")

    def error(self) -> TpufeedError:
        """Return the error, to be raised by the launcher."""
        kind: type[TpufeedError] = getattr(errors, self.kind)
        error = kind.__new__(kind)  # without its constructor, which may take other arguments
        error.args = (self.text,)
        return error


class Signal(NamedTuple):
    """Order to a fork server: send a signal to one of its forks."""

    fork: int
    number: int


class Forked(NamedTuple):
    """A fork server's news of one of its forks: that it has begun, or how it has ended."""

    fork: int
    pid: int
    code: int | None


class Child:
    """A child process, and the launcher's end of its socket.

    It imports the module of `entry` at once, and waits until `begin` tells it what to run. When this process dies, its
    end of the socket closes and the child leaves. A fork of this process may keep that end open, so the child also
    watches the process itself.

    Args:
        entry: "module:function".
        descriptors: files that are open in the child under the same numbers; opened after `fill_streams`.
        variables: added to the environment of this process.
        patience_seconds: how long `send` waits for a child that does not read; None is for ever. `receive` waits no
            longer for the rest of a message.
        apart: give it a new process group, so that all it starts ends with it, and a file to print to.
        one_thread: libraries there start no threads, and torch loads no backend of a device.
    """

    process: "subprocess.Popen[bytes] | ForkedProcess"
    _words: ClassVar[tuple[str, ...]] = ()
    _apart = False
    _output: IO[bytes] | None = None
    _garbled = ""  # how the stream of its messages has broken off

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
            # For -P: the same modules as here, never those that happen to lie in the working folder.
            # Python passes over entries that are no text, as a Path.
            environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path if isinstance(path, str))
            # A process that starts here is deaf to these until it has said what they should do.
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
            # No folder for temporary files is needed: a container may have none.
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
        """Return the descriptor of our end, to wait for messages."""
        return self._channel.fileno()

    def begin(self, entry: str, context: Any) -> None:
        """Make it run a function "module:function", once, as `function(context, connection)`; then it ends.

        `receive` returns what the function sends. When the launcher ends, the function gets EOFError.
        """
        self.send((entry, context))

    def send(self, message: Any, descriptor: int | None = None) -> None:
        """Send a message, and then a descriptor. If the child is dead, that shows in `receive`, not here.

        Raises:
            TimeoutError: it has not read for `patience_seconds`.
        """
        try:
            self._channel.send(message)
            if descriptor is not None:
                self._channel.send_descriptor(descriptor)
        # SO_SNDTIMEO ends in EAGAIN. A part of the message may have gone, so no other can follow it.
        except BlockingIOError:
            self.hang_up()
            raise TimeoutError from None
        except OSError:
            return
        except BaseException:  # Ctrl-C for example: half a message has gone, and no other can follow it
            self.hang_up()
            raise

    def receive(self) -> Any:
        """Return its next message.

        Raises:
            ChildDiedError: there will be none.
            TpufeedError: what it has failed with, if it has sent that as a `Failure`.
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
            self.hang_up()  # no other message can be made out
            raise ChildDiedError from error

    def ending(self, seconds: float = _KILLED_SECONDS) -> tuple[int | None, str]:
        """Return how a child that will send nothing more has ended: its exit code, and the same in words.

        The code is None for a child that is still alive after `seconds`, or has stopped within a message.
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
        """Return the end of what a child that is `apart` has printed."""
        assert self._output is not None, "others print where their launcher prints"
        size = os.fstat(self._output.fileno()).st_size
        end = os.pread(self._output.fileno(), _OUTPUT_BYTES, max(0, size - _OUTPUT_BYTES))
        return end.decode(errors="replace").strip()

    def wait(self, seconds: float) -> int | None:
        """Return its exit code, or None if it has not ended after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(max(0.0, seconds))
        return None

    def hang_up(self) -> None:
        """Shut the socket down for all who hold our end open: the child leaves, and a listening thread wakes up."""
        with suppress(OSError, TypeError):  # it may be closed meanwhile
            self._channel.hang_up()

    def close(self) -> None:
        """Close our end, and the file of its output."""
        self._channel.close()
        if self._output is not None:
            self._output.close()

    def kill(self) -> None:
        """Kill it, and if it is `apart` all that it has started. A child that waits for a dead drive dies later."""
        if self._apart:
            with suppress(ProcessLookupError, PermissionError):
                # As leader of a session of its own it has given its number to the group.
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()


class ForkServer(Child):
    """A child that imports once what its forks need. A `Fork` is a child, too.

    Forks start in a tenth of the time of a new interpreter, and share the memory of what the server has imported and
    prepared. They are killed when the server ends. It has no threads, so that no fork inherits a lock that is held. It
    and its forks survive signals that are for the launcher. If `prepare` fails, each fork's `receive` raises the error.
    Not thread-safe.

    Args:
        entry: that of the children.
        prepare: "module:function", called there once, as `function(context)`, before it forks.
        context: for that.
        descriptors: as for `Child`.
        variables: as for `Child`.
        patience_seconds: as for `Child`.
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
        """Fork a child that listens at this end of a socket. If it is dead, that shows in its `receive`, not here."""
        self._forks += 1
        self.send(self._forks, end.fileno())
        return ForkedProcess(self, self._forks)

    def pid(self, fork: int) -> int:
        """Return the process id of a fork, waiting for news of it; 0 if it could not begin."""
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
        except ChildDiedError:  # its forks are killed with it
            return self.wait(deadline - time.monotonic())
        return self._codes[fork]

    def send_signal(self, fork: int, number: int) -> None:
        """Send a signal to a fork, unless it has ended: only the server knows that its process id is still its own."""
        with suppress(TimeoutError):
            self.send(Signal(fork, number))

    def _hear(self, seconds: float) -> bool:
        """Take in news of a fork; return false if there are none after `seconds`."""
        try:
            if not self._channel.poll(seconds):  # after Ctrl-C here the connection is sound, and `kill` can use it
                return False
        except OSError:
            raise ChildDiedError from None
        try:
            news: Forked = self._next_message()
        except ChildDiedError:
            raise
        except BaseException:  # Ctrl-C for example, within a message: no other can be made out
            self.close()
            raise
        self._pids[news.fork] = news.pid
        if news.code is not None:
            self._codes[news.fork] = news.code
        return True


class Fork(Child):
    """A child process that is a fork of a server's. It ends with the server at the latest.

    Args:
        server: forks it.
        patience_seconds: as for `Child`.
    """

    def __init__(self, server: ForkServer, patience_seconds: float | None = None) -> None:
        self._launch(server.fork, patience_seconds)


class ForkedProcess:
    """A process that a `ForkServer` has forked; its methods are those of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, number: int) -> None:
        self._server = server
        self._number = number

    @property
    def pid(self) -> int:
        """Process id; 0 if it could not begin."""
        return self._server.pid(self._number)

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises TimeoutExpired."""
        code = self._server.wait_for(self._number, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a fork", timeout)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self._server.send_signal(self._number, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self._server.send_signal(self._number, signal.SIGKILL)


def stop_all(children: Sequence[Child], patience_seconds: float, terminate: bool = False) -> None:
    """End children, all at the same time.

    Args:
        children: they may be dead already.
        patience_seconds: time to leave by themselves; then they are killed.
        terminate: send SIGTERM as well, which interrupts a child in the middle of its work.
    """
    for child in children:
        # Closing alone shows in no child as long as a fork of this process has the same end.
        child.hang_up()
        child.close()
        if terminate:
            child.process.terminate()
    try:
        _wait_for_all(children, patience_seconds)
    finally:  # also if Ctrl-C comes again
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
        f"the system has no room for one more worker process: {error.strerror}. Take fewer, or raise the limit of "
        "processes (`ulimit -u`, or pids of the container) or of memory"
    )


def fill_streams() -> None:
    """Open /dev/null as each standard stream that is closed, for as long as this process lives.

    Its number would go to the next file or socket that is opened. A child would lose that, as it has streams of its
    own under these numbers, and what a library prints would end up in it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
