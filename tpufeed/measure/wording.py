"""Format figures for sentences: counts, ranges, and values that may be unknown."""

import math
import re

from tpufeed.errors import mask_secrets


def number_of(count: int, one: str, several: str = "") -> str:
    """Return `1 image`, `2,000 images`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def between(low: float, high: float, digits: int = 0) -> str:
    """Return `1,200 to 1,900`, or a single figure if both look the same."""
    least, most = f"{low:,.{digits}f}", f"{high:,.{digits}f}"
    return least if least == most else f"{least} to {most}"


def say(value: float | None, unit: str = "", digits: int = 0) -> str:
    """Return `1,200 ms`, or n/a if there is no finite figure."""
    if value is None or not math.isfinite(value):
        return "n/a"
    return f"{value:,.{digits}f}{' ' if unit else ''}{unit}"


def say_rate(rate: float | None, span: tuple[float, float] | None = None) -> str:
    """Return a measured rate with the digits that it is worth: `1,440`, or `1,200 to 1,500` if its parts differ."""
    if rate is None or not math.isfinite(rate):
        return "n/a"
    if span is not None:
        return between(float(f"{span[0]:.2g}"), float(f"{span[1]:.2g}"))
    return f"{float(f'{rate:.3g}'):,.0f}"


def reason_of(error: Exception) -> str:
    """Return an error's text, or what kind of error it is if it has none."""
    return "there is not enough memory" if isinstance(error, MemoryError) else str(error) or type(error).__name__


def clean(text: str) -> str:
    """Return `text` without the secrets of URLs, and without characters that HTML does not allow."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", mask_secrets(text))
