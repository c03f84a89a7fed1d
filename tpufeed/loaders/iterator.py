"""Epochs: their batches are handed to the crew ahead of need, also those of the next one, and come out in order."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeAlias

import numpy as np

from tpufeed.dataset.order import EpochOrder, Places
from tpufeed.dataset.partition import Share
from tpufeed.errors import LoaderError
from tpufeed.loaders.crew import CLOSED, Array, Crew, Due, Mask, Overdue, Pending, Request
from tpufeed.loaders.metrics import Tally

Batch: TypeAlias = Array | tuple[Array, ...] | dict[str, Array]

_PLANNED_SAMPLES = 1024
_FIRST_AHEAD = 4  # batches, of an epoch whose shards may have to come first


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch's order, and this rank's share of it."""

    number: int
    order: EpochOrder
    share: Share


@dataclass(frozen=True, slots=True)
class Epochs:
    """Data that all epochs of a loader share.

    Attributes:
        shard_records: of each variant the records of its shards.
        seed: of the order.
        lanes: of the order.
        shuffle: whether it is one.
        whole: this rank's share of an epoch from its start.
    """

    shard_records: Sequence[Sequence[int]]
    seed: int
    lanes: int
    shuffle: bool
    whole: Share

    def open(self, number: int, start: int = 0) -> Epoch:
        """Epoch `number` from global position `start` on."""
        return Epoch(number, self.order(number), self.share(start))

    def share(self, start: int) -> Share:
        """The share from global position `start` on."""
        return replace(self.whole, start=start)

    def order(self, number: int) -> EpochOrder:
        """The order of an epoch."""
        return EpochOrder(self.shard_records[self._variant(number)], self.seed, number, self.lanes, self.shuffle)

    def due(self, epoch: Epoch) -> Due:
        """The shards that this rank reads from the start of an epoch to the end of the next one."""
        world = self.whole.world
        lanes = range(world.rank, self.lanes, world.size)
        following = self.order(epoch.number + 1)
        return (
            (self._variant(epoch.number), epoch.order.due_shards(lanes, epoch.share.start)),
            (self._variant(epoch.number + 1), following.due_shards(lanes)),
        )

    def _variant(self, number: int) -> int:
        return number % len(self.shard_records)


@dataclass(frozen=True, slots=True)
class BatchForm:
    """Form of a batch as it is handed over: a dict or tuple of columns, or an array alone where there is but one."""

    names: tuple[str, ...]
    as_dict: bool

    def package(self, arrays: dict[str, Array]) -> Batch:
        """The batch as the training loop gets it."""
        if self.as_dict:
            return {name: arrays[name] for name in self.names}
        return arrays[self.names[0]] if len(self.names) == 1 else tuple(arrays[name] for name in self.names)


@dataclass(frozen=True, slots=True)
class Flow:
    """Settings of the flow of batches: `stages` says whether shards are to be fetched."""

    form: BatchForm
    prefetch: int
    timeout_seconds: float
    stages: bool
    tally: Tally


@dataclass(slots=True)
class Position:
    """Place of a loader: the epoch that the next iteration begins, from global position `start`.

    Iterators have it, and none of them the loader, which would keep it, and its workers, from being dropped.
    `ahead` is the next epoch, when batches of it are prepared already.
    """

    epochs: Epochs
    epoch: int = 0
    start: int = 0
    ahead: "EpochIterator | None" = None

    def take(self, crew: Crew, flow: Flow) -> "EpochIterator":
        """The next epoch."""
        iterator, self.ahead = self.ahead, None
        if iterator is None or iterator.crew is not crew or iterator.epoch != self.epoch:
            iterator = EpochIterator(self.epochs.open(self.epoch, self.start), crew, flow)
        iterator.position = self
        return iterator


