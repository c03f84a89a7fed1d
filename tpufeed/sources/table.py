"""Read a table of images: CSV, TSV, JSON lines or Parquet with a column of paths."""

import bisect
import codecs
import csv
import io
import itertools
import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeAlias

import msgspec

from tpufeed.builds.item import ImageRef, Item, Label, Labels
from tpufeed.dataset.naming import check_split_name
from tpufeed.dataset.schema import BOX_NAMES, name_boxes
from tpufeed.errors import (
    ImageError,
    NoInputsError,
    OptionError,
    SourceError,
    TpufeedError,
    UnknownSchemeError,
    url_identity,
)
from tpufeed.images.frames import choose_frames
from tpufeed.sources.bands import BAD_BANDS
from tpufeed.sources.boxes import pair_names
from tpufeed.sources.inputs import Files, is_web
from tpufeed.sources.options import KEYPOINTS, ShardOptions, names_in
from tpufeed.sources.paths import IMAGE_SUFFIXES, KEPT, identity_of, is_hidden, is_image_name, resolve, stem_of
from tpufeed.sources.row_groups import parquet_errors
from tpufeed.sources.source import Found, Place, Source, listing
from tpufeed.storage.reading import open_compared, open_object
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, open_store
from tpufeed.text import format_names, format_value

