"""Decode records into the rows of a batch, in any number of threads.

A thread holds the GIL for a few lines per image; decoding and copying run in parallel.
"""

import hashlib
import itertools
import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tpufeed.dataset import schema
from tpufeed.dataset.order import Ints
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.dataset.sample import Sample, iter_flip_warnings
from tpufeed.dataset.schema import HEIGHT, WIDTH, fixed_ints
from tpufeed.errors import ImageError, OpError, OptionError, RecordError, advised
from tpufeed.images.decoding import Pixels, Scratch
from tpufeed.images.description import from_dict
from tpufeed.images.device import DeviceOps
from tpufeed.images.mending import seen_size
from tpufeed.images.mixing import MixingOp
from tpufeed.images.ops import Custom, RandomResizedCrop
from tpufeed.images.pipeline import DrawnBatch, Pipeline, run_views
from tpufeed.images.protocols import Draws, Op
from tpufeed.images.rng import uniforms
from tpufeed.stream.buffers import BufferLayout, Memory
from tpufeed.stream.columns import (
    DEVICE_NUMBERS,
    IMAGE,
    LABEL,
    SAMPLE,
    SOURCE,
    Array,
    Columns,
    Items,
    Mask,
    Picture,
    Rows,
    resolve_columns,
)
from tpufeed.stream.joint import JointPipeline
from tpufeed.stream.mixing import BatchOps, Mixing, mix_on_host
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.sampler import BatchRequest, SampleSource, group_rows
from tpufeed.text import format_value
from tpufeed.tfrecord.example import decode_arrays

_logger = logging.getLogger(__name__)
# Smaller chunks cost more to hand over than they gain; larger chunks leave threads without work.
_FEWEST_ROWS, _MOST_ROWS = 4, 64
_scratch = Scratch()  # for all decoders
_ADVICE = "To skip some, give max_bad_records=N; tpufeed verify lists all damage"
FIX_SIZE = (
    "pass for training ops=[RandomResizedCrop(size=224), HorizontalFlip()], for evaluation "
    "ops=[Resize(256), CenterCrop(224)] (from tpufeed.images)"
)
_OPS = "--op", "Resize(256)", "--op", "CenterCrop(256)"
_WHOLE = f"a cache of whole images: {advised('cache warmup', 'DATASET', 'CACHE', *_OPS)}"
_NO_DEVICE_SIZE = (
    "device_ops need images of one size, and its images may differ: give host ops that fix it, like ops=[Resize(256), "
    f"CenterCrop(256)], or read {_WHOLE}"
)
_RANDOM_CROPS = ("RandomResizedCrop", "RandomCrop")
_NO_SIZE = f"its images may differ in size and no op fixes the size; {FIX_SIZE}"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that was skipped: `where` is its dataset, variant, shard and number; `message` says what is wrong."""

    where: tuple[int, int, int, int]
    message: str


class Cost(NamedTuple):
    """Time and bytes that some rows took, and the boxes that were dropped; fields as in `LoaderStats`."""

    read_seconds: float
    decode_seconds: float
    read_bytes: int
    dropped_boxes: int


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A batch, and what it cost.

    Attributes:
        arrays: its columns by name, always with sample and mask.
        bad: records that were skipped.
        cost: sum over its rows.
        requested_records: remote records that were read one by one, as their shard had no local copy.
    """

    arrays: dict[str, Array]
    bad: tuple[BadRecord, ...]
    cost: Cost
    requested_records: int


@dataclass(slots=True)
class JobPart:
    """The samples of a batch from one dataset and epoch, their rows in rising order, and their draws."""

    source: int
    epoch: int
    variant: int
    reader: Reader
    decoder: "Decoder"
    places: list[tuple[int, int]]
    draws: list[DrawnBatch]
    rows: Sequence[int]


@dataclass(slots=True)
class BatchJob:
    """A batch that is being decoded: its parts, its arrays, its bad records by row, and memory still without pages."""

    parts: list[JobPart]
    arrays: dict[str, Array]
    bad: dict[int, BadRecord] = field(default_factory=dict)
    unmapped: Memory | None = None


