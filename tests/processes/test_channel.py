"""The channel of launcher and child: what a damaged or silent stream ends in, and descriptors of files."""

import os
import pickle
import socket
import struct
import threading
from pathlib import Path

import pytest

from tpufeed.processes.channel import Channel, open_channel


@pytest.fixture
def ends():
    """Both ends; the launcher's waits half a second for the rest of a message."""
    ours, theirs = open_channel(0.5)
    with ours, Channel(theirs.detach()) as child:
        yield ours, child


def test_a_message_is_waited_for_as_long_as_it_takes(ends):
    ours, child = ends
    threading.Timer(1.0, child.send, ["late"]).start()
    assert ours.recv() == "late"


@pytest.mark.parametrize("seconds", [1e-3, 5.0])
def test_a_default_timeout_of_sockets_is_not_taken(seconds):
    """The program that trains may have called `socket.setdefaulttimeout`."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        ours, theirs = open_channel(None)
        with ours, Channel(theirs.detach()) as child, Path(os.devnull).open() as file:
            threading.Timer(0.2, child.send, [bytes(1 << 20)]).start()
            assert len(ours.recv()) == 1 << 20
            child.send_descriptor(file.fileno())
            os.close(ours.receive_descriptor())
            threading.Timer(0.2, child.send, ["late"]).start()
            assert ours.recv() == "late"
    finally:
        socket.setdefaulttimeout(before)


WHOLE = pickle.dumps(list(range(100)))
HEADER = struct.pack("!i", len(WHOLE))


@pytest.mark.parametrize("cut", [1, len(HEADER), len(HEADER) + 1, len(HEADER) + len(WHOLE) - 1])
@pytest.mark.parametrize("closed", [False, True])
def test_a_message_that_breaks_off(ends, cut, closed):
    ours, child = ends
    os.write(child.fileno(), (HEADER + WHOLE)[:cut])
    if closed:
        child.close()
    with pytest.raises(EOFError if closed else TimeoutError):
        ours.recv()


def test_a_stream_that_is_off_by_one_byte(ends):
    ours, child = ends
    os.write(child.fileno(), (HEADER + WHOLE)[1:])
    with pytest.raises(TimeoutError):
        ours.recv()


def test_a_descriptor_crosses_between_messages_of_both(ends, tmp_path):
    ours, child = ends
    child.send("before")
    with (tmp_path / "file").open("w") as file:
        ours.send("order")
        ours.send_descriptor(file.fileno())
    child.send("after")
    assert child.recv() == "order"
    with os.fdopen(child.receive_descriptor(), "w") as file:
        file.write("here")
    assert (tmp_path / "file").read_text() == "here"
    assert [ours.recv(), ours.recv()] == ["before", "after"]


@pytest.mark.parametrize(("sent", "kind"), [(b"f", OSError), (b"", OSError), (None, EOFError)])
def test_a_descriptor_that_does_not_come(ends, sent, kind):
    ours, child = ends
    if sent is None:
        child.close()
    else:
        os.write(child.fileno(), sent)
    with pytest.raises(kind):
        ours.receive_descriptor()
