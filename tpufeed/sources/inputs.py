"""Read the inputs of a task: find their files, read the bytes, and process each."""

import hashlib
import itertools
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TypeVar, cast

import msgspec

from tpufeed.builds.item import ImageRef, Item
from tpufeed.errors import (
    AccessError,
    BuildError,
    ImageError,
    MissingExtraError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    TpufeedError,
    UnavailableError,
    url_identity,
)
from tpufeed.sources.row_groups import RowStore, name_row
from tpufeed.storage.reading import settle
from tpufeed.storage.store import ObjectInfo, Span, Store, check_name, open_store, read_span, url_scheme

T = TypeVar("T")
_STATS_AT_ONCE = 32
CHANGED = "changed_during_build"  # the reason of a file that is not as it was listed
UNREACHABLE = "unreachable"  # the reason of a web URL whose server refuses, or does not answer
_WEB = ("http", "https")
# Reasons that follow from a sound header. Half of a source's images may have one, so these are not read again.
_SOUND = ("too_small", "unsupported", "other_pixels", "bad_bands", "bad_box")


def files_of(item: Item) -> tuple[ImageRef, ...]:
    """Return where the bytes of a sample are: those of its image, in one or several files, then its further images."""
    image = ImageRef(item.file or item.path, item.bytes, item.version, item.offset, item.row, item.leaf)
    return (image, *item.images)


def version_of(item: Item, files: int) -> str:
    """Return the version of an image in so many files: equal means unchanged. Empty if a file has none."""
    others = item.images[: files - 1]
    if not others:
        return item.version
    if not all((item.version, *(file.version for file in others))):
        return ""
    parts = [item.version, *((url_identity(file.file), file.version) for file in others)]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()


def place_of(image: ImageRef) -> str:
    """Return the identity of an image's place: its file, and for a row of Parquet also the row."""
    return image.file if image.row is None else f"parquet:{name_row(image.file, image.row, image.leaf)}"


class Files:
    """Finds the files of one source. Thread-safe. Each further store is opened once."""

    def __init__(self, base: str) -> None:
        self.base = open_store(base)
        self._elsewhere: dict[str, Store] = {}
        self._rows: RowStore | None = None
        self._listed: tuple[Store, str, list[str]] = (self.base, "", [])  # last

    def find(self, image: ImageRef) -> tuple[Store, Span]:
        """Return the store of an image, and its span of bytes there."""
        if image.row is not None:
            self._rows = self._rows or RowStore(self.base)
            return self._rows, Span(name_row(image.file, image.row, image.leaf), 0, None, image.version)
        store, name, root = self.base, image.file, ""
        if "://" in name:
            scheme, _, rest = name.partition("://")
            host, _, name = rest.lstrip("/").partition("/")
            root = f"{scheme}://{'/' if rest.startswith('/') else ''}{host}"  # local:///folder
        elif name.startswith("/"):
            root, name = "/", name[1:]
        if root:
            store = self._elsewhere.get(root) or self._elsewhere.setdefault(root, open_store(root))
        # The length of a whole file tells whether it is the same.
        stop = image.offset + image.bytes if image.offset else None
        return store, Span(check_name(name), image.offset, stop, image.version)

    def names_below(self, store: Store, folder: str) -> list[str]:
        """Return the names below a folder, sorted. Calls for the same folder in a row list it once."""
        if not self._listed[2] or self._listed[:2] != (store, folder):
            self._listed = store, folder, sorted(info.name for info in store.iter_objects(folder))
        return self._listed[2]

    def are_checked(self, image: ImageRef) -> bool:
        """Return true if the store of an image compares all that is read of it with a checksum."""
        store, span = self.find(image)
        return store.checks_reads and (not span.start or store.local_path("x") is not None)

    @property
    def retries(self) -> int:
        """Number of repeated requests."""
        return sum(store.retries for store in (self.base, *self._elsewhere.values()))

    def stats(self, files: list[str]) -> list[ObjectInfo | TpufeedError | None]:
        """Return the present state of each file, or why it is not known. Many remote files are looked up at once.

        A web URL whose server refuses, or does not answer, is an ImageError: other rows have other servers.

        Raises:
            MissingExtraError: the package that opens their URLs is not installed.
            UnavailableError, AccessError: a store does not answer, or refuses, which says nothing about the files.
        """
        if all("://" not in file for file in files) and self.base.local_path("x") is not None:
            return [self._stat(file) for file in files]
        with ThreadPoolExecutor(_STATS_AT_ONCE, "tpufeed-stat") as executor:
            return list(executor.map(self._stat, files))

    def _stat(self, file: str) -> ObjectInfo | TpufeedError | None:
        store = self.base
        try:
            store, span = self.find(ImageRef(file, 0, ""))
            return store.stat(span.name)
        except (UnavailableError, AccessError) as error:
            if is_web(store):
                return ImageError(UNREACHABLE, str(error))
            raise
        except MissingExtraError:
            raise
        except TpufeedError as error:
            return error
        except UnicodeEncodeError:  # the row's path is refused
            return None


