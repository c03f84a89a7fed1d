"""Select samples of a dataset. A view is read like a dataset, and reads no record that it leaves out.

A view keeps the ids of its samples, or a bit per sample if it keeps many. Samples keep their ids and so their random
numbers: lists of ids, and predictions by id, fit the dataset and all of its views.
"""

import csv
import hashlib
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.format import read_array

from tpufeed.dataset.folds import deal
from tpufeed.dataset.manifest import Split
from tpufeed.dataset.order import Ints
from tpufeed.dataset.scan import Labels, Stored, iter_columns
from tpufeed.dataset.schema import several_labels
from tpufeed.errors import OptionError, StoreError, mask_secrets
from tpufeed.options import is_whole
from tpufeed.storage.store import open_store
from tpufeed.text import format_value

Samples: TypeAlias = str | Path | Sequence[int] | Sequence[str] | npt.NDArray[Any]
Where: TypeAlias = Callable[[dict[str, npt.NDArray[Any]]], npt.ArrayLike]

_BLOCK = 256  # bits that are searched at once
_SPARSE = 64  # a view of fewer than one in 64 keeps numbers: they take less room than bits
_SHOWN = 8  # classes in the text of a view
_COLUMNS = ("sample", "filename", "path", "image", "file_name")  # not "id": that may be any column of the user's
_MOST_FOLDS = 1_000_000
_DIGITS = 19  # of a number that int64 cannot hold
_KEPT = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class Chosen:
    """The samples of a split that a view keeps. Immutable, and small in a pickle.

    Args:
        samples: their ids, sorted and each once.
        records: samples of the split.
        weights: the weight of each, float64 above 0, if they come as often as these say. Only loaders know them.
    """

    def __init__(self, samples: Ints, records: int, weights: npt.NDArray[np.float64] | None = None) -> None:
        self.records, self.weights, self._count = records, weights, len(samples)
        self._sparse: npt.NDArray[Any] | None = None
        if len(samples) * _SPARSE < records:
            self._sparse = samples.astype(np.min_scalar_type(records))
            return
        bits = np.zeros(-(-max(1, records) // _BLOCK) * _BLOCK, np.uint8)
        bits[samples] = 1
        self._bits = np.packbits(bits).reshape(-1, _BLOCK // 8)
        counts = bits.reshape(-1, _BLOCK).sum(1, dtype=np.int64)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])  # before each block

    def __len__(self) -> int:
        return self._count

    def samples(self, numbers: Ints | None = None) -> Ints:
        """Return the ids of these samples of the view, each number in `[0, len)`, of all by default."""
        if self._sparse is not None:
            return np.asarray(self._sparse if numbers is None else self._sparse[numbers], np.int64)
        if numbers is None:
            return np.asarray(np.flatnonzero(np.unpackbits(self._bits)), np.int64)
        block = np.searchsorted(self._starts, numbers, side="right") - 1
        before = np.cumsum(np.unpackbits(self._bits[block], axis=1), axis=1, dtype=np.uint16)
        rank = (numbers - self._starts[block] + 1).astype(np.uint16)
        return np.asarray(block * _BLOCK + np.argmax(before == rank[:, None], axis=1), np.int64)

    def count_before(self, samples: Ints) -> Ints:
        """Return how many samples of the view have a lower id than each of these."""
        if self._sparse is not None:
            return np.asarray(np.searchsorted(self._sparse, samples), np.int64)
        block = np.minimum(samples // _BLOCK, len(self._bits) - 1)
        within = np.arange(_BLOCK) < (samples - block * _BLOCK)[:, None]
        counts = (np.unpackbits(self._bits[block], axis=1) * within).sum(1, dtype=np.int64)
        return np.asarray(self._starts[block] + counts)


@dataclass(frozen=True, slots=True)
class Selection:
    """The samples and classes that a view keeps.

    Attributes:
        splits: its samples, by split. Splits that are not named are whole.
        text: what was asked for, for people.
        classes: ids of the classes whose places are the view's labels, or None if labels stay the dataset's.
    """

    splits: Mapping[str, Chosen]
    text: str
    classes: tuple[int, ...] | None = None

    def digest(self, content_digest: str, records: Mapping[str, int] | None = None) -> str:
        """Return the digest of a view of the dataset with this digest.

        `records` are the samples per split of an earlier version, whose samples come first in the newer ones.
        """
        digest = hashlib.blake2b(f"{content_digest} {self.classes}".encode(), digest_size=16)
        for split, chosen in sorted(self.splits.items()):
            if records is not None and split not in records:
                continue
            samples = chosen.samples()
            if records is not None:
                samples = samples[: np.searchsorted(samples, records.get(split, 0))]
            digest.update(f" {split} {len(samples)} ".encode() + samples.astype("<i8").tobytes())
            if chosen.weights is not None:
                digest.update(b" weights " + chosen.weights[: len(samples)].astype("<f8").tobytes())
        return digest.hexdigest()


class Selectable(Stored, Protocol):
    """What views are selected from: `dataset.reader.Dataset`."""

    @property
    def label(self) -> str: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def selection(self) -> Selection | None: ...
    def split(self, name: str) -> Split: ...
    def labels(self, split: str) -> Labels: ...
    def samples(self, split: str) -> Ints: ...
    def view(self, selection: Selection) -> Self: ...


D = TypeVar("D", bound=Selectable)


def select(dataset: D, split: str | None, keep_ids: bool | None, given: Mapping[str, Any]) -> D:
    """Return the view of a dataset that `Dataset.select` describes. `given` are the ways to select, by their names."""
    splits = list(dataset.manifest.splits) if split is None else [split]
    if split is not None:
        dataset.split(split)  # it exists
    several, before = several_labels(dataset.manifest.features), dataset.selection
    if keep_ids is False and several:
        raise OptionError(f"{dataset.label}: samples have several labels, so their ids stay. Leave out keep_ids=False")
    if ("samples" in given or "drop" in given) and len(splits) > 1:
        raise OptionError(
            f"ids of samples are within a split, and {dataset.label} has {', '.join(splits)}: give split={splits[0]!r}"
        )
    ways = _find_ways(dataset, splits, given)
    relabelled = None if before is None else before.classes
    renumbers = "classes" in given and not several and not keep_ids
    if renumbers:
        relabelled = tuple(_class_ids(dataset, given["classes"]))
    found = {} if before is None else dict(before.splits)
    for name, entry in dataset.manifest.splits.items():
        # Renumbered classes are those of all splits: samples of other classes would have no label.
        own = [way for way in ways if name in splits or (way.renumbers and renumbers)]
        if own:
            kept = np.zeros(entry.records, np.bool_)
            kept[dataset.samples(name)] = True
            for way in own:
                kept &= way.find(name) != way.leaves_out
            found[name] = Chosen(np.flatnonzero(kept), len(kept))
    text = ", ".join(way.text for way in ways)
    if not any(len(found[name]) for name in splits):
        raise OptionError(
            f"{dataset.label}: no sample of {', '.join(splits)} fits {text}, so the view would be empty. Ask for more "
            "samples, or for fewer folds"
        )
    text = text if before is None else f"{before.text}, {text}"
    return dataset.view(Selection(found, text, relabelled))


class _Way(NamedTuple):
    """One way to select samples: `find` returns for each sample of a split whether it fits."""

    text: str
    find: Callable[[str], npt.NDArray[np.bool_]]
    leaves_out: bool = False  # the samples that fit
    renumbers: bool = False  # it selects by classes


def _find_ways(dataset: Selectable, splits: Sequence[str], given: Mapping[str, Any]) -> list[_Way]:
    ways = list[_Way]()
    if given.keys() & {"stratify", "group"} and not given.keys() & {"fold", "without_fold"}:
        raise OptionError("stratify and group are for folds. Give fold=(0, 5) or without_fold=(0, 5) with them")
    for option, value in given.items():
        if option == "classes":
            have = partial(_have_classes, dataset, _class_ids(dataset, value))
            more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
            ways.append(_Way(f"classes={','.join(map(str, value[:_SHOWN]))}{more}", have, renumbers=True))
        elif option in ("samples", "drop"):
            listed = _read_samples(option, value)
            ways.append(_Way(f"{option}={listed.text}", partial(listed.find, dataset), option == "drop"))
        elif option in ("fold", "without_fold"):
            ways.append(_find_fold(dataset, splits, option, value, given))
        elif option == "where":
            function = partial(_evaluate, dataset, value, given.get("columns", ()))
            ways.append(_Way(f"where={getattr(value, '__name__', 'a function')}", function))
    if not ways:
        raise OptionError("select needs classes, samples, drop, fold, without_fold or where")
    return ways


def _have_classes(dataset: Selectable, classes: Sequence[int], split: str) -> npt.NDArray[np.bool_]:
    return dataset.labels(split).have(classes)


def _find_fold(dataset: Selectable, splits: Sequence[str], option: str, value: Any, given: Mapping[str, Any]) -> _Way:
    number, count = _check_fold(option, value)
    group, stratify = given.get("group", ()), given.get("stratify", False)
    group = list(map(str, group if isinstance(group, Iterable) and not isinstance(group, str) else [group]))
    labels = {split: dataset.labels(split) if stratify else None for split in splits}
    folds = {split: deal(dataset, split, count, labels[split], group) for split in splits}
    text, by = f"{option}={number}/{count}{' stratified' * stratify}", ",".join(group)
    text += f" by {by}" if group else ""  # without counts: a cache of the view is known by this text
    return _Way(text, lambda split: np.asarray(folds[split] == number), option == "without_fold")


def views_by_class(dataset: D, split: str) -> dict[str, D]:
    """Return for each class that has samples in a split the view of its samples, whose labels stay the dataset's.

    Raises:
        OptionError: samples have several labels, none has a class, or classes have no names.
    """
    dataset.split(split)  # it exists
    if several_labels(dataset.manifest.features):
        raise OptionError(f"{dataset.label}: samples have several labels, so they cannot be dealt by class")
    names = dataset.class_names
    if not names:
        raise OptionError(f"{dataset.label} does not name its classes")
    own = dataset.selection.classes if dataset.selection is not None else None
    ids = range(len(names)) if own is None else own
    samples, records = dataset.samples(split), dataset.manifest.splits[split].records
    labels = dataset.labels(split).values[samples].astype(np.int64)
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], np.arange(labels.max(initial=-1) + 2))
    found: dict[str, D] = {}
    # Other splits are empty: whole, they would be read once for each class.
    none = {name: Chosen(np.empty(0, np.int64), each.records) for name, each in dataset.manifest.splits.items()}
    before = "" if dataset.selection is None else f"{dataset.selection.text}, "
    for name, number in zip(names, ids, strict=True):
        of_class = samples[order[edges[number] : edges[number + 1]]] if number + 1 < len(edges) else ()
        if len(of_class):
            splits = none | {split: Chosen(np.asarray(of_class), records)}
            found[name] = dataset.view(Selection(splits, f"{before}classes={name}", own))
    if not found:
        raise OptionError(f"{dataset.label}: no sample of split {split!r} has a class")
    return found


