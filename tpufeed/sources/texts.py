"""Read a folder of images with texts beside them: 0001.jpg, 0001.txt, 0001.json, as img2dataset writes them."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from tpufeed.builds.item import ImageRef, Item
from tpufeed.dataset.naming import count_ending
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sources.database import temporary_table
from tpufeed.sources.folder import has_split_folders
from tpufeed.sources.inputs import Files
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.paths import in_utf8, is_hidden
from tpufeed.sources.source import Folder, Found, Place, chunks_of, listing, read_annotations
from tpufeed.sources.tars import IMAGES, LARGEST_TEXT, TEXTS, Part, TarSource
from tpufeed.storage.store import ObjectInfo
from tpufeed.text import format_names

_STATS = "_stats.json"  # of img2dataset, beside its folders


class TextsSource(TarSource):
    """The samples of a folder, by the rules of tars: the files of one share their name up to the first dot."""

    what = "folder of images with texts beside them"
    splits_from = "the first folders"

    def __init__(self, place: Place, options: ShardOptions) -> None:
        if options.split_by is not None:
            raise OptionError("a folder with texts has folders of splits, like train, or is split by shares (splits)")
        super().__init__(place, options)
        self._folder = place.folder or Folder(place.store)
        self.splits = options.split_shares is None and has_split_folders(self._folder)

    def iter_items(self, found: Found) -> Iterator[Item]:
        files, empty = Files(self.base), True
        for samples in chunks_of(self._iter_samples(found), lambda sample: sum(info.size_bytes for info in sample[1])):
            infos = [info for _, sample in samples for info in sample]
            small = {info.name: info for info in infos if info.size_bytes <= LARGEST_TEXT and _ending(info) in TEXTS}
            texts = read_annotations(files, small)
            for key, sample in samples:
                empty = False
                yield self._read(key, sample, texts, found)
        if empty:
            raise NoInputsError(f"{self.base}: no images with texts. Expected files like 0001.jpg and 0001.txt")

    def iter_warnings(self, found: Found, classes: Sequence[str] | None, columns: Sequence[str]) -> Iterator[str]:
        if self._options.label == "auto" and classes is None:
            way = f"Give --label KEY, one of {format_names(columns)}, or pass" if columns else "Pass"
            yield f"no labels: no image has a .cls beside it. {way} --label none"

    def _read(self, key: str, sample: list[ObjectInfo], texts: dict[str, bytes | str], found: Found) -> Item:
        parts = dict[str, Part]()
        for info in sample:
            where, ending, data = f"{self.base}/{info.name}", _ending(info), texts.get(info.name, b"")
            if isinstance(data, str):
                raise SourceError(f"{where} cannot be read: {data}")
            if ending in parts:
                raise SourceError(f"{where}: another file is {parts[ending][0].file}. Remove one of them")
            parts[ending] = ImageRef(info.name, info.size_bytes, info.version), data
        item = self.to_item(f"{self.base}/{key}", key, parts, found)
        split, slash, _ = key.partition("/")
        if self.splits and not slash:
            raise SourceError(f"{self.base}: {item.file} is beside the folders of splits. Move it into one")
        return msgspec.structs.replace(item, path=item.file, file="", split=split if self.splits else None)

    def _iter_samples(self, found: Found) -> Iterator[tuple[str, list[ObjectInfo]]]:
        """Yield the files of each key, sorted by a temporary file: stores list a folder in any order."""

        def iter_files() -> Iterator[tuple[str, str, int, str]]:
            for info in self._folder.iter_objects():
                folder, slash, name = info.name.rpartition("/")
                stem, dot, _ = name.partition(".")
                if not stem or not dot or is_hidden(info.name) or name.endswith(_STATS):
                    count_ending(found.ignored_files, info.name)
                else:
                    yield folder + slash + stem, info.name, info.size_bytes, info.version

        with temporary_table("files(key TEXT, name TEXT, bytes INT, version TEXT)") as database:
            with listing(), in_utf8():
                database.executemany("INSERT INTO files VALUES(?, ?, ?, ?)", iter_files())
            if special := len(self._store.special_files):
                found.ignored_files["special files"] = special
            rows = database.execute("SELECT * FROM files ORDER BY key, name")
            for key, group in groupby(rows, lambda row: row[0]):
                sample = [ObjectInfo(*row[1:]) for row in group]
                if any(_ending(info).split(".")[-1] in TEXTS | IMAGES for info in sample):
                    yield key, sample
                else:
                    for info in sample:
                        count_ending(found.ignored_files, info.name)


def _ending(info: ObjectInfo) -> str:
    return info.name.rpartition("/")[2].partition(".")[2].lower()
