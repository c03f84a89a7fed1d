"""Where ranks that are threads of one process meet: torch_xla's CPU devices, whose collectives do not."""

import threading
from dataclasses import dataclass, field

from tpufeed.errors import LoaderError

_PATIENCE_SECONDS = 300.0


@dataclass(slots=True)
class _Round:
    """One exchange: it is over when all have been given everything."""

    gate: threading.Barrier
    payloads: dict[int, bytes] = field(default_factory=dict)


class Meeting:
    """Ranks exchange payloads here in turn, as in a collective: the first call of each meets the first of the others.

    Args:
        patience_seconds: how long a rank waits for the others.
    """

    def __init__(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._open: _Round | None = None

    def exchange(self, payload: bytes, rank: int, size: int) -> list[bytes]:
        """What every rank brought, by rank. Raises LoaderError where one does not come."""
        with self._lock:
            meeting = self._open
            if meeting is None or meeting.gate.broken or meeting.gate.parties != size:
                meeting = self._open = _Round(threading.Barrier(size))
            meeting.payloads[rank] = payload
            if len(meeting.payloads) == size:
                self._open = None
        try:
            meeting.gate.wait(self._patience_seconds)
        except threading.BrokenBarrierError:
            raise LoaderError(
                f"of {size} ranks only {sorted(meeting.payloads)} came to iterate within {self._patience_seconds:g} s; "
                "iterate the loader on every rank, or give check_ranks=False to one that only some iterate"
            ) from None
        return [meeting.payloads[other] for other in range(size)]
