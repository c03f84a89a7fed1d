"""Read images inside columns: Parquet files as on the Hugging Face hub, and folders of `save_to_disk` of `datasets`.

A column of images is a struct of `bytes` and `path`, or only bytes. Listing reads footers and the other columns, but no
image: a row of Parquet counts as the average bytes of its row group. The Arrow files of `save_to_disk` are not
compressed, so each image is read at its place in the file.
"""

import functools
import itertools
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np

from tpufeed.builds.item import ImageRef, Item
from tpufeed.dataset.schema import BOX_NAMES
from tpufeed.errors import NoInputsError, OptionError, SourceError, url_identity
from tpufeed.images.header import sniff
from tpufeed.sources.inputs import Files
from tpufeed.sources.labels import are_renamed
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.paths import ARROW, PARQUET, is_hidden, name_of_row
from tpufeed.sources.row_groups import chunk_of, iter_leaf, open_parquet, parquet_errors
from tpufeed.sources.source import IMAGELESS, Contents, Folder, Found, Place, Source, listing
from tpufeed.sources.table import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    Embedded,
    Record,
    TableColumns,
    advise_on_labels,
    check_names,
    iter_fields,
    number_rows,
    to_python,
)
from tpufeed.storage.reading import open_object
from tpufeed.storage.store import ObjectInfo, Store
from tpufeed.text import format_names

_SAVED_BY = _SAVED, _DICT = "state.json", "dataset_dict.json"
_SPLIT_OF_WORD = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_PART_OF_SPLIT = re.compile(r"(?:.*/)?data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}\b[^/]*")  # of a split of any name
_SUFFIX = re.compile(r"\.(parquet|arrow)\Z", re.IGNORECASE)
_PART_NUMBER = re.compile(r"[-_.]\d{5}-of-\d{5}\b.*")
# Words that may follow the name of a split, besides single letters: train_images, test-v2, val_part_3, train.snappy
_OF_PARTS = frozenset(
    ("set", "sets", "data", "dataset", "split", "images", "imgs", "part", "shard", "file", "chunk", "batch", "of")
) | {"full", "all", "snappy", "zstd", "gzip", "brotli"}
_NO_IMAGES = ("Audio", "Video", "Pdf", "Nifti", "Mesh")  # these are structs of bytes and path as well


_Files: TypeAlias = list[tuple[ObjectInfo, str | None]]  # each with the split that its name gives
_File: TypeAlias = "_ParquetFile | _ArrowFile"
# The group of rows that are to be read together, the number of the first row, an Arrow batch of the columns other than
# images (None without such columns), and for each column of images the place of each row's image, if it has one.
_Batch: TypeAlias = tuple[str, int, Any, dict[str, list[ImageRef | None]]]


def find_files(store: Store, found: Sequence[ObjectInfo]) -> _Files:
    """Find the files of rows in a folder: the hub's Parquet files, or what `datasets` has saved.

    Raises:
        OptionError: it has several configurations.
        SourceError: it cannot be read.
    """
    by_name = {info.name: info for info in found}
    saved = [name for name in by_name if posixpath.basename(name) == _SAVED]
    if saved:
        return [
            (by_name[name], state.split("/")[0] if _DICT in by_name else None)
            for state in sorted(saved)
            for name in _saved_files(store, state, by_name)
        ]
    rows = [info for info in found if info.name.lower().endswith(PARQUET)]
    if not rows:
        raise OptionError(
            f"{store.url} holds .arrow files without the {_SAVED} of save_to_disk: they may be a cache of datasets. "
            "Name the files to read: FOLDER/NAME-*.arrow"
        )
    tops = {info.name.partition("/")[0] for info in rows if "/" in info.name}
    configs = sorted(name for name in tops if name != "data" and split_of_name(name) is None)
    if len(configs) > 1:
        raise OptionError(
            f"{store.url} has {len(configs)} folders of Parquet files, which are configurations of a dataset: "
            f"{format_names(configs)}. Choose one: {store.url.rstrip('/')}/{configs[0]}"
        )
    return with_splits(rows)


