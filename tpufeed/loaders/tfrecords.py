"""Records that TensorFlow reads: the plan of an epoch, the graph that follows it, and the way back into Python.

An epoch is planned as by the other loaders: this rank's lanes, and of each lane its parts in turn. A TensorFlow graph
reads all lanes at once, each part from the byte at which the index says that it starts, with TensorFlow's CRC checks
on, and puts a mark behind each part that says where the part ended. Records and marks are handed to a thread.

The graph calls nothing once a record: a `filter` that looked for the end of a part cost 70 us of a core for each.
"""

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tpufeed.dataset.manifest import Shard
from tpufeed.dataset.order import EpochOrder, Part
from tpufeed.dataset.partition import Share
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.errors import LoaderError
from tpufeed.loaders.crew import Array

Row: TypeAlias = tuple[int, int, bytes]  # number of the part, record, payload
Read: TypeAlias = tuple[Array, Array, Array]  # records, parts, payloads; a mark's part is -1 - that of its part

_BUFFER_BYTES = 256 << 10
_LANES_AT_ONCE = 64
_FUNCTION_THREADS = 4
_AHEAD = 2
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rank reads in an epoch. Lane number i reads `parts[lanes[i][0] : lanes[i][1]]`.

    `parts[real:]` fill up the last batch with samples that the rank has read already.
    """

    parts: tuple[Part, ...]
    lanes: tuple[tuple[int, int], ...]
    real: int


def plan_epoch(order: EpochOrder, share: Share) -> Plan:
    """The parts of this rank's lanes, and of what fills up its last batch unless that is dropped."""
    world = share.world
    by_lane = [order.lane_parts(lane) for lane in range(world.rank, order.lanes, world.size)]
    stops = list(itertools.accumulate(map(len, by_lane)))
    parts = list(itertools.chain.from_iterable(by_lane))
    missing = len(share) * share.batch_size - sum(part.stop - part.first for part in parts)
    padding, again = list[Part](), itertools.cycle(parts or order.lane_parts(0))
    while missing > 0:
        shard, first, stop = next(again)
        padding.append(Part(shard, first, min(stop, first + missing)))
        missing -= padding[-1].stop - first
    return Plan((*parts, *padding), tuple(itertools.pairwise([0, *stops])), len(parts))


def reading_graph(tf: Any, reader: "HandedReader", rows: int, in_order: bool) -> Any:
    """A `tf.data.Dataset` of `(records, (parts, payloads))`, `rows` of each but in the last element.

    All lanes are read at once. Behind each part stands a mark: its record is the number behind the last that was there.
    """
    plan, data = reader.plan, tf.data.Dataset
    as_it_is = tf.autograph.experimental.do_not_convert  # parsing the source here disturbs parsers in other threads
    urls, starts = tf.constant(reader.urls, tf.string), tf.constant(reader.starts, tf.int64)
    firsts = tf.constant([part.first for part in plan.parts], tf.int64)
    # One record more, where the shard ought to end: there is none.
    ends = [part.stop == reader.shard_records(number) for number, part in enumerate(plan.parts)]
    counts = tf.constant([part.stop - part.first + end for part, end in zip(plan.parts, ends, strict=True)], tf.int64)

    def read_part(part: Any) -> Any:
        payloads = data.zip((data.from_tensors(part).repeat(), _records(tf, urls[part], starts[part])))
        marked = payloads.take(counts[part]).concatenate(data.from_tensors((-1 - part, b"")))
        return data.zip((data.range(firsts[part], tf.int64.max), marked))

    def read_lane(start: Any, stop: Any) -> Any:
        return data.range(start, stop).flat_map(as_it_is(read_part))

    lanes = data.from_tensor_slices(tf.constant(plan.lanes, tf.int64)).interleave(
        as_it_is(lambda lane: read_lane(lane[0], lane[1])),
        cycle_length=len(plan.lanes),
        num_parallel_calls=min(len(plan.lanes), _LANES_AT_ONCE),
        deterministic=in_order,
    )
    graph = lanes.concatenate(read_lane(plan.real, len(plan.parts))).batch(rows).prefetch(_AHEAD)
    options = tf.data.Options()
    # Not those of the process, all of which may be waiting for batches that are made of these records.
    options.threading.private_threadpool_size = _FUNCTION_THREADS
    options.autotune.enabled = False  # nothing here is left to it
    return graph.with_options(options)


