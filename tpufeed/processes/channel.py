"""The channel between a launcher and its child: a socket for pickled messages, and for descriptors of open files."""

import os
import pickle
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

# Between two parts of one message. A sender writes a message in one go, so it was stopped or hangs after so long, or
# the stream is off by some bytes and this message has no end.
STALL_SECONDS = 30.0
_LONGEST_SECONDS = 1e6  # more than that the system's calls do not take


class Channel(Connection):
    """One end of a channel. `recv` waits for a message as long as it takes, but for its end only `STALL_SECONDS`."""

    def recv(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: the other end has hung up, perhaps within a message.
            TimeoutError: a message has begun, and its rest does not come.
        """
        try:
            poll = select.poll()
            poll.register(self, select.POLLIN)
            poll.poll()
            message = self.recv_bytes()
        except BlockingIOError:  # what SO_RCVTIMEO ends in
            raise TimeoutError("a message has begun, and its rest does not come") from None
        except OSError as error:
            raise EOFError from error
        return pickle.loads(message)

    def send_descriptor(self, descriptor: int) -> None:
        """Send the descriptor of an open file.

        Not by `multiprocessing.reduction`: since Python 3.14 that waits for an answer on this same socket, and takes
        the first byte of any other message for one.
        """
        with self._socket() as end:
            socket.send_fds(end, [b"f"], [descriptor])

    def receive_descriptor(self) -> int:
        """Return the descriptor that the other end has sent.

        Raises:
            EOFError: the other end has hung up.
            OSError: something else came, or nothing.
        """
        with self._socket() as end:
            data, descriptors, _, _ = socket.recv_fds(end, 1, 1)
        if not data:
            raise EOFError
        if not descriptors:
            raise OSError("no descriptor came with an order: too many files are open, or the order is damaged")
        return descriptors[0]

    def hang_up(self) -> None:
        """End the conversation for all who hold this end or the other one: who listens wakes up."""
        # Of a duplicate, which nobody closes meanwhile: any thread may come here.
        with socket.socket(fileno=os.dup(self.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        """Lend the socket as what it is."""
        end = socket.socket(fileno=self.fileno())
        try:
            end.setblocking(True)  # whatever `socket.setdefaulttimeout` says
            yield end
        finally:
            end.detach()


def open_channel(patience_seconds: float | None) -> tuple[Channel, socket.socket]:
    """Return the launcher's end of a new channel, and the child's.

    Args:
        patience_seconds: how long the launcher's end waits for a child that does not read, or does not end a message;
            None is for ever, and `STALL_SECONDS`.
    """
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(True)  # whatever `socket.setdefaulttimeout` says
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _limit(STALL_SECONDS))
    if patience_seconds is not None:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _limit(patience_seconds))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _limit(min(patience_seconds, STALL_SECONDS)))
    return Channel(ours.detach()), theirs


def _limit(seconds: float) -> bytes:
    whole, rest = divmod(min(seconds, _LONGEST_SECONDS), 1)
    return struct.pack("ll", int(whole), int(rest * 1e6) or 1)  # to the kernel a limit of zero is none