class EpochIterator(Iterator[Batch]):
    """The batches of one epoch. Leaving it early needs no `close`; closing is safe from any thread.

    The loader moves on to the next epoch when this one begins: with its first batch, or `begin`.
    """

    def __init__(self, epoch: Epoch, crew: Crew, flow: Flow) -> None:
        self.crew = crew
        self.position: Position | None = None
        self._epoch = epoch
        self._flow = flow
        self._planned: deque[tuple[Places, Mask]] = deque()
        self._pending: deque[Pending] = deque()
        self._submitted = self._returned = 0
        self.begun = False
        self._closed = ""

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._epoch.number

    @property
    def batches(self) -> int:
        """Number of all batches, handed out or not."""
        return len(self._epoch.share)

    @property
    def samples(self) -> int:
        """Samples of the whole world that have been handed out in this epoch, and those before its start."""
        return self.samples_after(self._returned)

    def samples_after(self, batches: int) -> int:
        """Return the same after the first `batches` batches."""
        share = self._epoch.share
        return min(share.records, share.start + batches * share.global_batch)

    def __len__(self) -> int:
        """Batches that are left."""
        return self.batches - self._returned

    def __next__(self) -> Batch:
        return self._flow.form.package(self.next_arrays())

    def begin(self) -> None:
        """Begin this epoch: from now on the loader's next iteration is the next epoch."""
        position = self.position
        if self.begun or position is None:
            return
        self.begun = True
        if position.epoch != self.epoch:  # another iteration, opened as early as this one, has begun it
            self._give_up()
            self._pending.clear()
            self._planned.clear()
            self._submitted = 0
            self._epoch = position.epochs.open(position.epoch, position.start)
        position.epoch, position.start = self.epoch + 1, 0

    def next_arrays(self) -> dict[str, Array]:
        """The next batch as its columns by name. Raises StopIteration at the end, as `next` does."""
        if self._returned == self.batches:
            raise StopIteration
        if self._closed or self.crew.closed:
            raise LoaderError(self._closed or CLOSED)
        self.begin()
        asked = perf_counter()
        try:
            self.prepare(self._ahead + 1)
            ready = self._ready()
            filled = self._pending.popleft().wait(self._flow.timeout_seconds)
            self._flow.tally.add(filled, asked, ready)
        except Overdue:
            self.close()
            self.crew.close(wait=False)  # with all that was prepared
            raise LoaderError(
                f"no batch for {self._flow.timeout_seconds:g} s. Does a drive or the network not answer, or an op of "
                "yours not return? Where a batch takes so long, give timeout_seconds"
            ) from None
        except BaseException:
            self.close()
            if self.position is not None:
                self.position.ahead = None  # it may have stopped half-way in a batch
            raise
        self._returned += 1
        if self._returned == 1 and self._flow.stages and self.position is not None:
            # Not before: whole shards would take the network from the records of the first batch.
            self.crew.fetch(self.position.epochs.due(self._epoch))
        return filled.arrays

    def prepare(self, batches: int) -> None:
        """Have so many in work: of this epoch, and when that has no more, of the next one."""
        while len(self._pending) < batches and self._submitted < self.batches:
            self._pending.append(self._submit(self._submitted))
            self._submitted += 1
        position, room = self.position, batches - len(self._pending)
        if room and position is not None and (position.epoch, position.start) == (self.epoch + 1, 0):
            if position.ahead is None:
                position.ahead = EpochIterator(position.epochs.open(position.epoch), self.crew, self._flow)
            position.ahead.prepare(room)

    @property
    def _ahead(self) -> int:
        """Batches beyond the one that is asked for. Until shards are staged each record is a request: few at first."""
        flow = self._flow
        return min(flow.prefetch, _FIRST_AHEAD + 2 * self._returned) if flow.stages else flow.prefetch

    def __del__(self) -> None:
        self.close()

    def close(self, why: str = CLOSED) -> None:
        """Give up what is being prepared; who goes on iterating is told why that cannot be."""
        self._closed = self._closed or why
        self._give_up()

    def _give_up(self) -> None:
        for pending in tuple(self._pending):
            pending.cancel()

    def _ready(self) -> int:
        """Batches that can be handed out at once."""
        for number, pending in enumerate(self._pending):
            if not pending.done():
                return number
        return len(self._pending)

    def _submit(self, number: int) -> Pending:
        if not self._planned:
            self._planned.extend(self._plan(number))
        return self.crew.submit(Request(self.epoch, *self._planned.popleft()))

    def _plan(self, number: int) -> Iterator[tuple[Places, Mask]]:
        """Find the places of the samples of the next few batches. This costs 0.3 ms, for one batch as for several."""
        share = self._epoch.share
        stop = min(len(share), number + max(1, _PLANNED_SAMPLES // share.batch_size))
        positions, masks = zip(*map(share.positions, range(number, stop)), strict=True)
        places = self._epoch.order.places_at(np.concatenate(positions))
        for batch, mask in enumerate(masks):
            rows = slice(batch * share.batch_size, (batch + 1) * share.batch_size)
            yield Places(*(column[rows] for column in places)), mask


class Endless(Iterator[Batch]):
    """Epoch after epoch, each as `next_epoch` gives it."""

    def __init__(self, next_epoch: Callable[[], EpochIterator], form: BatchForm) -> None:
        self._next_epoch = next_epoch
        self._form = form
        self._epoch = next_epoch()

    def __next__(self) -> Batch:
        return self._form.package(self.next_arrays())

    def next_arrays(self) -> dict[str, Array]:
        """The next batch as its columns by name."""
        try:
            return self._epoch.next_arrays()
        except StopIteration:
            self._epoch = self._next_epoch()
            return self._epoch.next_arrays()

    @property
    def epoch(self) -> int:
        """The number of the epoch that the last batch is of."""
        return self._epoch.epoch

    def __len__(self) -> int:
        """Batches that are left of the epoch."""
        return len(self._epoch)

    def close(self) -> None:
        """Give up what is being prepared."""
        self._epoch.close()
