"""Find out which kind of raw images a URL names."""

import fnmatch
import re
import shlex
from pathlib import Path

from tpufeed.dataset.tfrecord_files import adopt_advice, is_tfrecord_name, unpack_beside
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sources import columnar
from tpufeed.sources.clips import ClipsSource
from tpufeed.sources.coco import CocoSource
from tpufeed.sources.coco_folders import named_splits
from tpufeed.sources.columnar import ColumnarSource
from tpufeed.sources.folder import FolderSource
from tpufeed.sources.grouped import GroupedSource
from tpufeed.sources.imagefolder import ImageFolderSource
from tpufeed.sources.options import ShardOptions, names_in
from tpufeed.sources.outlines import import_pycocotools
from tpufeed.sources.paths import PARQUET
from tpufeed.sources.source import Folder, Place, Source, listing
from tpufeed.sources.table import TableSource
from tpufeed.sources.tars import TarSource
from tpufeed.sources.texts import TextsSource
from tpufeed.sources.voc import VocSource
from tpufeed.sources.yolo import YoloSource
from tpufeed.storage.local import is_folder, mode_of
from tpufeed.storage.store import ObjectInfo, Store, file_path, open_store, url_scheme

# The first kind with one of its marks that claims a folder has it. The first with a file's suffix reads the file. A
# .parquet without images is a table.
_KINDS: tuple[type[Source], ...] = (
    YoloSource,
    VocSource,
    TarSource,
    ColumnarSource,
    TableSource,
    ImageFolderSource,
    CocoSource,
)
_SUFFIXES = tuple(suffix for kind in _KINDS for suffix in kind.suffixes)
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
            f"{url} is compressed, so its parts cannot be read in place. Unpack it first "
            f"({unpack_beside(url)})" + (f", or shard {chain}, which reads the files in the zip" if is_zip else "")
        )
    kind, place = _find_place(url, options)
    if options.texts:
        if kind is not FolderSource:
            raise OptionError(
                f"--texts is for a folder of images with .txt, .json or .cls beside them, and {url} is: {kind.what}. "
                "Leave it out"
            )
        kind = TextsSource
    if options.band_names and kind not in (FolderSource, TableSource):
        raise OptionError(
            f"names of bands are for a folder with a file for each band, or a table with a column for each, and {url} "
            f"is: {kind.what}. Write a table of paths, or give numbers of bands within a file, like 4,3,2"
        )
    if options.masks is not None and kind is not FolderSource:
        with_boxes = kind in (CocoSource, YoloSource, VocSource)
        way = "" if with_boxes else ": pass --image-column mask=COLUMN:mask, or mask=SUFFIX:mask for tars and --texts"
        raise OptionError(f"masks names a folder parallel to a folder of images, which {url} is not{way}")
    if options.class_level != 1 and kind is not FolderSource:
        raise OptionError(f"class_level is for class folders, which {url} is not. Leave it out")
    if options.group_by is not None:
        if kind is not TableSource:
            raise OptionError(f"--group-by is for a table with several rows per image, which {url} is not")
        kind = GroupedSource
    if options.outlines is not None:
        if not kind.has_outlines:
            kinds = ", ".join(each.what for each in _KINDS if each.has_outlines)
            raise OptionError(
                f"{url} has no outlines of objects. Sources of these kinds have them: {kinds}. For files of masks pass "
                "--masks DIR, or --image-column mask=COLUMN:mask"
            )
        import_pycocotools()
    if options.images.frames is not None and kind is FolderSource:
        kind = ClipsSource
    source = kind(place, options)
    if options.split_with is not None:
        _check_split_with(options.split_with, source.splits or options.split_shares is not None)
    source.why = place.why if options.group_by is None else f"--group-by {options.group_by}"
    return source


def _check_split_with(columns: str, has_splits: bool) -> None:
    if not names_in(columns):
        raise OptionError("split_with names the columns that keep samples together, and here it names none")
    if not has_splits:
        raise OptionError("split_with is for several splits. Deal them by shares: --splits train=0.8,val=0.2")


def _find_place(url: str, options: ShardOptions) -> tuple[type[Source], Place]:
    """Return the kind of the source at `url`, and its place."""
    if splits := named_splits(url):
        parts = [Place(store, [file], split=split) for split, store, name in splits for file in find_files(store, name)]
        return CocoSource, Place(parts[0].store, (), parts=parts, why="its files are named by split")
    if (named := named_files(url)) is not None:
        store, pattern = named
        files = find_files(store, pattern)
        kind = next(kind for kind in _KINDS if pattern.lower().endswith(kind.suffixes))
        largest = max(files, key=lambda info: info.size_bytes).name  # others may have no rows
        is_table = pattern.lower().endswith(PARQUET) and not columnar.has_images(store, largest)
        why = f"named {pattern}" + (", which holds no images itself" if is_table else "")
        return TableSource if is_table else kind, Place(store, files, why=why)
    store = open_store(url)
    with listing():
        if url_scheme(store.url) == "file" and not is_folder(store.url):
            raise _no_folder(store.url)
        # Masks are for folders of images without metadata, and folders as splits for those without annotations.
        other = {kind for kind in _KINDS if kind.yields_to_masks} if options.masks is not None else set[type[Source]]()
        other |= {CocoSource} if options.split_by == "folder" else set()
        folder = Folder(store)
        for kind in _KINDS:
            if kind not in other and any(map(folder.has, kind.marks)) and (place := kind.claim(folder)):
                return kind, place
    why = "it has no metadata, and no annotations in the layout of COCO, YOLO or Pascal VOC"
    return FolderSource, Place(store, (), folder, why=why)


def named_files(url: str) -> tuple[Store, str] | None:
    """Return the folder of the files that `url` names, and their name or pattern, or None if it names a folder."""
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
        raise OptionError(f"{pattern} stands for {len(numbers):,} files. At most {_MOST_FILES:,} are allowed")
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
        state = "is a file. Expected a folder of images, a table (.csv, .tsv, .jsonl, .parquet) or a .tar"
    return SourceError(f"the source {path} {state}")
