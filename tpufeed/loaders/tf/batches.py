"""From a batch of records to a batch of columns, in graph form; what is wrong with a record names it."""

from collections.abc import Sequence
from math import prod
from typing import Any

from tpufeed.dataset.reader import Dataset
from tpufeed.errors import MissingExtraError
from tpufeed.loaders.columns import IMAGE, MASK, SAMPLE, Column
from tpufeed.loaders.tf.pipeline import GraphPipeline
from tpufeed.loaders.tf.reading import Records, ShardReader, as_it_is

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

_UNREADABLE = ": it cannot be read: it is damaged or cut off, or the store failed; TensorFlow's log has its words"
_UNDECODABLE = ": its image cannot be decoded, or a column is missing; TensorFlow's log has its words"
_FEWEST_IN_GROUP = 16
_DTYPES = {"int64": tf.int64, "float32": tf.float32}


class BatchGraph:
    """Makes batches of columns of records.

    A graph cannot catch an error, and TensorFlow's of an image names neither shard nor record. So images that cannot be
    decoded are left out, and what is missing from a group of them is looked for: each carries where the first of its
    group lies, and the one behind it.

    Args:
        dataset: that they are of.
        reader: that gives them.
        pipeline: decodes and augments.
        columns: besides image, sample and mask.
        rows: of a batch.
        calls: images, or batches of raw pixels, that are made at once.
    """

    def __init__(
        self,
        dataset: Dataset,
        reader: ShardReader,
        pipeline: GraphPipeline,
        columns: Sequence[Column],
        *,
        rows: int,
        calls: int,
    ) -> None:
        self._reader = reader
        self._pipeline = pipeline
        self._columns = columns
        self._rows = rows
        self._calls = calls
        self._tensor_shape = dataset.manifest.tensor_shape
        self._advice = f". Run: tpufeed verify {dataset.url}"
        self._image_key = dataset.manifest.features[0].key
        dtypes = {column.key: _DTYPES.get(column.dtype, tf.string) for column in columns}
        self._features = {
            key: tf.io.FixedLenFeature((), dtype) for key, dtype in (dtypes | {self._image_key: tf.string}).items()
        }

    def make(self, records: Any, in_order: bool) -> Any:
        """A `tf.data.Dataset` of batches, each a dict of its columns by name.

        Args:
            records: a `tf.data.Dataset` of `Records`, of which the last that fill no batch are dropped.
            in_order: whether batches of raw pixels keep their order; those of images always do.
        """
        if self._tensor_shape is not None and not self._pipeline.ops:
            batches = records.batch(self._rows, drop_remainder=True)
            return batches.map(as_it_is(self._make_raw), num_parallel_calls=tf.data.AUTOTUNE, deterministic=in_order)
        group = self._rows * -(-_FEWEST_IN_GROUP // self._rows)
        rows = records.batch(group).map(as_it_is(self._prepare)).unbatch()
        rows = rows.map(as_it_is(self._make_row), num_parallel_calls=self._calls, deterministic=True)
        groups = rows.ignore_errors(log_warning=True).batch(group).map(as_it_is(self._check))
        if group == self._rows:
            return groups.map(as_it_is(self._shaped))
        return groups.unbatch().batch(self._rows, drop_remainder=True)

    def _make_raw(self, *columns: Any) -> dict[str, Any]:
        """A batch of pixels that need no op, from a batch of records."""
        batch = Records(*columns)
        places, payloads = self._reader.places(batch.epoch, batch.shard, batch.record), self._read(batch)
        parsed = tf.io.parse_example(payloads, self._features, example_names=places)
        stored, shape = parsed[self._image_key], self._pipeline.output_shape
        fits = tf.strings.length(stored) == prod(shape)
        said = [places[tf.argmin(tf.cast(fits, tf.int8))], f": its image has not the {prod(shape)} bytes of {shape}"]
        with tf.control_dependencies([self._assert(tf.reduce_all(fits), said)]):
            pixels = tf.reshape(tf.io.decode_raw(stored, tf.uint8), (self._rows, *shape))
        samples = self._reader.samples(batch.shard, batch.record)
        found = {column.name: parsed[column.key] for column in self._columns}
        return found | {SAMPLE: samples, MASK: batch.real > 0, IMAGE: pixels}

    def _prepare(self, *columns: Any) -> tuple[Any, Any, Any]:
        """What each image of a group needs, for all of them at once.

        Returns:
            Payloads; float64 (n, d), the random numbers of all ops side by side; and what they carry along, int64
            (n, 9): place in the group, records of the group, sample, real or not, epoch, and shard and record of the
            group's first one and of the one behind.
        """
        batch = Records(*columns)
        samples, count = self._reader.samples(batch.shard, batch.record), tf.size(batch.record, tf.int64)
        # To take rows of no columns out of a batch is a segmentation fault (2.21).
        draws = self._pipeline.draw(batch.epoch, samples) or [tf.zeros([count, 1], tf.float64)]
        lies = tf.stack([batch.shard, batch.record], 1)
        one = [tf.range(count), tf.fill([count], count), samples, batch.real, batch.epoch]
        carried = tf.concat([tf.stack(one, 1), tf.repeat(lies[:1], count, 0), tf.roll(lies, -1, 0)], 1)
        return self._read(batch), tf.concat(draws, 1), carried

    def _make_row(self, payload: Any, drawn: Any, carried: Any) -> tuple[Any, dict[str, Any]]:
        """An image and its other columns."""
        parsed = tf.io.parse_single_example(payload, self._features)
        stored, shape = parsed[self._image_key], self._tensor_shape
        sizes = [op.draws for op in self._pipeline.ops if op.draws]
        draws = tf.split(drawn, sizes) if sizes else []
        if shape is None:
            image = self._pipeline.decode(stored, draws)
        else:
            image = self._pipeline.run(tf.reshape(tf.io.decode_raw(stored, tf.uint8), shape), draws)
        return carried, {column.name: parsed[column.key] for column in self._columns} | {IMAGE: image}

    def _check(self, carried: Any, found: dict[str, Any]) -> dict[str, Any]:
        """A group, if none of it is missing."""
        position, count = carried[:, 0], tf.size(carried[:, 0], tf.int64)
        in_place = tf.equal(position, tf.range(count))
        whole = tf.reduce_all(in_place) & tf.equal(count, carried[0, 1])
        missing = tf.reduce_sum(tf.math.cumprod(tf.cast(in_place, tf.int32)))
        lies = tf.cond(tf.equal(missing, 0), lambda: carried[0, 5:7], lambda: carried[missing - 1, 7:9])
        place = self._reader.places(carried[0, 4], lies[0], lies[1])
        with tf.control_dependencies([self._assert(whole, [place, _UNDECODABLE])]):
            found = {name: tf.identity(column) for name, column in found.items()}
        return found | {SAMPLE: carried[:, 2], MASK: carried[:, 3] > 0}

    def _shaped(self, found: dict[str, Any]) -> dict[str, Any]:
        return {name: tf.ensure_shape(column, (self._rows, *column.shape[1:])) for name, column in found.items()}

    def _read(self, batch: Records) -> Any:
        """The payloads, if all were read."""
        read = tf.strings.length(batch.payload) > 0

        def fail() -> Any:
            url, record = self._reader.find_damage(batch, tf.argmin(tf.cast(read, tf.int8)))
            return tf.group(self._assert(False, [url, ", record ", tf.strings.as_string(record), _UNREADABLE]))

        with tf.control_dependencies([tf.cond(tf.reduce_all(read), tf.no_op, fail)]):
            return tf.identity(batch.payload)

    def _assert(self, good: Any, said: list[Any]) -> Any:
        return tf.debugging.Assert(good, [tf.strings.join([*said, self._advice])])