def iter_taken(
    files: Files, inputs: Sequence[Item], take: Callable[[Item, Sequence[bytes]], T]
) -> Generator[tuple[Item, list[bytes], T | ImageError], None, None]:
    """Yield each input, the bytes of its files, and the result of `take`, or why the input cannot be taken.

    The bytes are those of the last call of `take`. There are none if it was not called. An image that looks damaged is
    read again: it is rejected only if the same bytes come twice.

    Raises:
        BuildError: there is not enough memory for an image.
        UnavailableError, AccessError: a store does not answer, refuses, or returns other bytes each time. No image is
            rejected for that.
    """
    with closing(iter_read(files, inputs)) as read:
        for item, found in read:
            if isinstance(found, ImageError) and found.reason == CHANGED:
                found = _read_again(files, item, found)  # noqa: PLW2901  # only its end may have been lost on the way
            data, taken, seen = found, cast(T | ImageError, found), list[bytes]()
            while not isinstance(data, ImageError) and data != seen:
                is_first, seen = not seen, data
                try:
                    taken = take(item, data)
                except ImageError as error:
                    taken = error
                    if is_first and error.reason not in _SOUND:
                        data = _read_again(files, item, data)
                        taken = data if isinstance(data, ImageError) else error
                except MemoryError as error:
                    raise _out_of_memory(item) from error
            yield item, seen, taken


def iter_read(files: Files, inputs: Sequence[Item]) -> Generator[tuple[Item, list[bytes] | ImageError], None, None]:
    """Yield each input with the bytes of its files, or with why they cannot be read.

    Many remote files are read at once, ahead of need. Raises UnavailableError and AccessError of a store.
    """
    places: list[list[Store] | ImageError] = []
    spans: dict[Store, list[Span]] = {}
    for item in inputs:
        if item.problem is not None:
            places.append(ImageError(*item.problem))
            continue
        try:
            found = [files.find(file) for file in files_of(item)]
        except TpufeedError as error:  # a URL that nothing opens, or that leads nowhere
            places.append(ImageError("unreadable", str(error)))
        else:
            places.append([store for store, _ in found])
            for store, span in found:
                spans.setdefault(store, []).append(span)
    with ExitStack() as stack:
        results = {store: stack.enter_context(closing(store.read_many(wanted))) for store, wanted in spans.items()}
        for item, stores in zip(inputs, places, strict=True):
            if isinstance(stores, ImageError):
                yield item, stores
                continue
            try:
                data = [next(results[store]) for store in stores]  # take all: the files of the next input follow
            except MemoryError as error:
                raise _out_of_memory(item) from error
            yield item, _check(item, stores, data)


def iter_certain(files: Files, inputs: Sequence[Item]) -> Generator[tuple[Item, list[bytes] | ImageError], None, None]:
    """Yield what `iter_read` does. Bytes that no store has compared with a checksum are read until they came twice.

    A row of Parquet is read once: to read it again would decode its row group once more.
    """
    with closing(iter_read(files, inputs)) as read:
        for item, found in read:
            if isinstance(found, ImageError):
                is_certain = found.reason != CHANGED
            else:
                is_certain = all(file.row is not None or files.are_checked(file) for file in files_of(item))
            yield item, found if is_certain else _read_again(files, item, found)


def _read_again(files: Files, item: Item, data: list[bytes] | ImageError) -> list[bytes] | ImageError:
    """Read the files of an input until their bytes are certain. `data` is from the first reading."""
    places = [files.find(file) for file in files_of(item)]
    stores = [store for store, _ in places]
    again = (_check(item, stores, [read_span(*each) for each in places]) for _ in itertools.count())
    reads = itertools.chain[list[bytes] | ImageError]([data], again)
    return settle(
        ", ".join(f"{store.url}/{span.name}, byte {span.start}" for store, span in places),
        lambda: next(reads),
        identity=lambda found: str(found) if isinstance(found, ImageError) else tuple(found),
    )


def _out_of_memory(item: Item) -> BuildError:
    # Not a reject: on a larger machine the same build would take the image.
    return BuildError(
        f"{item.path}: there is not enough memory for its pixels. Try fewer --workers, or reject images of this size "
        "with --max-pixels"
    )


def is_web(store: Store) -> bool:
    """Return true for a web server. Users cannot know why it refuses a file, as they can with a bucket."""
    return url_scheme(store.url) in _WEB


def _check(item: Item, stores: Sequence[Store], data: Sequence[bytes | StoreError]) -> list[bytes] | ImageError:
    """Return the bytes of all files of an input, or what is wrong with the first file that has no bytes."""
    sound = list[bytes]()
    for store, file, part in zip(stores, files_of(item), data, strict=True):
        reason, wrong = CHANGED, ""
        if isinstance(part, UnavailableError | AccessError):  # says nothing about the image
            if not is_web(store) or file.offset or file.row is not None:  # tars and Parquet hold many
                raise part
            reason, wrong = UNREACHABLE, str(part)
        elif isinstance(part, ObjectNotFoundError):
            wrong = f"the file is gone, or a link to nothing: {part}"
        elif isinstance(part, StoreError):
            reason, wrong = reason if isinstance(part, ObjectChangedError) else "unreadable", str(part)
        elif len(part) != file.bytes and file.row is None:  # the length of a row is known once it is read
            wrong = f"the file has {len(part)} bytes. Its listing said {file.bytes}"
        else:
            sound.append(part)
            continue
        # `path` says the first one, or what that is in, unless an image has several.
        return ImageError(reason, f"{place_of(file)}: {wrong}" if sound or (item.images and item.file) else wrong)
    return sound
