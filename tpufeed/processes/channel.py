"""The channel between a launcher and its child: a socket for pickled messages and for descriptors of open files."""

import os
import pickle
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

# Limit between two parts of a message. A sender writes a message in one go, so after this time it was stopped or hangs,
# or the stream is off by some bytes and this message has no end.
STALL_SECONDS = 30.0
_LONGEST_SECONDS = 1e6  # system calls do not accept more


class Channel(Connection):
    """One end of a channel. `recv` waits forever for a message, but only `STALL_SECONDS` for the rest of one."""

    def recv(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: the other end has hung up, perhaps within a message.
            TimeoutError: the rest of a message does not come.
        """
        try:
            poll = select.poll()
            poll.register(self, select.POLLIN)
            poll.poll()
            message = self.recv_bytes()
        except BlockingIOError:  # SO_RCVTIMEO has expired
            raise TimeoutError("the rest of a message does not come") from None
        except OSError as error:
            raise EOFError from error
        return pickle.loads(message)

    def send_descriptor(self, descriptor: int) -> None:
        """Send the descriptor of an open file.

        `multiprocessing.reduction` is not used: since Python 3.14 it waits for an answer on the same socket, and takes
        the first byte of any other message for the answer.
        """
        with self._socket() as end:
            socket.send_fds(end, [b"f"], [descriptor])

    def receive_descriptor(self) -> int:
        """Return the descriptor that the other end has sent.

        Raises:
            EOFError: the other end has hung up.
            OSError: no descriptor came.
        """
        with self._socket() as end:
            data, descriptors, _, _ = socket.recv_fds(end, 1, 1)
        if not data:
            raise EOFError
        if not descriptors:
            raise OSError("an order came without a descriptor: too many files are open, or the order is damaged")
        return descriptors[0]

    def hang_up(self) -> None:
        """Shut the channel down for all processes that hold either end, and wake up listeners."""
        # Use a duplicate: no other thread can close it in between.
        with socket.socket(fileno=os.dup(self.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        """Lend the connection as a socket."""
        end = socket.socket(fileno=self.fileno())
        try:
            end.setblocking(True)  # regardless of `socket.setdefaulttimeout`
            yield end
        finally:
            end.detach()


def open_channel(patience_seconds: float | None) -> tuple[Channel, socket.socket]:
    """Return the launcher's end of a new channel, and the child's.

    Args:
        patience_seconds: how long the launcher's end waits for a child that does not read, or does not finish a
            message. None: forever, and `STALL_SECONDS`.
    """
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(True)  # regardless of `socket.setdefaulttimeout`
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _limit(STALL_SECONDS))
    if patience_seconds is not None:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _limit(patience_seconds))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _limit(min(patience_seconds, STALL_SECONDS)))
    return Channel(ours.detach()), theirs


def _limit(seconds: float) -> bytes:
    whole, rest = divmod(min(seconds, _LONGEST_SECONDS), 1)
    return struct.pack("ll", int(whole), int(rest * 1e6) or 1)  # for the kernel, zero means no limit
