"""A folder of images: of class folders, of split folders with class folders in them, or flat."""

import re
from collections.abc import Iterator

from tpufeed.dataset.naming import MANIFEST, count_ending, show_endings
from tpufeed.dataset.tfrecord_files import adopt_advice, is_tfrecord_name
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sharding.rows import Found, Row, listing
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, check_name

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_SPLIT_OF_WORD = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# train, Training_Set, trainset, test_images, val2017
_SPLIT_NAME = re.compile(
    rf"({'|'.join(_SPLIT_OF_WORD)})(?:_?(?:sets?|data|dataset|images?|imgs?|split|[0-9]{{4}}))?", re.IGNORECASE
)
_WORD = re.compile("[a-z]+")
_SHOWN = 3
_MOST_NESTED = 1000


def has_split_folders(store: Store) -> bool:
    """Return true where all folders right below that hold images are called like splits, and one of them like train."""
    with listing():
        names = [name for name in store.iter_folders() if not _is_hidden(name)]
        if "train" not in map(split_named, names):
            return False
        others = (name for name in names if split_named(name) is None)
        return not any(is_image_name(info.name) for name in others for info in store.iter_objects(name))


def split_named(folder: str) -> str | None:
    """Return train, val or test where a folder is called as one of these is; None for any other name."""
    match = _SPLIT_NAME.fullmatch(folder)
    return None if match is None else _SPLIT_OF_WORD[match[1].lower()]


def splits_mentioned(folder: str) -> set[str]:
    """Return those of train, val and test that a folder's name mentions: `flowers-train` is no split's usual name."""
    return {_SPLIT_OF_WORD[word] for word in _WORD.findall(folder.lower()) if word in _SPLIT_OF_WORD}


def iter_folder(store: Store, by_split: bool, labelled: bool, found: Found) -> Iterator[Row]:
    """The images below the store's URL.

    Args:
        store: the folder.
        by_split: the first folder of a path is its split.
        labelled: the first folder (under it) is its class; images right in the folder have none.
        found: counts files whose names are no image's, and takes note of folders in class folders.

    Raises:
        SourceError: some images lie in class folders and some beside them, or in no split's folder.
        NoInputsError: there is none.
    """
    images = classed = 0
    tfrecords = False
    beside: list[str] = []
    for info in _iter_objects(store):
        if not is_image_name(info.name):
            count_ending(found.ignored_files, info.name)
            tfrecords = tfrecords or (not images and is_tfrecord_name(info.name))  # for an error that no image is there
            continue
        images += 1
        *folders, _ = info.name.split("/")
        split = None
        if by_split:
            if not folders:
                raise SourceError(
                    f"{store.url}: {info.name} lies beside the folders of the splits; move it into one of them"
                )
            split = folders.pop(0)
        label = folders[0] if folders and labelled else None
        classed += label is not None
        if label is not None and len(folders) > 1 and len(found.nested) < _MOST_NESTED:
            found.nested.add((label, folders[1]))
        if label is None and len(beside) < _SHOWN:
            beside.append(info.name)
        if labelled and classed and beside:
            raise SourceError(
                f"{store.url}: images lie beside the class folders ({', '.join(beside)} ...); move them into a class "
                "folder, give one folder only, or say --label none to take all images without labels"
            )
        problem = ("unreadable", "a link to nothing") if info.version == BROKEN_LINK else _problem(info.name)
        yield Row(info.name, info.size_bytes, info.version, label, split, problem=problem)
    if not images:
        among = f"{found.ignored_files.total()} files{show_endings(found.ignored_files)}"
        raise NoInputsError(
            f"{store.url}: no images found among {among}, but a {MANIFEST}. Of a dataset a cache can be made: tpufeed "
            f"cache warmup {store.url} CACHE"
            if store.stat(MANIFEST) is not None
            else f"{store.url}: no images found among {among}. {adopt_advice(store.url)}"
            if tfrecords
            else f"{store.url}: no images found among {among}; expected names that end in {', '.join(SUFFIXES)} in one "
            "folder a class (photos/cat/1.jpg), or in one folder without classes"
        )


def _problem(name: str) -> tuple[str, str] | None:
    """Why a listed name cannot be read, as a//b.jpg in a bucket."""
    try:
        check_name(name)
    except OptionError as error:
        return "unreadable", str(error)
    return None


def _iter_objects(store: Store) -> Iterator[ObjectInfo]:
    with listing():
        yield from store.iter_objects()


def is_image_name(name: str) -> bool:
    """Hidden files and folders (.ipynb_checkpoints, ._x.jpg) are other programs' leavings, never classes."""
    return name.lower().endswith(SUFFIXES) and not any(map(_is_hidden, name.split("/")))


def _is_hidden(part: str) -> bool:
    return (part.startswith(".") and not part.startswith("..")) or part == "__MACOSX"
