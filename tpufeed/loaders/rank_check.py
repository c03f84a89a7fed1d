"""Check that all ranks iterate the same epoch. Without this check a pod whose ranks disagree hangs."""

import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self, TypeVar

from tpufeed.errors import LoaderError

Begun = TypeVar("Begun")

_NUMBERS_BYTES = 256  # of JSON: all but the texts
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class EpochSpec:
    """Epoch that a rank is about to iterate; picklable, and exchanged between all ranks.

    Attributes:
        rank: whose it is.
        batches: of the epoch.
        batch_size: samples in a batch, or None where that is not known.
        order: what has to be the same everywhere for the ranks' shares to fit together, as text; "" where unknown.
        error: why this rank cannot begin, or "".
    """

    rank: int
    batches: int
    batch_size: int | None = None
    order: str = ""
    error: str = ""

    def packed(self, size: int | None = None) -> bytes:
        """Return the spec as JSON, of just `size` bytes where that is given: texts that do not fit are cut.

        Each text has a room of its own, so that equal texts stay equal whatever else the specs say.
        """
        spec = self
        if size is not None:
            room = (size - _NUMBERS_BYTES) // 2
            spec = replace(self, order=_cut(self.order, room), error=_cut(self.error, room))
        return json.dumps(asdict(spec)).encode().ljust(size or 0)

    @classmethod
    def unpacked(cls, payload: bytes | str) -> Self:
        """Return the spec of a payload."""
        return cls(**json.loads(payload))


def begin_together(
    exchange: Callable[[EpochSpec], Sequence[EpochSpec]], rank: int, begin: Callable[[], tuple[EpochSpec, Begun]]
) -> Begun:
    """Return what `begin` gives with its spec, once all ranks have begun and agree.

    Args:
        exchange: returns the specs of all ranks; each rank calls it as often as the others.
        rank: of this process.
        begin: begins here.

    Raises:
        LoaderError: the same on every rank, where they would not take the same steps, or one cannot begin.
    """
    try:
        spec, begun = begin()
    except Exception as error:
        check_specs(exchange(EpochSpec(rank, 0, error=f"{type(error).__name__}: {error}")))
        raise
    check_specs(exchange(spec))
    return begun


def check_specs(specs: Sequence[EpochSpec]) -> None:
    """Raises LoaderError, the same on every rank, where the ranks would not take the same steps."""
    failed = dict[str, list[str]]()
    for spec in specs:
        if spec.error:
            failed.setdefault(spec.error, []).append(str(spec.rank))
    if failed:
        causes = "; ".join(f"rank {', '.join(ranks)}: {error}" for error, ranks in failed.items())
        raise LoaderError(f"{sum(map(len, failed.values()))} of {len(specs)} ranks cannot begin the epoch; {causes}")
    _check("order", [(spec.rank, spec.order) for spec in specs], "give every rank the same dataset and options")
    sizes = [(spec.rank, str(spec.batch_size)) for spec in specs]
    _check("batch_size", sizes, "give every rank the same batch_size")
    _check(
        "batches",
        [(spec.rank, str(spec.batches)) for spec in specs],
        "all would wait for ever for the one with fewest. Give every rank's sampler the same number of samples, "
        "as DistributedSampler does, and drop_last=True",
    )


def _cut(text: str, most_bytes: int) -> str:
    """Return a text that takes at most so many bytes of JSON as it is, else its start and a checksum of the whole."""
    cut, kept = text, len(text)
    while len(json.dumps(cut)) > most_bytes:
        kept //= 2
        cut = f"{text[:kept]}... (crc32 {zlib.crc32(text.encode(errors='surrogatepass')):08x})"
    return cut


def _check(what: str, values: Sequence[tuple[int, str]], advice: str) -> None:
    usual = Counter(value for _, value in values).most_common(1)[0][0]
    other = [(rank, value) for rank, value in values if value != usual]
    if other:
        named = ", ".join(f"{value} on rank {rank}" for rank, value in other[:8])
        more = f" and {len(other) - 8} more ranks" if len(other) > 8 else ""
        raise LoaderError(
            f"the ranks disagree on {what}: {usual} on {len(values) - len(other)} of {len(values)} ranks, but "
            f"{named}{more}; {advice}"
        )


@dataclass(slots=True)
class _Round:
    """One exchange: it is over when all have been given everything."""

    gate: threading.Barrier
    payloads: dict[int, bytes] = field(default_factory=dict)


class Rendezvous:
    """Place where ranks that are threads of one process meet: torch_xla's CPU devices, whose collectives do not.

    They exchange payloads here in turn, as in a collective: the first call of each meets the first of the others.

    Args:
        patience_seconds: how long a rank waits for the others.
    """

    def __init__(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._open: _Round | None = None

    def exchange(self, payload: bytes, rank: int, size: int) -> list[bytes]:
        """Return what every rank brought, by rank. Raises LoaderError where one does not come."""
        with self._lock:
            round_ = self._open
            if round_ is None or round_.gate.broken or round_.gate.parties != size:
                round_ = self._open = _Round(threading.Barrier(size))
            round_.payloads[rank] = payload
            if len(round_.payloads) == size:
                self._open = None
        try:
            round_.gate.wait(self._patience_seconds)
        except threading.BrokenBarrierError:
            raise LoaderError(
                f"of {size} ranks only {sorted(round_.payloads)} came to iterate within {self._patience_seconds:g} s; "
                "iterate the loader on every rank, or give check_ranks=False to one that only some iterate"
            ) from None
        return [round_.payloads[other] for other in range(size)]