def weighted_view(dataset: D, split: str, given: str | npt.ArrayLike) -> D:
    """Return the view of the samples of a split with a weight above 0, whose loaders take them as often as that says.

    Raises:
        OptionError: `given` is neither a column of numbers nor a number for each sample stored in the split, or a
            number is negative, infinite or NaN, or all are 0.
    """
    dataset.split(split)  # it exists
    records, where = dataset.manifest.splits[split].records, f"weights of {dataset.label}, split {split!r}"
    if isinstance(given, str):
        text, where = f"weights={given}", f"{where}, column {given!r}"
        values = np.concatenate([np.empty(0), *(chunk[given] for chunk in iter_columns(dataset, split, [given]))])
    else:
        text = "weights=an array"
        try:
            values = np.asarray(given)
        except ValueError as error:  # lists of several lengths
            raise OptionError(f"{where}: {error}") from None
    if values.dtype.kind not in "biuf" or values.shape != (records,):
        raise OptionError(
            f"{where}: expected one number for each of the {records:,} samples that are stored, in the order of their "
            f"ids. Found {values.dtype} of the shape {values.shape}"
        )
    samples = dataset.samples(split)
    weights = values[samples].astype(np.float64)
    wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if len(wrong):
        raise OptionError(
            f"{where}: sample {samples[wrong[0]]} has the weight {weights[wrong[0]]}, one of {len(wrong):,} that are "
            "not finite numbers of 0 or more. Give 0 to leave a sample out"
        )
    kept = weights > 0
    if not kept.any():
        raise OptionError(f"{where}: all are 0, so no sample would come. Give 1 to the samples that you want")
    own = dataset.selection
    splits = {name: Chosen(np.empty(0, np.int64), each.records) for name, each in dataset.manifest.splits.items()}
    splits[split] = Chosen(samples[kept], records, weights[kept])
    before, classes = ("", None) if own is None else (f"{own.text}, ", own.classes)
    return dataset.view(Selection(splits, before + text, classes))


