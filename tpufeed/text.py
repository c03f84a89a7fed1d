"""Format values, names, counts and figures for messages, tables and reports."""

import math
from collections.abc import Mapping, Sequence

_CHARACTERS = 80  # of a value
_NAMES = 8


def format_value(value: object) -> str:
    """Return a value as Python writes it, shortened if it is long."""
    return shorten(repr(value))


def shorten(text: str, most: int = _CHARACTERS) -> str:
    """Return the text, or its first `most` characters and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}..."


def format_names(names: Sequence[str]) -> str:
    """Return the first few names."""
    return f"{', '.join(names[:_NAMES])}{' ...' if len(names) > _NAMES else ''}"


def format_count(count: int, one: str, several: str = "") -> str:
    """Return `1 image`, `2,000 images`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def format_counts(counts: Mapping[str, int]) -> str:
    """Return `2,000 jpeg, 3 png`, or none."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def format_range(low: float, high: float, digits: int = 0) -> str:
    """Return `1,200 to 1,900`, or a single figure if both look the same."""
    least, most = f"{low:,.{digits}f}", f"{high:,.{digits}f}"
    return least if least == most else f"{least} to {most}"


def format_figure(value: float | None, unit: str = "", digits: int = 0) -> str:
    """Return `1,200 ms`, or n/a if there is no finite figure."""
    if value is None or not math.isfinite(value):
        return "n/a"
    return f"{value:,.{digits}f}{' ' if unit else ''}{unit}"


def format_percent(percent: float | None) -> str:
    """Return `12.5 %`, or n/a."""
    return format_figure(percent, "%", 1)


def format_rate(rate: float | None, span: tuple[float, float] | None = None) -> str:
    """Return a measured rate with the digits that it is worth: `1,440`, or `1,200 to 1,500` if its parts differ."""
    if rate is None or not math.isfinite(rate):
        return "n/a"
    if span is not None:
        return format_range(float(f"{span[0]:.2g}"), float(f"{span[1]:.2g}"))
    return f"{float(f'{rate:.3g}'):,.0f}"


def format_error(error: Exception) -> str:
    """Return an error's text, or what kind of error it is if it has none."""
    return "there is not enough memory" if isinstance(error, MemoryError) else str(error) or type(error).__name__