def _records(tf: Any, url: Any, byte: Any) -> Any:
    """Payloads of the records from `byte` on. `tf.data.TFRecordDataset` only starts at 0, and would read to there."""
    op = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(url, [1]),
        compression_type="",
        buffer_size=_BUFFER_BYTES,
        byte_offsets=tf.reshape(byte, [1]),
    )
    return tf.data.experimental.from_variant(op, tf.TensorSpec((), tf.string))


def read_one(tf: Any, url: str, byte: int) -> bytes | None:
    """The payload of the record at `byte`; None at the end of the file. Raises what TensorFlow does."""
    # Within a function, as the operator loses its offsets when a graph of its own is made of it (2.21).
    graph = tf.data.Dataset.from_tensors((url, np.int64(byte))).flat_map(
        tf.autograph.experimental.do_not_convert(lambda url, byte: _records(tf, url, byte))
    )
    for payload in graph.take(1):
        return bytes(payload.numpy())
    return None


class HandedReader(Reader):
    """Hands on what TensorFlow has read. Its shards are the parts of a plan, so that no place is there twice.

    Attributes:
        plan: of the epoch.
        urls: of each part's shard.
        starts: the byte at which each part starts.
        dataset_url: for advice in errors.
    """

    def __init__(self, dataset: Dataset, split: str, variant: int, plan: Plan, folder: str) -> None:
        super().__init__(dataset, split, variant)
        self.plan = plan
        self.dataset_url = dataset.url
        self.urls = [f"{folder}/{self._shards[part.shard].name}" for part in plan.parts]
        within = sorted({part.shard for part in plan.parts if part.first})
        offsets = dict(zip(within, self._index.offsets(within), strict=True))
        self.release()
        self.starts = [int(offsets[part.shard][part.first]) if part.first else 0 for part in plan.parts]
        self._payloads: dict[tuple[int, int], bytes] = {}

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards of the variant."""
        return self._shards

    def shard_records(self, part: int) -> int:
        """Records of the part's shard by the manifest."""
        return self._shards[self.plan.parts[part].shard].records

    def record_at(self, part: int, byte: int) -> tuple[int, int] | None:
        """`(record, its first byte)` of the part's record that holds `byte`; None where another part does.

        What lies behind the last record of a shard is taken for one more.
        """
        shard, first, stop = self.plan.parts[part]
        offsets = self._index.offsets([shard])[0]
        self.release()
        record = int(np.searchsorted(offsets, byte, side="right")) - 1
        is_here = first <= record < stop + (stop == self.shard_records(part))
        return (record, int(offsets[record])) if is_here else None

    def hand(self, rows: Sequence[Row]) -> None:
        """What `read_many` will be asked for, each once."""
        self._payloads.update({(part, record): payload for part, record, payload in rows})

    def read_many(
        self, places: Sequence[tuple[int, int]], use: Callable[[int, memoryview], None] | None = None
    ) -> list[memoryview]:
        payloads = [memoryview(self._payloads.pop(place)) for place in places]
        if use is not None:
            for number, payload in enumerate(payloads):
                use(number, payload)
        return payloads

    def place(self, shard: int, record: int) -> str:
        return f"{self.urls[shard]}, record {record}"


class RecordFeed:
    """Takes records from a graph in a thread of its own, so that nobody else waits in TensorFlow for the network.

    It is a daemon: one that waits there when the interpreter ends is left behind.
    """

    def __init__(self, graph: Any) -> None:
        self._queue: queue.Queue[Read | BaseException | None] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._pull, args=(graph,), name="tpufeed-direct", daemon=True)
        self._thread.start()

    def take(self) -> Read | None:
        """The next `(records, parts, payloads)`; None at the end. Raises what the graph does."""
        while not self._closed.is_set():
            try:
                found = self._queue.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(found, BaseException):
                raise found
            return found
        raise LoaderError("the loader was closed while a batch was waited for")

    def close(self) -> None:
        """Tell the thread to end."""
        self._closed.set()

    def is_alive(self) -> bool:
        """Whether the thread has not ended yet."""
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        self._thread.join(seconds)

    def _pull(self, graph: Any) -> None:
        try:
            for records, (parts, payloads) in graph:
                if not self._put((records.numpy(), parts.numpy(), payloads.numpy())):
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001  # the consumer raises it
            self._put(error)

    def _put(self, found: Read | BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(found, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return True
        return False
