"""Find out which kind of raw images a URL names."""

import fnmatch
import itertools
import posixpath
import re
import shlex
from pathlib import Path

from tpufeed.dataset.tfrecord_files import adopt_advice, is_tfrecord_name, unpack_beside
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sources import columnar
from tpufeed.sources.coco import CocoSource
from tpufeed.sources.coco_folders import find_splits, named_splits
from tpufeed.sources.columnar import ColumnarSource
from tpufeed.sources.folder import FolderSource
from tpufeed.sources.grouped import GroupedSource
from tpufeed.sources.imagefolder import ImageFolderSource, find_metadata
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.outlines import import_pycocotools
from tpufeed.sources.source import Place, Source, is_hidden, is_image_name, listing
from tpufeed.sources.table import TableSource
from tpufeed.sources.tars import TarSource
from tpufeed.sources.voc import VocSource, find_annotations
from tpufeed.sources.yolo import YoloSource, find_yaml
from tpufeed.storage.local import is_folder, mode_of
from tpufeed.storage.store import ObjectInfo, Store, file_path, open_store, url_scheme

# Kinds of files by their endings; a .parquet without images is a table.
_KINDS: tuple[type[Source], ...] = (TarSource, ColumnarSource, CocoSource, TableSource, YoloSource, VocSource)
_SUFFIXES = tuple(suffix for kind in _KINDS for suffix in kind.suffixes)
_MOST_PEEKED = 10_000
_COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst)|tgz|(csv|tsv|jsonl|ndjson)\.(gz|bz2|xz|zst)|zip)$", re.IGNORECASE)
_BRACES = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MOST_FILES = 10**6
_SHOWN = 3


def find_source(url: str, options: ShardOptions) -> Source:
    """Return the source at `url`: a folder, or files by name, of which `*` and `{0000..0012}` may name several.

    Raises:
        SourceError: the source does not exist, or is not readable.
        OptionError: this kind of source does not take an option.
    """
    if _COMPRESSED.search(url.rpartition("/")[2]) and "::" not in url and not _is_folder(url):
        is_zip, chain = url.lower().endswith(".zip"), shlex.quote(f"zip::{url}")
        raise SourceError(
            f"{url} is compressed, so its parts cannot be read in place; unpack it first "
            f"({unpack_beside(url)})" + (f", or shard {chain}, which reads the files in the zip" if is_zip else "")
        )
    kind, place = _find_place(url, options)
    if options.masks is not None and kind is not FolderSource:
        with_boxes = kind in (CocoSource, YoloSource, VocSource)
        way = "" if with_boxes else ": pass --image-column mask=COLUMN:mask, or mask=SUFFIX:mask for tars"
        raise OptionError(f"masks names a folder parallel to a folder of images, which {url} is not{way}")
    if options.group_by is not None:
        if kind is not TableSource:
            raise OptionError(f"--group-by is for a table with several rows per image, which {url} is not")
        kind = GroupedSource
    if options.outlines is not None:
        if not kind.has_outlines:
            kinds = ", ".join(each.__name__.removesuffix("Source") for each in _KINDS if each.has_outlines)
            raise OptionError(
                f"{url} has no outlines of objects; sources of these kinds have them: {kinds}. For files of masks pass "
                "--masks DIR, or --image-column mask=COLUMN:mask"
            )
        import_pycocotools()
    source = kind(place, options)
    source.why = place.why if options.group_by is None else f"--group-by {options.group_by}"
    return source


def _find_place(url: str, options: ShardOptions) -> tuple[type[Source], Place]:
    """Return the kind of the source at `url`, and its place."""
    if splits := named_splits(url):
        parts = [Place(store, [file], split=split) for split, store, name in splits for file in find_files(store, name)]
        return CocoSource, Place(parts[0].store, (), parts=parts, why="its files are named by split")
    if (named := named_files(url)) is not None:
        store, pattern = named
        files = find_files(store, pattern)
        kind = next(kind for kind in _KINDS if pattern.lower().endswith(kind.suffixes))
        is_table = pattern.lower().endswith(columnar.PARQUET) and not columnar.has_images(store, files[0].name)
        why = f"named {pattern}" + (", which holds no images itself" if is_table else "")
        return TableSource if is_table else kind, Place(store, files, why=why)
    store = open_store(url)
    with listing():
        if url_scheme(store.url) == "file" and not is_folder(store.url):
            raise _no_folder(store.url)
        kind, place = _peek(store)
        if kind is FolderSource and options.masks is None:
            if metadata := find_metadata(store):
                return ImageFolderSource, Place(store, metadata, is_folder=True, why=f"it has {metadata[0].name}")
            parts, note = ([], "") if options.split_by == "folder" else find_splits(store)
            if parts:
                notes, why = [note] if note else [], f"it has {parts[0].files[0].name}"
                return CocoSource, Place(store, (), is_folder=True, parts=parts, notes=notes, why=why)
    return kind, place


