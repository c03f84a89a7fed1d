"""The log: what was asked and what was answered."""

import threading
from dataclasses import dataclass


@dataclass(slots=True)
class Record:
    """One request; it stands in the log before the first byte of its answer is sent.

    Attributes:
        operation: as in `Call`.
        range: the Range header of a read, the Content-Range of an upload.
        generation: of the object in the answer, "" where there is none.
        status: 0 where the connection was reset or closed instead of an answer.
        received_bytes: of the request's body.
        sent_bytes: of the answer's body, less where the client or a fault ended it early.
        fault: the action that fired, or "".
        seconds: time.monotonic() when the request's head was read.
        connection: a number; equal for requests over one connection.
    """

    method: str
    operation: str
    target: str
    bucket: str
    name: str
    range: str
    seconds: float
    connection: int
    generation: str = ""
    status: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    fault: str = ""


class Log:
    """Records in the order of their answers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        with self._lock:
            self._records.append(record)

    def records(self) -> list[Record]:
        with self._lock:
            return list(self._records)

    def clear(self) -> None:
        with self._lock:
            self._records.clear()
