"""Where images come from: a folder of class folders, or one flat folder of unlabelled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpufeed.dataset.plan import Input
from tpufeed.errors import NoInputsError, SourceError, StoreError
from tpufeed.storage.registry import open_store, url_scheme
from tpufeed.storage.store import ObjectInfo, Store

_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds. Without labels `class_names` is empty; `ignored_files` have no image's name."""

    url: str
    inputs: tuple[Input, ...]
    class_names: tuple[str, ...]
    ignored_files: int


def list_images(url: str) -> Listing:
    """The images below `url`: the first folder of a path is its class; images right in `url` have none.

    Raises:
        SourceError: the source is not there, not a folder, or not readable.
        NoInputsError: it holds no image.
    """
    store = open_store(url)
    try:
        _check_folder(store)
        found = list(store.iter_objects())
    except StoreError as error:
        raise SourceError(f"the source cannot be listed: {error}") from error
    images = [info for info in found if _is_image(info.name)]
    if not images:
        raise NoInputsError(
            f"{store.url}: no images found among {len(found)} files; expected names that end in {', '.join(_SUFFIXES)} "
            "in one folder a class (photos/cat/1.jpg), or in one folder without classes"
        )
    for info in images:
        if not _is_unicode(info.name):
            raise SourceError(f"{store.url}: the file name {info.name!r} is not UTF-8; rename it")
    flat = [info.name for info in images if "/" not in info.name]
    if flat and len(flat) < len(images):
        raise SourceError(
            f"{store.url}: {len(flat)} images lie beside the class folders ({', '.join(flat[:_SHOWN])} ...); move them "
            "into a class folder, or give one folder only"
        )
    class_names = () if flat else tuple(sorted({info.name.split("/", 1)[0] for info in images}))
    return Listing(store.url, _to_inputs(images, class_names), class_names, len(found) - len(images))


def _check_folder(store: Store) -> None:
    if url_scheme(store.url) != "file":
        return
    folder = Path(store.url)
    try:
        state = (
            None if folder.is_dir() else "is a file, not a folder of images" if folder.exists() else "does not exist"
        )
    except OSError as error:
        raise SourceError(f"the source {folder} cannot be read: {error.strerror}") from error
    if state is not None:
        raise SourceError(f"the source {folder} {state}")


def _is_image(name: str) -> bool:
    """Hidden files and folders (.ipynb_checkpoints, ._x.jpg) are other programs' leavings, never classes."""
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))
    return name.lower().endswith(_SUFFIXES) and not hidden


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _to_inputs(images: Sequence[ObjectInfo], class_names: Sequence[str]) -> tuple[Input, ...]:
    ids = {name: number for number, name in enumerate(class_names)}
    return tuple(
        Input(info.name, info.size_bytes, info.version, ids.get(info.name.split("/", 1)[0], -1) if ids else -1)
        for info in images
    )
