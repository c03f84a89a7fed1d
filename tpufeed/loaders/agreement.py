"""Check that all ranks iterate the same epoch. Without this check a pod whose ranks disagree hangs."""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self, TypeVar

from tpufeed.errors import LoaderError

Begun = TypeVar("Begun")

_NUMBERS_BYTES = 256  # of JSON: all but the texts


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rank is about to iterate; picklable, and exchanged between all ranks.

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
        """Return the claim as JSON, of just `size` bytes where that is given: texts that do not fit are cut.

        Each text has a room of its own, so that equal texts stay equal whatever else the claims say.
        """
        claim = self
        if size is not None:
            room = (size - _NUMBERS_BYTES) // 2
            claim = replace(self, order=_cut(self.order, room), error=_cut(self.error, room))
        return json.dumps(asdict(claim)).encode().ljust(size or 0)

    @classmethod
    def unpacked(cls, payload: bytes | str) -> Self:
        """Return the claim of a payload."""
        return cls(**json.loads(payload))


def begin_together(
    exchange: Callable[[Claim], Sequence[Claim]], rank: int, begin: Callable[[], tuple[Claim, Begun]]
) -> Begun:
    """Return what `begin` gives beside its claim, once all ranks have begun and agree.

    Args:
        exchange: returns the claims of all ranks; each rank calls it as often as the others.
        rank: of this process.
        begin: begins here.

    Raises:
        LoaderError: the same on every rank, where they would not take the same steps, or one cannot begin.
    """
    try:
        claim, begun = begin()
    except Exception as error:
        check_agreement(exchange(Claim(rank, 0, error=f"{type(error).__name__}: {error}")))
        raise
    check_agreement(exchange(claim))
    return begun


def check_agreement(claims: Sequence[Claim]) -> None:
    """Raises LoaderError, the same on every rank, where the ranks would not take the same steps."""
    failed = dict[str, list[str]]()
    for claim in claims:
        if claim.error:
            failed.setdefault(claim.error, []).append(str(claim.rank))
    if failed:
        causes = "; ".join(f"rank {', '.join(ranks)}: {error}" for error, ranks in failed.items())
        raise LoaderError(f"{sum(map(len, failed.values()))} of {len(claims)} ranks cannot begin the epoch; {causes}")
    _check("order", [(claim.rank, claim.order) for claim in claims], "give every rank the same dataset and options")
    sizes = [(claim.rank, str(claim.batch_size)) for claim in claims]
    _check("batch_size", sizes, "give every rank the same batch_size")
    _check(
        "batches",
        [(claim.rank, str(claim.batches)) for claim in claims],
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
