"""Check options by their annotations. These declare the allowed values.

    Keep = Annotated[int, at_least(1)]

    @checked()
    def prune(url: str, *, keep: Keep = 1, dry_run: bool = False) -> None: ...

    @dataclass(frozen=True, slots=True)
    class Options:
        quality: Annotated[int, between(1, 100)] = 90
        encode: Literal["jpeg", "png"] | None = None

        def __post_init__(self) -> None:
            check_fields(self)

`bool`, `Literal`, `Annotated` with a rule, and unions of them and None are checked. All other annotations are only for
type checkers. Allowed values are normalised (numpy's numbers become Python's): equal options have equal descriptions.
Any other value raises OptionError: "keep is a whole number, at least 1, not 0".
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from decimal import Decimal
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin

from tpufeed.errors import OptionError
from tpufeed.text import format_value

P = ParamSpec("P")
R = TypeVar("R")
G = TypeVar("G")
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
# Names of our options in other libraries: torch, tf.data, Grain, Keras, torchvision, datasets.
_FOREIGN = {
    "num_workers": ("processes", "workers"),
    "worker_count": ("processes", "workers"),
    "workers": ("processes",),
    "processes": ("workers",),
    "prefetch_factor": ("prefetch", "device_prefetch"),
    "drop_last": ("remainder",),
    "drop_remainder": ("remainder",),
    "transform": ("ops",),
    "augment": ("ops",),
    **dict.fromkeys(("transforms", "augmentations"), ("ops",)),
    **dict.fromkeys(
        ("resize", "image_size", "img_size", "input_size", "target_size", "crop_size"), ("presize", "size", "ops")
    ),
    "max_shard_size": ("shard_bytes",),
}


@dataclass(frozen=True, slots=True, repr=False)
class Rule:
    """The set of allowed values of an option.

    Attributes:
        said: completes "NAME is ..., not VALUE".
        fits: returns True for an allowed value. It must not raise.
        form: returns an allowed value in its normal form.
    """

    said: str
    fits: Callable[[Any], bool]
    form: Callable[[Any], Any] = lambda value: value

    def __repr__(self) -> str:  # `help` shows it
        return self.said

    def check(self, name: str, value: Any) -> Any:
        """Return the value in its normal form. Raises OptionError if it is not allowed."""
        if not self.fits(value):
            raise OptionError(f"{name} is {self.said}, not {format_value(value)}")
        return self.form(value)


_ANYTHING = Rule("anything", lambda _: True)


def is_whole(value: Any, low: float = float("-inf"), high: float = float("inf")) -> bool:
    """Return True if `value` is an integer in `[low, high]`, of Python or numpy, but not True or False."""
    is_int = type(value) is int or (
        not isinstance(value, bool) and isinstance(value, Integral)
    )  # the first test is fast
    return is_int and low <= int(value) <= high


def is_number(value: Any) -> bool:
    """Return True if `value` is a real number, of Python or numpy, but not True or False."""
    return type(value) in (float, int) or (not isinstance(value, bool) and isinstance(value, Real))


def as_float(value: Any) -> float:
    """Return the number as a float, 0.0 for -0.0."""
    return float(value) + 0.0


def at_least(low: int) -> Rule:
    """Allow whole numbers from `low` up."""
    return Rule(f"a whole number, at least {low}", lambda value: is_whole(value, low), int)


def between(low: float, high: float) -> Rule:
    """Allow numbers in `[low, high]`, only whole numbers if both are ints."""
    if isinstance(low, int) and isinstance(high, int):
        return Rule(f"a whole number between {low} and {high}", lambda value: is_whole(value, low, high), int)
    return Rule(f"a number between {low:g} and {high:g}", lambda v: is_number(v) and low <= v <= high, as_float)


def above(low: float, high: float = float("inf")) -> Rule:
    """Allow numbers in `(low, high]`."""
    most = "" if high == float("inf") else f", at most {high:,g}"
    return Rule(f"a number above {low:g}{most}", lambda v: is_number(v) and low < v <= high, as_float)


def a_list(of: str, item: Rule = _ANYTHING) -> Rule:
    """Allow ordered collections of items: no text (its letters would be items), and no iterator (it ends)."""

    def fits(value: Any) -> bool:
        is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping | Set)
        return is_list and getattr(value, "ndim", 1) == 1 and all(map(item.fits, value))

    return Rule(f"a list of {of}", fits, lambda value: value if isinstance(value, list | tuple) else list(value))


def a_dict(of: str, item: Rule = _ANYTHING) -> Rule:
    """Allow mappings to such items."""
    return Rule(
        f"a dict of {of}",
        lambda value: isinstance(value, Mapping) and all(map(item.fits, value.values())),
        lambda value: {key: item.form(each) for key, each in value.items()},
    )


_BOOL = Rule(  # the string "no" would count as true, and arrays have no truth value
    "True or False",
    lambda value: isinstance(value, bool) or (str(getattr(value, "dtype", "")) == "bool" and value.shape == ()),
    bool,
)
_NONE = Rule("None", lambda value: value is None)
_OF_CLASS: dict[type, Rule] = {bool: _BOOL, NoneType: _NONE}  # and those of groups

FilePath: TypeAlias = Annotated[str | Path, Rule("a path", lambda value: isinstance(value, str | Path))]
Text: TypeAlias = Annotated[str, Rule("a text", lambda value: isinstance(value, str))]
Whole: TypeAlias = Annotated[int, Rule("a whole number", is_whole, int)]
Number: TypeAlias = Annotated[int, at_least(0)]
Count: TypeAlias = Annotated[int, at_least(1)]
_NAME = Rule("a name", lambda value: isinstance(value, str))
Names: TypeAlias = Annotated[Sequence[str], a_list("names, like ['image', 'label']", _NAME)]


def rule_of(annotation: Any) -> Rule | None:
    """Return the rule that an annotation declares, or None if it is only for type checkers."""
    if isinstance(annotation, type):
        return _OF_CLASS.get(annotation)
    if get_origin(annotation) is Annotated:
        return next((each for each in annotation.__metadata__ if isinstance(each, Rule)), None)
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        said = " or ".join(filter(None, (", ".join(map(repr, choices[:-1])), repr(choices[-1]))))
        return Rule(said, lambda value: isinstance(value, str) and value in choices, str)
    if get_origin(annotation) not in (Union, UnionType):
        return None
    rules = [rule_of(member) for member in get_args(annotation)]
    known = [rule for rule in rules if rule is not None]
    if len(known) < len(rules):
        return None
    known.sort(key=lambda rule: rule is not _NONE)  # the most frequent value
    return Rule(
        ", or ".join(rule.said for rule in known if rule is not _NONE),
        lambda value: any(rule.fits(value) for rule in known),
        lambda value: next(rule.form(value) for rule in known if rule.fits(value)),
    )


def check_fields(options: Any, prefix: str = "") -> None:
    """Check and normalise the fields of a dataclass. Call it in `__post_init__`.

    Args:
        options: an instance. It may be frozen.
        prefix: prefix of the fields' names in messages.

    Raises:
        OptionError: a field does not fit its annotation.
    """
    for name, rule in _rules_of(options.__class__):
        object.__setattr__(options, name, rule.check(f"{prefix}{name}", getattr(options, name)))


@functools.cache
def _rules_of(owner: Any) -> tuple[tuple[str, Rule], ...]:
    found = ((field.name, rule_of(field.type)) for field in fields(owner) if field.init)
    return tuple((name, rule) for name, rule in found if rule is not None)


def checked(elsewhere: Mapping[str, str] | None = None, prefix: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to check its arguments by their annotations.

    An unknown keyword raises OptionError, not TypeError, and the message names the nearest option. The signature that
    editors, `help()` and type checkers show does not change.

    Args:
        elsewhere: advice for keywords that people may try here ("call batch(...) of the MapDataset").
        prefix: prefix of the arguments' names in messages about their values.
    """
    others = elsewhere or {}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        rules = {name: rule_of(each.annotation) or _ANYTHING for name, each in parameters.items()}
        names = [name for name in rules if name != "self"]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for keyword in kwargs:
                if keyword not in names:
                    said = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
                    raise OptionError(f"{said} has no option {keyword!r}; {advise(keyword)}")
            # Too many positional arguments raise Python's own TypeError.
            placed = [
                rule.check(prefix + name, value) for (name, rule), value in zip(rules.items(), args, strict=False)
            ]
            named = {name: rules[name].check(prefix + name, value) for name, value in kwargs.items()}
            return function(*placed, *args[len(placed) :], **named)  # type: ignore[arg-type]  # checked above

        def advise(keyword: str) -> str:
            all_names = [*names, *others]
            known = [name for name in (keyword, *_FOREIGN.get(keyword, ())) if name in all_names]
            if near := known or get_close_matches(keyword, all_names, 1):
                return others.get(near[0], f"use {near[0]}")
            return f"the options are {', '.join(names)}" if names else "there are none"

        # As TensorFlow's do_not_convert marks a function: its AutoGraph, which takes seconds, has nothing to convert.
        call.__dict__["autograph_info__"] = {}
        return call

    return decorate


def group(owner: type[G]) -> type[G]:
    """Decorate a dataclass that groups options of functions: its constructor is `checked`, and they take only it.

    Messages name an option with its group: "boxes.format".
    """
    first, name = fields(owner)[0].name, owner.__name__  # type: ignore[arg-type]
    owner.__init__ = checked(prefix=f"{name.lower()}.")(owner.__init__)  # type: ignore[method-assign]
    _OF_CLASS[owner] = Rule(f"a tpufeed.{name}({first}=...)", lambda value: isinstance(value, owner))
    return owner


def parse_size(text: str | int) -> int:
    """Return the number of bytes for "64MB", "1GiB" or 1048576. Raises OptionError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = None if match is None else _UNITS.get(match.group(2).lower())
    if match is None or unit is None:
        raise OptionError(f"{text!r} is not a size. Write it like 64MB or 128MiB")
    return int(Decimal(match.group(1)) * unit)  # a float would overflow


Size: TypeAlias = Annotated[
    str | int,
    Rule("a size, like '64GB' or 1048576", lambda value: isinstance(value, str) or is_number(value), parse_size),
]