def parse_selection(texts: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `Dataset.select` for texts like "classes=cat,dog", "fold=0/5" and "samples=ids.npy".

    Raises OptionError.
    """
    found = dict[str, Any]()
    for text in texts:
        name, _, value = text.partition("=")
        names = ("classes", "ids", "samples", "drop", "fold", "without_fold", "group", "stratify", "split")
        if name not in names or not value or (name == "stratify" and value.lower() not in _KEPT):
            raise OptionError(
                f"--select {format_value(text)}: expected classes=cat,dog (and ids=kept to keep their ids), "
                "samples=FILE, drop=FILE, fold=0/5, without_fold=0/5 (with group=COLUMN or stratify=yes) or split=NAME"
            )
        argument: Any = value
        if name == "classes":
            argument = [part.strip() for part in value.split(",")]
        elif name == "ids":
            if value not in ("kept", "joined"):
                raise OptionError(
                    f"--select {format_value(text)}: expected ids=kept, or ids=joined to number them from 0"
                )
            name, argument = "keep_ids", value == "kept"
        elif name in ("group", "stratify"):
            argument = value.split(",") if name == "group" else _KEPT[value.lower()]
        elif name in ("fold", "without_fold"):
            argument = [int(part) if part.isdecimal() and len(part) < _DIGITS else part for part in value.split("/")]
        if name in found:
            raise OptionError(f"--select {text}: {text.partition('=')[0]} is given twice")
        found[name] = argument
    return found


def _class_ids(dataset: Selectable, classes: Sequence[str | int]) -> list[int]:
    """Return the dataset's ids of classes that are given by name, or by their ids in this view."""
    if not classes:
        raise OptionError("classes is a list of at least one name or id, not []")
    own = dataset.selection.classes if dataset.selection is not None else None
    numbers = [find_class(dataset, each) for each in classes]
    if len(set(numbers)) < len(numbers):
        raise OptionError(f"a class is named twice in {format_value(list(classes))}")
    return numbers if own is None else [own[number] for number in numbers]


def find_class(dataset: Selectable, given: str | int) -> int:
    """Return the id of a class in a dataset or view. Raises OptionError, which lists similar names."""
    names, own = dataset.class_names, dataset.selection.classes if dataset.selection is not None else None
    if isinstance(given, str) and given in names:
        return names.index(given)
    count = len(names if own is None else own)
    is_id = is_whole(given, 0) or (str(given).isdecimal() and len(str(given)) < _DIGITS)
    if is_id and (int(given) < count or not (names or own)):
        return int(given)
    near = get_close_matches(str(given), names, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {count}: {', '.join(names[:_SHOWN])}"
    hint = hint if dataset.manifest.labelled else "its samples have no labels that are classes"
    raise OptionError(f"{dataset.label} has no class {format_value(given)}; {hint}")


def _check_fold(name: str, given: Any) -> tuple[int, int]:
    is_pair = isinstance(given, Sequence) and len(given) == 2
    if not (is_pair and is_whole(given[0], 0) and is_whole(given[1], 2, _MOST_FOLDS)):
        raise OptionError(f"{name} is (number, folds), like (0, 5) for the first of five, not {format_value(given)}")
    number, count = map(int, given)
    if number >= count:
        raise OptionError(f"{name}={number}/{count}: folds are numbered 0 to {count - 1}")
    return number, count


@dataclass(frozen=True, slots=True)
class _Listed:
    """Samples that a user lists, by their ids or by the names of their files."""

    text: str
    ids: Ints | None
    names: Sequence[str]
    lines: Sequence[int] = ()  # of a file

    def find(self, dataset: Selectable, split: str) -> npt.NDArray[np.bool_]:
        """Return for each sample of a split whether it is listed. Raises OptionError for one that is not there."""
        records = dataset.manifest.splits[split].records
        listed = np.zeros(records, np.bool_)
        if self.ids is None:
            wanted, first = set(self.names), 0
            for chunk in iter_columns(dataset, split, ["filename"]):
                # Other tools may have lists of names.
                names = ["".join(each[:1]) if isinstance(each, list) else each for each in chunk["filename"].tolist()]
                listed[first : first + len(names)] = [name in wanted for name in names]
                wanted.difference_update(names)
                first += len(names)
            if wanted:
                place = next(place for place, name in enumerate(self.names) if name in wanted)
                raise OptionError(
                    f"{self.text}{self._line(place)}: {len(wanted)} of its names are not in split {split!r} of "
                    f"{dataset.label}, like {self.names[place]!r}, expected what its samples have as image/filename"
                )
            return listed
        wrong = np.flatnonzero((self.ids < 0) | (self.ids >= records))
        if len(wrong):
            raise OptionError(
                f"{self.text}{self._line(wrong[0])}: there is no sample {self.ids[wrong[0]]} in split {split!r} of "
                f"{dataset.label}. Its {records:,} samples are numbered 0 to {records - 1}"
            )
        listed[self.ids] = True
        return listed

    def _line(self, place: int) -> str:
        return f", line {self.lines[place]}" if self.lines else ""


def _read_samples(option: str, given: Samples) -> _Listed:
    """Return the samples in a list, an array or a file. Raises OptionError."""
    where, lines, are_names = option, list[int](), False
    if isinstance(given, str | Path):
        where = mask_secrets(str(given))
        lines, listed, are_names = _read_file(option, str(given), where)
    else:
        listed = given
    try:
        values = np.asarray(listed)
    except ValueError:  # lists of several lengths
        values = np.empty((0, 0), object)
    if values.ndim != 1 or values.dtype.kind not in "iuU" or not len(values):
        raise OptionError(
            f"{where}: expected ids of samples as whole numbers, or names of their files, in one dimension. Found "
            f"{values.dtype} of the shape {values.shape}"
        )
    if values.dtype.kind == "U" and not are_names:
        decimal = np.array([value.isdecimal() and len(value) < _DIGITS for value in values.tolist()])
        if decimal.any() and not decimal.all():
            place = int(np.argmin(decimal))
            line = f", line {lines[place]}" if lines else ""
            raise OptionError(f"{where}{line}: {values[place].item()!r} is no id of a sample, and others are")
        values = values.astype(np.int64) if decimal.all() else values
    different, counts = np.unique(values, return_counts=True)
    if counts.max() > 1:
        twice = different[counts > 1][0]
        places = np.flatnonzero(values == twice)[:2].tolist()
        said = [f"line {lines[place]}" if lines else f"place {place}" for place in places]
        raise OptionError(f"{where} names {twice.item()!r} twice, in {' and '.join(said)}. Name each sample once")
    text = where if where != option else f"{len(values)} samples"
    if values.dtype.kind == "U":
        return _Listed(text, None, values.tolist(), lines)
    return _Listed(text, values.astype(np.int64), (), lines)


def _read_file(option: str, path: str, where: str) -> tuple[list[int], Any, bool]:
    """Return what `_read_lines` returns. An array has no lines. Raises OptionError."""
    folder, slash, name = path.rpartition("/")
    try:
        data = open_store(folder + slash if slash else ".").read(name)
        if name.lower().endswith(".npy"):
            return [], read_array(io.BytesIO(data), allow_pickle=False), False
        return _read_lines(str(data, "utf-8-sig"), where, option)
    except OptionError:
        raise
    except StoreError as error:
        raise OptionError(f"{option}: {where} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{where} is neither .npy nor text in UTF-8: {error}") from error
    except csv.Error as error:
        raise OptionError(f"{where} is not a table: {error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise OptionError(f"{where} is not an array of numpy: {error}") from error


def _read_lines(text: str, where: str, option: str) -> tuple[list[int], list[str], bool]:
    """Return the numbers of lines, the ids or names in them, and whether they can only be names.

    The text has one per line, or is a CSV.

    A CSV has a header. With a column `keep`, for `samples`, only rows that say 1 count. Raises OptionError.
    """
    if not where.lower().endswith(".csv"):
        found = [(number, line) for number, line in enumerate(map(str.strip, text.splitlines()), 1) if line]
        return [number for number, _ in found], [line for _, line in found], False
    rows = csv.reader(io.StringIO(text))
    header = [name.strip().lower() for name in next(rows, [])]
    place = next((header.index(name) for name in _COLUMNS if name in header), None)
    if place is None:
        raise OptionError(
            f"{where}: none of its columns ({', '.join(header)}) is called sample (ids within the split) or filename. "
            "To select by a column of your own, give where=, a function of it"
        )
    if "keep" in header and option == "drop":
        raise OptionError(f"{where} says with its column keep what to keep: give it as samples instead of drop")
    lines, values = list[int](), list[str]()
    for row in filter(None, rows):
        if len(row) != len(header):
            raise OptionError(f"{where}, line {rows.line_num}: {len(row)} values, but its header has {len(header)}")
        keep = row[header.index("keep")].strip().lower() if "keep" in header else "1"
        if keep not in _KEPT:
            raise OptionError(f"{where}, line {rows.line_num}: keep is {keep!r}, expected 1 or 0")
        if _KEPT[keep]:
            lines.append(rows.line_num)
            values.append(row[place].strip())
    return lines, values, header[place] != "sample"


def _evaluate(dataset: Selectable, where: Where, columns: Sequence[str], split: str) -> npt.NDArray[np.bool_]:
    """Call a user's function on the columns of all samples. Raises OptionError if it does not return one bool each."""
    if not callable(where) or not len(columns):
        raise OptionError("where is a function of the columns that it looks at, like columns=['label', 'height']")
    names, records = [name for name in columns if name != "sample"], dataset.manifest.splits[split].records
    chunks = iter_columns(dataset, split, names) if names else iter([{}])
    parts, first = [np.empty(0, np.bool_)], 0
    for chunk in chunks:
        count = len(next(iter(chunk.values()))) if chunk else records
        found = np.asarray(where({"sample": np.arange(first, first + count), **chunk}))
        if found.dtype != np.bool_ or found.shape != (count,):
            raise OptionError(
                f"where returned {found.dtype} of the shape {found.shape} for {count} samples, expected one bool each"
            )
        parts.append(found)
        first += count
    return np.concatenate(parts)