IMAGE_COLUMNS = ("path", "image", "file", "filename", "filepath", "file_name", "image_path", "url")
_ID_COLUMNS = ("image_id", "imageid", "img_id", "image_name", "id", "name")  # of names, if `image` tells their place
LABEL_COLUMNS = ("label", "class", "category", "cls")
_SEPARATORS = {
    ".csv": {";": "with commas, or with tabs as .tsv", "\t": "with commas, or under a name that ends in .tsv"},
    ".tsv": {",": "with tabs, or under a name that ends in .csv", ";": "with tabs"},
}
_BYTES_AT_ONCE = 1 << 20
_LONGEST_FIELD = 16 << 20  # characters: an object's mask as text takes up to a few hundred thousand
_BEYOND_PYTHON = (ValueError, OverflowError, LookupError)  # a year beyond 9999, a time zone that is unknown here
ROWS_AT_ONCE = 2048
_NO_FILE = "there is no such file"
_NO_CLIP = f"{_NO_FILE} (--frames makes a clip of a pattern)"
_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBER = re.compile(r"\{:0?[0-9]{0,2}d?\}")  # of a frame in a pattern of paths
_TRIED_IMAGES = 16
_MOST_FOLDERS = 100  # to search for the images
_MOST_LISTED = 10**6  # files there, if images are in several folders
_MOST_FIELDS = 64  # of a column of objects. With more its keys are taken for data
_MOST_LEVELS = 8
FLAGS = {"": False, "0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
FOLDER = "folder"  # that an image lies in, as what splits or holds together

Record = Mapping[str, Any]
Change: TypeAlias = Callable[[Record], Record]
Problem: TypeAlias = tuple[str, str]  # reason and message of a reject
Row: TypeAlias = tuple[int, Record, Problem | None]  # with its number, and what is known to be wrong with it
_Looked: TypeAlias = tuple[Any, "ImageRef | None", "str | ImageError | None"]


class Embedded(NamedTuple):
    """An image inside a table, instead of its path: the name of its sample, and the place of its bytes."""

    name: str
    ref: ImageRef


class TableColumns:
    """Columns of a table that are image, label, split and further images.

    Args:
        where: URL of the table.
        names: names of all its columns.
        options: options of the build, which may name the columns.
        image: the column of the image, if it is known from elsewhere.
        label: the column of the label, if it is known from elsewhere.
        expected: the values of an image column, for messages.

    Raises:
        OptionError: a named column does not exist, or none can be chosen.
    """

    def __init__(
        self,
        where: str,
        names: Sequence[str],
        options: ShardOptions,
        image: str | None = None,
        label: str | None = None,
        expected: str = "a path",
    ) -> None:
        self._where, self._names, self._options, self._expected = where, names, options, expected
        band, *bands = options.band_names or ("",)
        image, label, split = band or image or options.image, label or options.label, options.split_by
        image = self.find("image", image) if image else self._guess("image", IMAGE_COLUMNS)
        if image is None:
            raise OptionError(
                f"{where}: none of its columns ({', '.join(names)}) is called {', '.join(IMAGE_COLUMNS[:4])} or the "
                f"like. Name the one that holds the paths of the images: --image COLUMN{_name_separator(names, where)}"
                + (f". With a row for each box: --group-by COLUMN{boxes}" if (boxes := box_flags(names)) else "")
            )
        flags = () if label in names else names_in(label)
        self.flags = tuple(self.find("label", name) for name in flags) if len(flags) > 1 else ()  # a class each
        if self.flags and (options.label_separator or options.label_type == "number"):
            raise OptionError(
                f"{where}: --label {label} names a column for each class, with 0 or 1. Leave --label-separator and "
                "--label-type out, or name one column"
            )
        self.label = None
        if label != "none" and not self.flags:
            self.label = self._guess("label", LABEL_COLUMNS) if label == "auto" else self.find("label", label)
        self._by_folder = split == "folder"
        self.split = None if split is None or self._by_folder else self.find("split", split)
        further = [self.find(f"image column {picture.name}", picture.column) for picture in options.pictures]
        bands = [self.find("band", name) for name in bands]
        self.files = [image, *bands, *further]  # all columns of paths, the image's first
        # The reason of a sample that lacks a file, for each.
        self._reasons = [BAD_BANDS if band else "unreadable", *[BAD_BANDS] * len(bands)]
        self._reasons += [picture.missing for picture in options.pictures]
        self._taken = {*self.files, *self.flags, self.label, self.split}
        self._split_with = [name for name in names_in(options.split_with) if name != FOLDER]
        for name in self._split_with:
            if self.find("groups of its splits", name) in self._taken:
                raise OptionError(
                    f"{where}: --split-with {name} is its column of paths, labels or splits. Name another"
                )

    def iter_items(self, rows: Iterable[Row], files: Files) -> Iterator[Item]:
        """Yield the items of some rows, after looking up their files. Raises SourceError."""
        base, further = files.base.url, [*zip(self.files[1:], self._reasons[1:], strict=True)]
        for (number, record, known), (image, *pictures) in self._look_up(rows, files):
            row, (path, ref, wrong) = f"row {number} of {self._where}", image
            try:
                label = self._find_label(record)
                split = self._find_split(record, base, path, ref)
                group_of(self._split_with, record, "")
            except (SourceError, OptionError) as error:
                raise type(error)(f"{self._where}, row {number}: {error}") from None
            others = {name: value for name, value in record.items() if name not in self._taken}
            if ref is None:
                bad = self._reasons[0], f"{row} has {wrong} in its column {self.files[0]!r}. Expected {self._expected}"
                if isinstance(wrong, ImageError):
                    bad = wrong.reason, f"{row}, column {self.files[0]!r}: {wrong}"
                path = url_identity(f"{self._where}, row {number}")
                yield Item(path, 0, "", label, split, values=others, problem=bad)
                continue
            problems = list[Problem]()
            if wrong is not None:
                reason = wrong.reason if isinstance(wrong, ImageError) else self._reasons[0]
                is_lost = wrong in (_NO_FILE, _NO_CLIP)
                problems.append((reason, f"{wrong}; {row} names it" if is_lost else f"{row}: {wrong}"))
            columns = further or [(self.files[0], self._reasons[0])] * len(pictures)  # frames
            for (column, missing), (name, found, lack) in zip(columns, pictures, strict=True):
                if lack is not None:
                    expected = "" if isinstance(lack, ImageError) else f". Expected {self._expected}"
                    said = f"{name!r}: {lack}" if found is not None else f"{lack}{expected}"
                    reason = lack.reason if isinstance(lack, ImageError) else missing
                    problems.append((reason, f"{row}, column {column!r}: {said}"))
            path, problem = identity_of(base, path), problems[0] if problems else known
            images = () if problems else tuple(found for _, found, _ in pictures if found is not None)
            file = "" if ref.file == path else ref.file
            item = Item(path, ref.bytes, ref.version, label, split, file, ref.offset, others, problem, images)
            yield item if ref.row is None else msgspec.structs.replace(item, row=ref.row, leaf=ref.leaf)

    def _look_up(self, rows: Iterable[Row], files: Files) -> Iterator[tuple[Row, Iterator[_Looked]]]:
        """Yield each row with what `_look` returns for each of its files. Looks up the files of many rows at once."""
        base, rows = files.base.url, iter(rows)
        while chunk := list(itertools.islice(rows, ROWS_AT_ONCE)):
            further = set[str]().union(*(record for _, record, _ in chunk)) - self._taken
            label = ",".join(self.flags) or self.label
            check_others(f"{self._where}: a column is called", further, self._options, self.files[0], label)
            each = [[p for name in self.files for p in self._paths(record.get(name), files)] for _, record, _ in chunk]
            paths = itertools.chain.from_iterable(each)
            stats = iter(files.stats([resolve(base, path) for path in paths if isinstance(path, str) and path]))
            for row, own in zip(chunk, each, strict=True):
                yield row, (_look(path, base, stats) for path in own)

    def _paths(self, value: Any, files: Files) -> Sequence[Any]:
        """Return what a column says of a file, or of each frame of a clip if it is a list, or a pattern of paths."""
        images, value = self._options.images, _to_path(value)
        if images.frames is None:
            return [value]
        is_pattern = isinstance(value, str) and _NUMBER.search(value)
        if not is_pattern and not isinstance(value, list):
            return [value]
        names = list[Any]()
        try:
            names = _list_frames(value, files) if is_pattern else value
            chosen = choose_frames(len(names), images.frames, images.frame_stride)
        except ImageError as error:
            return [*map(_to_path, names[:1]), error]  # the clip has the name of its first frame
        except (OptionError, UnknownSchemeError) as error:
            return [ImageError("unreadable", str(error))]
        return [_to_path(names[number]) for number in chosen]

    def _find_label(self, record: Record) -> Label | Labels:
        if not self.flags:
            return None if self.label is None else to_label(record.get(self.label))
        said = {name: text_of(record.get(name)).strip().lower() for name in self.flags}
        odd = next((name for name, text in said.items() if text not in FLAGS), None)
        if odd is not None:
            raise SourceError(
                f"the column {odd!r} has {format_value(record[odd])}. Columns that name classes have 0 or 1: correct "
                "it, or leave the column out of --label"
            )
        found = tuple(name for name, text in said.items() if FLAGS[text])
        return None if not any(said.values()) else found[0] if len(found) == 1 else found

    def _find_split(self, record: Record, base: str, path: Any, ref: ImageRef | None) -> str | None:
        if self._by_folder:
            if ref is None:
                raise SourceError(f"{self.files[0]} has no path, so the row has no split. Fill it in, or leave it out")
            split, slash, _ = ref.file.partition("/")
            if not slash or not split or split.endswith(":"):
                raise SourceError(f"{identity_of(base, str(path))} is in no folder of a split. Move it into one")
            return split
        if self.split is None:
            return None
        value = _to_path(record.get(self.split))
        split = "nan" if value is None or value == "" else str(value)
        if split.lower() == "nan":
            raise SourceError(f"the column {self.split!r} has no split. Fill it in, or leave the row out")
        check_split_name(split)
        return split

    @property
    def labels_from(self) -> str:
        """The columns that labels come from, in words."""
        if self.flags:
            return f"the columns {format_names(self.flags)}, with 0 or 1"
        return "" if self.label is None else f"the column {self.label}"

    def find(self, what: str, name: str) -> str:
        """Return the name of a column that the user named. Raises OptionError for an unknown column."""
        if name not in self._names:
            raise OptionError(
                f"{self._where} has no column {name!r} for the {what}. It has "
                f"{', '.join(self._names)}{_name_separator(self._names, self._where)}"
            )
        return name

    def _guess(self, what: str, candidates: Sequence[str]) -> str | None:
        for candidate in candidates:
            found = [name for name in self._names if name.strip().lower() == candidate]
            if len(found) > 1:
                how = "capitals" if all(name == name.strip() for name in found) else "spaces or capitals"
                raise OptionError(
                    f"{self._where}: the columns {', '.join(found)} differ only in {how}. Choose one: --{what} "
                    f"{shlex.quote(found[0])}"
                )
            if found:
                return found[0]
        return None


def check_others(said: str, names: AbstractSet[str], options: ShardOptions, image: str, label: str | None) -> None:
    """Raise SourceError if a further column has the name of an image column, or one that loaders use themselves.

    `said` begins the error, up to the name of the column. `image` and `label` are the columns taken as these.
    """
    names = {(options.rename or {}).get(name, name) for name in names}
    for picture in options.pictures:
        if picture.name in names:
            raise SourceError(f"{said} {picture.name!r}, like the image column of {picture.column!r}. Rename that one")
    owned = {"image": image, "sample": None, "mask": None, **({} if label is None else {"label": label})}
    for name, taken in owned.items():
        if name in names:
            why = "which loaders use themselves" if taken is None else f"but {taken!r} is taken as the {name}"
            way = ", or pass --label label if it is the label" if name == "label" else ""
            raise SourceError(f"{said} {name!r}, {why}. No loader could return it: rename it, like {name}_column{way}")


class TableSource(Source):
    """The rows of one or more tables, with paths below their folder or elsewhere, or URLs."""

    what = "table of paths"
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
    spells_files, groups = True, True

    def __init__(self, place: Place, options: ShardOptions) -> None:
        if options.split_by == "folder" and not place.folder:
            raise OptionError("a table has no folders to split by. Name one of its columns")
        self._store, self._files, self._options, self.base = place.store, place.files, options, place.store.url
        self.splits = options.split_by is not None
        self._suffixes = KEPT if options.images.pixels == "keep" else ()  # further ones of images
        self.notes = list[str]()  # on the images' places, once tables are open
        self._flags = list[str]()  # columns of 0 and 1 in a table without labels

    def prepare(self, name: str, names: Sequence[str], first: Sequence[Record]) -> tuple[TableColumns, Change | None]:
        """Choose among the columns `names` of a table by its `first` rows. Return also what changes each row, if any.

        Raises:
            OptionError: a named column does not exist, none can be chosen, or images are not where their names tell.
        """
        where, place = f"{self.base}/{name}", self._options.image
        if place is not None and (place in names or not (_BRACES.search(place) or self._is_folder(place))):
            columns, place = TableColumns(where, names, self._options), None  # it names a column
        else:
            braces, usual = _BRACES.search(place or ""), (*IMAGE_COLUMNS, *_ID_COLUMNS) if place is not None else ()
            column = (braces and braces[1]) or self._options.group_by
            column = column or next((name for one in usual for name in names if name.strip().lower() == one), None)
            if place is not None and column is None:
                raise OptionError(
                    f"{where}: --image {place} is the place of images, and none of the columns ({', '.join(names)}) is "
                    f"called {', '.join(usual[:4])} or the like. Name the one with their names: --image "
                    "'FOLDER/{COLUMN}'"
                )
            columns = TableColumns(where, names, self._options, column)
        image = columns.files[0]
        values = (record.get(image) for record in first)
        texts = (text_of(value[0] if isinstance(value, list) and value else value) for value in values)
        keys = list(dict.fromkeys(filter(None, texts)))[:_TRIED_IMAGES]
        find_path = self._find_paths(keys, image, None if place is None else _BRACES.sub("{}", place))
        if find_path is None:
            return columns, None

        def find(value: Any) -> Any:
            if isinstance(value, list):  # frames of a clip
                return list(map(find, value))
            return find_path(key) if (key := text_of(value)) else value

        def change(record: Record) -> Record:
            return {**record, **{name: find(record.get(name)) for name in columns.files[: self._options.image_files]}}

        return columns, change

    def _find_paths(self, keys: Sequence[str], column: str, place: str | None) -> Callable[[str], str] | None:
        """Return what makes the path of an image from its name in a column, or None if names are paths as they are.

        Args:
            keys: the first names in the column.
            column: its name.
            place: a folder of images, or a pattern of paths like `train/{}.jpg`, or None to look here and in folders.

        Raises:
            OptionError: there are no such images, or it is not certain which they are.
        """
        files, store = Files(self.base), self._store

        def count(pattern: str, keys: Sequence[str]) -> int:
            infos = files.stats([resolve(self.base, pattern.replace("{}", key)) for key in keys])
            return sum(isinstance(info, ObjectInfo) for info in infos)

        if place is not None and is_image_name(place, self._suffixes):
            return partial(place.replace, "{}")
        are_paths = any("://" in key or key[0] == "/" or _NUMBER.search(key) for key in keys)
        if not keys or (place is None and (are_paths or count("{}", keys))):
            return None
        with listing():
            names = () if place is not None or is_web(store) else store.iter_folders()
            folders = [place or "", *sorted(name for name in names if not is_hidden(name))[:_MOST_FOLDERS]]
        starts = (each if "{}" in each else posixpath.join(each, "{}") for each in folders)
        patterns = [start + suffix for start in starts for suffix in ("", *IMAGE_SUFFIXES, *self._suffixes)]
        found = [pattern for pattern in patterns if count(pattern, keys[:1]) and count(pattern, keys) == len(keys)]
        if len(found) > 1:
            raise OptionError(
                f"{self.base}: images like {keys[0]} are in {format_names(found)}. Choose one: --image "
                f"{shlex.quote(found[0])}"
            )
        paths = dict[str, str]()
        if not found and not is_web(store):
            paths = self._list_images(posixpath.dirname(f"{place}/".partition("{}")[0]) if place else "")
        is_enough = any if place else all
        if found or is_enough(key in paths for key in keys):
            if place is None:
                taken = found[0] if found else f"all folders below {self.base}, by their names"
                self.notes.append(
                    f"{column} has no paths: images are taken from {taken}. If they are others, pass --image "
                    f"'FOLDER/{{}}.jpg'. The column filename, with the path, is kept instead of {column}"
                )
            return partial(found[0].replace, "{}") if found else lambda key: paths.get(key, key)
        if place is not None or not (is_web(store) or any(map(is_image_name, keys))):
            there = "no folder here has the images of all" if place is None else f"{place} has no images of the"
            raise OptionError(
                f"{self.base}: {column!r} has names like {keys[0]} instead of paths, and {there} {len(keys)} "
                f"names that were tried, like {keys[0]}.jpg: pass --image 'FOLDER/{{}}.jpg', {{}} for the name, or "
                "--image COLUMN for a column of paths"
            )
        return None

    def _list_images(self, folder: str) -> dict[str, str]:
        """Return the paths of all images below a folder, by their names with and without suffix. Nothing if too many.

        Raises OptionError if two images have one name.
        """
        paths = dict[str, str]()
        with listing():
            for number, path in enumerate(self._iter_names(folder)):
                if number == _MOST_LISTED:
                    return {}
                name = posixpath.basename(path)
                for key in {name, stem_of(name)} if is_image_name(path, self._suffixes) else ():
                    if paths.setdefault(key, path) != path:
                        raise OptionError(
                            f"{self.base}: two images are called {key}: {paths[key]} and {path}. Pass --image "
                            "'FOLDER/{}.jpg', with {} for the name in the table"
                        )
        return paths

    def _is_folder(self, name: str) -> bool:
        with suppress(TpufeedError):
            return not is_web(self._store) and next(self._iter_names(name), None) is not None
        return False

    def _iter_names(self, folder: str) -> Iterator[str]:
        if "://" in folder or folder.startswith("/"):
            yield from (f"{folder.rstrip('/')}/{info.name}" for info in open_store(folder).iter_objects())
        else:
            yield from (info.name for info in self._store.iter_objects(folder.rstrip("/")))

    def iter_items(self, found: Found) -> Iterator[Item]:
        files, empty = Files(self.base), list[str]()
        for info in self._files:
            try:
                with self.open(info.name) as (columns, records):
                    yield from columns.iter_items(number_rows(records), files)
            except NoInputsError:
                empty.append(info.name)
                if len(empty) == len(self._files):
                    raise
        found.notes += dict.fromkeys(self.notes)
        if empty:
            found.notes.append(f"tables without rows are left out: {format_names(empty)}")

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[TableColumns, Iterator[Record]]]:
        """Open the table `name` as its columns and rows. Raises as `iter_items` does."""
        where = f"{self.base}/{name}"
        with listing(f"{where} cannot be read"), open_compared(self._store, name) as file:
            records = _iter_records(file, name, where)
            first = list(itertools.islice(records, ROWS_AT_ONCE))
            if not first:
                raise NoInputsError(f"{where}: the table has no rows")
            names = list(dict.fromkeys(itertools.chain.from_iterable(first)))  # JSON lines may leave some out
            columns, change = self.prepare(name, names, first)
            self.image_column = columns.files[0]
            self.labels_from = columns.labels_from
            if self._options.label == "none":
                self.notes += (
                    f"--label none: {name} is kept as a column, and not as the class. If it has no true labels, remove "
                    "it from the table"
                    for name in names
                    if name.strip().lower() in LABEL_COLUMNS and name not in columns.files
                )
            if columns.flags:
                self.contents = self.contents._replace(class_names=columns.flags)
            elif columns.label is None:
                said = {name: {text_of(one.get(name)).lower() for one in first} for name in names}
                self._flags = [name for name, texts in said.items() if texts <= FLAGS.keys() and len(texts) > 1]
            self.splits_from = "folders" if columns.split is None else f"the column {columns.split}"
            records = itertools.chain(first, records)
            if points := self._options.points:
                if KEYPOINTS in {*names} - {*points}:
                    raise OptionError(f"{where}: the column {KEYPOINTS!r} has the name that the points get. Rename it")
                x_names = [columns.find("keypoints", name) for name in points][::2]
                self.contents = self.contents._replace(pairs=pair_names(x_names, len(x_names)))
                records = map(partial(_join_points, points), records)
            yield columns, records if change is None else map(change, records)

    def iter_warnings(self, found: Found, classes: Sequence[str] | None, columns: Sequence[str]) -> Iterator[str]:
        return iter(()) if classes is not None else advise_on_labels(self._options, columns, self._flags)


