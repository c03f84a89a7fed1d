"""Hand the loader's batches to TensorFlow, without copying pixels."""

import logging
import threading
import time
import weakref
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tpufeed.adapters.feed import ENDLESS
from tpufeed.errors import LoaderError, OptionError
from tpufeed.stream.columns import Array
from tpufeed.stream.host import EpochIterator, HostStream

_logger = logging.getLogger(__name__)

OTHER_CHECKPOINT = (
    "the checkpoint is of an iterator of another dataset, split, seed, order, batch_size, lanes, remainder or world; "
    "make the dataset as it was"
)

_DROPPED = (
    "the dataset was dropped, or the interpreter is about to exit; keep the tf.data.Dataset in a variable while it is "
    "iterated, even if a function of another dataset captures it"
)
_LAST = np.array([0], np.int64)  # the one key of a table
_MANY_MOVES = 10
_QUIET_SECONDS, _SETTLE_SECONDS = 0.05, 5.0


class HandedEpoch:
    """The epoch of the last batch that left a dataset: with `repeat`, prefetched batches may be of later epochs.

    It is a table, not a variable: within the scope of a strategy a variable would become one of the strategy's.
    """

    def __init__(self) -> None:
        self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, tf.constant(-1, tf.int64))

    def last(self) -> Any:
        """Return the epoch as an int64 scalar. -1 before the first batch."""
        return self._table.lookup(_LAST)[0]

    def note(self, batch: Any, epoch: Any) -> Any:
        """Return the batch, and remember its epoch. Map this over (batch, epoch) after the last prefetch."""
        with tf.control_dependencies([self._table.insert(_LAST, [epoch])]):
            return tf.nest.map_structure(tf.identity, batch)


def stream_dataset(stream: HostStream, handed: HandedEpoch | None, finish: bool) -> Any:
    """Return the epochs of a loader as a `tf.data.Dataset`, one per iteration.

    The graph holds what an iterator has to remember: where its iteration began, and how many batches it has given. So
    `tf.train.Checkpoint` saves and restores its place exactly.

    With `handed`, for `repeat`, elements are (batch, epoch), and an iteration continues with the epoch after that of
    the last batch that left the dataset. Without `finish`, batches still need the device ops.
    """
    handover = Handover(stream, handed, on_device=not finish)
    # One outer element per iteration: it opens the epoch when the iteration starts, not when the graph is built.
    opened = tf.data.Dataset.range(1).map(lambda _: tf.ensure_shape(tf.py_function(handover.open, [], tf.int64), (4,)))
    places = opened.flat_map(lambda opened: tf.data.Dataset.from_tensors(opened).repeat(opened[2]).enumerate())
    places = _with_length(places, None if stream.options.repeat else len(stream))
    dataset = places.map(
        lambda batch, opened: handover.shaped(tf.py_function(handover.next_batch, [opened, batch], handover.dtypes))
    )
    weakref.finalize(dataset, handover.close)  # also when the interpreter exits
    stream.moved_by = weakref.ref(handover)  # TensorFlow keeps it
    return dataset


def _with_length(places: Any, batches: int | None) -> Any:
    """Return a dataset whose cardinality is `batches`, or infinite for None, though an iteration may end earlier.

    An iteration that resumes in the middle of an epoch is shorter, which `assert_cardinality` does not allow. Without a
    cardinality Keras would take the length of the first iteration for the length of all.
    """
    # A choice among datasets counts as infinite if one of them is. It ends with the first one, which is always chosen.
    others = tf.data.Dataset.from_tensors((tf.constant(0, tf.int64), tf.zeros((4,), tf.int64))).repeat()
    first = tf.data.Dataset.range(1).repeat()
    endless = tf.data.Dataset.choose_from_datasets([places, others], first, stop_on_empty_dataset=True)
    return endless if batches is None else endless.take(batches)


def place_identity(stream: HostStream) -> int:
    """Return a checksum of what a place in an iteration depends on: loaders with equal ones can share checkpoints."""
    order = stream.state_at(0, 0) | {
        "batch_size": stream.batch_size,
        "world": (stream.world.rank, stream.world.size),
        "remainder": stream.options.remainder,
    }
    return zlib.crc32(repr(order).encode())


