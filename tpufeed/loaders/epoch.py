"""One epoch: its batches are handed to the decoding threads ahead of need and come out in order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.order import EpochOrder, Places
from tpufeed.dataset.partition import Share
from tpufeed.dataset.records import Reader
from tpufeed.errors import LoaderError
from tpufeed.loaders.columns import MASK
from tpufeed.loaders.rows import Array, Rows

_CLOSED = "the loader was closed, or its last batch failed; iterate it again to go on"

Mask: TypeAlias = npt.NDArray[np.bool_]
Batch: TypeAlias = Array | tuple[Array, ...] | dict[str, Array]


_PLANNED_SAMPLES = 1024


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch reads: its order, the records of its variant, and this rank's share."""

    number: int
    order: EpochOrder
    reader: Reader
    share: Share


@dataclass(frozen=True, slots=True)
class BatchForm:
    """How the columns of a batch are handed over: as a dict, a tuple, or an array alone where there is but one."""

    names: tuple[str, ...]
    as_dict: bool

    def package(self, arrays: dict[str, Array]) -> Batch:
        """The batch as the training loop gets it."""
        if self.as_dict:
            return {name: arrays[name] for name in self.names}
        return arrays[self.names[0]] if len(self.names) == 1 else tuple(arrays[name] for name in self.names)


class EpochIterator(Iterator[Batch]):
    """The batches of one epoch. Leaving it early needs no `close`; closing is safe from any thread.

    `begun` is called when the first batch is there.
    """

    def __init__(
        self,
        epoch: Epoch,
        rows: Rows,
        form: BatchForm,
        executor: ThreadPoolExecutor,
        prefetch: int,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        self.epoch = epoch.number
        self._begun = begun
        self._epoch = epoch
        self._rows = rows
        self._form = form
        self._executor = executor
        self._prefetch = prefetch
        self._planned: deque[tuple[Places, Mask]] = deque()
        self._pending: deque[_Pending] = deque()
        self._submitted = self._returned = 0
        self._closed = False

    @property
    def samples(self) -> int:
        """Samples of the whole world that have been handed out in this epoch, and those before its start."""
        return self.samples_after(self._returned)

    def samples_after(self, batches: int) -> int:
        """The same after the first `batches` batches."""
        share = self._epoch.share
        return min(share.records, share.start + batches * share.global_batch)

    def __len__(self) -> int:
        """Batches that are left."""
        return len(self._epoch.share) - self._returned

    def __next__(self) -> Batch:
        return self._form.package(self.next_arrays())

    def next_arrays(self) -> dict[str, Array]:
        """The next batch as its columns by name. Raises StopIteration at the end, as `next` does."""
        if self._returned == len(self._epoch.share):
            raise StopIteration
        if self._closed:
            raise LoaderError(_CLOSED)
        try:
            while len(self._pending) < self._prefetch and self._submitted < len(self._epoch.share):
                self._pending.append(self._submit(self._submitted))
                self._submitted += 1
            arrays = self._pending.popleft().wait()
        except CancelledError:
            raise LoaderError("the loader was closed while a batch was waited for") from None
        except BaseException:
            self.close()
            raise
        self._returned += 1
        if self._returned == 1:
            self._begun()
        return arrays

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is being prepared."""
        self._closed = True
        for pending in tuple(self._pending):
            for future in pending.futures:
                future.cancel()

    def _submit(self, number: int) -> "_Pending":
        if not self._planned:
            self._planned.extend(self._plan(number))
        places, mask = self._planned.popleft()
        work = self._rows.begin(places, self._epoch.number, self._epoch.reader)
        work.arrays[MASK] = mask
        try:
            futures = [self._executor.submit(self._rows.fill, work, *rows) for rows in self._rows.chunks]
        except RuntimeError as error:  # the executor's word for having been shut down
            raise LoaderError(_CLOSED) from error
        return _Pending(work.arrays, futures)

    def _plan(self, number: int) -> Iterator[tuple[Places, Mask]]:
        """Where the samples of the next few batches lie: finding out costs 0.3 ms, for one batch as for several."""
        share = self._epoch.share
        stop = min(len(share), number + max(1, _PLANNED_SAMPLES // share.batch_size))
        positions, masks = zip(*map(share.positions, range(number, stop)), strict=True)
        places = self._epoch.order.places_at(np.concatenate(positions))
        for batch, mask in enumerate(masks):
            rows = slice(batch * share.batch_size, (batch + 1) * share.batch_size)
            yield Places(*(column[rows] for column in places)), mask


@dataclass(frozen=True, slots=True)
class _Pending:
    arrays: dict[str, Array]
    futures: list[Future[None]]

    def wait(self) -> dict[str, Array]:
        """The batch, when all of it is there."""
        try:
            for future in self.futures:
                future.result()
            return self.arrays
        finally:
            # A cycle: an exception's traceback holds this frame, and the future the exception. It would keep the
            # loader's threads until the garbage collector comes by.
            del self, future
