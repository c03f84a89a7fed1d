"""Read WebDataset tars: the files of a sample are adjacent and share a key, their name up to the first dot.

An image is read in place, by its offset within its tar: nothing is unpacked.
"""

import json
import re
import tarfile
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import msgspec

from tpufeed.builds.item import ImageRef, Item
from tpufeed.dataset.naming import count_ending, splits_mentioned
from tpufeed.dataset.tfrecord_files import MAGIC_BYTES, unpack_elsewhere
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.paths import HIDDEN_FOLDERS, IMAGE_SUFFIXES
from tpufeed.sources.source import IMAGELESS, Folder, Found, Place, Source, listing
from tpufeed.sources.table import check_others, to_label
from tpufeed.storage.reading import DamagedReadError, open_object
from tpufeed.storage.store import ObjectInfo
from tpufeed.text import format_names

IMAGES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
TEXTS = frozenset({"cls", "cls2", "txt", "text", "caption", "transcript", "json"})
LARGEST_TEXT = 1 << 20
_BLOCK_BYTES = 512
_ZEROS_AT_ONCE = 1 << 20
_HIDDEN = re.compile(rf"(.*/)?({HIDDEN_FOLDERS})(/.*)?", re.IGNORECASE | re.DOTALL)

Part = tuple[ImageRef, bytes]  # the place of its bytes, and the bytes themselves if it is a text


class TarSource(Source):
    """The samples of one or more tars.

    Besides the image a sample may have `cls` (its label), `txt` and `json`. These become columns, as does each key of
    the json. If a file and a key have the same name, their values must agree.
    """

    what, suffixes, marks = "WebDataset tars", (".tar",), (IMAGELESS,)

    @classmethod
    def claim(cls, folder: Folder) -> Place | None:
        """Return the place of the tars in a folder without images and subfolders."""
        tars = [info for info in folder.imageless if info.name.lower().endswith(cls.suffixes)]
        tars = sorted((info for info in tars if "/" not in info.name), key=lambda info: info.name)
        return None if folder.folders else folder.place(tars, "it has tars and no images")

    def __init__(self, place: Place, options: ShardOptions) -> None:
        if options.split_by is not None:
            raise OptionError("tars are split by shares. Shard the tars of each split separately to keep their splits")
        self._store, self._files, self._options, self.base = place.store, place.files, options, place.store.url
        self._image = options.image and options.image.lower().removeprefix(".")
        self._label = {"none": None, "auto": "cls"}.get(options.label, options.label)
        self.labels_from = "" if self._label is None else f"the files or keys {self._label}"
        self._pictures = {picture.column.lower().removeprefix("."): picture for picture in options.pictures}

    def iter_items(self, found: Found) -> Iterator[Item]:
        store, empty = self._store, True
        for info in self._files:
            try:
                for item in self._iter_tar(info, found):
                    empty = False
                    yield item
            except SourceError as error:
                if store.local_path(info.name) is None:
                    again = ""
                    try:
                        deque(self._iter_tar(info, Found()), maxlen=0)
                    except SourceError as second:
                        again = str(second)
                    if again != str(error):
                        raise DamagedReadError(
                            f"{store.url}/{info.name}: a second reading did not end with the same error: {error}"
                        ) from error
                raise
        if empty:
            raise NoInputsError(f"{store.url}: no samples in these tars. Expected files like 000123.jpg and 000123.cls")

    def iter_warnings(self, found: Found, classes: Sequence[str] | None, columns: Sequence[str]) -> Iterator[str]:
        if self._options.label == "auto" and classes is None:
            if found.ignored_files.get(".cls"):
                way = "a key ends at the first dot of a name, so rename files like im.v0.cls to im_v0.cls"
            elif columns:
                way = f"give --label KEY, one of {format_names(columns)}"
            else:
                way = "folders in a tar do not become classes. Unpack it to use them"
            yield f"no labels: no sample has a .cls; {way}, or pass --label none"
        mentioned = splits_mentioned(info.name for info in self._files)
        if self._options.split_shares is None and len(mentioned) > 1:
            yield (
                f"tars have names of splits ({', '.join(sorted(mentioned))}), but all become train: shard the tars of "
                "each split separately, like 'train-*.tar'"
            )

    def _iter_tar(self, info: ObjectInfo, found: Found) -> Iterator[Item]:
        where = f"{self.base}/{info.name}"
        with listing(f"{where} cannot be read"), open_object(self._store, info.name, compare=True) as file:
            for key, parts in _iter_samples(file, info, where, found):
                yield self.to_item(f"{where}, sample {key!r}", key, parts, found)

    def to_item(self, sample: str, key: str, parts: dict[str, Part], found: Found) -> Item:
        """Return the item of the files with a key, by their endings. `sample` names it in errors."""
        wanted = self._image
        images = [
            name
            for name in parts
            if name not in self._pictures and (name == wanted if wanted else name.split(".")[-1] in IMAGES)
        ]
        if len(images) > 1:
            dots = "rename files whose first dot does not end the key, like im.v0.jpg to im_v0.jpg; else "
            raise OptionError(
                f"{sample} has {len(images)} images ({', '.join(images)}); "
                f"{dots if any('.' in name for name in images) else ''}choose one: --image {images[0]}"
            )
        columns = _read_columns(parts, sample, found)
        try:
            label = None if self._label is None else to_label(columns.pop(self._label, None))
        except SourceError as error:
            raise SourceError(f"{sample}: {error}") from None
        image = images[0] if images else "a file"
        check_others(f"{sample}: its .json has a key", columns.keys(), self._options, image, self._label)
        at, _ = parts[images[0] if images else next(iter(parts))]
        name = f"{at.file}/{key}"
        if not images:
            problem = ("unreadable", f"the sample has no image, only {', '.join(parts)}. Add it, or remove the others")
            return Item(name, 0, at.version, label, file=at.file, values=columns, problem=problem)
        item = Item(f"{name}.{images[0]}", at.bytes, at.version, label, None, at.file, at.offset, columns)
        for suffix, picture in self._pictures.items():
            if suffix not in parts:
                problem = picture.missing, f"the sample has no file {key}.{suffix}, only {', '.join(parts)}"
                return msgspec.structs.replace(item, problem=problem)
        return msgspec.structs.replace(item, images=tuple(parts[suffix][0] for suffix in self._pictures))


