"""Convert the labels of a source to class ids."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tpufeed.builds.item import Label
from tpufeed.errors import OptionError, SourceError

_WHOLE = re.compile(r"\s*[+-]?[0-9]+(\.0+)?\s*")
# Spellings of a missing value. No class has such a name. Among ids more spellings mean a missing value.
_MISSING = frozenset({"nan", "<na>", "n/a", "#n/a"})
_MISSING_AMONG_IDS = _MISSING | {"na", "null", "none"}
_SAID = 40  # characters of a label
_FEW_IMAGES, _MANY_CLASSES = 5, 20  # among fewer classes an odd one is seen at a glance
_MOST_CLASSES = 2_000_000
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
# Between the parts of joined labels. The later ones are in many names, too: then each part has to be a label itself.
_JOINTS, _LOOSE_JOINTS = ("|", ";", ",", "+", "&"), ("/", " ", "_", "-")
_BEYOND = 1e15
# One spelling of names that look the same: macOS may write an accent as a character of its own.
_normalize = partial(unicodedata.normalize, "NFC")


@dataclass(frozen=True, slots=True)
class Classes:
    """Names of classes, and the id of each label that names a class."""

    names: tuple[str, ...]
    ids: Mapping[Label, int]


def make_classes(labels: Iterable[Label], fixed: Sequence[str] | None, are_names: bool) -> Classes:
    """Return the classes of a source.

    A label that stands for a missing value (`nan`) is not a class. Names that Unicode calls equal are one class.

    Args:
        labels: all labels that occur, each once. None is not a label.
        fixed: names in the order of their ids. Labels that are whole numbers are ids, unless one of these names is a
            whole number itself: then they are names. Without it names are sorted. But if all labels are whole numbers,
            these are the ids and also name the classes.
        are_names: labels that look like numbers or like a missing value are names as well, as with folders.

    Raises:
        SourceError: an id is too large.
    """
    found = [label for label in labels if label is not None]
    numbers: dict[Label, int] = {}
    for label in found:
        if not are_names and _WHOLE.fullmatch(str(label)):
            numbers[label] = int(max(-_BEYOND, min(_BEYOND, float(label))))  # it may have thousands of digits
    if fixed is not None:
        places = {_normalize(name): place for place, name in enumerate(fixed)}
        if any(map(_WHOLE.fullmatch, fixed)):
            ids = {label: places[str(number)] for label, number in numbers.items() if str(number) in places}
        else:
            ids = {label: number for label, number in numbers.items() if 0 <= number < len(fixed)}
        named = {label: _normalize(str(label)) for label in found}
        return Classes(tuple(fixed), ids | {label: places[name] for label, name in named.items() if name in places})
    if numbers and all(label in numbers or _is_missing(label, _MISSING_AMONG_IDS) for label in found):
        largest, highest = max(numbers.items(), key=lambda item: item[1])
        if highest >= _MOST_CLASSES:
            raise SourceError(
                f"the label {str(largest)[:_SAID]} would make more than {_MOST_CLASSES:,} classes. If labels are "
                "names that look like numbers, list all of them in --classes FILE"
            )
        ids = {label: number for label, number in numbers.items() if number >= 0}
        return Classes(tuple(map(str, range(highest + 1))), ids)
    names = {label: str(label) for label in found if are_names or not _is_missing(label, _MISSING)}
    spelling: dict[str, str] = {}  # as it is written, if always the same
    for name in names.values():
        normal = _normalize(name)
        spelling[normal] = name if spelling.get(normal, name) == name else normal
    place_of = {name: place for place, name in enumerate(_sort(spelling.values()))}
    return Classes(tuple(place_of), {label: place_of[spelling[_normalize(name)]] for label, name in names.items()})


def _sort(names: Iterable[str]) -> list[str]:
    """Return names sorted as text, or as numbers if all are whole numbers, like folders called 1 to 10."""
    texts = sorted(names)
    return sorted(texts, key=float) if all(map(_WHOLE.fullmatch, texts)) else texts


def extend_classes(
    labels: Iterable[Label], known: Sequence[str], are_names: bool, own: Sequence[str] | None = None
) -> Classes:
    """Return the classes of a dataset, followed by new ones, so that each keeps its id.

    Args:
        labels: all labels that occur in the new source, each once. None is not a label.
        known: names of the dataset's classes.
        are_names: as in `make_classes`.
        own: all classes of the new source, if it has a list of them. A label that is not one of these names has no
            class.

    Raises:
        SourceError: labels are names and the dataset's classes are ids, or the other way round.
    """
    found = [label for label in labels if label is not None]
    are_ids = bool(known) and list(known) == list(map(str, range(len(known))))
    if own is not None:
        return _extend_by_list(found, known, own, are_ids)
    if are_ids and not are_names:
        classes = make_classes(found, None, are_names)
        if found and list(classes.names) != list(map(str, range(len(classes.names)))):
            raise _mixed(known, next(name for name in classes.names if not _WHOLE.fullmatch(name)))
        return Classes(max(classes.names, tuple(known), key=len), classes.ids)
    places = {_normalize(name): place for place, name in enumerate(known)}
    texts = [str(label) for label in found]
    are_whole = bool(texts) and not are_names and all(map(_WHOLE.fullmatch, texts))
    if are_whole and known and not any(map(_WHOLE.fullmatch, known)):
        raise _mixed(known, texts[0])
    new = {label: str(label) for label in found if are_names or not _is_missing(label, _MISSING)}
    names = _sort({_normalize(name) for name in new.values()} - places.keys())
    places |= {name: len(known) + place for place, name in enumerate(names)}
    return Classes((*known, *names), {label: places[_normalize(name)] for label, name in new.items()})


def _extend_by_list(found: Sequence[Label], known: Sequence[str], own: Sequence[str], are_ids: bool) -> Classes:
    """Return the classes of a dataset, followed by new ones from a source's own list."""
    odd = next((name for name in own if not _WHOLE.fullmatch(name)), None)
    if are_ids and odd is not None:
        raise _mixed(known, odd)
    if known and odd is None and not any(map(_WHOLE.fullmatch, known)):
        raise _mixed(known, own[0])
    if are_ids:  # 3 stays the id 3, whatever its place in the list
        ids = make_classes(own, None, are_names=False)
        return Classes(max(ids.names, tuple(known), key=len), {one: ids.ids[one] for one in found if one in ids.ids})
    there, listed = set(map(_normalize, known)), set(map(_normalize, own))
    names = (*known, *(name for name in own if _normalize(name) not in there))
    places = {_normalize(name): place for place, name in enumerate(names)}
    named = {label: _normalize(str(label)) for label in found}
    return Classes(names, {label: places[name] for label, name in named.items() if name in listed})


