"""Recognise files of labels, boxes and texts among the images of a folder, and say which command reads them."""

import itertools
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tpufeed.dataset.tfrecord_files import unpack_beside
from tpufeed.errors import TpufeedError, advised
from tpufeed.sources.coco import CocoSource
from tpufeed.sources.inputs import Files
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.source import IMAGE_SUFFIXES, is_hidden, resolve
from tpufeed.sources.table import LABEL_COLUMNS, TableColumns, TableSource, box_flags, iter_head
from tpufeed.sources.voc import find_images
from tpufeed.sources.yolo import YoloSource, is_yolo
from tpufeed.storage.reading import open_object
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, open_store, url_scheme

_MOST_KEPT = 32  # names of a kind; the beginnings of these files are read
_HEAD_BYTES = 1 << 16
_ROWS = 100
_SHOWN = 3
_BOX = 4
_COCO_KEY = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_NO_BOXES = re.compile(r"(?:.*/)?(captions|panoptic|image_info)_[^/]*")  # COCO files without boxes
_YOLO = re.compile(rb"\s*\d+(\s+[-+0-9.eE]+){4,}\s*")  # a line
_OWN_NAMES = ("metadata", "_annotations")  # of the Hugging Face imagefolder, of Roboflow
_OF_BOXES = ("category", "categories", "label", "labels", "class", "classes", "category_id", "name")
# For files that no command reads as they are.
_NO_WAY = {
    ".json": ", and no command reads them: convert them to a COCO file, as CVAT and Roboflow export it, or to JSON "
    "lines with one row per image (docs/samples.md)",
    ".xml": ". To use them, put the images beside the files, or into a folder JPEGImages beside theirs, and run: "
    + advised("shard", "Annotations/*.xml", "DST"),
    ".txt": ". To use them, write a data.yaml with the folders of images (train: images) and the classes (names: [cat, "
    f"dog]), and run: {advised('shard', 'data.yaml', 'DST')}",
}


def _is_yolo(head: bytes) -> bool:
    # Line by line: one pattern for all lines tried every way to cut a file of numbers into rows, without end.
    lines = head.splitlines()[: -1 if len(head) == _HEAD_BYTES else None]
    rows = [line for line in lines if line.strip()]
    return bool(rows) and all(map(_YOLO.fullmatch, rows))


# For each ending the kind of annotations, and a test of a file's beginning.
_OWN_FORMATS: dict[str, tuple[str, Callable[[bytes], bool]]] = {
    ".json": ("labelme", lambda head: b'"shapes"' in head),
    ".xml": ("Pascal VOC", lambda head: b"<annotation" in head),
    ".txt": ("YOLO", _is_yolo),
}


@dataclass(slots=True)
class AnnotationFiles:
    """Collects the files of a folder that are not images, and says which of them annotate images."""

    counts: Counter[str] = field(default_factory=Counter)  # by ending
    names: dict[str, list[str]] = field(default_factory=dict)  # a few for each ending

    def add(self, name: str) -> None:
        """Add a file."""
        suffix = posixpath.splitext(name)[1].lower()
        if suffix in (*TableSource.suffixes, *_OWN_FORMATS, *YoloSource.suffixes) and not is_hidden(name):
            self.counts[suffix] += 1
            kept = self.names.setdefault(suffix, [])
            if len(kept) == _MOST_KEPT:
                kept.pop()
            kept.append(name)

    def iter_notes(self, store: Store, classed: bool) -> Iterator[str]:
        """Yield a warning of each kind of annotations, as a folder of images is sharded without reading them.

        If images are `classed` by their folders, a table of labels adds nothing.
        """
        commands = list[str]()
        for name in itertools.chain.from_iterable(self.names.get(suffix, []) for suffix in TableSource.suffixes):
            with suppress(TpufeedError):  # not a table of images, or unreadable: the folder is fine without it
                options = _read_table(store, name, classed)
                if options is not None:
                    commands.append(_command(store, name, options))
        yield from _advise("tables", commands, store)
        documents = {name: _read_head(store, name) for name in self.names.get(CocoSource.suffixes[0], [])}
        files = list[str]()
        for name, head in documents.items():
            keys = {found[1] for found in _COCO_KEY.finditer(head)}
            if len(keys) > (len(head) < _HEAD_BYTES) and not _NO_BOXES.fullmatch(name):  # one is enough in a long file
                files.append(_command(store, name))
        yield from _advise("COCO files", files, store)
        heads = {".json": list(documents.values())}
        for suffix in (".xml", ".txt"):  # a classes.txt may come first or last
            names = self.names.get(suffix, [])
            heads[suffix] = [_read_head(store, name) for name in (*names[:_SHOWN], *names[_SHOWN:][-_SHOWN:])]
        for suffix, (what, is_one) in _OWN_FORMATS.items():
            if not any(map(is_one, heads[suffix])):
                yield from self._advise_on_captions(store, suffix)
            else:
                commands = self._find_commands(store, suffix)
                yield from _advise(f"{what} files", commands, store)
                if not commands:
                    count, way = f"{self.counts[suffix]:,} {suffix}", _NO_WAY[suffix]
                    named = [name for kind in YoloSource.suffixes for name in self.names.get(kind, [])]
                    way += f"; {named[0]} lacks some of these keys" if named and suffix == ".txt" else ""
                    yield f"{what} files among the images ({count}), with labels and boxes, are not read{way}"

    def _advise_on_captions(self, store: Store, suffix: str) -> Iterator[str]:
        """Yield a warning of texts that have the names of images, as captions have them."""
        stems = [posixpath.splitext(name)[0] for name in self.names.get(suffix, [])[:_SHOWN]]
        images = [f"{stem}{ending}" for stem in stems for ending in IMAGE_SUFFIXES]
        if suffix == ".xml" or not any(isinstance(info, ObjectInfo) for info in Files(store.url).stats(images)):
            return
        folder = shlex.quote(store.url) if url_scheme(store.url) == "file" else "FOLDER"
        yield (
            f"{self.counts[suffix]:,} {suffix} files have the names of images beside them, like {stems[0]}{suffix}, "
            "and are not read. If they are captions, pack each image with its files: tar --sort=name -cf captions.tar "
            f"-C {folder} . && tpufeed shard captions.tar DST --label none"
        )

    def _find_commands(self, store: Store, suffix: str) -> list[str]:
        """Return the commands that read files of YOLO or Pascal VOC, as far as their images and names are known."""
        if suffix == ".txt":
            names = [name for kind in YoloSource.suffixes for name in self.names.get(kind, [])]
            return [
                _command(store, name) for name in names if is_yolo(_read_head(store, name).decode("utf-8", "replace"))
            ]
        folders = dict.fromkeys(posixpath.dirname(name) for name in self.names[suffix]) if suffix == ".xml" else ()
        return [
            _command(store, posixpath.join(folder, "*.xml"))
            for folder in folders
            if "::" in store.url or find_images(open_store(posixpath.join(store.url, folder))) is not None
        ]