def with_splits(infos: Sequence[ObjectInfo]) -> _Files:
    """Return files sorted by name, each with the split that its name gives.

    The name train_en.parquet gives a split only if there is a test_en.parquet as well.
    """
    ordered = sorted(infos, key=lambda info: info.name)
    pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(_SPLIT_OF_WORD)})(?![a-z])")
    alike = [pattern.sub("*", info.name.lower()) for info in ordered]
    loose = [next((split for split, _ in _splits_in(info.name)), None) for info in ordered]
    of_pattern: dict[str, set[str | None]] = {}
    for like, split in zip(alike, loose, strict=True):
        of_pattern.setdefault(like, set()).add(split)
    return [
        (info, split_of_name(info.name) or (split if len(of_pattern[like]) > 1 else None))
        for info, like, split in zip(ordered, alike, loose, strict=True)
    ]


def has_images(store: Store, name: str) -> bool:
    """Return true if the Parquet file `name` has a column of images, false if it is a table of paths."""
    with listing(), _open_file(store, name) as file:
        return bool(_Layout(file, f"{store.url}/{name}", find_plain(file)).images)


def split_of_name(name: str) -> str | None:
    """Return the split that a path on the hub gives, like `data/train-00000-of-00002.parquet` or `val/0.parquet`.

    `flowers_test.parquet` gives test, but `test_tubes.parquet` no split: only numbers and words for parts may follow.
    """
    part = _PART_OF_SPLIT.fullmatch(name)
    if part is not None:
        return _SPLIT_OF_WORD.get(part[1].lower(), part[1])
    for split, words in _splits_in(name):
        if all(len(word) == 1 or word in _OF_PARTS or word in _SPLIT_OF_WORD for word in words):
            return split
    return None


