"""Read a folder of images: one folder per class, maybe inside one per split, or one folder without classes."""

import posixpath
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec

from tpufeed.builds.item import ImageRef, Item
from tpufeed.dataset.naming import MANIFEST, PLAN, SPLIT_OF_WORD, count_ending, format_endings, splits_mentioned
from tpufeed.dataset.reader import find_dataset
from tpufeed.dataset.tfrecord_files import adopt_advice, is_tfrecord_name
from tpufeed.errors import ManifestError, NoInputsError, OptionError, SourceError, advised
from tpufeed.sources.bands import Scene, iter_scenes
from tpufeed.sources.database import temporary_table
from tpufeed.sources.inputs import Files
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.paths import IMAGE_SUFFIXES, KEPT, in_utf8, is_hidden, is_image_name, stem_of
from tpufeed.sources.source import SPLIT_NAME, Folder, Found, Place, Source, listing
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, check_name, open_store
from tpufeed.text import format_count, format_names

_SHOWN = 3
_TEXT = ".txt"
_OF_ANNOTATIONS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".xml", _TEXT)
_MOST_NESTED = 1000
_LEVELS = {1: "first", 2: "second", 3: "third", -1: "innermost"}


class FolderSource(Source):
    """Images below a folder. Their masks may be in a parallel folder."""

    what, labels_are_names = "folder of images", True
    splits_from = "the first folders"

    def __init__(self, place: Place, options: ShardOptions) -> None:
        store, label, self._folder = place.store, options.label, place.folder or Folder(place.store)
        if options.image_columns:
            raise OptionError("image columns are for tables and tars. For a folder of images pass --masks DIR")
        if options.image is not None:
            raise OptionError(
                "--image is for the column of a table or the extension of images in tars, not for folders"
            )
        if label not in ("auto", "none"):
            raise OptionError(
                "the labels of a folder are its class folders (see --class-level), or none. A folder has "
                f"no column {label!r}"
            )
        if options.split_by not in (None, "folder"):
            raise OptionError(f"a folder is split by 'folder' or by shares, not by a column {options.split_by!r}")
        split_folders = options.split_by == "folder" or has_split_folders(self._folder)
        if split_folders and options.split_shares is not None and label != "none":
            raise OptionError(
                f"{store.url} has a folder for each split, which `splits` would turn into classes. Leave splits out "
                "to keep them, or give the folder of one split only"
            )
        self._store, self._options, self.base = store, options, store.url
        self._iter_files: Callable[[], Iterator[ObjectInfo]] = self._folder.iter_objects
        self.splits = split_folders and options.split_shares is None
        level = options.class_level + (self.splits and options.class_level > 0)
        self.labels_from = f"the {_LEVELS.get(level, f'{level}.')} folders"

    def iter_items(self, found: Found) -> Iterator[Item]:
        """Yield the images. The first folder of a path is its split, if there are split folders, the next its class."""
        suffixes = KEPT if self._options.images.pixels == "keep" else ()
        store, labelled, masks = self._store, self._options.label != "none", self._options.masks
        # Folders in class folders: those right in them, and those right around images, as (class, folder).
        self._nested, self._innermost = set[tuple[str, str]](), set[tuple[str, str]]()
        images, classed, unread = 0, 0, dict[str, list[str]]()  # a few files of annotations of each ending
        has_tfrecords, beside = False, list[str]()
        files, bands = self._iter_files(), self._options.band_names
        files = iter_scenes(files, bands, suffixes, found.notes) if bands else files
        with nullcontext() if masks is None else _open_masks(masks, store, found) as add_mask, listing():
            for info in files:
                if not is_image_name(info.name, suffixes):
                    count_ending(found.ignored_files, info.name)
                    if info.name.lower().endswith(_OF_ANNOTATIONS) and not is_hidden(info.name):
                        names = unread.setdefault(posixpath.splitext(info.name)[1].lower(), [])
                        names += [info.name] if len(names) < _SHOWN else []
                    has_tfrecords = has_tfrecords or (not images and is_tfrecord_name(info.name))  # for an error
                    continue
                images += 1
                *folders, _ = info.name.split("/")
                if self.splits and not folders:
                    raise SourceError(f"{store.url}: {info.name} is beside the folders of splits. Move it into one")
                split = folders.pop(0) if self.splits else None
                label = self._class_of(info.name, folders) if folders and labelled else None
                classed += label is not None
                if label is not None and len(folders) > 1 and len(self._innermost) < _MOST_NESTED:
                    self._nested.add((label, folders[1]))
                    self._innermost.add((label, folders[-1]))
                if label is None and len(beside) < _SHOWN:
                    beside.append(info.name)
                if labelled and classed and beside and self._options.unlabelled == "reject":
                    raise SourceError(
                        f"{store.url}: images are beside the class folders ({', '.join(beside)} ...). Move them into a "
                        "class folder, give one class folder only, or pass --label none to take all images without "
                        "labels, or --unlabelled keep to take only these without"
                    )
                problem = ("unreadable", "a link to nothing") if info.version == BROKEN_LINK else None
                try:
                    check_name(info.name)
                except OptionError as error:  # a//b.jpg in a bucket
                    problem = problem or ("unreadable", str(error))
                item = Item(info.name, info.size_bytes, info.version, label, split, problem=problem)
                if isinstance(info, Scene):
                    problem = problem or info.problem
                    item = msgspec.structs.replace(item, file=info.file, images=info.others, problem=problem)
                yield item if add_mask is None else add_mask(item)
            if not images:
                raise _no_images(store, found, has_tfrecords)
        if special := len(store.special_files):
            found.ignored_files["special files"] = special
        if labelled and unread:
            found.notes.extend(_iter_unread(store, unread))

    def _class_of(self, path: str, folders: Sequence[str]) -> str:
        level = self._options.class_level
        if not -len(folders) <= level <= len(folders):
            raise SourceError(
                f"{self._store.url}: {path} is in {format_count(len(folders), 'folder')}, so it has none of level "
                f"{level}. Move it, or pass another --class-level"
            )
        return folders[level if level < 0 else level - 1]

    def iter_warnings(self, found: Found, classes: Sequence[str] | None, columns: Sequence[str]) -> Iterator[str]:
        if classes is None or self._options.class_names is not None:
            return
        folders, outer = sorted({folder for _, folder in self._nested}), defaultdict[str, set[str]](set)
        for label, folder in self._innermost:
            outer[folder].add(label)
        shared = sorted(folder for folder, labels in outer.items() if len(labels) > 1)
        if (len(classes) > 1 and len(splits_mentioned(classes)) > 1) or any(
            SPLIT_NAME.fullmatch(label) for label, _ in self._nested
        ):
            yield (
                "classes have names of splits: "
                f"{format_names([name for name in classes if splits_mentioned([name])])}. If so, pass --split-by "
                "folder, which makes every folder that holds images a split with its classes inside"
            )
        elif len(shared) > 1 and self._options.class_level == 1:
            yield (
                f"classes are the outer folders ({format_names(classes)}), and several of them have the same folders "
                f"inside ({format_names(shared)}). If those are the classes, pass --class-level -1, which takes the "
                "folder right around each image"
            )
        elif len(classes) == 1:
            (name,) = classes
            first, chain, rest = self.base.partition("::")  # zip::x.zip, zip://inner::x.zip
            scheme, _, inside = first.partition("://")
            below = f"{scheme}://{posixpath.join(inside, name)}::{rest}" if chain else posixpath.join(self.base, name)
            way = "move them one folder up" if self.splits else f"shard {shlex.quote(below)}"
            inner = f"make its folders ({format_names(folders)}) classes or splits, {way}"
            more = inner if folders else "train a classifier, make a folder for each class"
            yield (
                f"all images are in one folder, {name}, and so in one class. To {more}; to take all images without "
                "labels, pass --label none"
            )