def advise_on_labels(options: ShardOptions, columns: Sequence[str], flags: Sequence[str] = ()) -> Iterator[str]:
    """Yield a warning of rows without labels, as one of their columns may be meant, or several of `flags`."""
    if options.label == "auto" and len(flags) > 1:
        yield (
            f"no labels, but the columns {format_names(flags)} have 0 and 1. If they name classes, pass --label "
            f"{shlex.quote(','.join(flags))}, or else --label none"
        )
    elif options.label == "auto" and columns:
        yield (
            f"no labels: none of the columns {format_names(columns)} is called label, class or the "
            "like. Pass --label COLUMN or --label none"
        )


def number_rows(records: Iterable[Record], first: int = 1) -> Iterator[Row]:
    """Number records, of which nothing is known to be wrong."""
    return zip(itertools.count(first), records, itertools.repeat(None))


def _join_points(columns: Sequence[str], record: Record) -> Record:
    """Return a record with its columns of x and y as the list of keypoints, with their visibilities as in COCO."""
    joined = {name: value for name, value in record.items() if name not in columns}
    places = zip(*([record.get(name) for name in columns[first::2]] for first in (0, 1)), strict=True)
    joined[KEYPOINTS] = [[0, 0, 0] if is_missing(x) and is_missing(y) else [x, y, 2] for x, y in places]
    return joined