def _advise(what: str, commands: Sequence[str], store: Store) -> Iterator[str]:
    # A COCO file has ids of its own; others are numbered by the classes that occur.
    apart = ", each separately" + (" (with one --classes FILE for equal ids)" if what != "COCO files" else "")
    apart = apart if len(commands) > 1 else ""
    more = f"; and {len(commands) - _SHOWN} more" if len(commands) > _SHOWN else ""
    archive = store.url.partition("::")[2].removeprefix("file://").rstrip("/")
    if commands and archive:
        yield (
            f"{what} in the zip, with labels and boxes, are not read. To use them, unpack it first "
            f"({unpack_beside(archive)}) and shard that folder"
        )
    elif commands:
        yield (
            f"{what} among the images, with labels and boxes, are not read. To use them{apart}: "
            f"{'; '.join(commands[:_SHOWN])}{more}"
        )


def _command(store: Store, name: str, options: str = "") -> str:
    return advised("shard", f"{store.url.rstrip('/')}/{name}", "DST") + options


def _read_table(store: Store, name: str, classed: bool) -> str | None:
    """Return the options that read a table; None if it adds nothing. Raises TpufeedError."""
    folder, _, file = name.rpartition("/")
    if name.lower().endswith(".parquet") and not file.startswith(_OWN_NAMES):  # it may hold anything, of any size
        return None
    base = f"{store.url.rstrip('/')}/{folder}".rstrip("/")
    rows = list(itertools.islice(iter_head(store, name), _ROWS))
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    image = TableColumns(name, columns, ShardOptions(label="none")).files[0]
    paths = [row.get(image) for row in rows]
    looked = Files(base).stats([resolve(base, path) for path in paths[:1] if isinstance(path, str) and path])
    if not any(isinstance(info, ObjectInfo) and info.version != BROKEN_LINK for info in looked):
        return None
    label = "" if any(column.lower() in LABEL_COLUMNS for column in columns) else " --label none"
    if (sides := box_flags(columns)) and len(set(map(str, paths))) < len(paths):
        return f" --group-by {shlex.quote(image)}{sides}{label}"
    boxes = find_boxes(rows, columns)
    if boxes is not None:
        form = f" --box-format {boxes.form}" if boxes.form else ""
        return f" --boxes {shlex.quote(boxes.name)}{form} --label {shlex.quote(boxes.label or 'none')}"
    return None if classed and not file.startswith(_OWN_NAMES) else label


class FoundBoxes(NamedTuple):
    """A column with the list of a sample's boxes."""

    name: str
    form: str | None  # as `box_format`
    label: str | None  # the column with a label for each box


def find_boxes(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> FoundBoxes | None:
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
        return FoundBoxes(name, form, label)
    return None


def _read_head(store: Store, name: str) -> bytes:
    with suppress(TpufeedError), open_object(store, name) as file:
        return file.read(_HEAD_BYTES)
    return b""