def _iter_unread(store: Store, files: dict[str, list[str]]) -> Iterator[str]:
    """Yield warnings of files by ending, as a folder of images is sharded without reading them."""
    stems = [stem_of(name) for name in files.pop(_TEXT, [])]
    images = [f"{stem}{ending}" for stem in stems for ending in IMAGE_SUFFIXES]
    beside = [info.name for info in Files(store.url).stats(images) if isinstance(info, ObjectInfo)]
    if beside:
        yield (
            f"files like {stem_of(beside[0])}{_TEXT} have the names of images beside them, and are not read. If they "
            "are YOLO's labels, write a data.yaml (docs/samples.md). If they are captions, pass --texts --label none"
        )
    if files:
        names = format_names([first for first, *_ in files.values()])
        yield (
            f"files like {names} are not read. If they hold labels or boxes of "
            "the images, give them instead of the folder: docs/shard.md has the command for each kind"
        )


def has_split_folders(folder: Folder) -> bool:
    """Return true if all folders right below that hold images have names of splits, one of them like train."""
    with listing():
        names = folder.folders
        splits = {name: SPLIT_OF_WORD[said[1].lower()] for name in names if (said := SPLIT_NAME.fullmatch(name))}
        return "train" in splits.values() and not any(
            is_image_name(info.name) for name in names if name not in splits for info in folder.store.iter_objects(name)
        )


