"""Read a folder of images with its metadata, as Hugging Face's imagefolder has it: metadata.csv, .jsonl or .parquet.

The metadata is a table with a row for each image. It is in the folder, or in the folders of splits.
"""

import dataclasses
import itertools
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpufeed.builds.item import Item
from tpufeed.dataset.naming import count_ending
from tpufeed.errors import OptionError
from tpufeed.sources.boxes import declare
from tpufeed.sources.folder import has_split_folders
from tpufeed.sources.grouped import Rows, open_groups
from tpufeed.sources.inputs import Files
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.paths import is_image_name
from tpufeed.sources.source import SPLIT_NAME, SPLITS, Contents, Folder, Found, Place, listing
from tpufeed.sources.table import ROWS_AT_ONCE, Change, Record, Row, TableColumns, TableSource, iter_head
from tpufeed.storage.store import ObjectInfo
from tpufeed.text import format_names

_IMAGE = "file_name"
_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_BOX = 4
_OF_BOXES = ("category", "categories", "label", "labels", "class", "classes", "category_id", "name")


class ImageFolderSource(TableSource):
    """The images of a folder that its metadata names, with the columns there. Class folders do not count."""

    what, groups, yields_to_masks = "folder of images with metadata", False, True
    marks = (*_NAMES, SPLITS)

    @classmethod
    def claim(cls, folder: Folder) -> Place | None:
        """Return the place of the metadata files in a folder of images, or in its folders of splits."""
        store, found = folder.store, list[ObjectInfo]()
        for inner in ("", *filter(SPLIT_NAME.fullmatch, folder.folders)):
            infos = [store.stat(posixpath.join(inner, name)) for name in _NAMES]
            there = [info for info in infos if info is not None]
            if len(there) > 1:
                raise OptionError(
                    f"{store.url} has {' and '.join(info.name for info in there)}: keep one of them, or name the one "
                    f"to read: {store.url}/{there[0].name}"
                )
            found += there
        return folder.place(found)

    def __init__(self, place: Place, options: ShardOptions) -> None:
        folder = place.folder or Folder(place.store)
        if options.splits is None and options.split_by is None and has_split_folders(folder):
            options = dataclasses.replace(options, split_by="folder")
        super().__init__(place, options)
        heads = {
            info.name: list(itertools.islice(iter_head(place.store, info.name), ROWS_AT_ONCE)) for info in place.files
        }
        names_of = {name: dict.fromkeys(itertools.chain.from_iterable(rows)) for name, rows in heads.items()}
        rows = list(itertools.chain.from_iterable(heads.values()))
        names = list(dict.fromkeys(itertools.chain.from_iterable(names_of.values())))
        self._label, each, boxes = None, list[str](), _find_boxes(rows, names)
        for file, own in names_of.items():
            if lacking := [name for name in names if name not in own]:
                self.notes.append(
                    f"{file} lacks columns of other metadata files, so its images have no values: "
                    f"{format_names(lacking)}"
                )
        if boxes is None or options.boxes.column not in (None, boxes.name):
            return
        self._label = boxes.label if options.label == "auto" else options.label
        if options.boxes.columns is None:
            # Lists beside the boxes that are as long as these in the first rows of all files, if they are there.
            beside, taken = boxes.name.rpartition(".")[:2], (boxes.name, self._label)
            each = [
                name
                for name in names
                if name.rpartition(".")[:2] == beside and name not in taken
                if (lists := [row for row in rows if row.get(name) is not None])
                and all(_count(row[name]) == _count(row.get(boxes.name)) for row in lists)
            ]
        self.contents = Contents(
            declared=declare(boxes.name, options.keypoints_name, options.declared),
            boxes=boxes.name,
            box_columns=tuple(each),
            box_format=boxes.form if options.boxes.format is None else None,
        )

    def prepare(self, name: str, names: Sequence[str], first: Sequence[Record]) -> tuple[TableColumns, Change | None]:
        options, where, folder = self._options, f"{self.base}/{name}", posixpath.dirname(name)
        if options.image is None and _IMAGE not in names:
            raise OptionError(
                f"{where} has no column {_IMAGE!r}, which tells the image of a row. It has {', '.join(names)}. Rename "
                "the column that tells it, or pass --image COLUMN. To shard the folder without this file, move it away"
            )
        # Of several files one may lack the labels of boxes, like that of a test set.
        known = names if self._label in (None, options.label) else [*names, self._label]
        columns = TableColumns(where, known, options, options.image or _IMAGE, self._label)

        def within(path: Any) -> Any:
            is_below = isinstance(path, str) and path and "://" not in path
            return posixpath.normpath(posixpath.join(folder, path)) if is_below else path

        def change(record: Record) -> Record:
            changed = dict(record)
            for file in columns.files:
                path = record.get(file)
                changed[file] = list(map(within, path)) if isinstance(path, list) else within(path)
            return changed

        return columns, change if folder else None

    def iter_items(self, found: Found) -> Iterator[Item]:
        files, named = Files(self.base), 0
        for info in self._files:
            where = f"{self.base}/{info.name}"
            with self.open(info.name) as (columns, records), open_groups(records, columns.files[0], where) as groups:
                for item in columns.iter_items((_one_of(rows, where) for rows in groups.iter_groups()), files):
                    is_there = bool(item.version or item.bytes) and is_image_name(item.path)
                    own = (item.file or item.path, *(image.file for image in item.images))
                    named += is_there * sum(not file.startswith("/") and "://" not in file for file in own)
                    yield item
        found.notes += dict.fromkeys(self.notes)
        images = 0
        with listing():
            for info in self._store.iter_objects():
                images += is_image_name(info.name)
                if not is_image_name(info.name) and all(info.name != file.name for file in self._files):
                    count_ending(found.ignored_files, info.name)
        left_out = f"; {images - named:,} other images are left out" if images > named else ""
        found.notes.append(
            f"images and columns are those of {format_names([info.name for info in self._files])}, as in Hugging "
            f"Face's imagefolder. Folders are no classes{left_out}"
        )
        if self.contents.box_format is not None:
            name = self.contents.boxes
            found.notes.append(
                f"{name} has boxes of left, top, width and height, as COCO. If not: --boxes {name} --box-format xyxy"
            )