class Handover:
    """Hands the epochs of a loader to a graph. TensorFlow's threads call it."""

    def __init__(self, stream: HostStream, handed: HandedEpoch | None, on_device: bool) -> None:
        self.was_placed = stream.is_placed  # it does not begin at its start
        self._stream = stream
        self._handed = handed
        self._iterator: EpochIterator | None = None
        self._place: tuple[int, int, int] | None = None  # place of the iterator's next batch
        self._next: dict[str, Any] | None = None  # where the next iteration is to begin
        self._identity = place_identity(stream)
        self._moves = 0
        self._closed = False
        self._lock = threading.Lock()
        self._calls: deque[int] = deque()  # threads with a call in progress. Changing it is atomic
        self._last_call = 0.0
        self._on_device = on_device
        self._form, self._columns = stream.batch_form(on_device)
        dtypes = [column.dtype for column in self._columns]
        self.dtypes = [tf.string if dtype == "O" else tf.dtypes.as_dtype(dtype) for dtype in dtypes]
        self.dtypes += [] if handed is None else [tf.int64]

    @property
    def stream(self) -> HostStream:
        """The loader that reads and decodes. Raises LoaderError if the dataset was dropped."""
        if self._closed:
            raise LoaderError(_DROPPED)
        return self._stream

    @property
    def begun(self) -> bool:
        """True once TensorFlow has begun the iteration that `begin_at` placed."""
        return self._next is None

    def open(self) -> Any:
        """Begin the next iteration. Return int64 (epoch, samples that it skips, batches, `place_identity`)."""
        with self._call():
            if self._iterator is not None:
                self._iterator.close()
                if self._handed is not None and (last := int(self._handed.last())) >= 0:
                    self._iterator.continue_after(last)
            self._iterator = self._iterate()
            if self._next not in (None, self._stream.state_dict()):
                self._stream.load_state_dict(self._next)
                self._iterator = self._iterate()
            self._next, self._identity = None, place_identity(self._stream)
            state = self._stream.state_dict()
            batches = ENDLESS if self._stream.options.repeat else len(self._iterator)
            self._moves, self._place = 0, (state["epoch"], state["samples"], 0)
            return tf.constant([*self._place[:2], batches, self._identity], tf.int64)

    def next_batch(self, opened: Any, batch: Any) -> list[Any]:
        """Return batch number `batch` of an iteration, one tensor per column."""
        with self._call():
            epoch, start, _, identity = opened.numpy().tolist()
            if identity != self._identity:
                raise OptionError(f"{self._stream.label}: {OTHER_CHECKPOINT}")
            place = epoch, start, int(batch)
            iterator = self._iterator if place == self._place else None
            if iterator is None:
                iterator = self._iterator = self._move(*place)
            self._place = None  # until the batch is ready
            arrays: Any = next(iterator)
            self._stream.began = epoch, start  # even if the iteration resumes in its middle
            self._place = epoch, start, place[2] + 1
            tensors = [self._tensor(name, arrays[name]) for name in self._form.names]
            return tensors if self._handed is None else [*tensors, tf.constant(iterator.epoch, tf.int64)]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move the loader to where `state` says. Raises as `Loader.load_state_dict` does."""
        with self._lock:
            self._stream.load_state_dict(state)
            self._identity = place_identity(self._stream)

    def begin_at(self, state: dict[str, Any]) -> None:
        """Make TensorFlow's next iteration begin at `state`, which `load_state_dict` was given.

        This holds even if batches that are still taken ahead for a dropped iteration move the loader before then.
        """
        with self._lock:
            self._next = state

    def close(self) -> None:
        """Stop the threads, and wait until TensorFlow's threads have left Python.

        A thread that is in Python when the interpreter exits never returns from it, and the destructor of its iterator
        would wait for it forever. From now on every call fails at once, so queues downstream get errors and calls stop.
        """
        self._closed = True
        if self._iterator is not None:
            self._iterator.end()
        if threading.get_ident() in self._calls:
            return  # the garbage collector runs within a call, which cannot wait for itself
        deadline = time.monotonic() + _SETTLE_SECONDS
        # TensorFlow may be about to call again even if no call is in progress: only a quiet while shows the end.
        while time.monotonic() < deadline and (self._calls or time.monotonic() - self._last_call < _QUIET_SECONDS):
            time.sleep(_QUIET_SECONDS / 10)
        # TensorFlow keeps the functions of py_function, and so this object, for the life of the process.
        del self._stream, self._iterator

    def shaped(self, tensors: list[Any]) -> Any:
        """Return the element of the dataset: the columns with static shapes, and the epoch if it is asked for."""
        names = self._form.names
        columns, epoch = dict(zip(names, tensors, strict=False)), tensors[len(names) :]
        for column in self._columns:
            columns[column.name].set_shape((self._stream.batch_size, *column.shape))
        batch = self._form.package(columns)
        if not epoch:
            return batch
        epoch[0].set_shape(())
        return batch, epoch[0]

    def _move(self, epoch: int, start: int, batch: int) -> EpochIterator:
        """Continue elsewhere: an iterator was restored from a checkpoint, or another iteration came between."""
        self._moves += 1
        if self._moves == _MANY_MOVES:
            _logger.warning(
                "two iterations of one tf.data.Dataset take turns, and each turn throws away prepared batches; make a "
                "dataset for each"
            )
        self._stream.load_state_dict(self._stream.state_at(*self._stream.place_after(epoch, start, batch)))
        return self._iterate()

    def _iterate(self) -> EpochIterator:
        return self._stream.iterate(as_dict=True, on_device=self._on_device)

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._calls.append(threading.get_ident())
        try:
            with self._lock:
                if self._closed:
                    raise LoaderError(_DROPPED)
                yield
        finally:
            self._last_call = time.monotonic()
            self._calls.remove(threading.get_ident())

    def _tensor(self, name: str, array: Array) -> Any:
        if name in self._stream.pixels:
            # Page-aligned, as dlpack demands. TensorFlow keeps the memory alive while it needs it.
            return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        return tf.constant(array.tolist() if array.dtype == np.object_ else array)