def _splits_in(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield for each step of a path, the last step first, the first split that it mentions and the words behind it."""
    for step in reversed(name.split("/")):
        stem = _PART_NUMBER.sub("", _SUFFIX.sub("", step)).lower()
        words = [word for word in re.split(r"[^a-z]+", stem) if word]
        place = next((at for at, word in enumerate(words) if word in _SPLIT_OF_WORD), None)
        if place is not None:
            yield _SPLIT_OF_WORD[words[place]], words[place + 1 :]


def _saved_files(store: Store, state: str, by_name: Mapping[str, ObjectInfo]) -> list[str]:
    folder, where = posixpath.dirname(state), f"{store.url}/{state}"
    try:
        content = json.loads(store.read(state))
        names = [posixpath.join(folder, str(part["filename"])) for part in content["_data_files"]]
        is_chosen = bool(content.get("_indices_data_files") or content.get("_indices_files"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{where} was not written by save_to_disk: {type(error).__name__}: {error}") from error
    if is_chosen:
        raise OptionError(
            f"{where}: a file of indices selects rows. In Python, call flatten_indices() of the dataset and save it "
            "again"
        )
    for name in names:
        if name not in by_name:
            raise SourceError(f"{where} names the file {name!r}, which is missing. Copy the folder again")
    return names


class ColumnarSource(Source):
    """The rows of Parquet and Arrow files that hold images."""

    what = "files with the images in a column"
    suffixes, marks = (ARROW, PARQUET), (IMAGELESS,)

    @classmethod
    def claim(cls, folder: Folder) -> Place | None:
        """Return the place of the files of rows in a folder without images."""
        files = [info for info in folder.imageless if not is_hidden(info.name)]
        rows = [info for info in files if info.name.lower().endswith(cls.suffixes)]
        saved = [info for info in files if posixpath.basename(info.name) in _SAVED_BY]  # what `save_to_disk` adds
        return folder.place([*rows, *saved] if rows else [], "it has files of rows and no images")

    def __init__(self, place: Place, options: ShardOptions) -> None:
        store = place.store
        files = find_files(store, place.files) if place.folder else with_splits(place.files)
        if options.split_by == "folder":
            raise OptionError("Parquet and Arrow files have no folders to split by. Name one of their columns")
        unsaid = next((info.name for info, split in files if split is None), None)
        said = {split for _, split in files if split is not None}
        if options.split_shares is not None or options.split_by is not None:
            if len(said) > 1:
                raise OptionError(
                    f"{store.url} has files of the splits {', '.join(sorted(said))}, which shares or --split-by would "
                    "mix. Leave these out to keep the splits, or name the files of one: 'data/train-*.parquet'"
                )
        elif said and unsaid is not None:
            raise OptionError(
                f"{store.url}: the name of {unsaid} gives no split, but other names do ({', '.join(sorted(said))}). "
                "Name the files to read, like 'data/train-*.parquet'"
            )
        if not files:
            raise NoInputsError(f"{store.url} has no rows")
        self._store, self._files, self._options, self.base = store, files, options, store.url
        self._by_name = options.split_shares is None and options.split_by is None and bool(said)
        self.splits = self._by_name or options.split_by is not None
        largest, _ = max(files, key=lambda file: file[0].size_bytes)  # others may have no rows
        with listing(), _open_file(store, largest.name) as file:
            self._plain = find_plain(file)  # columns of bytes, without a struct, that hold images
        for name in {split: info.name for info, split in reversed(files)}.values():  # a test set may have no labels
            with listing(), _open_file(store, name) as file:
                self._plain |= find_plain(file)
                layout = _Layout(file, f"{store.url}/{name}", self._plain)
                columns = layout.choose(options)
                names = layout.class_names(columns.label) or columns.flags
            if names and options.label != "none" and self.contents.class_names is None:
                self.contents = Contents(class_names=names)
        named = ", with its list of names" if self.contents.class_names is not None else ""
        self.labels_from = f"{columns.labels_from}{'' if columns.flags else named}"
        self.splits_from = "the names of the files" if self._by_name else f"the column {columns.split}"

    def iter_items(self, found: Found) -> Iterator[Item]:
        empty, files = True, Files(self.base)
        for info, split in self._files:
            for item in self._iter_file(info, found, split if self._by_name else None, files):
                empty = False
                yield item
        if empty:
            raise NoInputsError("; ".join([f"{self.base}: the files have no rows to take", *found.notes]))

    def iter_warnings(self, found: Found, classes: Sequence[str] | None, columns: Sequence[str]) -> Iterator[str]:
        return iter(()) if classes is not None else advise_on_labels(self._options, columns)

    def _iter_file(self, info: ObjectInfo, found: Found, split: str | None, files: Files) -> Iterator[Item]:
        options = self._options
        with _open_file(self._store, info.name) as file:
            layout = _Layout(file, f"{self.base}/{info.name}", self._plain)
            columns = layout.choose(options)
            # Test sets of contests often have no labels. Each of their images would be a reject.
            is_unlabelled = split is not None and columns.label is not None and file.has_no_labels(columns.label)
            notes = [layout.format_left_out(columns)]
            if is_unlabelled:
                notes = [f"the split {split} has no labels (all are -1) and is left out. Shard it with --label none"]
            if options.shards is None and file.largest_group > options.size_bytes:  # several shards have to decode it
                notes.append(
                    f"row groups have up to {file.largest_group / 1e6:,.0f} MB, more than a shard: each shard decodes "
                    "its row group from the start, in as much memory. Write the files again with fewer rows per group "
                    "(row_group_size=100), or pass a larger --shard-size"
                )
            found.notes.extend(note for note in notes if note and note not in found.notes)
            if is_unlabelled:
                return
            names, given = layout.class_names(columns.label), options.class_names
            if names and self.contents.class_names is None:
                raise SourceError(
                    f"{self.base}: {info.name} names the classes in its column {columns.label!r}, and the first "
                    "file of its split does not. Write all files with the same features"
                )
            if names and given is not None and not options.keeps_classes and are_renamed(names, given):
                names = None  # numbers are places in the user's list
            for group, first, batch, images in file.iter_batches(info, layout, columns.files):
                records = layout.iter_records(batch, images, info.name, first)
                if names and columns.label is not None:
                    records = map(functools.partial(_name_labels, columns.label, names), records)
                for item in columns.iter_items(number_rows(records, first), files):
                    yield msgspec.structs.replace(item, group=group, split=split or item.split)


def _name_labels(column: str, names: Sequence[str], record: Record) -> Record:
    """Replace the ids of classes by their names. -1 means no label, and stays."""

    def name_of(value: Any) -> Any:
        if isinstance(value, list):
            return [name_of(one) for one in value]
        return names[value] if isinstance(value, int) and 0 <= value < len(names) else value

    return {**record, column: name_of(record.get(column))}


class _Layout:
    """The columns of a file: `images` (with the column of the bytes of each), `paths`, and `kept` as values."""

    def __init__(self, file: _File, where: str, plain: Iterable[str]) -> None:
        self._where, self._features = where, file.features
        self.images, self.paths, self.kept = dict[str, str](), dict[str, str](), list[str]()
        self._types, names, self._left_out = dict[str, str](), list[str](), list[str]()
        for column in file.schema:
            name, kind = column.name, _storage(column.type)
            feature = self._features.get(name)
            children = {child.name: child.type for child in _children(kind)}
            if _is_struct(kind) and _is_binary(children.get("bytes")):
                if isinstance(feature, dict) and feature.get("_type") in _NO_IMAGES:
                    self._left_out.append(name)
                else:
                    self.images[name] = f"{name}.bytes"
                    if str(children.get("path")) in ("string", "large_string"):
                        self.paths[name] = f"{name}.path"
            elif name in plain:
                self.images[name] = name
            elif not _is_binary(kind) and _holds_binary(kind):
                self._left_out.append(name)
            else:
                self.kept.append(name)
                names += _flat_names(name, kind)
            self._types[name] = str(kind)
        self._names = [*self.images, *names]
        check_names(self._names, where)

    def choose(self, options: ShardOptions) -> TableColumns:
        """Return which columns are image, label, split and further images. Raises OptionError."""
        image, label = options.image, options.label
        for name in (image, *(picture.column for picture in options.pictures)):
            if name is not None and name not in self.images and (name in self._types or name in self._names):
                holds = self._types.get(name, "values")
                said = f"images are in {', '.join(self.images)}" if self.images else "and no other column does"
                raise OptionError(f"{self._where}: the column {name!r} holds {holds}, not images; {said}")
        if image is None:
            if not self.images:
                raise OptionError(
                    f"{self._where}: none of its columns ({', '.join(self._types)}) holds images, as structs of bytes "
                    "and path or as bytes. To read a table of paths, give its name, like FOLDER/table.parquet"
                )
            further = {picture.column for picture in options.pictures}
            candidates = [name for name in self.images if name not in further]
            named = [name for usual in IMAGE_COLUMNS for name in candidates if name.lower() == usual]
            if len(candidates) != 1 and not named:
                raise OptionError(
                    f"{self._where}: the columns {', '.join(self.images)} hold images. Choose one: --image "
                    f"{next(iter(self.images))}"
                )
            image = candidates[0] if len(candidates) == 1 else named[0]
        if label == "auto" and not any(name.lower() in LABEL_COLUMNS for name in self._names):
            classed = [name for name in self.kept if self.class_names(name)]
            label = classed[0] if len(classed) == 1 else label
        return TableColumns(self._where, self._names, options, image, label, "bytes or a path")

    def class_names(self, label: str | None) -> tuple[str, ...] | None:
        """Return the names of the classes whose ids a column holds, if the metadata names them."""
        node: Any = self._features
        for step in [] if label is None else [label] if label in self._features else label.split("."):
            node = _of_items(node)
            node = node.get(step) if isinstance(node, dict) else None
        node = _of_items(node)
        if label is None or not isinstance(node, dict) or node.get("_type") != "ClassLabel":
            return None
        names = node.get("names")
        return tuple(map(str, names)) if isinstance(names, list) and names else None

    def format_left_out(self, columns: TableColumns) -> str:
        """Return a warning of the columns that records do not hold, or empty text if there are none."""
        images = [name for name in self.images if name not in columns.files]
        said = [f"{name} (images: to take them, pass --image-column {name}={name}:image)" for name in images]
        said += [f"{name} ({self._types[name]})" for name in self._left_out]
        return f"columns are left out: {', '.join(said)}" if said else ""

    def iter_records(
        self, batch: Any, images: Mapping[str, Sequence[ImageRef | None]], file: str, first: int
    ) -> Iterator[Record]:
        """Yield the records of a batch, which begins at row `first` of the file. See `_Batch`."""
        values, paths = dict[str, list[Any]](), dict[str, list[str | None]]()
        for name in self.kept:
            values.update(_flat_values(name, batch.column(name), file))
        for name in images.keys() & self.paths.keys():
            column = batch.column(name)
            paths[name] = column.flatten()[column.type.get_field_index("path")].to_pylist()
        for place in range(len(next(iter(images.values())))):
            record: dict[str, Any] = {name: column[place] for name, column in values.items()}
            for name, refs in images.items():
                ref, path = refs[place], paths[name][place] if name in paths else None
                if ref is not None:
                    called = name_of_row(file, first + place)
                    if path:
                        called += f"/{posixpath.basename(url_identity(path))}"
                    record[name] = Embedded(called, ref)
                elif path and "://" not in path and not path.startswith("/"):
                    record[name] = posixpath.join(posixpath.dirname(file), path)
                else:
                    record[name] = path
            yield record


def _of_items(node: Any) -> Any:
    """Return the feature of the items of a list in `datasets`, and any other feature as it is."""
    while isinstance(node, list) or (isinstance(node, dict) and node.get("_type") in ("Sequence", "List", "LargeList")):
        node = (node[0] if node else None) if isinstance(node, list) else node.get("feature")
    return node


def _storage(kind: Any) -> Any:
    return getattr(kind, "storage_type", kind)


def _is_struct(kind: Any) -> bool:
    return str(kind).startswith("struct<")


def _is_binary(kind: Any) -> bool:
    return str(kind) in ("binary", "large_binary")


def _children(kind: Any) -> list[Any]:
    return [kind.field(place) for place in range(kind.num_fields)]


def _holds_binary(kind: Any) -> bool:
    kind = _storage(kind)
    return _is_binary(kind) or any(_holds_binary(child.type) for child in _children(kind))


def _has_boxes(kind: Any) -> bool:
    """Return true for lists of structs with a box each, whose fields become columns of lists, as in tables."""
    item = getattr(kind, "value_type", None)
    return item is not None and _is_struct(item) and any(child.name in BOX_NAMES for child in _children(item))


def _flat_names(name: str, kind: Any) -> list[str]:
    """Return the names of the values of a column. The fields of a struct are `column.field`."""
    kind = kind.value_type if _has_boxes(kind) else kind
    if not _is_struct(kind):
        return [name]
    return [flat for child in _children(kind) for flat in _flat_names(f"{name}.{child.name}", _storage(child.type))]


def _flat_values(name: str, array: Any, where: str) -> Iterator[tuple[str, list[Any]]]:
    array = getattr(array, "storage", array)
    if _has_boxes(array.type):
        names = _flat_names(name, array.type)
        rows = [dict(iter_fields(name, value or [])) for value in to_python(array, where)]
        yield from ((field, [row.get(field, []) for row in rows]) for field in names)
        return
    if not _is_struct(array.type):
        yield name, to_python(array, where)
        return
    for child, values in zip(_children(array.type), array.flatten(), strict=True):
        yield from _flat_values(f"{name}.{child.name}", values, where)


def find_plain(file: _File) -> frozenset[str]:
    """Return the columns of bytes that hold images, by their first value."""
    names = [column.name for column in file.schema if _is_binary(_storage(column.type))]
    return frozenset(name for name in names if (value := file.first_value(name)) and sniff(value) is not None)


def _features_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


class _ParquetFile:
    def __init__(self, file: BinaryIO) -> None:
        self._parquet = open_parquet(file)
        self.schema = self._parquet.schema_arrow
        self.features = _features_of(self.schema.metadata)
        metadata = self._parquet.metadata
        sizes = (metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        self.largest_group: int = max(sizes, default=0)  # bytes that are decoded together

    def first_value(self, column: str) -> bytes | None:
        """Return the first value of a column of bytes."""
        for batch in self._parquet.iter_batches(1, columns=[column], use_threads=False):
            value: bytes | None = batch.column(0)[0].as_py()
            if value is not None:
                return value
        return None

    def has_no_labels(self, column: str) -> bool:
        """Return true if all values of a column are -1."""
        metadata = self._parquet.metadata
        try:
            found = [chunk_of(metadata, group, column).statistics for group in range(metadata.num_row_groups)]
        except ValueError:  # a column of lists, which has another path
            return False
        return bool(found) and all(one is not None and one.has_min_max and one.min == one.max == -1 for one in found)

    def iter_batches(self, info: ObjectInfo, layout: _Layout, images: Sequence[str]) -> Iterator[_Batch]:
        leaves = [*layout.kept, *(layout.paths[name] for name in images if name in layout.paths)]
        first = 0
        for group in range(self._parquet.metadata.num_row_groups):
            count = self._parquet.metadata.row_group(group).num_rows
            if not count:
                continue
            refs = {name: self._find_refs(info, group, layout.images[name], first, count) for name in images}
            batches = iter([None])
            if leaves:
                batches = self._parquet.iter_batches(count, row_groups=[group], columns=leaves, use_threads=False)
            start = 0
            for batch in batches:
                stop = count if batch is None else start + batch.num_rows
                part = {name: found[start:stop] for name, found in refs.items()}
                yield f"{info.name}:{group}", first + start, batch, part
                start = stop
            first += count

    def _find_refs(self, info: ObjectInfo, group: int, leaf: str, first: int, count: int) -> list[ImageRef | None]:
        """Return the places of a row group's images. Each gets the mean size, as only pages hold the true sizes."""
        chunk = chunk_of(self._parquet.metadata, group, leaf)
        statistics = chunk.statistics
        nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
        if nulls in (0, count):
            has_bytes: Iterable[bool] = itertools.repeat(nulls == 0, count)
        else:
            has_bytes = itertools.chain.from_iterable(
                values.is_valid().to_pylist() for values in iter_leaf(self._parquet, group, leaf)
            )
        size = max(1, chunk.total_uncompressed_size // max(1, count - (nulls or 0)))
        return [
            ImageRef(info.name, size, info.version, row=row, leaf=leaf) if is_there else None
            for row, is_there in enumerate(has_bytes, first)
        ]


class _ArrowFile:
    """A local file of `save_to_disk`, mapped into memory. Its methods are those of `_ParquetFile`."""

    def __init__(self, path: Path) -> None:
        import pyarrow

        with pyarrow.memory_map(str(path)) as mapped:
            self._bytes = mapped.read_buffer()
        reader = pyarrow.ipc.open_stream if bytes(self._bytes[:6]) != b"ARROW1" else pyarrow.ipc.open_file
        self._table = reader(self._bytes).read_all()
        self.schema = self._table.schema
        self.features = _features_of(self.schema.metadata)
        self.largest_group = 0

    def first_value(self, column: str) -> bytes | None:
        return next((value.as_py() for value in self._table.column(column) if value.is_valid), None)

    def has_no_labels(self, column: str) -> bool:
        is_one = column in self.schema.names and str(self.schema.field(column).type).startswith("int")
        return is_one and set(self._table.column(column).unique().to_pylist()) == {-1}

    def iter_batches(self, info: ObjectInfo, layout: _Layout, images: Sequence[str]) -> Iterator[_Batch]:
        first = 0
        for batch in self._table.to_batches():
            yield "", first, batch, {name: self._find_refs(info, batch.column(name)) for name in images}
            first += batch.num_rows

    def _find_refs(self, info: ObjectInfo, column: Any) -> list[ImageRef | None]:
        """Return the places of a batch's images in the file, whose mapped bytes are the batch's buffers."""
        values = column.flatten()[column.type.get_field_index("bytes")] if _is_struct(column.type) else column
        is_valid = values.is_valid().to_pylist()
        _, ends, data = values.buffers()
        if data is None or not any(is_valid):
            return [None] * len(values)
        start = data.address - self._bytes.address
        if not 0 <= start <= self._bytes.size - data.size:
            raise SourceError(f"{info.name} is compressed, so its images cannot be read in place. Save it uncompressed")
        dtype = np.dtype(np.int64 if str(values.type) == "large_binary" else np.int32)
        stops = np.frombuffer(ends, dtype)[values.offset : values.offset + len(values) + 1].tolist()
        return [
            ImageRef(info.name, stop - begin, info.version, start + begin) if is_there else None
            for begin, stop, is_there in zip(stops, stops[1:], is_valid, strict=False)
        ]


@contextmanager
def _open_file(store: Store, name: str) -> Iterator[_File]:
    where = f"{store.url}/{name}"
    if not name.lower().endswith(ARROW):
        with open_object(store, name) as file, parquet_errors(where, SourceError):
            yield _ParquetFile(file)
        return
    path = store.local_path(name)
    if path is None:
        raise OptionError(f"{where}: Arrow files have to be local. Copy the folder to this machine")
    with parquet_errors(where, SourceError):
        yield _ArrowFile(path)
