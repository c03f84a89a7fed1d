"""The checks of ops' parameters. Each gives the value in its one form, so that equal ops have equal descriptions.

Lists become tuples and numpy's numbers Python's; where a float is meant, an int becomes one. All raise OptionError.
"""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from tpufeed.errors import OptionError
from tpufeed.images.protocols import Fill

_LONGEST_SIDE_PX = 16384
_SHOWN_CHARACTERS = 80


def check_size(op: str, value: object) -> int | tuple[int, int]:
    """Check one or two numbers of pixels."""
    sides = value if isinstance(value, tuple | list) else (value, value)
    if len(sides) != 2 or not all(_is_int(side, 1, _LONGEST_SIDE_PX) for side in sides):
        raise OptionError(
            f"{op}: a size is one or two numbers of pixels between 1 and {_LONGEST_SIDE_PX}, not {shown(value)}"
        )
    return (int(sides[0]), int(sides[1])) if value is sides else int(sides[0])


def check_int(op: str, name: str, value: Any, low: int, high: int) -> int:
    """Check a whole number of `[low, high]`."""
    if not _is_int(value, low, high):
        raise OptionError(f"{op}: {name} is a whole number between {low} and {high}, not {shown(value)}")
    return int(value)


def check_probability(op: str, value: Any, name: str = "p") -> float:
    """Check a number of `[0, 1]`."""
    if not _is_real(value) or not 0 <= value <= 1:
        raise OptionError(f"{op}: {name} is a probability, not {shown(value)}")
    return _as_float(value)


def check_positive_range(op: str, name: str, value: Any, limit: float) -> tuple[float, float]:
    """Check `(low, high)` with 0 < low <= high <= limit."""
    if _is_pair(value) and 0 < value[0] <= value[1] <= limit:
        return _as_float(value[0]), _as_float(value[1])
    raise OptionError(f"{op}: {name} is (low, high) with 0 < low <= high <= {limit:g}, not {shown(value)}")


def check_spread(op: str, name: str, value: Any, center: float, low: float, high: float) -> tuple[float, float]:
    """Check `(low, high)`, or a number for as much to either side of `center`, cut off at `low`."""
    if _is_pair(value) and low <= value[0] <= value[1] <= high:
        return _as_float(value[0]), _as_float(value[1])
    if _is_real(value) and 0 <= value <= high - center:
        return max(low, _as_float(center - value)), _as_float(center + value)
    raise OptionError(
        f"{op}: {name} is a number between 0 and {high - center:g}, or (low, high) with {low:g} <= low <= high <= "
        f"{high:g}, not {shown(value)}"
    )


def check_fill(op: str, name: str, value: Any) -> Fill:
    """Check a level, or one for each of red, green and blue."""
    if _is_int(value, 0, 255):
        return int(value)
    if isinstance(value, tuple | list) and len(value) == 3 and all(_is_int(level, 0, 255) for level in value):
        return int(value[0]), int(value[1]), int(value[2])
    raise OptionError(f"{op}: {name} is a level of 0 to 255, or (red, green, blue), not {shown(value)}")


def as_range(value: float | tuple[float, float]) -> tuple[float, float]:
    """Return a parameter that `check_spread` has brought to its form, for the type checker."""
    assert isinstance(value, tuple)
    return value


def between(bounds: tuple[float, float], draw: float) -> float:
    """Map a uniform number of `[0, 1)` to `[low, high)`."""
    return bounds[0] + draw * (bounds[1] - bounds[0])


def shown(value: object) -> str:
    """Format a value for a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and _is_real(value[0]) and _is_real(value[1])


def _is_int(value: Any, low: int, high: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and low <= int(value) <= high


def _is_real(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)


def _as_float(value: float) -> float:
    return float(value) + 0.0  # -0.0 becomes 0.0