def _iter_samples(file: BinaryIO, info: ObjectInfo, where: str, found: Found) -> Iterator[tuple[str, dict[str, Part]]]:
    key, parts = None, dict[str, Part]()
    for member in _iter_members(file, where):
        if not member.isfile():
            if not member.isdir():
                count_ending(found.ignored_files, member.name)
            continue
        folder, slash, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if not dot or not stem or _HIDDEN.fullmatch(folder):
            count_ending(found.ignored_files, member.name)
            continue
        if key != folder + slash + stem:
            if key is not None:
                yield key, parts
            key, parts = folder + slash + stem, {}
        if extension.lower() in parts:
            raise SourceError(f"{where}, byte {member.offset}: the sample {key!r} has two files .{extension}")
        text = file.read(min(member.size, LARGEST_TEXT)) if extension.lower() in TEXTS else b""  # here: no seek back
        parts[extension.lower()] = ImageRef(info.name, member.size, info.version, member.offset_data), text
    if key is not None:
        yield key, parts


def _iter_members(file: BinaryIO, where: str) -> Iterator[tarfile.TarInfo]:
    end = file.seek(0, 2)
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it keeps every member it has seen
                if member.issparse():
                    raise SourceError(
                        f"{where}, byte {member.offset}: {member.name} is stored without its holes (sparse), so it "
                        "cannot be read in place. Pack the tar again without tar's -S"
                    )
                if member.islnk():
                    raise SourceError(
                        f"{where}, byte {member.offset}: {member.name} is stored as a hard link to {member.linkname}, "
                        "without bytes. Pack the tar again with tar's --hard-dereference"
                    )
                if member.size < 0:
                    raise tarfile.ReadError(f"{member.name} of {member.size} bytes")
                if member.offset_data + member.size > end:
                    raise SourceError(
                        f"{where}, byte {member.offset}: {member.name} takes {member.size} bytes, but "
                        f"{end - member.offset_data} are left. The tar was cut short"
                    )
                yield member
            _check_end(file, tar.offset, where)
    except tarfile.TarError as error:
        place = file.tell()
        file.seek(0)
        unpack = unpack_elsewhere(where, file.read(MAGIC_BYTES))
        raise SourceError(
            f"{where}, byte {place}: not a sound tar: {error}"
            + (f". It is compressed. Unpack it: {unpack}" if unpack else "")
        ) from error


def _check_end(file: BinaryIO, start: int, where: str) -> None:
    """Check the end of a tar: `tarfile` also stops without an error at a damaged header, or where a file was cut."""
    file.seek(start)
    rest = file.read(_BLOCK_BYTES)
    if len(rest) < _BLOCK_BYTES:
        raise SourceError(f"{where}, byte {start}: the mark of a tar's end is missing. The tar was cut short")
    if rest.strip(b"\0"):
        raise SourceError(f"{where}, byte {start}: not a sound tar: a damaged header. The file was badly copied")
    while rest:
        if rest.strip(b"\0"):
            raise SourceError(
                f"{where}, byte {start}: something follows the tar's end. Of concatenated tars only the first would be "
                "read"
            )
        start += len(rest)
        rest = file.read(_ZEROS_AT_ONCE)


def _read_columns(parts: dict[str, Part], where: str, found: Found) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, (at, data) in parts.items():
        if name not in TEXTS:
            if name.split(".")[-1] not in IMAGES:
                count_ending(found.ignored_files, f"{where}.{name}")
            continue
        if at.bytes > LARGEST_TEXT:
            raise SourceError(f"{where}: its .{name} has {at.bytes} bytes. At most {LARGEST_TEXT} are read")
        try:
            text = data.decode("utf-8-sig").strip()
            values = json.loads(text) if name == "json" else {name: text}
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{where}: its .{name} is not readable: {error}. Correct it, in UTF-8") from error
        if not isinstance(values, dict):
            raise SourceError(f'{where}: its .json does not hold an object, like {{"caption": "a red bus"}}')
        for column in columns.keys() & values.keys():
            one, other = sorted(_as_text(both[column]) for both in (columns, values))
            if one and one != other:
                raise SourceError(
                    f"{where}: its .{column} and the key {column!r} of its .json contradict each other: {one[:60]!r}, "
                    f"{other[:60]!r}. Leave one of them out"
                )
        columns |= values | columns if name == "json" else values  # a file's text wins, whatever comes first
    return columns


def _as_text(value: Any) -> str:
    """Return a value as a file would hold it, or empty text for None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()
