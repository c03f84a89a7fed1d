"""Ranges of objects by bare sockets: what a server and a machine can move, for staging.py to compare with.

Without checks, retries and a client library: a thread a connection, and one system call for the body of each range.
"""

import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

CONNECTIONS, RANGE_BYTES = 16, 8 << 20  # as a Stage has them


def read_all(url: str, objects: Sequence[tuple[str, int]], folder: Path | None) -> float:
    """MB/s over all ranges of the objects, (BUCKET/NAME, size) each; kept in new files in `folder`, or nowhere."""
    ranges: queue.SimpleQueue[tuple[str, int, int, int]] = queue.SimpleQueue()
    files = []
    for name, size in objects:
        bucket, _, key = name.partition("/")
        path = f"/download/storage/v1/b/{bucket}/o/{quote(key, safe='')}?alt=media"
        files.append(-1 if folder is None else os.open(folder / key.replace("/", "-"), os.O_CREAT | os.O_RDWR))
        for start in range(0, size, RANGE_BYTES):
            ranges.put((path, start, min(start + RANGE_BYTES, size), files[-1]))
    threads = [threading.Thread(target=_read, args=(url.removeprefix("http://"), ranges)) for _ in range(CONNECTIONS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    for file in files:
        if file >= 0:
            os.close(file)
    return sum(size for _, size in objects) / seconds / 1e6


def _read(address: str, ranges: "queue.SimpleQueue[tuple[str, int, int, int]]") -> None:
    """Ranges over one connection, until there are none left."""
    host, _, port = address.partition(":")
    buffer = memoryview(bytearray(RANGE_BYTES))
    with socket.create_connection((host, int(port))) as connection:
        while True:
            try:
                path, start, stop, file = ranges.get_nowait()
            except queue.Empty:
                return
            head = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nRange: bytes={start}-{stop - 1}\r\n\r\n"
            connection.sendall(head.encode())
            body = buffer[: stop - start]
            _fill(connection, body)
            if file >= 0:
                os.pwrite(file, body, start)


def _fill(connection: socket.socket, body: memoryview) -> None:
    """Skip the answer's head, and receive its body."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(16 << 10)
        if not piece:
            raise ConnectionError(f"the server hung up after {head!r}")
        head += piece
    at = head.index(b"\r\n\r\n") + 4
    done = len(head) - at
    body[:done] = head[at:]
    while done < len(body):
        count = connection.recv_into(body[done:], len(body) - done, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError(f"the server hung up after {done} of {len(body)} bytes")
        done += count
