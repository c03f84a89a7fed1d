"""Read the inputs of a task: find their files, read the bytes, make something of each."""

import itertools
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TypeVar

from tpufeed.build.item import ImageRef, Item
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
)
from tpufeed.sharding.row_groups import RowStore, name_row
from tpufeed.storage.reading import settle
from tpufeed.storage.store import ObjectInfo, Span, Store, check_name, open_store, read_span, url_scheme

T = TypeVar("T")
_STATS_AT_ONCE = 32
UNREACHABLE = "unreachable"  # the reason of a web URL whose server refuses, or does not answer
_WEB = ("http", "https")
# Maybe every second image of a source, by a header that is as it should be.
_SOUND = ("too_small", "unsupported", "bad_box")


class Files:
    """Finds files for one source. Thread-safe; stores of other places are opened once."""

    def __init__(self, base: str) -> None:
        self.base = open_store(base)
        self._elsewhere: dict[str, Store] = {}
        self._rows: RowStore | None = None

    def find_image(self, image: ImageRef) -> tuple[Store, Span]:
        """The store of an image, and the bytes there."""
        if image.row is not None:
            self._rows = self._rows or RowStore(self.base)
            return self._rows, Span(name_row(image.file, image.row, image.leaf), 0, None, image.version)
        store, name = self.find(image.file)
        # Of a whole file the length tells whether it is the same.
        stop = image.offset + image.bytes if image.offset else None
        return store, Span(check_name(name), image.offset, stop, image.version)

    def find(self, file: str) -> tuple[Store, str]:
        """The store of a file and its name there."""
        if "://" in file:
            scheme, _, rest = file.partition("://")
            host, _, name = rest.lstrip("/").partition("/")
            root = f"{scheme}://{'/' if rest.startswith('/') else ''}{host}"  # local:///folder
        elif file.startswith("/"):
            root, name = "/", file[1:]
        else:
            return self.base, file
        store = self._elsewhere.get(root)
        if store is None:
            store = self._elsewhere[root] = open_store(root)
        return store, name

    @property
    def retries(self) -> int:
        """Requests that were made again."""
        return sum(store.retries for store in (self.base, *self._elsewhere.values()))

    def stats(self, files: list[str]) -> list[ObjectInfo | TpufeedError | None]:
        """Return what each file is now, or why that is unknown; many remote files are asked for at once.

        A web URL whose server refuses, or does not answer, is an ImageError: other rows have other servers.

        Raises:
            MissingExtraError: what opens their URLs is not installed.
            UnavailableError, AccessError: a store does not answer, or refuses, which says nothing of the files.
        """
        if all("://" not in file for file in files) and self.base.local_path("x") is not None:
            return [self._stat(file) for file in files]
        with ThreadPoolExecutor(_STATS_AT_ONCE, "tpufeed-stat") as executor:
            return list(executor.map(self._stat, files))

    def _stat(self, file: str) -> ObjectInfo | TpufeedError | None:
        store = self.base
        try:
            store, name = self.find(file)
            return store.stat(name)
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
) -> Generator[tuple[Item, T | ImageError], None, None]:
    """Each input with what `take(input, the bytes of its files)` makes of it, or with why it cannot be taken.

    What looks damaged is read again: it is rejected for bytes that came twice.

    Raises:
        BuildError: there is not enough memory for an image.
        UnavailableError, AccessError: a store does not answer, refuses, or gives other bytes each time. No image is
            rejected for that.
    """

    def try_to_take(item: Item, data: Sequence[bytes] | ImageError) -> T | ImageError:
        try:
            return data if isinstance(data, ImageError) else take(item, data)
        except ImageError as error:
            return error
        except MemoryError as error:
            raise _out_of_memory(item) from error

    with closing(iter_read(files, inputs)) as read:
        for item, data in read:
            taken = try_to_take(item, data)
            if isinstance(taken, ImageError) and not isinstance(data, ImageError) and taken.reason not in _SOUND:
                settled = _all_of(item, [_read_again(files, *part) for part in zip(item.files, data, strict=True)])
                taken = taken if settled == data else try_to_take(item, settled)
            yield item, taken


