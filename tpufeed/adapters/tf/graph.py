"""The dataset of `to_tf(direct=True)`: a TensorFlow graph without Python reads, decodes and augments.

From top to bottom: the epochs of a rank, the parts of shards that it reads, their records, batches of them, one image,
and the ops.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tpufeed import images
from tpufeed.adapters.feed import ENDLESS
from tpufeed.adapters.tf.stream import OTHER_CHECKPOINT, HandedEpoch, place_identity
from tpufeed.dataset.index import Index
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.order import Share, World
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import LABEL
from tpufeed.errors import OptionError, advised
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.protocols import Op, WindowOp
from tpufeed.images.windows import MOST_ENLARGED_PIXELS
from tpufeed.processes.limits import available_cores
from tpufeed.storage.store import url_scheme
from tpufeed.stream.columns import IMAGE, SAMPLE, Scalar
from tpufeed.stream.host import HostStream

_MIXED_BYTES, _MIXED_MOST = 64 << 20, 8192
_BUFFER_BYTES = 256 << 10
_MOST_MARKS, _MOST_INDEXED = 1 << 16, 1 << 23
_NO_RECORD = 1 << 40  # bytes, more than any file has
_FEWEST_IN_GROUP = 16
# 2^64 divided by the golden ratio, as an int64: its multiples are far apart for any two epochs.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_NOT_HERE = ("processes", "max_bad_records", "max_bad_shards", "timeout_seconds", "numa", "local_dir", "local_bytes")
_STORED = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}
_JPEG = {"channels": 3, "dct_method": "INTEGER_FAST", "fancy_upscaling": False}
_OPS = (
    images.CenterCrop,
    images.HorizontalFlip,
    images.RandomCrop,
    images.RandomResizedCrop,
    images.Resize,
    images.VerticalFlip,
)


class DirectGraph:
    """Builds the graph. Order and draws follow from (seed, epoch, sample), parts of shards from the index.

    Args:
        stream: the loader's stream, which knows columns, lanes, ops and world.
        sharding: how a tf.data service shares the work. None without a service. With "dynamic" and "file" the service
            deals out parts of shards: its workers read all parts, whatever the world, and epochs follow without a
            break.
        handed: with `repeat`, the epoch of the last batch: an iteration continues with the next epoch. Elements of the
            dataset are then (batch, epoch).

    Raises:
        OptionError: TensorFlow cannot open the dataset's URL, or the graph lacks an op or option.
    """

    def __init__(self, stream: HostStream, sharding: str | None = None, handed: HandedEpoch | None = None) -> None:
        options, dataset, manifest = stream.options, stream.dataset, stream.dataset.manifest
        _check_dataset(dataset)
        for option in dataclasses.fields(options):
            if option.name in _NOT_HERE and getattr(options, option.name) not in (option.default, 0):
                raise OptionError(
                    f"direct=True reads and decodes in TensorFlow, which has no {option.name}: leave out one of the two"
                )
        for op in stream.pipeline.ops:
            if type(op) not in _OPS:
                names = ", ".join(known.__name__ for known in _OPS)
                raise OptionError(
                    f"{op} has no TensorFlow graph; direct=True has {names}: leave out direct=True, or the op. "
                    "to_tf() without direct runs every op, and so does tpufeed.cache.warmup"
                )
        self._options, self._ops, self._form = options, stream.pipeline.ops, stream.form
        fields = (*stream.columns.scalars, *stream.columns.fields)
        self._columns = [field for field in fields if isinstance(field, Scalar) and field.fill_value is None]
        if len(self._columns) < len(fields) or options.views is not None:
            others = [field.columns[0].name for field in fields if field not in self._columns] or ["views"]
            raise OptionError(
                "direct=True has an image and columns of one value per sample in its graph, not "
                f"{', '.join(others)}: leave out direct=True, or these columns"
            )
        labels = (field.columns[0].name for field in self._columns if field.spec.name == LABEL)
        self._label, self._classes = next(labels, None), len(manifest.class_names)
        self._least = -manifest.has_unlabelled
        self._mask = stream.columns.mask
        self._dealt = sharding in ("dynamic", "file")
        self._world = World() if self._dealt else stream.world
        # The same 64 bits as a signed number, as TensorFlow wants them.
        self._seed = (options.seed + (1 << 63)) % (1 << 64) - (1 << 63)
        self._identity, self._handed = place_identity(stream), handed
        # The epoch that was read last, from which the next iteration finds its own. A service has its own tables.
        self._newest = handed or (HandedEpoch() if sharding is None else None)
        self._url, self._manifest = dataset.url, f"{tensorflow_url(dataset.store.url)}/{MANIFEST}"
        self._manifest_bytes = tf.io.read_file(self._manifest).numpy()

        folder, variants = tensorflow_url(dataset.shards.url), dataset.split(stream.split).variants
        self._variants = len(variants)
        self._urls = np.array([[f"{folder}/{shard.name}" for shard in variant.shards] for variant in variants])
        self._bytes = np.array([[shard.bytes for shard in variant.shards] for variant in variants], np.int64)
        counts = self._counts = np.array([shard.records for shard in variants[0].shards], np.int64)
        self._first_samples, records = np.cumsum(counts) - counts, int(counts.sum())
        self._share = Share(records, options.batch_size, self._world, options.remainder)
        # Each rank has one range of the line of shards, and each of its lanes a piece of that range.
        ranks, lanes = self._world.size, max(1, stream.lanes // self._world.size)
        rank_starts = np.array([rank * (records // ranks) + min(rank, records % ranks) for rank in range(ranks + 1)])
        pieces = np.diff(rank_starts)[:, None] * np.arange(lanes) // lanes
        self._lanes, self._lane_starts = lanes, (rank_starts[:-1, None] + pieces).ravel()
        # A part is read from the last mark before it, skipping records up to its first one. In a large dataset only the
        # starts of shards are marks: it has many more shards than lanes, and each lane skips half a shard on average.
        stride = -(-records // _MOST_MARKS) if records <= _MOST_INDEXED else int(counts.max())
        self._stride, marks = stride, -(-counts // stride)
        self._first_marks = np.cumsum(marks) - marks
        self._marks = np.zeros((len(variants), int(marks.sum())), np.int64)
        if stride < counts.max():
            for number, variant in enumerate(variants):
                offsets = Index(dataset.store, variant).offsets(range(len(counts)))
                self._marks[number] = np.concatenate([of_shard[:-1:stride].astype(np.int64) for of_shard in offsets])

        self._shape, self._tensor_shape = stream.image_shape, manifest.tensor_shape
        self._image_key = manifest.features[0].key if IMAGE in stream.form.names else None
        self._only_jpeg = bool(manifest.images) and all(kind.startswith("jpeg") for kind in manifest.images)
        dtypes = {field.spec.key: _STORED[field.spec.stored_kind] for field in self._columns}
        if self._image_key is not None:
            dtypes[self._image_key] = tf.string
        self._features = {key: tf.io.FixedLenFeature((), dtype) for key, dtype in dtypes.items()}

    # Epochs

    def build(self) -> Any:
        """Return a `tf.data.Dataset` of batches. Call this through TensorFlow's `do_not_convert`."""
        options, data, newest = self._options, tf.data.Dataset, self._newest
        if not self._dealt:
            # The next epoch for each iteration, or with `repeat` all from there on, with `place_identity`.
            count = ENDLESS if options.repeat else 1
            epochs = data.range(count)
            if newest is not None:
                following = data.range(1).map(lambda _: newest.last() + 1)
                epochs = following.flat_map(lambda first: data.range(first, first + count))
            return epochs.map(lambda epoch: (epoch, tf.constant(self._identity, tf.int64))).flat_map(self._epoch)
        parts = len(self._counts) + len(self._lane_starts)
        dealt = data.range(ENDLESS if options.repeat else parts).map(
            lambda number: self._dealt_part(number // parts, number % parts)
        )
        records = self._records(dealt, tf.constant(0, tf.int64))
        # Nothing plans how the last batch of each worker is completed.
        groups = records.batch(options.batch_size, drop_remainder=options.remainder == "drop")
        if options.remainder != "drop":
            groups = groups.map(self._complete)
        return self._batches(groups.unbatch()).map(self._form.package)

    def _epoch(self, epoch: Any, identity: Any) -> Any:
        """Return the batches of an epoch. If an iterator is restored, this runs again with the same arguments."""
        share, rank, data = self._share, self._world.rank, tf.data.Dataset
        same = tf.debugging.Assert(tf.equal(identity, self._identity), [f"{self._url}: {OTHER_CHECKPOINT}"])
        with tf.control_dependencies([same, self._check_manifest(epoch)]):
            epoch = tf.identity(epoch)
        if self._newest is not None and self._handed is None:
            epoch = self._newest.note(epoch, tf.maximum(self._newest.last(), epoch))
        records = self._records(data.from_tensor_slices(self._rank_parts(epoch, rank)), epoch)
        wanted, own = len(share) * share.batch_size, len(range(rank, share.records, self._world.size))
        if own < wanted:  # if there are fewer samples than ranks, those of the first rank complete batches
            repeated = data.from_tensor_slices(self._rank_parts(epoch, rank if own else 0))
            read = partial(self._read, real=share.remainder != "pad")
            records = records.concatenate(repeated.flat_map(read).repeat())
        batches = self._batches(records.take(wanted)).apply(tf.data.experimental.assert_cardinality(len(share)))
        if self._handed is None:
            return batches.map(self._form.package)
        return batches.map(lambda columns: (self._form.package(columns), epoch))

    def _records(self, parts: Any, epoch: Any) -> Any:
        """Return the records of all parts, shuffled if the loader shuffles. Within a part they come in file order."""
        shuffle = self._options.shuffle
        records = parts.interleave(
            self._read, cycle_length=self._lanes, num_parallel_calls=tf.data.AUTOTUNE, deterministic=not shuffle
        )
        if not shuffle:
            return records
        fit = _MIXED_BYTES * self._share.records // int(self._bytes[0].sum())
        buffer = max(2 * self._options.batch_size, min(_MIXED_MOST, fit))
        if self._dealt:  # nothing separates one epoch from the next
            buffer = max(1, min(buffer, self._share.records // 8))
        if not tf.executing_eagerly():
            # A global seed of the user's would change our order, and TensorFlow compares 0 with a tensor there.
            tf.compat.v1.get_default_graph().seed = None
        # Below 2^62, like epochs, so that the sum is still an int64.
        seed = tf.constant(self._seed % (1 << 62), tf.int64)
        return records.shuffle(buffer, seed=seed + epoch, reshuffle_each_iteration=False)

    def _complete(self, part: Any, record: Any, payload: Any) -> tuple[Any, Any, Any]:
        """Repeat the last record of a batch until the batch is complete."""
        rows, count = tf.range(self._options.batch_size), tf.size(record)
        part, record, payload = (tf.gather(column, tf.minimum(rows, count - 1)) for column in (part, record, payload))
        real = tf.cast(rows < count if self._options.remainder == "pad" else rows >= 0, tf.int64)
        return tf.concat([part[:, :2], real[:, None]], 1), record, payload

    def _check_manifest(self, epoch: Any) -> Any:
        """Assert that the manifest is unchanged: after a rebuild, shards may have the same names and sizes."""
        # A file name that depends on nothing would be read only once, when the graph is optimised.
        same = tf.equal(tf.io.read_file(tf.where(epoch < 0, "", self._manifest)), self._manifest_bytes)
        said = f"{self._url} was rebuilt while it was read. Open it again once no build is running there"
        return tf.debugging.Assert(same, [said])

    # Parts of shards

    def _parts(self, epoch: Any) -> tuple[tuple[Any, ...], Any]:
        """Return all parts of an epoch, (epoch, shard, first record, stop), int64 (parts,) each, and the lane of each.

        Shards are permuted and laid end to end in a circle, which is cut into lanes from a random place on. Parts are
        sorted by their distance from the start of their lane. Some hold no record.
        """
        total, counts, lane_starts = self._share.records, tf.constant(self._counts), tf.constant(self._lane_starts)
        line, turn = tf.range(len(self._counts), dtype=tf.int64), tf.constant(0, tf.int64)
        if self._options.shuffle:
            words = tf.random.stateless_uniform([len(self._counts) + 1], [self._seed, epoch], None, None, tf.int64)
            # A whole number of shards if all have equal length, so that lanes have whole shards.
            unit = int(np.gcd.reduce(self._counts))
            line, turn = tf.cast(tf.argsort(words[:-1]), tf.int64), words[-1] % (total // unit) * unit
        starts = tf.cumsum(tf.gather(counts, line), exclusive=True)
        begins = tf.sort(tf.concat([starts, (turn + lane_starts) % total], 0))
        lengths = tf.concat([begins[1:], [total]], 0) - begins
        slots = tf.searchsorted(starts, begins, "right") - 1
        shard, first = tf.gather(line, slots), begins - tf.gather(starts, slots)
        from_turn = (begins - turn) % total
        lane = tf.searchsorted(lane_starts, from_turn, "right") - 1
        due = tf.argsort(from_turn - tf.gather(lane_starts, lane), stable=True)
        columns = (tf.fill(tf.shape(shard), epoch), shard, first, first + lengths)
        return tuple(tf.gather(column, due) for column in columns), tf.gather(lane, due)

    def _rank_parts(self, epoch: Any, rank: int) -> tuple[Any, ...]:
        """Return the parts of a rank's lanes that hold records."""
        parts, lane = self._parts(epoch)
        mine = (lane // self._lanes == rank) & (parts[2] < parts[3])
        return tuple(tf.boolean_mask(column, mine) for column in parts)

    def _dealt_part(self, epoch: Any, number: Any) -> tuple[Any, ...]:
        """Return one part of an epoch, for a service to deal out."""
        check = tf.cond(tf.equal(number, 0), lambda: tf.group(self._check_manifest(epoch)), tf.no_op)
        with tf.control_dependencies([check]):
            return tuple(column[number] for column in self._parts(epoch)[0])

    # Records

    def _read(self, epoch: Any, shard: Any, first: Any, stop: Any, real: bool = True) -> Any:
        """Return the records [first, stop) of a shard: int64 (epoch, shard, real), number within the shard, payload.

        From a damaged record on, payloads are empty. No Python runs per record: that took 70 us each.
        """
        data, variant, url = tf.data.Dataset, epoch % self._variants, self._shard_url(epoch, shard)
        mark = first // self._stride
        size = tf.gather_nd(tf.constant(self._bytes), [variant, shard])
        byte = tf.gather_nd(tf.constant(self._marks), [variant, tf.gather(self._first_marks, shard) + mark])
        # An empty dataset, which reads no byte, for TensorFlow's error if the file is gone or has another size.
        checked = tf.raw_ops.FixedLengthRecordDatasetV2(
            filenames=tf.reshape(url, [1]),
            header_bytes=np.int64(0),
            record_bytes=np.int64(_NO_RECORD),
            footer_bytes=size,
            buffer_size=np.int64(1),
            compression_type="",
        )
        payloads = tf.data.experimental.from_variant(checked, tf.TensorSpec((), tf.string))
        payloads = payloads.concatenate(_payloads(url, byte).skip(first - mark * self._stride))
        payloads = payloads.concatenate(data.from_tensors("").repeat())
        part = data.from_tensors(tf.stack([epoch, shard, tf.constant(int(real), tf.int64)])).repeat()
        return data.zip((part, data.range(first, stop), payloads))

    def _shard_url(self, epoch: Any, shard: Any) -> Any:
        return tf.gather_nd(tf.constant(self._urls), tf.stack([epoch % self._variants, shard], -1))

    def _assert_sound(self, sound: Any, epoch: Any, shard: Any, record: Any) -> Any:
        """Fail at the first row that is not sound. Name its record, or the damaged record before it in the shard."""

        def fail() -> Any:
            row = tf.argmin(tf.cast(sound, tf.int8))
            url, number = self._shard_url(epoch[row], shard[row]), record[row]
            # Within a function: outside one, TensorFlow 2.21 loses the operator's offsets when it makes a graph of it.
            readable = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64)).flat_map(lambda at: _payloads(url, at))
            readable = readable.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1)
            why = tf.where(
                readable <= number,
                "it cannot be read: it is damaged or cut off, or the store failed",
                f"its image cannot be decoded or has another size, a column is missing, or its label is not one of "
                f"the {self._classes} classes that the dataset declares",
            )
            said = [url, ", record ", tf.strings.as_string(tf.minimum(readable, number)), ": ", why]
            said.append(f"; TensorFlow's log has its own message. Run: {advised('verify', self._url)}")
            return tf.group(tf.debugging.Assert(False, [tf.strings.join(said)]))

        return tf.cond(tf.reduce_all(sound), tf.no_op, fail)

    def _columns_of(self, parsed: Any) -> dict[str, Any]:
        """Return the columns in the types of a batch. Records hold whole numbers as int64."""
        found = {field.columns[0]: parsed[field.spec.key] for field in self._columns}
        return {each.name: value if each.dtype == "O" else tf.cast(value, each.dtype) for each, value in found.items()}

    def _have_class(self, found: dict[str, Any]) -> Any:
        """Return for each row whether its label is a class of the dataset. True without labels, or names of classes."""
        if self._label is None or not self._classes:
            return True
        return (found[self._label] >= self._least) & (found[self._label] < self._classes)

    # Batches

    def _batches(self, records: Any) -> Any:
        """Return batches as columns by name. Last records that do not make a batch are dropped.

        A graph cannot catch an error, and TensorFlow's error for an image names neither shard nor record. So images
        that fail are left out of their group, and each row carries the places of its group's first row and of the next
        row.
        """
        rows, in_order = self._options.batch_size, not self._options.shuffle
        if self._image_key is None or (self._tensor_shape is not None and not self._ops):
            batches = records.batch(rows, drop_remainder=True)
            return batches.map(self._parse_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=in_order)
        group, calls = rows * -(-_FEWEST_IN_GROUP // rows), 2 * (self._options.threads or available_cores())
        each = records.batch(group).enumerate().map(self._carry).unbatch()
        each = each.map(self._row, num_parallel_calls=calls, deterministic=True)
        groups = each.ignore_errors(log_warning=True).batch(group).enumerate().map(self._check_group)
        if group > rows:
            return groups.unbatch().batch(rows, drop_remainder=True)
        return groups.map(partial(tf.nest.map_structure, lambda c: tf.ensure_shape(c, (rows, *c.shape[1:]))))

    def _parse_batch(self, part: Any, record: Any, payload: Any) -> dict[str, Any]:
        """Return a batch without pixels, or with pixels that need no op, parsed all at once."""
        where = part[:, 0], part[:, 1], record
        with tf.control_dependencies([self._assert_sound(tf.strings.length(payload) > 0, *where)]):
            payload = tf.identity(payload)
        parsed = tf.io.parse_example(payload, self._features) if self._features else {}
        found = self._columns_of(parsed)
        fits = tf.fill(tf.shape(record), True) & self._have_class(found)
        if self._image_key is not None:
            fits &= tf.strings.length(parsed[self._image_key]) == math.prod(self._shape)
        with tf.control_dependencies([self._assert_sound(fits, *where)]):
            found = {name: tf.identity(column) for name, column in found.items()}
            if self._image_key is not None:
                pixels = tf.io.decode_raw(parsed[self._image_key], tf.uint8)
                found[IMAGE] = tf.reshape(pixels, (self._options.batch_size, *self._shape))
        return found | {SAMPLE: tf.gather(self._first_samples, part[:, 1]) + record, self._mask: part[:, 2] > 0}

    def _carry(self, number: Any, columns: tuple[Any, Any, Any]) -> tuple[Any, Any]:
        """Return the payloads of a group, and what each row carries: int64 (n, 10).

        These are its index in the group, the size of the group, sample, real or not, epoch, shard and record of the
        group's first row and of the next row, and the number of the group.
        """
        part, record, payload = columns
        count = tf.size(record, tf.int64)
        lies = tf.stack([part[:, 1], record], 1)
        samples = tf.gather(self._first_samples, part[:, 1]) + record
        own = tf.stack([tf.range(count), tf.fill([count], count), samples, part[:, 2], part[:, 0]], 1)
        others = [tf.repeat(lies[:1], count, 0), tf.roll(lies, -1, 0), tf.fill([count, 1], number)]
        return payload, tf.concat([own, *others], 1)

    def _row(self, payload: Any, carried: Any) -> tuple[Any, dict[str, Any]]:
        """Return an image after the ops, and its other columns."""
        parsed = tf.io.parse_single_example(payload, self._features)
        stored = parsed[self._image_key]
        # Both halves of the seed are hashed: neighbouring epochs and samples have independent numbers. These are
        # uniform in [0, 1), for all ops one after another.
        seed = tf.stack([self._seed + carried[4] * _GOLDEN, carried[2]])
        draws = tf.random.stateless_uniform([sum(op.draws for op in self._ops)], seed)
        if self._tensor_shape is None:
            image = self._decode(stored, draws)
        else:
            image = run_ops(self._ops, tf.reshape(tf.io.decode_raw(stored, tf.uint8), self._tensor_shape), draws)
        found = self._columns_of(parsed)
        return carried, found | {IMAGE: tf.ensure_shape(image, self._shape)}

    def _check_group(self, number: Any, group: tuple[Any, dict[str, Any]]) -> dict[str, Any]:
        """Return the columns of a group, if no row of it is missing."""
        carried, found = group
        count = tf.size(carried[:, 0], tf.int64)
        in_place = tf.equal(carried[:, 0], tf.range(count)) & tf.equal(carried[:, 9], number) & self._have_class(found)
        # The place that each row should come from, and after the last, the place of the next row in a longer group.
        sound = tf.concat([in_place, [tf.equal(count, carried[0, 1])]], 0)
        lies = tf.concat([carried[:1, 4:7], tf.gather(carried, [4, 7, 8], axis=1)], 0)
        with tf.control_dependencies([self._assert_sound(sound, *tf.unstack(lies, axis=1))]):
            found = {name: tf.identity(column) for name, column in found.items()}
        return found | {SAMPLE: carried[:, 2], self._mask: carried[:, 3] > 0}

    def _decode(self, encoded: Any, draws: Any) -> Any:
        """Decode an image, a string scalar, and run the ops: uint8 (height, width, 3). For a JPEG only the window."""
        ops = self._ops

        def other() -> Any:
            return run_ops(ops, _decode_other(encoded), draws)

        def jpeg() -> Any:
            if not ops or not isinstance(ops[0], WindowOp):
                return run_ops(ops, tf.raw_ops.DecodeJpeg(contents=encoded, **_JPEG), draws)
            drawn, rest = draws[: ops[0].draws], draws[ops[0].draws :]
            return run_ops(ops[1:], _decode_window(encoded, ops[0], drawn), rest)

        if self._only_jpeg:
            return jpeg()
        is_jpeg = tf.strings.substr(encoded, 0, 3) == b"\xff\xd8\xff"
        return tf.cond(is_jpeg, jpeg, _rare(other))


def _check_dataset(dataset: Dataset) -> None:
    """Raise OptionError if TensorFlow itself cannot read all of the dataset."""
    if dataset.selection is not None:
        raise OptionError(
            f"{dataset.label}: direct=True reads whole shards in TensorFlow, and a view leaves records out: leave "
            "out direct=True, or make a dataset of the view with tpufeed.cache.warmup"
        )
    manifest = dataset.manifest
    if manifest.is_coded or any(kind.startswith("dct") for kind in manifest.images):
        raise OptionError(
            f"{dataset.label}: direct=True decodes in TensorFlow, which knows no DCT images: leave out direct=True, "
            "or warm a cache with encode='jpeg' or 'raw'"
        )
    if manifest.pixels != RGB8:
        raise OptionError(
            f"{dataset.label}: direct=True decodes 8-bit RGB in TensorFlow, and the images are {manifest.pixels}: "
            "leave out direct=True"
        )


def tensorflow_url(url: str) -> str:
    """Return the URL by which TensorFlow opens this folder. Raises OptionError if it cannot."""
    scheme = url_scheme(url)
    if scheme == "gcs":
        scheme, url = "gs", f"gs{url[len('gcs') :]}"
    known = [name for name in tf.io.gfile.get_registered_schemes() if name]
    if scheme not in known:
        raise OptionError(
            f"{url}: TensorFlow itself opens {', '.join(f'{name}://' for name in sorted(known))} and local paths only; "
            "leave direct=True out, and tpufeed reads it"
        )
    return url


def _payloads(url: Any, byte: Any) -> Any:
    """Return the payloads of the records from `byte` on, up to the first damaged one.

    `tf.data.TFRecordDataset` can only start at byte 0.
    """
    op = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(url, [1]),
        compression_type="",
        buffer_size=_BUFFER_BYTES,
        byte_offsets=tf.reshape(byte, [1]),
    )
    # Only for a file that exists: without one, errors would be ignored forever.
    return tf.data.experimental.from_variant(op, tf.TensorSpec((), tf.string)).ignore_errors(log_warning=True)


def _rare(branch: Callable[[], Any]) -> Callable[[], Any]:
    """Make a branch of tf.cond a function call.

    TensorFlow inlines a branch's nodes into the graph around it, and visits them even if the branch is not taken: for
    the ways to decode a photograph that was 0.04 ms per image. A call is one node. If taken, it costs about 10 us.
    """
    function: Callable[[], Any] = tf.function(branch, autograph=False, experimental_attributes={"_noinline": True})
    return function


def _decode_window(encoded: Any, op: WindowOp, draws: Any) -> Any:
    """Return a JPEG after its first op. Only the window is decoded, as small as possible."""
    size = tf.image.extract_jpeg_shape(encoded)[:2]
    window, out = find_window(op, size, draws)
    if isinstance(op, images.RandomCrop):  # the window may reach beyond the image
        return _cut(tf.raw_ops.DecodeJpeg(contents=encoded, **_JPEG), op, window, out)

    def reduced(ratio: int) -> Any:
        low, high = (tf.cast(tf.round(place / ratio), tf.int32) for place in (window[:2], window[:2] + window[2:]))
        cut = tf.concat([low, high - low], 0)
        return _resize(tf.raw_ops.DecodeAndCropJpeg(contents=encoded, crop_window=cut, ratio=ratio, **_JPEG), out)

    def smaller() -> Any:
        more = tf.reduce_all(window[2:] >= tf.constant([4, 8])[:, None] * out, 1)
        branches = [_rare(partial(reduced, ratio)) for ratio in (2, 4, 8)]
        return tf.switch_case(tf.reduce_sum(tf.cast(more, tf.int32)), branches)

    def whole() -> Any:
        return _bilinear(tf.raw_ops.DecodeAndCropJpeg(contents=encoded, crop_window=window, **_JPEG), out)

    return tf.cond(tf.reduce_all(window[2:] >= 2 * out), _rare(smaller), whole)


def _decode_other(encoded: Any) -> Any:
    """Decode PNG and WebP with alpha over white, the first frame of a GIF, and BMP."""
    branches = [
        lambda: tf.raw_ops.DecodePng(contents=encoded, channels=0),
        lambda: tf.raw_ops.DecodeWebP(contents=encoded, channels=0)[0],
        lambda: tf.raw_ops.DecodeImage(contents=encoded, channels=3, expand_animations=False),
    ]
    png, webp = (tf.strings.substr(encoded, 0, 4) == magic for magic in (b"\x89PNG", b"RIFF"))
    image = tf.ensure_shape(tf.switch_case(tf.where(png, 0, tf.where(webp, 1, 2)), branches), (None, None, None))
    # When asked for four channels, TensorFlow gives a 1-bit PNG alpha 1.
    channels = tf.shape(image)[2]
    colour = tf.cast(tf.gather(image, tf.where(channels <= 2, [0, 0, 0], [0, 1, 2]), axis=2), tf.int32)
    alpha = tf.where(channels % 2 == 0, tf.cast(image[..., -1:], tf.int32), 255)
    return tf.cast((colour * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)


# Ops: the same distributions as in `tpufeed.images`, with TensorFlow's functions


def run_ops(ops: tuple[Op, ...], image: Any, draws: Any) -> Any:
    """Run ops on an image, uint8 (h, w, 3). `draws` are float32 in [0, 1), `op.draws` of them for each op in turn."""
    for op in ops:
        drawn, draws = draws[: op.draws], draws[op.draws :]
        if isinstance(op, WindowOp):
            image = _cut(image, op, *find_window(op, tf.shape(image)[:2], drawn))
        else:
            assert isinstance(op, images.HorizontalFlip | images.VerticalFlip)
            axis = 1 if isinstance(op, images.HorizontalFlip) else 0
            image = tf.cond(drawn[0] < op.p, partial(tf.reverse, image, [axis]), partial(tf.identity, image))
    return image


def find_window(op: WindowOp, size: Any, draws: Any) -> tuple[Any, Any]:
    """Return an op's window, int32 (top, left, height, width), and the size to resize it to, int32 (height, width)."""
    sides = tf.cast(size, tf.float32)
    if isinstance(op, images.Resize):
        whole = tf.concat([[0, 0], size], 0)
        if not isinstance(op.size, int):
            return whole, tf.constant(op.size, tf.int32)
        out = tf.maximum(op.size, tf.cast(tf.round(sides * (op.size / tf.reduce_min(sides))), tf.int32))
        # Like `is_too_long`. TensorFlow would use 12 bytes per pixel.
        fits = tf.reduce_prod(tf.cast(out, tf.int64)) <= max(MOST_ENLARGED_PIXELS, 16 * op.size**2)
        with tf.control_dependencies([tf.debugging.Assert(fits, ["resized, the image would be too large"])]):
            return whole, tf.identity(out)
    out = tf.constant(op.output_size(None), tf.int32)
    if isinstance(op, images.CenterCrop):
        scale = tf.minimum(1.0, tf.reduce_min(sides / tf.cast(out, tf.float32)))
        cut = tf.maximum(1, tf.cast(tf.round(tf.cast(out, tf.float32) * scale), tf.int32))
        return tf.concat([(size - cut) // 2, cut], 0), out
    if isinstance(op, images.RandomCrop):
        one, other = tf.fill([2], -op.padding), size + op.padding - out
        low, high = tf.minimum(one, other), tf.maximum(one, other)
        corner = low + tf.cast(draws * tf.cast(high - low + 1, tf.float32), tf.int32)
        return tf.concat([corner, out], 0), out
    assert isinstance(op, images.RandomResizedCrop)
    # Ten tries at once, with uniform area and log-uniform aspect ratio. The first that fits is taken. The last, in the
    # middle, always fits.
    area = sides[0] * sides[1] * (op.scale[0] + draws[0:20:2] * (op.scale[1] - op.scale[0]))
    low, high = math.log(op.ratio[0]), math.log(op.ratio[1])
    aspect = tf.exp(low + draws[1:20:2] * (high - low))
    tries = tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect], 1)))
    last = tf.stack([sides[1] / op.ratio[0], sides[0] * op.ratio[1]])
    cuts = tf.concat([tries, tf.clip_by_value(tf.round(last), 1.0, sides)[None]], 0)
    number = tf.argmax(tf.reduce_all((cuts > 0) & (cuts <= sides), 1))
    cut = cuts[number]
    corner = tf.where(number < 10, tf.floor(draws[20:22] * (sides - cut + 1)), tf.floor((sides - cut) / 2))
    return tf.cast(tf.concat([corner, cut], 0), tf.int32), out


def _cut(image: Any, op: WindowOp, window: Any, out: Any) -> Any:
    """Return a window of an image at height and width `out`, with `op.fill` beyond the image."""
    size = tf.shape(image)[:2]
    low, high = (tf.clip_by_value(place, 0, size) for place in (window[:2], window[:2] + window[2:]))
    image = tf.slice(image, tf.concat([low, [0]], 0), tf.concat([high - low, [3]], 0))
    if isinstance(op, images.RandomCrop):
        before = tf.clip_by_value(-window[:2], 0, window[2:])
        missing = tf.stack([before, window[2:] - before - (high - low)], 1)
        # tf.pad has one value for all channels: so `fill` and zero are swapped meanwhile.
        swap = tf.constant(op.fill, tf.uint8)
        image = tf.pad(tf.bitwise.bitwise_xor(image, swap), tf.concat([missing, [[0, 0]]], 0))
        return tf.ensure_shape(tf.bitwise.bitwise_xor(image, swap), (*op.output_size(None), 3))
    image = _resize(image, out)
    sides = op.output_size(None)
    return image if sides is None else tf.ensure_shape(image, (*sides, 3))


def _resize(image: Any, out: Any) -> Any:
    """Return an image at height and width `out`: averaged over areas if it shrinks by two or more, else bilinear."""

    def averaged() -> Any:
        return tf.cast(tf.raw_ops.ResizeArea(images=image[None], size=out)[0] + 0.5, tf.uint8)

    return tf.cond(tf.reduce_all(tf.shape(image)[:2] >= 2 * out), _rare(averaged), lambda: _bilinear(image, out))


def _bilinear(image: Any, out: Any) -> Any:
    """Return an image at height and width `out`, bilinear. An image of that size is unchanged."""
    resized = tf.raw_ops.ResizeBilinear(images=image[None], size=out, half_pixel_centers=True)
    return tf.cast(tf.squeeze(resized, 0) + 0.5, tf.uint8)