def _no_images(store: Store, found: Found, has_tfrecords: bool) -> NoInputsError:
    """Return the error for a folder without images, with advice by what it holds."""
    found_dataset = None
    with suppress(ManifestError):  # of another program
        found_dataset = find_dataset(store)
    if found_dataset is not None:
        advice = f", but a {MANIFEST}. To make a cache of a dataset: {advised('cache warmup', store.url, 'CACHE')}"
    elif store.stat(PLAN) is not None:
        advice = ", but an unfinished build of a dataset. Run its command again"
    elif has_tfrecords:
        advice = f". {adopt_advice(store.url)}"
    elif kept := [ending for ending in KEPT if ending in found.ignored_files]:
        advice = f". Those that end in {', '.join(kept)} are images with --pixels keep"
    else:
        advice = (
            f". Expected names that end in {', '.join(IMAGE_SUFFIXES)} in one folder per class (photos/cat/1.jpg), or "
            "in one folder without classes"
        )
        advice += ". A table may name images without an ending: docs/bands.md" * bool(found.ignored_files[""])
    others = f"{found.ignored_files.total()} files{format_endings(found.ignored_files)}"
    return NoInputsError(f"{store.url}: no images found among {others}{advice}")


@contextmanager
def _open_masks(url: str | Path, images: Store, found: Found) -> Iterator[Callable[[Item], Item]]:
    """List the folder of masks at `url`, and yield a function that adds its mask to an item.

    The list is in a temporary file, so that a million masks take no memory. Files that are not images, and in the end
    masks without an image, are counted in `found`.

    Raises:
        OptionError: the folder is among the images, or holds no mask.
        SourceError: it cannot be listed.
    """
    store = open_store(url)
    root = store.url.rstrip("/")
    if f"{store.url}/".startswith(f"{images.url}/"):
        raise OptionError(
            f"the masks in {store.url} are inside the folder of images, {images.url}, and would be taken for images: "
            "give a source folder that holds only the images"
        )

    def iter_lines() -> Iterator[tuple[str, str, int, str]]:
        for info in store.iter_objects():
            if is_image_name(info.name):
                yield stem_of(info.name), info.name, info.size_bytes, info.version
            else:
                count_ending(found.ignored_files, info.name)

    def add_mask(item: Item) -> Item:
        stem = stem_of(item.path)
        with in_utf8():
            query = "SELECT name, bytes, version FROM masks WHERE stem = ? ORDER BY name"
            masks = [ImageRef(f"{root}/{name}", *rest) for name, *rest in database.execute(query, (stem,))]
            database.execute("UPDATE masks SET used = 1 WHERE stem = ?", (stem,))
        if not masks:
            wrong = f"it has no mask: expected {root}/{stem}.png"
        elif len(masks) > 1:
            wrong = f"it has {len(masks)} masks: {', '.join(mask.file for mask in masks)}"
        elif masks[0].version == BROKEN_LINK:
            wrong = f"its mask {masks[0].file} is a link to nothing"
        else:
            return msgspec.structs.replace(item, images=(*item.images, *masks))
        return msgspec.structs.replace(item, problem=item.problem or ("bad_mask", wrong))

    columns = "stem TEXT, name TEXT, bytes INT, version TEXT, used INT DEFAULT 0"
    with temporary_table(f"masks({columns})") as database:
        with listing("the folder of masks cannot be listed"), in_utf8():
            database.executemany("INSERT INTO masks(stem, name, bytes, version) VALUES(?, ?, ?, ?)", iter_lines())
        if not database.total_changes:
            raise OptionError(f"{store.url} holds no masks: no file name ends like that of an image")
        database.execute("CREATE INDEX by_stem ON masks(stem)")
        yield add_mask
        for (name,) in database.execute("SELECT name FROM masks WHERE used = 0"):
            count_ending(found.ignored_files, name)
