"""From labels as a source says them to class ids."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpufeed.errors import OptionError, SourceError
from tpufeed.sharding.rows import Label

_WHOLE = re.compile(r"[+-]?[0-9]+(\.0+)?")
_MOST_CLASSES = 2_000_000
_BEYOND = 1e15


@dataclass(frozen=True, slots=True)
class Classes:
    """Names of classes, and the id of each label that is one's."""

    names: tuple[str, ...]
    ids: Mapping[Label, int]


def make_classes(labels: Iterable[Label], fixed: Sequence[str] | None, are_names: bool) -> Classes:
    """The classes of a source.

    Args:
        labels: all that occur, each once; None is no label.
        fixed: names whose places are the ids, or None: names are sorted; labels that are all whole numbers are ids as
            they stand, and their classes are called by them.
        are_names: also those that look like numbers, as names of folders.

    Raises:
        SourceError: ids that cannot be counted up to.
    """
    found = [label for label in labels if label is not None]
    numbers = {label: _to_id(label) for label in found if not are_names and _WHOLE.fullmatch(str(label))}
    if fixed is not None:
        places = {name: place for place, name in enumerate(fixed)}
        ids: dict[Label, int] = {label: number for label, number in numbers.items() if 0 <= number < len(fixed)}
        return Classes(tuple(fixed), ids | {label: places[str(label)] for label in found if str(label) in places})
    if found and len(numbers) == len(found):
        largest, highest = max(numbers.items(), key=lambda item: item[1])
        if highest >= _MOST_CLASSES:
            raise SourceError(
                f"the label {str(largest)[:40]} would make more than {_MOST_CLASSES:,} classes; if labels are "
                "names that look like numbers, give all of them with --classes FILE"
            )
        ids = {label: number for label, number in numbers.items() if number >= 0}
        return Classes(tuple(map(str, range(highest + 1))), ids)
    names = sorted({str(label) for label in found})
    place_of = {name: place for place, name in enumerate(names)}
    return Classes(tuple(names), {label: place_of[str(label)] for label in found})


def _to_id(label: str | int) -> int:
    return int(max(-_BEYOND, min(_BEYOND, float(label))))  # of thousands of digits, perhaps


def bad_label(label: Label, classes: Classes) -> tuple[str, str]:
    """Why a label is no class, as (reason code, message)."""
    if label is None:
        return "bad_label", "the sample has no label"
    return "bad_label", f"the label {label!r} is none of the {len(classes.names)} classes"


def read_classes(classes: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Names of classes: of a text file with one a line, or as they are given.

    Raises:
        OptionError: the file cannot be read, holds none, or one twice.
    """
    if isinstance(classes, str | Path):
        try:
            names = tuple(line.strip() for line in Path(classes).read_text("utf-8-sig").splitlines() if line.strip())
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the classes in {classes} cannot be read: {error}") from error
    else:
        names = tuple(map(str, classes))
    if not names:
        raise OptionError(f"no classes in {_name(classes)}; expected a name a line")
    for name in names:
        if name.encode("utf-8", "replace").decode() != name:
            raise OptionError(f"the class {name!r} in {_name(classes)} is not UTF-8; rename it")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(f"the class {twice!r} stands twice in {_name(classes)}; its id would be either line")
    return names


def _name(classes: str | Path | Sequence[str]) -> str:
    return str(classes) if isinstance(classes, str | Path) else "the list of classes"
