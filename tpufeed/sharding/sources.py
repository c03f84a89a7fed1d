"""Find out what kind of source a URL is, and read its rows."""

import fnmatch
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpufeed.dataset.tfrecord_files import adopt_advice, is_tfrecord_name
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sharding import folders, tables, tars
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.rows import Found, Row, listing
from tpufeed.storage.registry import open_store, url_scheme
from tpufeed.storage.store import ObjectInfo, Store

_COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst)|tgz|(csv|tsv|jsonl|ndjson)\.(gz|bz2|xz|zst)|zip)$", re.IGNORECASE)
_BRACES = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MOST_FILES = 10**6
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Source:
    """Place that samples come from.

    Attributes:
        base: the URL that files of rows are relative to.
        kind: "folder", "table" or "tars".
        splits: whether rows say their splits.
        iter_rows: reads all rows, once.
    """

    base: str
    kind: Literal["folder", "table", "tars"]
    splits: bool
    iter_rows: Callable[[Found], Iterator[Row]]


def find_source(url: str, options: ShardOptions) -> Source:
    """The source at `url`: a folder, a table by its ending, or one or more tars.

    Args:
        url: a folder, or files by name, where `*` and `{0000..0012}` may stand for several.
        options: which columns are image, label and split; whether folders called train, val and the like are splits.

    Raises:
        SourceError: the source is not there, or not readable.
        OptionError: an option that this kind of source does not have.
    """
    image, label, split_by = options.image, options.label, options.split_by
    last = url.rpartition("/")[2]
    if _COMPRESSED.search(last) and "::" not in url and not _is_folder(url):
        raise SourceError(
            f"{url} is compressed, so that its parts cannot be read in place; unpack it first "
            "(gunzip, unzip, tar -x), or give zip::URL for the folder in a zip"
        )
    named = named_files(url)
    if named is not None:
        store, last = named
        files = find_files(store, last)
        if last.lower().endswith(tars.SUFFIXES):
            return _tar_source(store, files, image, label, split_by)
        return _table_source(store, files, image, label, split_by)
    store = open_store(url)
    _check_folder(store)
    tar_files = _only_tars(store)
    if tar_files:
        return _tar_source(store, tar_files, image, label, split_by)
    return _folder_source(store, options)


def named_files(url: str) -> tuple[Store, str] | None:
    """The folder of the tables or tars that `url` names, and their name or pattern; None where it is a folder's URL."""
    parent, slash, last = url.rpartition("/")
    parent = parent + slash if parent.endswith(("/", ":")) or not parent else parent
    if not last.lower().endswith(tables.SUFFIXES + tars.SUFFIXES) or _is_folder(url):
        return None
    return open_store(parent or "."), last


def _table_source(store: Store, files: list[ObjectInfo], image: str | None, label: str, split_by: str | None) -> Source:
    if split_by == "folder":
        raise OptionError("a table has no folders to split by; name one of its columns")
    return Source(
        store.url,
        "table",
        split_by is not None,
        lambda _: itertools.chain.from_iterable(
            tables.iter_table(store, info.name, image, label, split_by) for info in files
        ),
    )


def _folder_source(store: Store, options: ShardOptions) -> Source:
    label, split_by = options.label, options.split_by
    if options.image is not None:
        raise OptionError("--image names a table's column or the extension of a tar's images; this source is a folder")
    if label not in ("auto", "none"):
        raise OptionError(f"the labels of a folder are its class folders, or none; there is no column {label!r} in it")
    if split_by not in (None, "folder"):
        raise OptionError(f"a folder is split by 'folder' or by shares; there is no column {split_by!r} in it")
    split_folders = split_by == "folder" or folders.has_split_folders(store)
    by_folder = split_folders and options.split is None
    if split_folders and not by_folder and label != "none":
        raise OptionError(
            f"{store.url} has a folder for each split, which shares would make its classes; leave the shares out to "
            "keep the splits, or give the folder of one split only"
        )
    return Source(
        store.url, "folder", by_folder, lambda found: folders.iter_folder(store, by_folder, label != "none", found)
    )


def _tar_source(store: Store, files: list[ObjectInfo], image: str | None, label: str, split_by: str | None) -> Source:
    if split_by is not None:
        raise OptionError("tars are split by shares; shard those of each split apart to keep their splits")

    def iter_rows(found: Found) -> Iterator[Row]:
        empty = True
        for info in files:
            found.tars.append(info.name)
            for row in tars.iter_tar(store, info, image, label, found):
                empty = False
                yield row
        if empty:
            raise tars.no_samples(store.url)

    return Source(store.url, "tars", False, iter_rows)


def find_files(store: Store, pattern: str) -> list[ObjectInfo]:
    """The files right below `store` that `pattern` names, in the order of their names."""
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
        raise NoInputsError(f"{store.url}: no file is called like {pattern}")
    return found


def expand(pattern: str) -> list[str]:
    """The patterns that `x-{000..012}.tar` stands for. Raises OptionError where they are too many."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    numbers = range(int(first), int(last) + 1)
    if len(numbers) > _MOST_FILES:
        raise OptionError(f"{pattern} stands for {len(numbers):,} files; at most {_MOST_FILES:,} are looked for")
    heads = [f"{pattern[: match.start()]}{number:0{len(first)}d}" for number in numbers]
    return [head + tail for head in heads for tail in expand(pattern[match.end() :])]


def _only_tars(store: Store) -> list[ObjectInfo]:
    """The tars of a folder that holds some and no folders: cheap to know of a folder that holds class folders."""
    with listing():
        if any(True for _ in store.iter_folders()):
            return []
        infos = []
        for info in store.iter_objects():
            if folders.is_image_name(info.name):
                return []
            if info.name.lower().endswith(tars.SUFFIXES):
                infos.append(info)
    return sorted(infos, key=lambda info: info.name)


def _is_folder(url: str) -> bool:
    return url_scheme(url) == "file" and Path(url.removeprefix("file://")).is_dir()


def _check_folder(store: Store) -> None:
    if url_scheme(store.url) != "file":
        return
    folder = Path(store.url)
    try:
        state = (
            None
            if folder.is_dir()
            else f"is a TFRecord file. {adopt_advice(str(folder.parent))}"
            if folder.exists() and is_tfrecord_name(folder.name)
            else "is a file; expected a folder of images, a table (.csv, .tsv, .jsonl, .parquet) or a .tar"
            if folder.exists()
            else "does not exist"
        )
    except OSError as error:
        raise SourceError(f"the source {folder} cannot be read: {error.strerror}") from error
    if state is not None:
        raise SourceError(f"the source {folder} {state}")