def _look(path: Any, base: str, stats: Iterator[ObjectInfo | TpufeedError | None]) -> _Looked:
    """Return a path, the place of its file, and what is wrong with either. Takes the next of `stats` for a file."""
    if isinstance(path, Embedded):
        return path.name, path.ref, None
    if isinstance(path, ImageError):
        return None, None, path
    if not isinstance(path, str) or not path:
        clips = " (of which --frames makes a clip)" if isinstance(path, list) else ""
        return path, None, "nothing" if path in (None, "") else f"a value of type {type(path).__name__}{clips}"
    file, info = resolve(base, path), next(stats)
    if isinstance(info, Exception):
        return path, ImageRef(file, 0, ""), info if isinstance(info, ImageError) else str(info)
    if info is None:
        return path, ImageRef(file, 0, ""), _NO_CLIP if _NUMBER.search(path) else _NO_FILE
    return path, ImageRef(file, info.size_bytes, info.version), _NO_FILE if info.version == BROKEN_LINK else None


def _list_frames(pattern: str, files: Files) -> list[str]:
    """Return the paths that `clip1/frame_{:04d}.jpg` means, in the order of their numbers. Raises ImageError."""
    (field,) = _NUMBER.findall(pattern)[:1]
    start, _, end = pattern.partition(field)
    store, span = files.find(ImageRef(resolve(files.base.url, pattern), 0, ""))
    head, tail = span.name[: len(span.name) - len(end)].removesuffix(field), len(end)
    listed: Sequence[str] = () if is_web(store) else files.names_below(store, posixpath.dirname(span.name))
    later = (listed[at] for at in range(bisect.bisect_left(listed, head), len(listed)))
    names = itertools.takewhile(lambda name: name.startswith(head), later)
    digits = (name[len(head) : len(name) - tail] for name in names if name.endswith(end))
    found = sorted(int(each) for each in digits if each.isdecimal() and each == field.format(int(each)))
    if not found:
        raise ImageError("missing_frame", f"no file here has a name like {start}{field.format(1)}{end}")
    if gap := next((number for number, each in enumerate(found, found[0]) if number != each), None):
        raise ImageError("missing_frame", f"{start}{field.format(gap)}{end} is missing, and later frames are there")
    return [f"{start}{field.format(number)}{end}" for number in found]