def iter_read(files: Files, inputs: Sequence[Item]) -> Generator[tuple[Item, list[bytes] | ImageError], None, None]:
    """Each input with the bytes of its files, or with why there are none.

    Remote ones are read many at a time, ahead of need.

    Raises:
        UnavailableError, AccessError: a store does not answer, or refuses.
    """
    places: list[list[Store] | ImageError] = []
    spans: dict[Store, list[Span]] = {}
    for item in inputs:
        if item.problem is not None or item.duplicate_of:
            places.append(ImageError(*(item.problem or ("duplicate", item.duplicate_of))))
            continue
        try:
            found = [files.find_image(file) for file in item.files]
        except TpufeedError as error:  # a URL that nothing opens, or that leads nowhere
            places.append(ImageError("unreadable", str(error)))
        else:
            places.append([store for store, _ in found])
            for store, span in found:
                spans.setdefault(store, []).append(span)
    with ExitStack() as stack:
        results = {store: stack.enter_context(closing(store.read_many(wanted))) for store, wanted in spans.items()}
        for item, place in zip(inputs, places, strict=True):
            if isinstance(place, ImageError):
                yield item, place
                continue
            try:
                data = [next(results[store]) for store in place]  # all of them: the next input's come behind
            except MemoryError as error:
                raise _out_of_memory(item) from error
            yield item, _all_of(item, [_checked(*part) for part in zip(place, item.files, data, strict=True)])


def _all_of(item: Item, data: Sequence[bytes | ImageError]) -> list[bytes] | ImageError:
    """Return the bytes of all files of an input, or what is wrong with the first that has none."""
    sound = list[bytes]()
    for file, part in zip(item.files, data, strict=True):
        if isinstance(part, ImageError):
            return ImageError(part.reason, f"{file.place}: {part}") if sound else part  # the first is `path`, or in it
        sound.append(part)
    return sound


def _read_again(files: Files, file: ImageRef, data: bytes) -> bytes | ImageError:
    """Return the bytes of a file, of which `data` is the first reading, read until they are sure."""
    store, span = files.find_image(file)
    reads = itertools.chain([data], (_checked(store, file, read_span(store, span)) for _ in itertools.count()))
    return settle(
        f"{store.url}/{span.name}, byte {span.start}",
        lambda: next(reads),
        identity=lambda found: found,
        is_sure=lambda found: isinstance(found, ImageError),  # it has changed, or is gone
    )


def _out_of_memory(item: Item) -> BuildError:
    """No reject: on a larger machine the same build would take the image."""
    return BuildError(
        f"{item.path}: there is not enough memory for its pixels. Try fewer --workers, or refuse what is so large: "
        "--max-pixels"
    )


def is_web(store: Store) -> bool:
    """Return true for a web server: of what it does not give nobody can say more, as a user can of a bucket."""
    return url_scheme(store.url) in _WEB


def _checked(store: Store, file: ImageRef, data: bytes | StoreError) -> bytes | ImageError:
    if isinstance(data, UnavailableError | AccessError):  # says nothing of the image
        if is_web(store) and not file.offset and file.row is None:  # tars and Parquet hold many
            return ImageError(UNREACHABLE, str(data))
        raise data
    if isinstance(data, ObjectNotFoundError):
        return ImageError("changed_during_build", f"the file is gone, or a link to nothing: {data}")
    if isinstance(data, StoreError):
        changed = isinstance(data, ObjectChangedError)
        return ImageError("changed_during_build" if changed else "unreadable", str(data))
    if len(data) != file.bytes and file.row is None:  # a row's length is known when it is read
        return ImageError("changed_during_build", f"the file has {len(data)} bytes; {file.bytes} were listed")
    return data
