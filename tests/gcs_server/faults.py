"""Faults by script: which call gets which; and the log of what was asked and what was answered."""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.gcs_server.calls import Call

ACTIONS = {
    "status": "answer `status`, with `retry_after` seconds where given; nothing is stored",
    "reset": "reset the connection instead of an answer; nothing is stored, though a put's body was received",
    "reset_midway": "reset it in the middle of the body: of a put's, or else of the answer's",
    "lose_response": "carry it out (a put is stored), then reset the connection instead of the answer",
    "truncate": "the right Content-Length, a body that is closed early",
    "corrupt": "flip one bit of the body (a put's, or else the answer's), under the true hash header",
    "stall": "wait `seconds`, before the answer or after `after_bytes` of its body, then continue or close",
    "slow": "this request and its answer at `bytes_per_second`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One rule of the script.

    Attributes:
        action: a key of ACTIONS.
        method, operation, name, path: patterns as of fnmatch; the path with its query, as it came; the name is the
            object's. All must match.
        calls: which of the matching calls, from 1 on; None is every one.
        after_bytes: where in the body `truncate`, `corrupt`, `reset_midway` and `stall` strike; -1 is its middle, for
            `stall` before the answer.
        then: what follows a `stall`, "continue" or "close".
    """

    action: str
    method: str = "*"
    operation: str = "*"
    name: str = "*"
    path: str = "*"
    calls: Collection[int] | None = (1,)
    status: int = 503
    retry_after: float | None = None
    reason: str = ""
    message: str = ""
    after_bytes: int = -1
    seconds: float = 0.0
    then: str = "continue"
    bytes_per_second: float = 0.0

    def matches(self, call: Call) -> bool:
        return (
            fnmatchcase(call.request.method, self.method)
            and fnmatchcase(call.operation, self.operation)
            and fnmatchcase(call.name, self.name)
            and fnmatchcase(call.request.target, self.path)
        )

    def cut(self, size: int) -> int:
        """Where in a body of `size` bytes it strikes."""
        return size // 2 if self.after_bytes < 0 else min(self.after_bytes, size)


class FaultScript:
    """The rules, and how many calls each has matched. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[tuple[Fault, list[int]]] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._rules.append((fault, [0]))

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def fire(self, call: Call) -> Fault | None:
        """The fault for this call: of the first rule whose turn it is. Every rule that matches counts the call."""
        if not self._rules:
            return None
        fired = None
        with self._lock:
            for fault, count in self._rules:
                if fault.matches(call):
                    count[0] += 1
                    if fired is None and (fault.calls is None or count[0] in fault.calls):
                        fired = fault
        return fired


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