def _to_path(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value  # as some Parquet writers store it


def group_of(names: Iterable[str], values: Record, path: str) -> str:
    """Return what the samples of one group have in common: the values of these columns, or the folder of the path.

    Raises SourceError if there is not one value in each.
    """
    texts = list[str]()
    for name in names:
        value = values.get(name, (posixpath.dirname(path) or ".") if name == FOLDER else None)
        if is_missing(value) or isinstance(value, list | tuple | dict):
            has = "nothing" if value is None else format_value(value)
            columns = f", and has the columns {format_names(list(values))}" if values and name not in values else ""
            raise SourceError(
                f"has {has} in the column {name!r}{columns}. A group has one value: fill it in, or leave the sample out"
            )
        texts.append(re.sub(r"(?<=[0-9])\.0$", "", text_of(value)))  # pandas writes 7 as 7.0 beside a missing value
    return ", ".join(texts)


def text_of(value: Any) -> str:
    """Return the value of a column as text, or empty text if it is missing."""
    value = to_label(value) if isinstance(value, float | bytes) else value
    return "" if is_missing(value) else str(value)


def is_missing(value: Any) -> bool:
    """Return true for a value that stands for none."""
    return value is None or value == "" or value != value or value == "nan"  # noqa: PLR0124  # NaN


def to_label(value: Any) -> Label | Labels:
    """Return a label as a name or an id, a tuple of these, or None if it is missing. The floats of pandas become ids.

    Raises:
        SourceError: it is an object or a list of lists.
    """
    if isinstance(value, list | tuple) and not any(isinstance(item, list | tuple) for item in value):
        return tuple(label for item in value if not isinstance(label := to_label(item), tuple))
    if value is None or value == "" or value != value:  # noqa: PLR0124  # NaN
        return None
    if isinstance(value, dict | list | tuple):
        raise SourceError(
            f"{str(value)[:60]} is not a label: a sample has a class, or a list of classes. To keep the values as a "
            "further column, pass --label none; or rename it, and name the column of the label"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def iter_head(store: Store, name: str) -> Iterator[Record]:
    """Yield the records of the table `name`, which is read as far as they are taken. Raises as `iter_items`."""
    where = f"{store.url}/{name}"
    with listing(f"{where} cannot be read"), open_object(store, name) as file:
        yield from _iter_records(file, name, where)


def box_flags(names: Iterable[str]) -> str:
    """Return the options for the columns whose names are those of a box or its sides, or empty text."""
    columns, form = name_boxes(names)
    form = f" --box-format {form}" if form else ""
    return f" --boxes {shlex.quote(','.join(columns))}{form}" if columns else ""


def _iter_records(file: BinaryIO, name: str, where: str) -> Iterator[Record]:
    """Yield the rows of a file as named values. The fields of a column of objects become columns: `objects.bbox`.

    Those of lists of objects with a `bbox` become columns of lists. Columns of Parquet files with images are named the
    same way. A column stays as it is if it has other values as well, or if its objects have so many keys that these
    must be data.

    Raises:
        SourceError: it cannot be read, or a field has the name of another column.
    """
    records = _iter_rows(file, name, where)
    first = list(itertools.islice(records, ROWS_AT_ONCE))
    fields, kept = dict[str, set[str]](), set[str]()
    for record in first:
        for column, value in record.items():
            if _has_fields(value):
                fields.setdefault(column, set()).update(field for field, _ in iter_fields(column, value))
            elif value is not None and value != []:
                kept.add(column)
    kept.update(column for column, found in fields.items() if len(found) > _MOST_FIELDS)
    for record in itertools.chain(first, records):
        if not fields and not any(isinstance(value, dict | list) and _has_fields(value) for value in record.values()):
            yield record
            continue
        flat: dict[str, Any] = {}
        for column, value in record.items():
            is_flat = column not in kept and (_has_fields(value) or (value in (None, []) and column in fields))
            for field, item in iter_fields(column, value) if is_flat else [(column, value)]:
                if field in flat:
                    raise SourceError(f"{where}: two columns have the same name: {field}")
                flat[field] = item
        yield flat


def _has_fields(value: Any) -> bool:
    """Return true for an object, and for a list of objects with a box each."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, dict) and not one.keys().isdisjoint(BOX_NAMES) for one in value)
    return isinstance(value, dict)


def iter_fields(name: str, value: Any, level: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of an object and of nested objects by name, as lists for a list, or nothing if it is missing."""
    if isinstance(value, list):
        objects = [dict(iter_fields(name, item, level)) for item in value]
        for field in dict.fromkeys(itertools.chain.from_iterable(objects)):
            yield field, [one.get(field) for one in objects]
        return
    for key, item in (value or {}).items():
        if isinstance(item, dict) and level < _MOST_LEVELS:
            yield from iter_fields(f"{name}.{key}", item, level + 1)
        else:
            yield f"{name}.{key}", item


def _iter_rows(file: BinaryIO, name: str, where: str) -> Iterator[Record]:
    suffix = name[name.rindex(".") :].lower()
    if suffix == ".parquet":
        yield from _iter_parquet(file, where)
        return
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        try:
            if suffix in (".jsonl", ".ndjson"):
                yield from _iter_json(text, where)
            else:
                yield from _iter_csv(text, "\t" if suffix == ".tsv" else ",", where)
        except UnicodeDecodeError as error:
            raise _not_utf8(file, error, where) from error


def _not_utf8(file: BinaryIO, error: UnicodeDecodeError, where: str) -> SourceError:
    """Return the error for bytes that are not UTF-8. Finds their line by how far the file was read."""
    left = place = file.tell() - len(error.object) + error.start
    wanted = "'CSV UTF-8'" if where.lower().endswith(".csv") else "UTF-8"
    file.seek(0)
    if not place and file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return SourceError(
            f"{where}: not UTF-8: it looks like UTF-16, like Excel's 'Unicode text'. Save it as {wanted}"
        )
    line = 1
    while left:
        block = file.read(min(left, _BYTES_AT_ONCE))
        line, left = line + block.count(b"\n"), left - len(block) if block else 0
    found = error.object[error.start : error.end]
    return SourceError(f"{where}, line {line}: not UTF-8: {error.reason} ({found!r}). Save it as {wanted}")


def _iter_csv(text: io.TextIOWrapper, delimiter: str, where: str) -> Iterator[Record]:
    # A setting of the whole process: raising it does no harm to others.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    header, has_blanks, begin = list[str](), False, 0  # the line before the row that is being read
    try:
        while (fields := next(reader, None)) is not None:
            if delimiter == "\t" and reader.line_num > begin + 1:
                raise csv.Error("a field spans lines")
            if fields and not header:
                if not has_blanks and any(name != name.strip() for name in fields):
                    # A header `image, label` comes with rows like `a.jpg, cat`, and maybe `a.jpg, "cat, grey"`.
                    text.seek(0)
                    reader = csv.reader(text, delimiter=delimiter, strict=True, skipinitialspace=True)
                    has_blanks, begin = True, 0
                    continue
                names = map(str.strip, fields) if has_blanks else fields
                header = [name or f"column_{place}" for place, name in enumerate(names)]  # the index of pandas has none
                check_names(header, where)
            elif fields:
                if len(fields) != len(header):
                    is_one = reader.line_num == begin + 1
                    lines = f"line {begin + 1}" if is_one else f"lines {begin + 1} to {reader.line_num}"
                    raise SourceError(
                        f"{where}, {lines}: {len(fields)} fields. The header has {len(header)} "
                        f"({', '.join(header)}){_name_separator(header, where)}"
                    )
                values = map(str.strip, fields) if has_blanks else fields
                yield dict(zip(header, (value or None for value in values), strict=True))
            begin = reader.line_num
    except csv.Error as error:
        row = f"{where}, line {begin + 1}"
        if reader.line_num <= begin + 1:
            raise SourceError(f"{row}: {error}") from error
        if delimiter == "\t":  # it would swallow rows up to the next quote
            raise SourceError(
                f"{row}: a field begins with a quote that does not end in its line. Put the field in quotes and double "
                f'the quotes inside ("""5 inch"), or save the table as .csv'
            ) from error
        raise SourceError(
            f"{row}: a field of the row that begins here has an opening quote that is not closed properly ({error}, "
            f"line {reader.line_num}). Close it, and double quotes inside the field"
        ) from error


def _name_separator(names: Sequence[str], where: str) -> str:
    """Return advice if there is a single name that holds the column separator of another program."""
    suffix = where[-4:].lower()
    for separator, remedy in _SEPARATORS.get(suffix, {}).items():
        if len(names) == 1 and separator in names[0]:
            return f". The file seems to be separated by {separator!r}. Save it {remedy}"
    return ""


def check_names(names: Sequence[str], where: str) -> None:
    """Raise SourceError if two columns of the table `where` have the same name."""
    if len(set(names)) < len(names):
        raise SourceError(f"{where}: two columns have the same name: {', '.join(names)}")


def _iter_json(text: io.TextIOWrapper, where: str) -> Iterator[Record]:
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.rstrip("\r\n"))
        except (ValueError, RecursionError) as error:
            # The decoder counts lines within this one.
            said = f"{error.msg} (column {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else error
            raise SourceError(f"{where}, line {number}: not JSON: {said}") from error
        if not isinstance(record, dict):
            raise SourceError(f"{where}, line {number}: {line.strip()[:60]} is not an object. Expected one per line")
        yield record


def _iter_parquet(file: BinaryIO, where: str) -> Iterator[Record]:
    with parquet_errors(where, SourceError):
        from pyarrow import parquet

        rows = parquet.ParquetFile(file)
        check_names(rows.schema_arrow.names, where)
        for batch in rows.iter_batches(ROWS_AT_ONCE):
            for values in zip(*(to_python(column, where) for column in batch.columns), strict=True):
                yield dict(zip(batch.schema.names, values, strict=True))


def to_python(array: Any, where: str) -> list[Any]:
    """Return the values of an Arrow array. Times that no type of Python holds become text.

    Does not use pandas, which pyarrow itself wants for nanoseconds.
    """
    import pyarrow
    from pyarrow import types

    kind = array.type
    if "[ns" in str(kind):
        if not types.is_temporal(kind):
            raise SourceError(
                f"{where}: a column of {kind} has nanoseconds inside lists or structs. Store microseconds"
            )
        micro = pyarrow.timestamp("us", kind.tz) if types.is_timestamp(kind) else str(kind).replace("[ns", "[us")
        with suppress(pyarrow.ArrowInvalid):  # not all are whole microseconds
            array = array.cast(micro)
    if "[ns" not in str(array.type):
        with suppress(*_BEYOND_PYTHON):
            return list(array.to_pylist())
        if not types.is_temporal(kind):
            raise SourceError(f"{where}: a column of {kind} has a value that Python cannot hold")
    if types.is_timestamp(kind) and kind.tz is not None:  # as UTC, without a database of time zones
        text = array.cast(pyarrow.int64()).cast(pyarrow.timestamp(array.type.unit)).cast(pyarrow.string()).to_pylist()
        return [None if value is None else f"{value}Z" for value in text]
    if types.is_duration(kind):  # Arrow would give the number without its unit
        ticks = array.cast(pyarrow.int64()).to_pylist()
        return [None if tick is None else f"{tick} {array.type.unit}" for tick in ticks]
    return list(array.cast(pyarrow.string()).to_pylist())
