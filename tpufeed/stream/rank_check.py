"""Check that all ranks are about to iterate the same epoch: a pod whose ranks disagree would hang."""

import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self, TypeVar

from tpufeed.errors import LoaderError

Begun = TypeVar("Begun")

_NUMBERS_BYTES = 256  # of JSON: all but the texts
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class EpochSpec:
    """The epoch that a rank is about to iterate, as all ranks exchange it.

    Attributes:
        rank: number of the rank.
        batches: number of batches.
        batch_size: samples in a batch, or None if unknown.
        order: what must be equal on all ranks for their shares to fit together, as text. "" if unknown.
        error: why this rank cannot begin, or "".
    """

    rank: int
    batches: int
    batch_size: int | None = None
    order: str = ""
    error: str = ""

    def packed(self, size: int | None = None) -> bytes:
        """Return the spec as JSON, of exactly `size` bytes if given: texts that do not fit are cut.

        Each text has its own room, so that equal texts stay equal whatever else the specs say.
        """
        if size is None:
            return json.dumps(asdict(self)).encode()
        room = (size - _NUMBERS_BYTES) // 2
        spec = replace(self, order=_cut(self.order, room), error=_cut(self.error, room))
        return json.dumps(asdict(spec)).encode().ljust(size)

    @classmethod
    def unpacked(cls, payload: bytes | str) -> Self:
        """Return the spec of a payload."""
        return cls(**json.loads(payload))


def begin_together(
    exchange: Callable[[EpochSpec], Sequence[EpochSpec]], rank: int, begin: Callable[[], tuple[EpochSpec, Begun]]
) -> Begun:
    """Return what `begin` returns beside its spec, once all ranks have begun and agree.

    `exchange` returns the specs of all ranks. Each rank calls it as often as the others. Raises the same LoaderError on
    every rank if they would not take the same steps, or one cannot begin.
    """
    try:
        spec, begun = begin()
    except Exception as error:
        check_specs(exchange(EpochSpec(rank, 0, error=f"{type(error).__name__}: {error}")))
        raise
    check_specs(exchange(spec))
    return begun


def check_specs(specs: Sequence[EpochSpec]) -> None:
    """Raise LoaderError, the same on every rank, if the ranks would not take the same steps."""
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
        "they would wait forever for the rank with the fewest. Give every rank's sampler the same number of samples, "
        "as DistributedSampler does, and drop_last=True",
    )


def _cut(text: str, most_bytes: int) -> str:
    """Return the text if its JSON has at most `most_bytes`, else its start and a checksum of the whole."""
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


class Rendezvous:
    """Exchange between ranks that are threads of one process: collectives of torch_xla's CPU devices fail there.

    As in a collective, the first call of each rank meets the first calls of the others, and so on. A rank waits for the
    others for `patience_seconds`.
    """

    def __init__(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._gate = threading.Barrier(1)  # of the exchange under way
        self._payloads: dict[int, bytes] = {}  # of that exchange, by rank

    def exchange(self, payload: bytes, rank: int, size: int) -> list[bytes]:
        """Return the payloads of all ranks, by rank. Raises LoaderError if a rank does not come."""
        with self._lock:
            if self._gate.broken or self._gate.parties != size or len(self._payloads) == size:
                self._gate, self._payloads = threading.Barrier(size), {}
            gate, payloads = self._gate, self._payloads
            payloads[rank] = payload
        try:
            gate.wait(self._patience_seconds)
        except threading.BrokenBarrierError:
            raise LoaderError(
                f"of {size} ranks only {sorted(payloads)} came to iterate within {self._patience_seconds:g} s; "
                "iterate the loader on every rank, or give check_ranks=False to a loader that only some ranks iterate"
            ) from None
        return [payloads[other] for other in range(size)]