def _mixed(known: Sequence[str], new: str) -> SourceError:
    """Return the error for new classes that are ids while those of the dataset are names, or the other way round."""
    if _WHOLE.fullmatch(new):
        return SourceError(
            f"the dataset's classes are names like {known[0][:_SAID]!r}, and the new labels are ids like "
            f"{new[:_SAID]}. Nothing was changed. Label the new images by names"
        )
    return SourceError(
        f"the dataset's classes are ids from 0 to {len(known) - 1}, and the label {new[:_SAID]!r} is a name. "
        "Nothing was changed. Label the new images by ids"
    )


def join_names(known: Sequence[str], fixed: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a dataset's classes, followed by the further names of a list that fixes ids.

    Raises:
        OptionError: neither begins with the other, so that an id would mean another class.
    """
    for place, (name, other) in enumerate(zip(known, fixed, strict=False)):
        if _normalize(name) != _normalize(other):
            raise OptionError(
                f"class {place} is {name[:_SAID]!r} in the dataset and {other[:_SAID]!r} in --classes. Nothing was "
                "changed. Ids stay: list the dataset's names in their order (tpufeed info shows them), then new ones; "
                "or leave --classes out"
            )
    return (*known, *fixed[len(known) :])


def are_renamed(own: Sequence[str], given: Sequence[str]) -> bool:
    """Return true if `given` renames the classes of a source, place by place.

    A list that has one of the source's own names at another place reorders them instead.
    """
    places = {_normalize(name): place for place, name in enumerate(given)}
    return all(places.get(_normalize(name), place) == place for place, name in enumerate(own))


def iter_class_warnings(counts: Mapping[Label, int], classes: Classes, are_names: bool) -> Iterator[str]:
    """Yield warnings of classes that the user may not have meant. `counts` has the number of samples by label.

    With `are_names` labels cannot be ids: they are names of folders, or from a list of names.
    """
    texts = {label: str(label) for label in classes.ids}
    numbers = [label for label, text in texts.items() if _WHOLE.fullmatch(text)]
    odd = next((text for text in texts.values() if not _WHOLE.fullmatch(text)), None)
    of_numbers, of_all = (sum(counts[label] for label in labels) for labels in (numbers, texts))
    fractions = [text for text in texts.values() if _NUMBER.fullmatch(text) and not _WHOLE.fullmatch(text)]
    if not are_names and fractions and all(map(_NUMBER.fullmatch, texts.values())):
        yield (
            f"labels are numbers with fractions, like {fractions[0][:_SAID]}, and {len(classes.names):,} classes are "
            "made of them, sorted as text. If they are measured values, pass --label-type number"
        )
        return
    if odd is not None and not are_names and of_numbers * 2 > of_all:
        way = "Correct it, leave it empty, or fix the ids with --classes FILE"
        if _NUMBER.fullmatch(odd):
            way = "If they are numbers to predict, not classes: --label-type number"
        yield (
            f"labels are names, not ids (10 sorts before 2): {odd[:_SAID]!r} is not a whole number; {of_numbers:,} of "
            f"{of_all:,} are. {way}"
        )
    padded = [repr(name[:_SAID]) for name in classes.names if name != name.strip()]
    if padded and not are_names:
        yield f"{len(padded):,} classes have spaces around their names, like {padded[0]}. Remove them from the labels"
    spellings: dict[int, set[str]] = {}
    for label in numbers:
        spellings.setdefault(classes.ids[label], set()).add(texts[label].strip().partition(".")[0])
    merged = [sorted(several) for several in spellings.values() if len(several) > 1]
    if merged:
        more = f", and so in {len(merged) - 1:,} more" if len(merged) > 1 else ""
        shown = ", ".join(map(repr, merged[0][:3]))
        yield f"the labels {shown} are one class{more}. If they are names, list all of them in --classes FILE"
    images = Counter[int]()
    for label, number in classes.ids.items():
        images[number] += counts[label]
    few = [classes.names[number] for number, count in images.items() if count < _FEW_IMAGES]
    joined, joint = ([], "") if are_names else _find_joined(list(texts.values()))
    if joined:
        yield (
            f"{len(joined):,} of {len(images):,} classes look like several labels in one text, such as "
            f"{joined[0][:_SAID]!r}. To give such samples a list of labels, pass --label-separator '{joint}'"
        )
    elif len(images) >= _MANY_CLASSES and len(few) * 2 > len(images):
        yield (
            f"{len(few):,} of {len(images):,} classes have fewer than {_FEW_IMAGES} images, like "
            f"{few[0][:_SAID]!r}. Check that labels are what you mean"
        )


def _find_joined(texts: Sequence[str]) -> tuple[list[str], str]:
    """Return the labels that join others, and their separator. No labels if there are none.

    `Mass|Nodule` does if any other label has one of its parts. `scab rust` does only if `scab` and `rust` are labels.
    """
    alone = set(texts)
    for joint in (*_JOINTS, *_LOOSE_JOINTS):
        parts = {text: {part.strip() for part in text.split(joint)} for text in texts if joint in text}
        uses = Counter(part for several in parts.values() for part in several)
        uses.update(text for text in texts if text in uses and joint not in text)
        joined = [
            text
            for text, several in parts.items()
            if len(several) > 1
            and (several <= alone if joint in _LOOSE_JOINTS else any(uses[part] > 1 for part in several))
        ]
        if joined:
            return joined, joint
    return [], ""


def _is_missing(label: str | int, spellings: frozenset[str]) -> bool:
    return str(label).strip().lower() in spellings


def is_missing_label(label: Label) -> bool:
    """Return True if a label is missing: None, nan or -1."""
    return label is None or str(label).strip() == "-1" or _is_missing(label, _MISSING_AMONG_IDS)


def bad_label(label: Label, classes: Classes) -> tuple[str, str]:
    """Return why a label has no class, as (reason code, message)."""
    if label is None:
        return "bad_label", "the sample has no label"
    return "bad_label", f"the label {label!r} is not one of the {len(classes.names)} classes"
