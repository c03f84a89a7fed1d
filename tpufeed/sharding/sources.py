"""Find out what kind of source a URL is (a folder, a table or tars), and read its rows."""

import fnmatch
import itertools
import posixpath
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tpufeed.build.plan import ImageRef
from tpufeed.dataset.advice import unpack_beside
from tpufeed.dataset.naming import MANIFEST, count_ending, show_endings
from tpufeed.dataset.tfrecord_files import adopt_advice, is_tfrecord_name
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sharding import coco, huggingface, tables, tars
from tpufeed.sharding.annotations import AnnotationFiles
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.pictures import open_masks
from tpufeed.sharding.rows import (
    IMAGE_SUFFIXES,
    SPLIT_OF_WORD,
    Found,
    Row,
    is_hidden,
    is_image_name,
    listing,
    splits_mentioned,
)
from tpufeed.storage.local import is_folder, mode_of
from tpufeed.storage.registry import open_store, url_scheme
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, check_name

_COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst)|tgz|(csv|tsv|jsonl|ndjson)\.(gz|bz2|xz|zst)|zip)$", re.IGNORECASE)
_BRACES = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MOST_FILES = 10**6
_SHOWN, _MANY_SHOWN = 3, 8
_MOST_NESTED = 1000
# train, Training_Set, trainset, test_images, val2017
_SPLIT_NAME = re.compile(
    rf"({'|'.join(SPLIT_OF_WORD)})(?:_?(?:sets?|data|dataset|images?|imgs?|split|[0-9]{{4}}))?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Source:
    """Place that samples come from.

    Attributes:
        base: the URL that files of rows are relative to.
        kind: "folder", "table", "tars", "coco", or "rows" for files that hold images in columns.
        splits: true where rows say their splits.
        iter_rows: reads all rows, once.
        options: those of the build, where the source itself says some more: its classes and boxes.
    """

    base: str
    kind: Literal["folder", "table", "tars", "coco", "rows"]
    splits: bool
    iter_rows: Callable[[Found], Iterator[Row]]
    options: ShardOptions | None = None


def find_source(url: str, options: ShardOptions) -> Source:
    """The source at `url`: a folder, a table by its ending, one or more tars, or a file of COCO.

    Args:
        url: a folder, or files by name, where `*` and `{0000..0012}` may stand for several.
        options: which columns are image, label and split; whether folders called train, val and the like are splits.

    Raises:
        SourceError: the source is not there, or not readable.
        OptionError: an option that this kind of source does not have.
    """
    image, label, split_by, pictures = options.image, options.label, options.split_by, options.pictures
    if _COMPRESSED.search(url.rpartition("/")[2]) and "::" not in url and not _is_folder(url):
        is_zip, chain = url.lower().endswith(".zip"), shlex.quote(f"zip::{url}")
        raise SourceError(
            f"{url} is compressed, so that its parts cannot be read in place; unpack it first "
            f"({unpack_beside(url)})" + (f", or shard {chain}, which reads the files in the zip" if is_zip else "")
        )
    named = named_files(url)
    if named is None:
        store = open_store(url)
        _check_folder(store)
        files = _only_tars(store)
        if not files:
            with listing():
                objects = store.iter_objects()
                rows, drawn = huggingface.peek_folder(objects)
            if rows:
                return _rows_source(huggingface.read_folder(store, rows, options), options)
            return _folder_source(store, options, itertools.chain(drawn, objects))
    else:
        store, pattern = named
        if options.masks is not None:
            raise OptionError(
                f"masks names a folder parallel to one of images, and {url} is no folder: say --image-column "
                "mask=COLUMN:mask, of tars mask=SUFFIX:mask"
            )
        files = find_files(store, pattern)
        if pattern.lower().endswith(huggingface.SUFFIXES) or (
            pattern.lower().endswith(huggingface.PARQUET) and huggingface.has_images(store, files[0].name)
        ):
            return _rows_source(huggingface.name_files(store, files, options), options)
        if pattern.lower().endswith(coco.SUFFIXES):
            return _coco_source(store, files, options)
        if not pattern.lower().endswith(tars.SUFFIXES):
            if split_by == "folder":
                raise OptionError("a table has no folders to split by; name one of its columns")
            return Source(
                store.url,
                "table",
                split_by is not None,
                lambda _: itertools.chain.from_iterable(
                    tables.iter_table(store, info.name, image, label, split_by, pictures) for info in files
                ),
            )
    if split_by is not None:
        raise OptionError("tars are split by shares; shard those of each split apart to keep their splits")
    return Source(store.url, "tars", False, lambda found: tars.iter_tars(store, files, image, label, found, pictures))


def _rows_source(found: huggingface.Columnar, options: ShardOptions) -> Source:
    keeps_splits = options.split_shares is None and options.split_by is None
    by_name = keeps_splits and bool(found.splits)
    is_named = options.classes is not None and not (options.keeps_classes and found.class_names)
    classes = options.classes if is_named or options.label == "none" else found.class_names
    return Source(
        found.store.url,
        "rows",
        by_name or options.split_by is not None,
        lambda notes: huggingface.iter_columnar(found, options, by_name, notes),
        replace(options, classes=classes),
    )


def _coco_source(store: Store, files: Sequence[ObjectInfo], options: ShardOptions) -> Source:
    if len(files) > 1:
        raise OptionError(f"{store.url}: {len(files)} files of COCO; shard each apart, as each has its own images")
    if options.split_by is not None:
        raise OptionError("a file of COCO is split by shares, or shard those of each split apart")
    if options.label not in ("auto", "none"):
        raise OptionError(f"the labels of COCO's boxes are its categories, or none; not {options.label!r}")
    own = ("columns", "image_columns", "boxes", "box_format", "keypoints", "box_columns")
    given = [name for name in own if getattr(options, name)]
    if given:
        raise OptionError(f"a file of COCO says its boxes and columns itself; leave out {', '.join(given)}")
    labelled = options.label == "auto"
    content = coco.read_coco(store, files[0].name)
    base = coco.find_images(content, store, options.image).url
    is_named = options.classes is not None and not options.keeps_classes
    own_options = replace(
        options,
        classes=content.categories if labelled and not is_named else options.classes,
        columns=content.columns,
        boxes=coco.BOXES,
        keypoints=coco.KEYPOINTS if content.keypoints else None,
        flip_pairs=content.flip_pairs if options.flip_pairs is None else options.flip_pairs,
        box_columns=(coco.CROWD,),
    )
    return Source(base, "coco", False, lambda _: coco.iter_coco(content, base, labelled), own_options)


def named_files(url: str) -> tuple[Store, str] | None:
    """The folder of the files that `url` names (tables, tars, COCO's), and their name or pattern; None for a folder."""
    parent, slash, last = url.rpartition("/")
    parent = parent + slash if parent.endswith(("/", ":")) or not parent else parent
    if not last.lower().endswith(tables.SUFFIXES + tars.SUFFIXES + coco.SUFFIXES + huggingface.SUFFIXES) or _is_folder(
        url
    ):
        return None
    return open_store(parent or "."), last


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


def _is_folder(url: str) -> bool:
    with listing():
        return url_scheme(url) == "file" and is_folder(url.removeprefix("file://"))


def _check_folder(store: Store) -> None:
    if url_scheme(store.url) != "file":
        return
    folder = Path(store.url)
    with listing("the source cannot be read"):
        mode = mode_of(folder)
    if stat.S_ISDIR(mode):
        return
    if not mode:
        state = "does not exist"
    elif is_tfrecord_name(folder.name):
        state = f"is a TFRecord file. {adopt_advice(str(folder.parent))}"
    else:
        state = "is a file; expected a folder of images, a table (.csv, .tsv, .jsonl, .parquet) or a .tar"
    raise SourceError(f"the source {folder} {state}")


def _only_tars(store: Store) -> list[ObjectInfo]:
    """The tars of a folder that holds some and no folders: cheap to know of a folder that holds class folders."""
    infos = []
    with listing():
        if not all(map(is_hidden, store.iter_folders())):
            return []
        for info in store.iter_objects():
            if "/" in info.name:
                continue
            if is_image_name(info.name):
                return []
            if info.name.lower().endswith(tars.SUFFIXES):
                infos.append(info)
    return sorted(infos, key=lambda info: info.name)


def _folder_source(store: Store, options: ShardOptions, objects: Iterator[ObjectInfo]) -> Source:
    """The source of a folder of images, of which `objects` are a listing that has begun, for the first reading."""
    label, split_by, masks = options.label, options.split_by, options.masks
    if options.image_columns:
        raise OptionError(
            "image columns are of a table or of tars; this source is a folder: say --masks DIR for the folder of its "
            "masks"
        )
    if options.image is not None:
        raise OptionError("--image names a table's column or the extension of a tar's images; this source is a folder")
    if label not in ("auto", "none"):
        raise OptionError(f"the labels of a folder are its class folders, or none; there is no column {label!r} in it")
    if split_by not in (None, "folder"):
        raise OptionError(f"a folder is split by 'folder' or by shares; there is no column {split_by!r} in it")
    split_folders = split_by == "folder" or _has_split_folders(store)
    by_folder = split_folders and options.split_shares is None
    if split_folders and not by_folder and label != "none":
        raise OptionError(
            f"{store.url} has a folder for each split, which shares would make its classes; leave the shares out to "
            "keep the splits, or give the folder of one split only"
        )

    begun = [objects]

    def iter_rows(found: Found) -> Iterator[Row]:
        listed = begun.pop() if begun else store.iter_objects()
        rows = _iter_folder(store, by_folder, label != "none", found, listed)
        return rows if masks is None else _with_masks(rows, masks, store, found)

    return Source(store.url, "folder", by_folder, iter_rows)


def _has_split_folders(store: Store) -> bool:
    """Return true where all folders right below that hold images are called like splits, and one of them like train."""
    with listing():
        names = [name for name in store.iter_folders() if not is_hidden(name)]
        if "train" not in map(_split_named, names):
            return False
        others = (name for name in names if _split_named(name) is None)
        return not any(is_image_name(info.name) for name in others for info in store.iter_objects(name))


def _split_named(folder: str) -> str | None:
    """Return train, val or test where a folder is called as one of these is; None for any other name."""
    match = _SPLIT_NAME.fullmatch(folder)
    return None if match is None else SPLIT_OF_WORD[match[1].lower()]


def _iter_folder(
    store: Store, by_split: bool, labelled: bool, found: Found, objects: Iterator[ObjectInfo]
) -> Iterator[Row]:
    """The images below the store's URL.

    Args:
        store: the folder.
        by_split: the first folder of a path is its split.
        labelled: the first folder (under it) is its class; images right in the folder have none.
        found: counts files whose names are no image's, and takes note of folders in class folders.
        objects: the listing of the folder.

    Raises:
        SourceError: some images lie in class folders and some beside them, or in no split's folder.
        NoInputsError: there is none.
    """
    images, classed, annotations = 0, 0, AnnotationFiles()
    tfrecords = False
    beside: list[str] = []
    with listing():
        for info in objects:
            if not is_image_name(info.name):
                count_ending(found.ignored_files, info.name)
                annotations.add(info.name)
                tfrecords = tfrecords or (not images and is_tfrecord_name(info.name))  # for an error: no image is there
                continue
            images += 1
            *folders, _ = info.name.split("/")
            if by_split and not folders:
                raise SourceError(
                    f"{store.url}: {info.name} lies beside the folders of the splits; move it into one of them"
                )
            split = folders.pop(0) if by_split else None
            label = folders[0] if folders and labelled else None
            classed += label is not None
            if label is not None and len(folders) > 1 and len(found.nested) < _MOST_NESTED:
                found.nested.add((label, folders[1]))
            if label is None and len(beside) < _SHOWN:
                beside.append(info.name)
            if labelled and classed and beside:
                raise SourceError(
                    f"{store.url}: images lie beside the class folders ({', '.join(beside)} ...); move them into a "
                    "class folder, give one folder only, or say --label none to take all images without labels"
                )
            yield Row(info.name, info.size_bytes, info.version, label, split, problem=_problem(info))
    if images:
        found.notes.extend(annotations.iter_notes(store, bool(classed)) if labelled else ())
        return
    among = f"{store.url}: no images found among {found.ignored_files.total()} files{show_endings(found.ignored_files)}"
    if store.stat(MANIFEST) is not None:
        advice = f", but a {MANIFEST}. Of a dataset a cache can be made: tpufeed cache warmup {store.url} CACHE"
    elif tfrecords:
        advice = f". {adopt_advice(store.url)}"
    else:
        advice = (
            f"; expected names that end in {', '.join(IMAGE_SUFFIXES)} in one folder a class (photos/cat/1.jpg), or in "
            "one folder without classes"
        )
    raise NoInputsError(among + advice)


def _with_masks(rows: Iterator[Row], masks: str | Path, store: Store, found: Found) -> Iterator[Row]:
    """The rows of a folder, each with the mask of the same relative path in the folder `masks`."""
    with open_masks(masks, store, found) as folder:
        for row in rows:
            mask = folder.find(row.path)
            if isinstance(mask, ImageRef):
                yield row._replace(images=(mask,))
            else:
                yield row._replace(problem=row.problem or ("bad_mask", mask))
        folder.count_unused(found)


def _problem(info: ObjectInfo) -> tuple[str, str] | None:
    if info.version == BROKEN_LINK:
        return "unreadable", "a link to nothing"
    try:
        check_name(info.name)
    except OptionError as error:  # a//b.jpg in a bucket
        return "unreadable", str(error)
    return None


def iter_source_warnings(
    source: Source,
    options: ShardOptions,
    found: Found,
    classes: Sequence[str],
    columns: Sequence[str],
    labelled: bool,
) -> Iterator[str]:
    """Yield warnings, as sentences: what a source may not have been meant to become.

    Args:
        source: the source.
        options: the options of the build.
        found: what listing the source has found.
        classes: names of the classes.
        columns: names of the further columns.
        labelled: true where samples have labels.
    """
    yield from found.notes
    unlabelled = options.label == "auto" and not labelled
    if source.kind in ("table", "rows") and unlabelled and columns:
        more = f" and {len(columns) - _MANY_SHOWN:,} more" if len(columns) > _MANY_SHOWN else ""
        yield (
            f"no labels: none of the columns {', '.join(columns[:_MANY_SHOWN])}{more} is called label, class ...; give "
            "--label COLUMN, or --label none"
        )
    if source.kind == "tars" and unlabelled:
        if found.ignored_files.get(".cls"):
            way = "a key ends at the first dot of a name, so rename files like im.v0.cls to im_v0.cls"
        elif columns:
            way = f"give --label KEY, one of {_show(columns)}"
        else:
            way = "folders in a tar are no classes, so unpack it to have them"
        yield f"no labels: no sample has a .cls; {way}, or say --label none"
    if source.kind == "tars" and options.split_shares is None:
        mentioned = splits_mentioned(found.tars)
        if len(mentioned) > 1:
            yield (
                f"tars are called like splits ({', '.join(sorted(mentioned))}), and all of them become train: shard "
                "those of each split apart, like 'train-*.tar'"
            )
    if source.kind == "folder" and labelled and options.class_names is None:
        folders = sorted({folder for _, folder in found.nested})
        if len(splits_mentioned(classes)) > 1 or any(_split_named(label) for label, _ in found.nested):
            yield (
                f"classes are called like splits: {_show([name for name in classes if splits_mentioned([name])])}; if "
                "they are splits, say --split-by folder, which makes every folder that holds images a split, with the "
                "classes inside"
            )
        elif len(classes) == 1:
            (name,) = classes
            way = "move them one folder up" if source.splits else f"shard {shlex.quote(_below(source.base, name))}"
            inner = f"to have its folders ({_show(folders)}) as classes or splits, {way}; " if folders else ""
            yield (
                f"all images lie in one folder, {name}, and so are of one class; {inner}to take all images without "
                "labels, say --label none"
            )


def _below(base: str, folder: str) -> str:
    """Return the URL of a folder below a source, which may be a chain: zip::x.zip, zip://inner::x.zip."""
    outer, chain, rest = base.partition("::")
    if not chain:
        return posixpath.join(base, folder)
    scheme, _, inner = outer.partition("://")
    return f"{scheme}://{posixpath.join(inner, folder)}::{rest}"


def _show(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_MANY_SHOWN])}{' ...' if len(names) > _MANY_SHOWN else ''}"
