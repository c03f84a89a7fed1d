"""Telling apart what cores do for an image, where only some of it can be measured by itself: pure."""

from collections.abc import Mapping, Sequence

from tpufeed.diagnosis.stages.rates import DECODING, OPS, READING, Figure

Rates = tuple[float, float]  # images a second of one thread, and of all of them


def tell_apart(rates: Mapping[str, Rates], encoded: bool, has_ops: bool) -> tuple[Figure, Figure, Figure]:
    """Reading, decoding and ops.

    Args:
        rates: of "reading", of "all" three together, and of "decoding" where images are encoded.
        encoded: whether they are.
        has_ops: whether there are ops.
    """
    copied = not encoded and not has_ops
    reading = _figure(READING, rates["reading"], "CRCs verified" + (", pixels copied" if copied else ""))
    alone = ["reading", "decoding"] if encoded else ["reading"]
    rest = _left_over(rates, alone)
    if not encoded:
        decoding = Figure(name=DECODING, why_not="raw pixels need none")
        lost = "too little to be told from reading"
    elif has_ops and rest is None:
        together = _left_over(rates, ["reading"])
        decoding = _figure(DECODING, together or rates["all"], "with the ops, which let it be done at a smaller size")
        lost = "cannot be told from decoding, which they make cheaper"
    else:
        decoding, lost = _figure(DECODING, rates["decoding"], "at full size"), ""
    if not has_ops:
        return reading, decoding, Figure(name=OPS, why_not="there are none")
    return reading, decoding, Figure(name=OPS, why_not=lost) if rest is None else _figure(OPS, rest, "")


def left_over(whole: float, parts: Sequence[float]) -> float | None:
    """Images a second of what `whole` does besides `parts`, each of them given alone; None where nothing is left."""
    seconds = 1 / whole - sum(1 / part for part in parts)
    return 1 / seconds if seconds > 0 else None


def _left_over(rates: Mapping[str, Rates], parts: Sequence[str]) -> Rates | None:
    one, every = (left_over(rates["all"][n], [rates[part][n] for part in parts]) for n in (0, 1))
    return None if one is None or every is None else (one, every)


def _figure(name: str, rates: Rates, detail: str) -> Figure:
    return Figure(name=name, one_thread=rates[0], images_per_second=rates[1], detail=detail)
