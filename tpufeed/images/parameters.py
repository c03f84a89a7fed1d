"""The kinds of parameters that ops have, as annotations that are checked.

Each gives a value its one form, so that equal ops have equal descriptions: lists become tuples and numpy's numbers
Python's; if a float is meant, an int becomes one.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from tpufeed.options import Rule, as_float, between, check_fields, is_number, is_whole

_LONGEST_SIDE_PX = 16384


class CheckedOp:
    """Base of ops: whoever makes one has its fields checked by their annotations. OptionErrors name the op."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}: ")


def positive_range(limit: float, or_one: bool = False) -> Rule:
    """`(low, high)` with 0 < low <= high <= limit; with `or_one` a number is both."""

    def pair(value: Any) -> Any:
        return (value, value) if or_one and is_number(value) else value

    return Rule(
        f"(low, high) with 0 < low <= high <= {limit:g}",
        lambda value: _is_pair(pair(value), 0, limit) and pair(value)[0] > 0,
        lambda value: _as_pair(pair(value)),
    )


def spread(center: float, low: float, high: float) -> Rule:
    """`(low, high)`, or a number for as much to either side of `center`, cut off at `low`."""
    return Rule(
        f"a number between 0 and {high - center:g}, or (low, high) with {low:g} <= low <= high <= {high:g}",
        lambda value: _is_pair(value, low, high) or (is_number(value) and 0 <= value <= high - center),
        lambda value: (
            (max(low, as_float(center - value)), as_float(center + value)) if is_number(value) else _as_pair(value)
        ),
    )


def _is_pair(value: Any, low: float, high: float) -> bool:
    is_pair = isinstance(value, Sequence) and len(value) == 2 and is_number(value[0]) and is_number(value[1])
    return is_pair and low <= value[0] <= value[1] <= high


def _as_pair(value: Any) -> tuple[float, float]:
    return as_float(value[0]), as_float(value[1])


def _are_whole(value: Any, count: int, low: int, high: int) -> bool:
    """Return whether `value` is a whole number of `[low, high]`, or so many of them."""
    if isinstance(value, tuple | list):
        return len(value) == count and all(is_whole(each, low, high) for each in value)
    return is_whole(value, low, high)


def _as_whole(value: Any) -> int | tuple[int, ...]:
    return tuple(map(int, value)) if isinstance(value, tuple | list) else int(value)


Probability = Annotated[float, between(0.0, 1.0)]
SizePx = Annotated[
    int | tuple[int, int],
    Rule(
        f"one or two numbers of pixels between 1 and {_LONGEST_SIDE_PX}",
        lambda value: _are_whole(value, 2, 1, _LONGEST_SIDE_PX),
        _as_whole,
    ),
]
Fill: TypeAlias = Annotated[  # one level for all channels, or (red, green, blue)
    int | tuple[int, int, int],
    Rule("a level of 0 to 255, or (red, green, blue)", lambda value: _are_whole(value, 3, 0, 255), _as_whole),
]
