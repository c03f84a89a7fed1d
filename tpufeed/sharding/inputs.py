"""Inputs of a task: their bytes, what is made of these, and the features besides the image."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tpufeed.dataset.plan import Input, PlanHeader
from tpufeed.dataset.schema import FILENAME, LABEL, TEXT, record_schema
from tpufeed.errors import BuildError, ImageError, ObjectChangedError, ObjectNotFoundError, StoreError, TpufeedError
from tpufeed.sharding.columns import decode_values
from tpufeed.sharding.files import Files
from tpufeed.tfrecord.example import Feature

T = TypeVar("T")
_READ_AHEAD = 32  # files of a remote source


class InputFeatures:
    """The features of inputs besides image, label, sizes and format."""

    def __init__(self, header: PlanHeader) -> None:
        self.labelled = any(feature.name == LABEL for feature in header.features)
        self._names = [name.encode() for name in header.class_names]
        self._further = header.features[len(record_schema(self.labelled)) :]

    def __call__(self, item: Input) -> dict[str, Feature]:
        rest = {FILENAME: Feature("bytes", (item.path.encode(),))}
        if self.labelled:
            rest[TEXT] = Feature("bytes", (self._names[item.label],))
        if self._further:
            rest |= decode_values(item.columns, self._further)
        return rest


def iter_taken(
    files: Files, inputs: Sequence[Input], take: Callable[[bytes, str], T]
) -> Iterator[tuple[Input, T | ImageError]]:
    """Each input with what `take(bytes, path)` makes of it, or with why it cannot be taken.

    Those of a remote source are read ahead by threads.
    """
    if files.is_local:
        for item in inputs:
            yield item, _take(item, take, lambda: read_input(files, item))  # noqa: B023  # called at once
        return
    with ThreadPoolExecutor(_READ_AHEAD, "tpufeed-read") as executor:
        waiting: deque[tuple[Input, Future[bytes]]] = deque()
        for item in inputs:
            waiting.append((item, executor.submit(read_input, files, item)))
            if len(waiting) >= _READ_AHEAD:
                first, data = waiting.popleft()
                yield first, _take(first, take, data.result)
        while waiting:
            first, data = waiting.popleft()
            yield first, _take(first, take, data.result)


def _take(item: Input, take: Callable[[bytes, str], T], read: Callable[[], bytes]) -> T | ImageError:
    try:
        return take(read(), item.path)
    except ImageError as error:
        return error
    except MemoryError as error:  # no reject: on a larger machine the same build would take the image
        raise BuildError(
            f"{item.path}: there is not enough memory for its pixels. Try fewer --workers, or refuse what is so large: "
            "--max-pixels"
        ) from error


def read_input(files: Files, item: Input) -> bytes:
    """The bytes of an input. Raises ImageError."""
    if item.problem is not None:
        raise ImageError(*item.problem)
    try:
        store, name = files.find(item.file or item.path)
        stop = item.offset + item.bytes
        version = item.version
        data = store.read_range(name, item.offset, stop, version) if item.offset else store.read(name, version)
    except ObjectNotFoundError as error:
        raise ImageError("changed_during_build", f"the file is gone, or a link to nothing: {error}") from error
    except ObjectChangedError as error:
        raise ImageError("changed_during_build", str(error)) from error
    except StoreError as error:
        raise ImageError("unreadable", str(error)) from error
    except ImageError:
        raise
    except TpufeedError as error:  # a URL that nothing opens
        raise ImageError("unreadable", str(error)) from error
    if len(data) != item.bytes:
        raise ImageError("changed_during_build", f"the file has {len(data)} bytes; {item.bytes} were listed")
    return data