class BatchDecoder:
    """Decodes batches. All threads share it; each takes one of `chunks` at a time.

    Attributes:
        decoders: the decoder of each dataset; all make the same columns.
        columns: the columns of a batch.
        layout: places of the pixel columns in a buffer of the loader's pool.
        chunks: the rows of a batch as ranges `(start, stop)`.
        on_device: True if the device ops are left to a device.

    Raises:
        OptionError: a dataset does not fit the options, or datasets differ in the names or types of their columns.
    """

    def __init__(
        self, sources: Sequence[SampleSource], options: LoaderOptions, threads: int, *, on_device: bool = False
    ) -> None:
        if len(sources) == 1:
            self.decoders = [Decoder(sources[0], options, batched=True, on_device=on_device)]
        else:
            self.decoders = _make_alike(sources, options, on_device)
        self.on_device = on_device
        self.columns = self.decoders[0].columns
        size, pooled = options.batch_size, self.columns.pooled
        self.layout = BufferLayout((each.name, each.dtype, (size, *each.shape)) for each in pooled)
        self._others = [column for column in self.columns.every if column not in pooled]
        step = max(_FEWEST_ROWS, min(_MOST_ROWS, -(-size // threads)))
        self.chunks = [(start, min(start + step, size)) for start in range(0, size, step)]
        self._skips = options.max_bad_records > 0

    def begin(
        self, request: BatchRequest, open_reader: Callable[[int, int], tuple[int, Reader]], pixels: dict[str, Array]
    ) -> BatchJob:
        """Return the job of a batch, whose pixels go to the arrays `pixels` of a buffer.

        `open_reader` takes a dataset's number and epoch, and returns the variant to read and its reader.
        """
        places, size = request.places, len(request.mask)
        arrays: dict[str, Array] = {each.name: np.empty((size, *each.shape), each.dtype) for each in self._others}
        arrays |= pixels | {SAMPLE: places.sample, self.columns.mask: request.mask}
        where, job = list(zip(places.shard.tolist(), places.record.tolist(), strict=True)), BatchJob([], arrays)
        groups: Iterable[tuple[int, int, Any]] = [(0, request.epoch, slice(None))]  # type: ignore[list-item]  # an int
        if request.source is not None:
            groups = group_rows(request.source, request.epoch)
            if SOURCE in arrays:
                arrays[SOURCE][:] = request.source
        for source, epoch, numbers in groups:
            (variant, reader), decoder = open_reader(source, epoch), self.decoders[source]
            rows = range(size) if isinstance(numbers, slice) else numbers.tolist()
            own = where if isinstance(numbers, slice) else [where[row] for row in rows]
            draws = [pipeline.draw(epoch, places.sample[numbers]) for pipeline in decoder.drawn]
            if DEVICE_NUMBERS in arrays:
                arrays[DEVICE_NUMBERS][numbers] = decoder.device_numbers(epoch, places.sample[numbers])
            job.parts.append(JobPart(source, epoch, variant, reader, decoder, own, draws, rows))
        return job

    def decode(self, job: BatchJob, number: int) -> list[Cost]:
        """Decode chunk number `number`. Raises RecordError for a bad record, unless such records are skipped."""
        if job.unmapped is not None:
            for _ in job.unmapped.make_pages(number, len(self.chunks)):
                pass
        start, stop = self.chunks[number]
        spans = [(part, bisect_left(part.rows, start), bisect_left(part.rows, stop)) for part in job.parts]
        costs = list[Cost]()
        for part, first, last in spans:
            if first == last:
                continue
            places, rows = part.places[first:last], part.rows[first:last]
            draws = [[op[first:last] for op in view] for view in part.draws]
            try:
                costs.append(part.decoder.decode(part.reader, places, draws, job.arrays, rows))
            except RecordError as error:
                if not self._skips:
                    raise RecordError(f"{error}. {_ADVICE}") from error
                if len(rows) > 1:  # this loop then takes the rows one by one, and so finds the bad ones
                    spans += [(part, at, at + 1) for at in range(first, last)]
                else:
                    job.bad[rows[0]] = BadRecord((part.source, part.variant, *places[0]), str(error))
        return costs

    def finish(self, job: BatchJob, costs: Iterable[Iterable[Cost]]) -> DecodedBatch:
        """Return the batch once all rows are done. A bad row repeats the good row before it, masked.

        Raises RecordError if no row is good.
        """
        bad = sorted(job.bad.items())
        if bad:
            good = [row for row in range(len(job.arrays[self.columns.mask])) if row not in job.bad]
            if not good:
                raise RecordError(f"all {len(bad)} records of a batch are bad, the first one: {bad[0][1].message}")
            for row, _ in bad:
                repeated = good[max(0, int(np.searchsorted(good, row)) - 1)]
                for name, values in job.arrays.items():
                    values[row] = False if name == self.columns.mask else values[repeated]
        mixing = self.decoders[0].mixing_here
        if mixing is not None:
            mix_on_host(mixing, job.arrays, job.arrays.pop(DEVICE_NUMBERS))
        total = Cost(*map(sum, zip(*itertools.chain.from_iterable(costs), strict=True)))
        requested = sum(part.reader.take_requested() for part in job.parts)
        return DecodedBatch(job.arrays, tuple(record for _, record in bad), total, requested)


class Decoder:
    """Decodes samples of one dataset and applies the ops. Thread-safe.

    Args:
        source: the dataset, and its classes and salt in a mixture.
        options: `ops` or `views`, `seed`, `columns`, and the options for batching columns.
        batched: True if rows are arrays, so that all images need the same size.
        encoded: True to give images as their encoded bytes.
        on_device: True to leave the device ops to a device; otherwise they run here, after the other ops.

    Attributes:
        pipelines: the ops of each view of an image, with their seed; a single pipeline without views.
        sizes: (height, width) of each view's images; None if they differ from sample to sample.
        columns: the columns that samples are decoded to.
        specs: the features of the dataset by name.
        drawn: the pipelines that draw for `decode`: without ops left to a device, unless columns move with the pixels.
        device_ops: the ops that a device may run; None without such ops, or without images.
        mixing_here: the ops that mix rows, if they are not left to a device.

    Raises:
        OptionError: something is not an op; an op that the manifest names is not allowed; columns do not fit.
    """

    def __init__(
        self,
        source: SampleSource,
        options: LoaderOptions,
        *,
        batched: bool = False,
        encoded: bool = False,
        on_device: bool = False,
    ) -> None:
        self._url, self._classes, self._encoded = source.dataset.url, source.classes, encoded
        manifest, seed = source.dataset.manifest, options.seed ^ source.salt
        if encoded:
            if options.ops is not None or options.views is not None:
                raise OptionError(
                    "decode=False gives images as they are stored, and ops change pixels: give one of the two"
                )
            if manifest.tensor_shape is not None:
                raise OptionError(
                    f"{self._url} holds pixels, so nothing is left to decode later: leave out decode=False"
                )
            options = replace(options, ops=())
        if self._classes.names is not None:
            manifest = msgspec.structs.replace(manifest, class_names=self._classes.names)
        self._class_count = len(manifest.class_names)
        views: Sequence[Sequence[Op]] = (options.ops,) if options.ops is not None else options.view_ops
        views = views or (_own_ops(source.dataset),)
        later = [op for op in options.device_ops or () if not isinstance(op, MixingOp)]
        self.pipelines = list[Pipeline]()
        for view, ops in enumerate(views):
            # The first view draws with the loader's own seed.
            salt = hashlib.blake2b(b"%d" % view, digest_size=7).digest() if view else b""
            draws = manifest.draws_seed(seed ^ int.from_bytes(salt, "little"))
            # A device gets whole images if its ops are the first ones, so the host's ops see the same pixels.
            whole = bool(later) and not ops
            self.pipelines.append(Pipeline([*ops, *later], draws, fast=True, upright=manifest.upright, whole=whole))
        self.sizes = [pipeline.output_size(manifest.image_size) for pipeline in self.pipelines]
        if options.views is not None and None in self.sizes:
            raise OptionError(f"{self._url}: {_NO_SIZE}; each view needs an op that fixes the size")
        self.columns: Columns = resolve_columns(manifest, options, self.sizes, self._classes.is_mixture)
        if batched and None in self.sizes and self.columns.pooled:
            raise OptionError(f"{self._url}: {_NO_DEVICE_SIZE if options.device_ops else _NO_SIZE}")
        self.drawn, self._host = self.pipelines, self.pipelines  # those drawn for, and those whose pixels are made
        self.device_ops: BatchOps | None = None
        self.mixing_here: Mixing | None = None
        if options.device_ops and self.columns.images:
            self._add_device_ops(Pipeline(views[0], 0), options.device_ops, source.dataset, on_device)
        self._shape, self._upright = manifest.tensor_shape, manifest.upright
        self._tensor_bytes = math.prod(self._shape or (0,))  # 0: images are encoded
        self._min_visibility = float(options.min_visibility)
        self.specs = {spec.name: spec for spec in manifest.features}
        ints = fixed_ints(manifest.features)
        # Height and width written by another tool may belong to another image, or to this one after EXIF turned it.
        is_adopted = manifest.options.get("command") == "adopt"
        has_size = not is_adopted and {HEIGHT, WIDTH} <= set(ints)
        self._size_at = (ints.index(HEIGHT), ints.index(WIDTH)) if has_size else None
        self._pictures = [each for each in self.columns.fields if isinstance(each, Picture)]
        self._fields = [each for each in self.columns.fields if not isinstance(each, Picture)]
        one_view, images = len(self.pipelines) == 1, self.columns.images
        # The image column if there is one view and nothing else to decode: nearly always.
        self._alone = images[0].name if images and one_view and not self.columns.fields and not encoded else None
        self._is_copied = bool(self._shape and images and one_view and not self._host[0].ops)
        custom = next((op for op in self.pipelines[0].ops if isinstance(op, Custom) and op.sample), None)
        self._joint = None if custom is None else self._cut_at(custom)

    def _cut_at(self, custom: Custom) -> JointPipeline | None:
        """Return the pipeline for user ops that change whole samples; None if no column moves with the pixels."""
        moving = {each.columns[0].name: each.spec for each in self._fields if each.moves and each.spec is not None}
        moving = {spec.of: self.specs[spec.of] for spec in moving.values() if isinstance(spec.of, str)} | moving
        if not moving:
            return None
        if self._pictures:
            (column,) = self._pictures[0].columns
            raise OptionError(
                f"{custom} cannot change {column.name!r} with the image, masks and boxes: leave that column out"
            )
        if self.device_ops is not None:
            raise OptionError(
                f"{custom} changes masks and boxes together with the pixels, so no device op can follow it: leave "
                "device_ops out, and put its ops into ops"
            )
        return JointPipeline(self.pipelines[0], moving, self._fields)

    def _add_device_ops(self, here: Pipeline, ops: Sequence[Op], dataset: Dataset, on_device: bool) -> None:
        """Check that a device can run `ops` after the ops `here`, and with `on_device` leave them to it."""
        cache, whole = dataset.manifest.cache, self.pipelines[0]
        size = here.output_size(dataset.manifest.image_size)
        if size is None:
            raise OptionError(f"{self._url}: {_NO_DEVICE_SIZE}")
        cropped = [] if cache is None else [str(op.get("op")) for op in cache.ops if op.get("op") in _RANDOM_CROPS]
        if cropped and any(isinstance(op, RandomResizedCrop) for op in ops):
            raise OptionError(
                f"{self._url}: the cache holds crops already, of {cropped[0]}, and RandomResizedCrop would crop them "
                f"again: read {_WHOLE}; or leave RandomResizedCrop out of device_ops"
            )
        first = next((number for number, op in enumerate(ops) if isinstance(op, MixingOp)), len(ops))
        image_ops, mixing = DeviceOps(ops[:first], size), None
        if first < len(ops):
            mixing = self._make_mixing(ops[first:], image_ops.out_size)
        self.device_ops = BatchOps(image_ops, mixing)
        # Draws of an op depend on its place among all ops.
        self._sent = [*enumerate(ops, len(here.ops))]
        if not on_device:
            self.mixing_here, self._sent = mixing, self._sent[first:]
            if mixing is not None:
                self.columns = self.columns.before_device_ops(image_ops.out_size, mixing.width)
        else:
            self.columns = self.columns.before_device_ops(size, self.device_ops.width)
            self._host = [Pipeline(here.ops, whole.seed, whole.fast, whole.upright)]
            self.drawn = self.pipelines if self.columns.fields else self._host

    def device_numbers(self, epoch: int, samples: Ints) -> Array:
        """Return what ops that run over whole batches do to these samples, float32 of shape (samples, numbers)."""
        ops, seed = self.mixing_here or self.device_ops, self.pipelines[0].seed
        assert ops is not None, "there is a column for them"
        return ops.parameters([uniforms(seed, epoch, samples, place, op.draws) for place, op in self._sent])

    def _make_mixing(self, ops: Sequence[Op], size: tuple[int, int]) -> Mixing:
        """Return the ops that mix rows. Raises OptionError if they cannot mix a column, or are not the last ones."""
        name, other = type(ops[0]).__name__, next((op for op in ops if not isinstance(op, MixingOp)), None)
        if other is not None:
            raise OptionError(f"{name} mixes whole batches: put {type(other).__name__} before it in device_ops")
        label = next((column for column in self.columns.every if column.name == LABEL), None)
        if label is None or (label.shape and label.dtype != "float32") or label.dtype == "O":
            raise OptionError(
                f"{name} mixes labels with images: ask for the column 'label', with one label per sample or "
                "label_format='multi_hot'"
            )
        classes = label.shape[0] if label.shape else self._class_count
        if not classes:
            raise OptionError(
                f"{name} needs the number of classes, and {self._url} does not name its classes: give --classes as you "
                "shard or adopt it"
            )
        mixing = [op for op in ops if isinstance(op, MixingOp)]
        blends = next((type(op).__name__ for op in mixing if op.blends), "")
        others, masks = list[str](), list[str]()
        for each in self.columns.fields:
            column = each.columns[0].name
            if isinstance(each, Picture):
                others.append(column)
            elif isinstance(each, Mask) and not blends:
                masks.append(column)
            elif each.moves and column != LABEL:
                raise OptionError(
                    f"{blends or name} cannot mix the column {column!r}, which would no longer fit the images: leave "
                    "it out of columns=" + (f", or {blends} out" if isinstance(each, Mask) else "")
                )
        return Mixing(mixing, size, classes, others, masks)

    def decode(
        self,
        reader: Reader,
        places: Sequence[tuple[int, int]],
        draws: Sequence[DrawnBatch],
        rows: Rows,
        at: Sequence[int],
    ) -> Cost:
        """Decode the samples at `places`, (shard, record), into one row of every column each.

        Args:
            reader: the reader of the variant.
            places: the places of the samples.
            draws: `[view][op][sample]`, of the pipelines `drawn`.
            rows: arrays, or lists if sizes differ.
            at: the row of each sample; a range if rows adjoin.

        Raises:
            RecordError: a record is damaged, or its image does not decode; names shard and record, and the byte if the
                framing is damaged.
            OpError: an op failed; names shard and record.
            ShardError: a shard does not match the manifest.
        """
        begun, columns, layout, dropped = perf_counter(), self.columns, reader.layout, 0
        copy = self._copier(layout.image_offset, rows, at) if self._is_copied else None
        payloads, found = reader.read_many(places, copy), list[Sequence[int]]()
        read = perf_counter()
        images = None if self._alone is None or isinstance(rows[self._alone], list) else rows[self._alone]
        if copy is not None and not columns.fields:
            at_once = layout.decode_ints(payloads, self._tensor_bytes)
            found = [] if at_once is None else at_once.tolist()
        for number, payload in enumerate(payloads[len(found) :]):
            try:
                image, ints = layout.decode(payload)
                if self._tensor_bytes and len(image) != self._tensor_bytes:
                    raise RecordError(f"the image has {len(image)} bytes; {self._shape} take {self._tensor_bytes}")
                found.append(ints)
                is_copied = copy is not None and layout.is_fixed(payload)
                if not columns.fields and (is_copied or not columns.images):
                    continue
                if images is not None:
                    drawn, out = [op[number] for op in draws[0]], images[at[number]]
                    self._host[0].run_stored(image, self._shape, drawn, out, _scratch)
                    continue
                views = [[op[number] for op in view] for view in draws]
                if columns.images and not is_copied and self._joint is None:
                    self._decode_image(image, views, rows, at[number])
                if columns.fields:
                    where = reader.place(*places[number])
                    sample = self._parse(payload, where, image, ints, views[0])
                    dropped += self._decode_fields(sample, image, views[0], rows, at[number])
            except OpError as error:
                raise OpError(f"{reader.place(*places[number])}: {error}") from error
            except (ImageError, RecordError) as error:  # any other ValueError is a bug, not the record's fault
                where = reader.place(*places[number])
                said = str(error).removeprefix(f"{where}: ")
                raise RecordError(f"{where}: {said}") from error
        index: Any = slice(at.start, at.stop) if isinstance(at, range) else at
        for scalar in columns.scalars:
            values, target = [ints[scalar.position or 0] for ints in found], rows[scalar.columns[0].name]
            if scalar.spec.name == schema.LABEL:
                ids = self._classes.of(values, lambda number: reader.place(*places[number]))
                target[index] = ids.tolist() if isinstance(target, list) else ids
            else:
                target[index] = values
        return Cost(read - begun, perf_counter() - read, sum(map(len, payloads)), dropped)

    def _parse(
        self, payload: memoryview, where: str, image: memoryview, ints: Sequence[int], draws: Sequence[Draws]
    ) -> Sample:
        """Return all features of a record, and how the ops of the first view move its pixels."""

        def find_geometry() -> Any:
            if self._shape is not None:
                size = self._shape[:2]
            elif self._size_at is not None:
                size = ints[self._size_at[0]], ints[self._size_at[1]]
            else:
                size = seen_size(image, self._upright)
            return self.pipelines[0].geometry(*size, draws)

        features, visible = decode_arrays(payload), self._min_visibility
        return Sample(features, where, self.specs, find_geometry, visible, self._classes, upright=self._upright)

    def _decode_fields(self, sample: Sample, image: memoryview, draws: Sequence[Draws], rows: Rows, row: int) -> int:
        """Decode all fields of a sample; return the number of boxes that were dropped.

        Raises ImageError, RecordError or OpError if the sample is damaged, or does not fit its row.
        """
        if self._joint is not None:
            # A copy: if the first ops fix no size, they leave a view of scratch memory.
            pixels, sample = self._joint.run(
                lambda ops, drawn: ops.run_stored(image, self._shape, drawn, None, _scratch).copy(), sample, draws
            )
            for column in self.columns.images:
                rows[column.name][row] = pixels
        for each in self._fields:
            each.put(sample, rows, row)
        for picture in self._pictures:
            found, target = sample.values(picture.spec), rows[picture.columns[0].name]
            if len(found) != 1:
                raise RecordError(f"{sample.where}: {picture.spec.key} is missing")
            out = None if isinstance(target, list) else target[row]
            made = self.pipelines[0].run_stored(found[0], picture.spec.shape, draws, out, _scratch)
            if out is None:
                target[row] = made.copy()
        return sample.dropped

    def _decode_image(self, image: memoryview, draws: Sequence[Sequence[Draws]], rows: Rows, row: int) -> None:
        """Decode all views of an image. Raises ImageError, OpError."""
        if self._encoded:
            rows[IMAGE][row] = bytes(image)
            return
        outs: list[Pixels | None] = []
        for name, place in self.columns.views:
            target = rows[name]
            found = None if isinstance(target, list) else target[row]
            outs.append(found if found is None or place is None else found[place])
        if self._shape is None and len(self.pipelines) > 1:
            made = run_views(self.pipelines, image, draws, outs, _scratch)
        else:
            each = zip(self._host, draws, outs, strict=True)
            made = [
                here.run_stored(image, self._shape, drawn[: len(here.ops)], out, _scratch) for here, drawn, out in each
            ]
        for (name, place), pixels in zip(self.columns.views, made, strict=True):
            target = rows[name]
            if isinstance(target, list):  # a copy: pixels may be a view of the shard, or of scratch memory
                if place is None:
                    target[row] = pixels.copy()
                else:
                    target[row] = [*(target[row] or ()), pixels.copy()]

    def _copier(self, start: int, rows: Rows, at: Sequence[int]) -> Callable[[int, memoryview], None] | None:
        """Return a function that copies pixels from byte `start` of a payload to a row; None if rows are lists.

        The reader calls it before it verifies the payload's CRC: see `decode_records`.
        """
        images, size = rows[self.columns.images[0].name], self._tensor_bytes
        if isinstance(images, list):
            return None
        assert images.flags.c_contiguous, "rows are written in place"
        flat = images.reshape(len(images), size)
        targets = [flat[row] for row in at]

        def copy(number: int, payload: memoryview) -> None:
            if len(payload) >= start + size:
                np.copyto(targets[number], np.ndarray(size, np.uint8, payload, start))

        return copy


def warn_of_flips(decoders: Iterable[Decoder]) -> None:
    """Log a warning for each column of keypoints whose names would no longer fit after a flip."""
    for decoder in decoders:
        specs = [each.spec for each in decoder.columns.fields]
        for warning in iter_flip_warnings(specs, decoder.pipelines[0].ops):
            _logger.warning("%s: %s", decoder._url, warning)


def _make_alike(sources: Sequence[SampleSource], options: LoaderOptions, on_device: bool) -> list[Decoder]:
    """Return a decoder for each dataset of a mixture: lists have room for the longest list of all datasets."""
    labelled = all(source.dataset.manifest.labelled for source in sources)
    if options.columns is None or options.columns == "default":
        own = [IMAGE, *(["label"] if labelled else []), *([SAMPLE] if options.columns is None else [])]
        options = replace(options, columns=own)

    def make(options: LoaderOptions) -> Iterator[Decoder]:
        for source in sources:
            try:
                yield Decoder(source, options, batched=True, on_device=on_device)
            except OptionError as error:
                where = "" if source.dataset.url in str(error) else f"{source.label}: "
                raise OptionError(f"{where}{error}. All datasets of a mixture need the columns asked for") from error

    decoders, lists = list(make(options)), list[dict[str, Items]]()
    for decoder in decoders:
        items = (each for each in decoder.columns.fields if isinstance(each, Items))
        # Lists as the dataset declares them, even if all of its own have one length.
        lists.append({each.columns[0].name: each for each in items if decoder.specs[each.spec.name].shape is None})
    padded = {
        name: max(found[name].columns[0].shape[0] for found in lists)
        for name in lists[0]
        if all(name in found for found in lists) and len({found[name].columns for found in lists}) > 1
    }
    if padded:
        decoders = list(make(replace(options, pad={**padded, **(options.pad or {})})))
    first = {column.name: column for column in decoders[0].columns.every}
    for source, decoder in zip(sources[1:], decoders[1:], strict=True):
        found = {column.name: column for column in decoder.columns.every}
        for name in {**first, **found}:
            here, there = first.get(name), found.get(name)
            if here != there:
                said = ["missing" if each is None else f"{each.dtype} {each.shape}" for each in (here, there)]
                ops = "give ops that fix one size, or " if here is not None and here.dtype == "uint8" else ""
                raise OptionError(
                    f"the column {name!r} is {said[0]} in {sources[0].label} and {said[1]} in {source.label}; a batch "
                    f"needs one shape and type: {ops}leave the column out of columns="
                )
    return decoders


def _own_ops(dataset: Dataset) -> Sequence[Op]:
    """Return the ops that a cache's manifest leaves to loaders."""
    manifest = dataset.manifest
    ops = [] if manifest.cache is None else [from_dict(each) for each in manifest.cache.live]
    for op in ops:
        if isinstance(op, Custom):  # the author of a manifest must not choose what is imported here
            raise OptionError(
                f"{dataset.url}: its manifest names {format_value(op.target)} among the live ops, and loaders import "
                "nothing that a manifest names. If you want it to run, pass all live ops yourself: "
                f"ops=[..., Custom({format_value(op.target)})]"
            )
    return ops