def _peek(store: Store) -> tuple[type[Source], Place]:
    """Return the kind of a folder: tars or files of rows if it holds these and no images, else a folder of images.

    A folder with a data.yaml of YOLO, or with Pascal VOC's folders, is of these. Tars in subfolders do not count: so a
    folder of class folders is not listed to its end.
    """
    objects, drawn, tars, rows = store.iter_objects(), list[ObjectInfo](), list[ObjectInfo](), list[ObjectInfo]()
    first = list(itertools.islice(objects, 1))  # an error of access is that of the listing, and comes once
    if files := find_yaml(store):
        return YoloSource, Place(store, files, is_folder=True, why=f"it has {files[0].name}")
    if files := find_annotations(store):
        return VocSource, Place(store, files, is_folder=True, why=f"it has {files[0].name}")
    is_flat: bool | None = None
    has_rows = False  # and not only the JSON that `save_to_disk` puts beside them
    for info in itertools.chain(first, objects):
        drawn.append(info)
        name = info.name.lower()
        if is_image_name(name):
            break
        if is_flat is None:
            is_flat = all(map(is_hidden, store.iter_folders()))
        if name.endswith(TarSource.suffixes) and is_flat and "/" not in name:
            tars.append(info)
        is_rows = name.endswith(ColumnarSource.suffixes)
        if (is_rows or posixpath.basename(info.name) in columnar.SAVED) and not is_hidden(name):
            rows.append(info)
            has_rows = has_rows or is_rows
        if len(drawn) >= _MOST_PEEKED and not (is_flat or rows):
            break
    else:
        if tars:
            why = "it has tars and no images"
            return TarSource, Place(store, sorted(tars, key=lambda info: info.name), why=why)
        if has_rows:
            return ColumnarSource, Place(store, rows, is_folder=True, why="it has files of rows and no images")
    why = "it has no metadata, and no annotations in the layout of COCO, YOLO or Pascal VOC"
    return FolderSource, Place(store, (), itertools.chain(drawn, objects), why=why)


def named_files(url: str) -> tuple[Store, str] | None:
    """Return the folder of the files that `url` names, and their name or pattern; None if it names a folder."""
    outer, chain, inner = url.partition("::")
    in_zip = outer.lower().startswith("zip://")  # zip://labels.csv::photos.zip names a file in the zip
    path, archive = (outer, chain + inner) if in_zip else (url, "")
    parent, slash, last = path.rpartition("/")
    parent = parent + slash if parent.endswith(("/", ":")) or not parent else parent
    if not last.lower().endswith(_SUFFIXES) or _is_folder(url):
        return None
    return open_store((parent or ".") + archive), last


def find_files(store: Store, pattern: str) -> list[ObjectInfo]:
    """Return the files right below `store` that match `pattern`, sorted by name."""
    with listing():
        if not re.search(r"[*?{]", pattern):
            info = store.stat(pattern)
            if info is None:
                raise SourceError(f"the source {store.url}/{pattern} does not exist")
            return [info]
        patterns = expand(pattern)
        infos = {info.name: info for info in store.iter_objects() if "/" not in info.name}
    found = [info for name, info in sorted(infos.items()) if any(fnmatch.fnmatchcase(name, one) for one in patterns)]
    missing = [one for one in patterns if "*" not in one and "?" not in one and one not in infos]
    if missing:
        raise SourceError(f"{store.url}: {len(missing)} files are missing: {', '.join(missing[:_SHOWN])} ...")
    if not found:
        raise NoInputsError(f"{store.url}: no file matches {pattern}")
    return found


def expand(pattern: str) -> list[str]:
    """Return the patterns that `x-{000..012}.tar` stands for. Raises OptionError if there are too many."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    numbers = range(int(first), int(last) + 1)
    if len(numbers) > _MOST_FILES:
        raise OptionError(f"{pattern} stands for {len(numbers):,} files; at most {_MOST_FILES:,} are allowed")
    heads = [f"{pattern[: match.start()]}{number:0{len(first)}d}" for number in numbers]
    return [head + tail for head in heads for tail in expand(pattern[match.end() :])]


def _is_folder(url: str) -> bool:
    with listing("the source cannot be read"):
        return url_scheme(url) == "file" and is_folder(file_path(url))


def _no_folder(path: str) -> SourceError:
    """Return the error for a local path that is not a folder, with what it is instead."""
    if not mode_of(Path(path)):
        state = "does not exist"
    elif is_tfrecord_name(path.rpartition("/")[2]):
        state = f"is a TFRecord file. {adopt_advice(path.rpartition('/')[0])}"
    else:
        state = "is a file; expected a folder of images, a table (.csv, .tsv, .jsonl, .parquet) or a .tar"
    return SourceError(f"the source {path} {state}")