class _Boxes(NamedTuple):
    """A column with the list of a sample's boxes."""

    name: str
    form: str | None  # as `box_format`
    label: str | None  # the column with a label for each box


def _find_boxes(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> _Boxes | None:
    """Return the column that holds the boxes of some rows, or None."""
    for name in columns:
        lists = [row[name] for row in rows if isinstance(row.get(name), list)]
        boxes = list(itertools.chain.from_iterable(lists))
        sound = sum(isinstance(box, list) and len(box) == _BOX for box in boxes)
        # A few may be wrong, and no image may have a box.
        if "box" not in name.lower() or not lists or (boxes and sound * 2 <= len(boxes)):
            continue
        owner, dot, _ = name.rpartition(".")
        label = next((f"{owner}{dot}{last}" for last in _OF_BOXES if f"{owner}{dot}{last}" in columns), None)
        form = "xywh" if name.endswith("bbox") else None  # the usage of `datasets` and COCO
        return _Boxes(name, form, label)
    return None


def _one_of(rows: Rows, where: str) -> Row:
    """Return the first of the rows that name an image. Several are a problem."""
    (number, record), others = rows[0], rows[1:]
    if not others:
        return number, record, None
    said = f"rows {number} and {others[0][0]} of {where} name it. Expected one row per image"
    return number, record, ("bad_column", said)


def _count(value: Any) -> int:
    """Return the length of a list, 0 for a missing one, and -1 for any other value."""
    return len(value) if isinstance(value, list) else -1 if value is not None else 0
