"""Decode records into the rows of a batch, in any number of threads.

A thread holds the GIL for some 20 us a JPEG and 10 us a raw image; the rest of the work runs in parallel.
"""

import hashlib
import logging
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.dataset.order import Ints, Places
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.dataset.schema import HEIGHT, LABEL, WIDTH, FeatureSpec, fixed_ints
from tpufeed.errors import ImageError, OpError, OptionError, RecordError
from tpufeed.images.custom import Custom
from tpufeed.images.decoding import Pixels, make_scratch
from tpufeed.images.mending import seen_size
from tpufeed.images.ops import from_dict
from tpufeed.images.pipeline import DrawnBatch, Pipeline, run_views
from tpufeed.images.protocols import Draws, Op
from tpufeed.images.validation import shown
from tpufeed.loaders.buffers import ArraySpec
from tpufeed.loaders.columns import (
    IMAGE,
    SAMPLE,
    SOURCE,
    Column,
    Columns,
    Items,
    Picture,
    Rows,
    Sample,
    iter_flip_warnings,
    resolve_columns,
)
from tpufeed.loaders.joint import JointPipeline
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.sources import Source, draws_seed
from tpufeed.tfrecord.example import decode_arrays
from tpufeed.tfrecord.layout import FixedLayout

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

_logger = logging.getLogger(__name__)
# Chunks of fewer rows cost more to hand over than they gain; larger ones leave threads without work.
_FEWEST_ROWS, _MOST_ROWS = 4, 64
_thread = threading.local()  # has the scratch memory, one for all decoders
_ADVICE = "To skip some, give max_bad_records=N; tpufeed verify lists all damage"
_NO_SIZE = (
    "its images may differ in size and none of the ops fixes one; pass for training "
    "ops=[RandomResizedCrop(size=224), HorizontalFlip()], for evaluation ops=[Resize(256), CenterCrop(224)] "
    "(from tpufeed.images)"
)


def group_rows(source: Ints, epoch: int | Ints) -> list[tuple[int, int, Ints]]:
    """Return for each source and epoch that occur together (source, epoch, rows), in rising order."""
    keys = source * (1 << 40) + epoch
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    found = zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True)
    return [(*divmod(int(keys[order[start]]), 1 << 40), order[start:stop]) for start, stop in found]


def warn_of_flips(decoders: Iterable["Decoder"]) -> None:
    """Log a warning of each column asked for whose keypoints would not keep their names."""
    for decoder in decoders:
        specs = [each.spec for each in decoder.columns.fields]
        for warning in iter_flip_warnings(specs, decoder.pipelines[0].ops):
            _logger.warning("%s: %s", decoder.url, warning)


class BatchRequest(NamedTuple):
    """A batch to be filled: where its samples lie, and in which epoch; the mask is False where a slot is padding.

    In a mixture `epoch` and `source` are arrays, with the number of each sample's source and the epoch of that.
    """

    epoch: int | Ints
    places: Places
    mask: Mask
    source: Ints | None = None

    def parts(self) -> Sequence[tuple[int, int, Ints | None]]:
        """Return for each source and epoch that it meets (source, epoch, rows); None stands for all rows."""
        return [(0, int(self.epoch), None)] if self.source is None else group_rows(self.source, self.epoch)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that was skipped: `where` is its source, variant, shard and number, `message` says what is wrong."""

    where: tuple[int, int, int, int]
    message: str


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A batch, and what it took.

    Attributes:
        arrays: its columns by name, also sample and mask where the loader was not asked for them.
        bad: records that were skipped.
        read_seconds: of all threads together, reading and verifying records; of raw images copying them, too.
        decode_seconds: of all threads together, decoding and ops.
        read_bytes: of records.
        dropped_boxes: boxes that crops have left too little of.
        requested_records: those of remote shards that were read by requests, as their shards were not staged.
    """

    arrays: dict[str, Array]
    bad: tuple[BadRecord, ...]
    read_seconds: float
    decode_seconds: float
    read_bytes: int
    dropped_boxes: int
    requested_records: int = 0


@dataclass(slots=True)
class JobPart:
    """A part of a request with what it is read and decoded by, and the random numbers of its samples."""

    source: int
    epoch: int
    variant: int
    reader: Reader
    decoder: "Decoder"
    places: list[tuple[int, int]]
    draws: list[DrawnBatch]
    rows: list[int] | None

    def within(self, start: int, stop: int) -> tuple[int, int]:
        """Return which of the samples `[first, last)` fill rows from `start` to `stop`."""
        return (start, stop) if self.rows is None else (bisect_left(self.rows, start), bisect_left(self.rows, stop))


@dataclass(slots=True)
class BatchJob:
    """A batch that is being filled: its parts, its memory, and its bad rows by number."""

    parts: list[JobPart]
    arrays: dict[str, Array]
    bad: dict[int, BadRecord] = field(default_factory=dict)


class ChunkResult(NamedTuple):
    """The time and the bytes that filling some rows took, and the boxes that were dropped; see `DecodedBatch`."""

    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    read_bytes: int = 0
    dropped_boxes: int = 0


class BatchDecoder:
    """Fills the rows of batches; shared by all threads, each of which takes one of `chunks` at a time.

    Attributes:
        decoders: decode single samples of each source.
        columns: the columns of a batch.
        pooled: the arrays of pixels, which lie in the memory of the loader's pool.
        chunks: the rows of a batch as ranges `(start, stop)`.

    Raises:
        OptionError: the options do not fit the dataset.
    """

    def __init__(self, sources: Sequence[Source], options: LoaderOptions, threads: int) -> None:
        self.decoders = make_decoders(sources, options)
        self.columns = self.decoders[0].columns
        size = options.batch_size
        self.pooled = tuple(ArraySpec(each.name, each.dtype, (size, *each.shape)) for each in self.columns.pooled)
        names = {spec.name for spec in self.pooled}
        self._others = [column for column in self.columns if column.name not in names]
        step = max(_FEWEST_ROWS, min(_MOST_ROWS, -(-size // threads)))
        self.chunks = [(start, min(start + step, size)) for start in range(0, size, step)]
        self._skips = options.max_bad_records > 0

    def begin(
        self, request: BatchRequest, open_reader: Callable[[int, int], tuple[int, Reader]], pixels: dict[str, Array]
    ) -> BatchJob:
        """Return the job that fills a batch, in the memory of `pooled`.

        Args:
            request: what is to be filled.
            open_reader: returns the variant that an epoch of a source reads, and its reader.
            pixels: arrays of `pooled`.
        """
        places = request.places
        arrays: dict[str, Array] = {column.name: column.empty(len(request.mask)) for column in self._others}
        arrays |= pixels | {SAMPLE: places.sample, self.columns.mask: request.mask}
        if SOURCE in arrays and request.source is not None:
            arrays[SOURCE][:] = request.source
        where, parts = list(zip(places.shard.tolist(), places.record.tolist(), strict=True)), list[JobPart]()
        for source, epoch, rows in request.parts():
            (variant, reader), decoder = open_reader(source, epoch), self.decoders[source]
            samples, own = (places.sample, None) if rows is None else (places.sample[rows], rows.tolist())
            held = where if own is None else [where[row] for row in own]
            parts.append(JobPart(source, epoch, variant, reader, decoder, held, decoder.draw(epoch, samples), own))
        return BatchJob(parts, arrays)

    def fill(self, job: BatchJob, start: int, stop: int) -> ChunkResult:
        """Decode the rows `[start, stop)`. Raises RecordError for a bad record, unless such records are skipped."""
        if len(job.parts) == 1:
            return self._fill_part(job, job.parts[0], start, stop)
        spans = ((part, *part.within(start, stop)) for part in job.parts)
        return _sum(self._fill_part(job, part, first, last) for part, first, last in spans if first < last)

    def _fill_part(self, job: BatchJob, part: JobPart, first: int, last: int) -> ChunkResult:
        """Decode samples `[first, last)` of a part."""
        try:
            begun = perf_counter()
            draws = [[op[first:last] for op in view] for view in part.draws]
            rows = range(first, last) if part.rows is None else part.rows[first:last]
            decoded = decode_samples(part.decoder, part.reader, part.places[first:last], draws, job.arrays, rows)
            seconds = perf_counter() - begun - decoded.read_seconds
            return decoded._replace(decode_seconds=seconds)
        except RecordError as error:
            if not self._skips:
                raise RecordError(f"{error}. {_ADVICE}") from error
            if last - first == 1:
                where = (part.source, part.variant, *part.places[first])
                job.bad[first if part.rows is None else part.rows[first]] = BadRecord(where, str(error))
                return ChunkResult()
        # One by one, which finds the bad ones and decodes the others.
        return _sum(self._fill_part(job, part, number, number + 1) for number in range(first, last))

    def finish(self, job: BatchJob, results: Iterable[ChunkResult]) -> DecodedBatch:
        """Return the batch when all of its rows are done. A bad row repeats the good one before it, masked.

        Raises:
            RecordError: no row is good.
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
        return DecodedBatch(job.arrays, tuple(record for _, record in bad), *_sum(results))


def _sum(results: Iterable[ChunkResult]) -> ChunkResult:
    return ChunkResult(*map(sum, zip(*results, strict=True)))


class Decoder:
    """Decodes samples of one dataset and applies the ops. Thread-safe.

    Args:
        source: the dataset of the samples.
        options: `ops` or `views`, `seed`, `columns` and what says how these are batched.

    Attributes:
        url: of the dataset.
        pipelines: the ops of each view of an image, with its seed; one where there are no views.
        columns: what samples are decoded to.

    Raises:
        OptionError: ops that are none, or those that the manifest names cannot be taken; columns that do not fit.
    """

    def __init__(self, source: Source, options: LoaderOptions) -> None:
        dataset, classes = source.dataset, source.classes
        manifest, seed = dataset.manifest, draws_seed(options.seed, source.root)
        self._classes = classes
        if classes is not None:
            manifest = msgspec.structs.replace(manifest, class_names=classes.names)
        views = options.view_ops or (_own_ops(dataset) if options.ops is None else options.ops,)
        self.pipelines = [
            Pipeline(ops, manifest.draws_seed(_view_seed(seed, view)), fast=True, upright=manifest.upright)
            for view, ops in enumerate(views)
        ]
        stored_size = None if manifest.cache is None else manifest.cache.shape[:2]
        self.sizes = [pipeline.output_size(stored_size) for pipeline in self.pipelines]
        if options.views is not None and None in self.sizes:
            raise OptionError(f"{dataset.url}: {_NO_SIZE}; of views each one fixes a size")
        self.columns: Columns = resolve_columns(manifest, options, self.sizes, classes is not None)
        self._tensor_shape, self._upright = manifest.tensor_shape, manifest.upright
        self.tensor_bytes = math.prod(manifest.tensor_shape or (0,))  # 0: images are encoded
        self.url = dataset.url
        self._min_visibility = float(options.min_visibility)
        self._specs = {spec.name: spec for spec in manifest.features}
        ints = fixed_ints(manifest.features)
        # What another tool has called height and width may be of another image, or of this one as people see it.
        is_adopted = manifest.options.get("command") == "adopt"
        has_size = not is_adopted and {HEIGHT, WIDTH} <= set(ints)
        self._size_at = (ints.index(HEIGHT), ints.index(WIDTH)) if has_size else None
        # Where each view stands: its column, and its place among those of one size.
        self._targets = _view_targets(self.columns.images, self.sizes)
        self._pictures = [each for each in self.columns.fields if isinstance(each, Picture)]
        self._fields = [each for each in self.columns.fields if not isinstance(each, Picture)]
        self._joint = self._cut_at_whole_samples()

    def check_sizes(self) -> None:
        """Raise OptionError where images, or what goes with them, differ in size from sample to sample."""
        if None in self.sizes and self.columns.pooled:
            raise OptionError(f"{self.url}: {_NO_SIZE}")

    def _cut_at_whole_samples(self) -> JointPipeline | None:
        """Return the pipeline for ops of the user's that change whole samples; None where there is none to change."""
        moving = {each.columns[0].name: each.spec for each in self._fields if each.moves and each.spec is not None}
        moving = {spec.of: self._specs[spec.of] for spec in moving.values() if isinstance(spec.of, str)} | moving
        custom = next((op for op in self.pipelines[0].ops if isinstance(op, Custom) and op.sample), None)
        if custom is None or not moving:
            return None
        if self._pictures:
            (column,) = self._pictures[0].columns
            raise OptionError(f"{custom} changes a sample's image, masks and boxes, not {column.name!r}: leave it out")
        return JointPipeline(self.pipelines[0], moving, self._fields)

    def is_list(self, spec: FeatureSpec) -> bool:
        """Return true for a feature of lists, also where all of them are of one length."""
        return self._specs[spec.name].shape is None

    def draw(self, epoch: int, samples: npt.NDArray[np.int64]) -> list[DrawnBatch]:
        """Draw the random numbers of some samples: `[view][op][sample]`."""
        return [pipeline.draw(epoch, samples) for pipeline in self.pipelines]

    def fill(self, record: "_Record", draws: Sequence[Sequence[Draws]], rows: Rows, row: int, copied: bool) -> int:
        """Fill one row of every column but the scalars at fixed places; return the number of boxes that were dropped.

        Args:
            record: what was read.
            draws: for each view one entry an op.
            rows: arrays, or lists where sizes differ.
            row: which one.
            copied: the image is there already.

        Raises:
            ImageError, RecordError, OpError: the sample is damaged, or does not fit its row.
        """
        if self.columns.images and not copied and self._joint is None:
            self.fill_image(record.image, draws, rows, row)
        if not self.columns.fields:
            return 0
        size, pipeline, drawn = partial(self.stored_size, record), self.pipelines[0], draws[0]
        sample = Sample(
            decode_arrays(record.payload),
            record.where,
            self._specs,
            lambda: pipeline.geometry(*size(), drawn),
            self._min_visibility,
            self._classes,
            upright=self._upright,
        )
        if self._joint is not None:
            pixels, sample = self._joint.run(partial(self._run_part, record.image), sample, drawn)
            for column in self.columns.images:
                rows[column.name][row] = pixels
        for each in self._fields:
            each.fill(sample, rows, row)
        for picture in self._pictures:
            self._fill_picture(picture, sample, draws[0], rows, row)
        return sample.dropped

    def single_images(self, rows: Rows) -> Array | None:
        """Return the array of images where nothing but one view of each is to be filled, which is nearly always."""
        if len(self.pipelines) > 1 or self.columns.fields or len(self.columns.images) != 1:
            return None
        images = rows[self.columns.images[0].name]
        return None if isinstance(images, list) or images.ndim != 4 else images

    def run(self, image: memoryview, draws: Sequence[Draws], out: Pixels) -> None:
        """Decode an image, and apply the ops of the first view. Raises ImageError, OpError."""
        self._run(self.pipelines[0], image, draws, out)

    def joined(self, labels: list[int]) -> list[int]:
        """Return the ids that labels have in a mixture. Raises RecordError for one of no class."""
        if self._classes is None or self._classes.ids is None:
            return labels
        ids: list[int] = self._classes.join(labels, self.url).tolist()
        return ids

    def stored_size(self, record: "_Record") -> tuple[int, int]:
        """Return `(height, width)` of a record's image as the ops see it. Raises ImageError."""
        if self._tensor_shape is not None:
            return self._tensor_shape[:2]
        if self._size_at is not None:
            return record.ints[self._size_at[0]], record.ints[self._size_at[1]]
        return seen_size(record.image, self._upright)

    def fill_image(self, image: memoryview, draws: Sequence[Sequence[Draws]], rows: Rows, row: int) -> None:
        """Fill one row of the columns of images. Raises ImageError, OpError."""
        outs: list[Pixels | None] = []
        for name, place in self._targets:
            target = rows[name]
            found = None if isinstance(target, list) else target[row]
            outs.append(found if found is None or place is None else found[place])
        if len(self.pipelines) == 1:
            made = [self._run(self.pipelines[0], image, draws[0], outs[0])]
        elif self._tensor_shape is None:
            made = run_views(self.pipelines, image, draws, outs, self._scratch)
        else:
            made = [self._run(*each) for each in zip(self.pipelines, [image] * len(outs), draws, outs, strict=True)]
        for (name, place), pixels in zip(self._targets, made, strict=True):
            target = rows[name]
            if isinstance(target, list):  # copied, as it may be a view of the shard, or of scratch
                if place is None:
                    target[row] = pixels.copy()
                else:
                    target[row] = [*(target[row] or ()), pixels.copy()]

    def _run_part(self, image: memoryview, pipeline: Pipeline, draws: Sequence[Draws]) -> Pixels:
        """Run the first ops, of which the last may fix no size. The result is not a view of scratch."""
        return self._run(pipeline, image, draws, None).copy()

    def _run(self, pipeline: Pipeline, image: memoryview, draws: Sequence[Draws], out: Pixels | None) -> Pixels:
        if self._tensor_shape is None:
            return pipeline.run_encoded(image, draws, out, self._scratch)
        return pipeline.run(np.frombuffer(image, np.uint8).reshape(self._tensor_shape), draws, out)

    def _fill_picture(self, field_: Picture, sample: Sample, draws: Sequence[Draws], rows: Rows, row: int) -> None:
        found, (column,), pipeline = sample.values(field_.spec), field_.columns, self.pipelines[0]
        if len(found) != 1:
            raise RecordError(f"{sample.where}: {field_.spec.key} is missing")
        target = rows[column.name]
        out = None if isinstance(target, list) else target[row]
        if field_.spec.shape:
            made = pipeline.run(np.frombuffer(found[0], np.uint8).reshape(field_.spec.shape), draws, out)
        else:
            made = pipeline.run_encoded(found[0], draws, out, self._scratch)
        if out is None:
            target[row] = made.copy()

    def check_size(self, image: memoryview) -> None:
        """Raise RecordError where the bytes are not those of a tensor of the dataset's shape."""
        if self._tensor_shape is not None and len(image) != self.tensor_bytes:
            raise RecordError(f"the image has {len(image)} bytes; {self._tensor_shape} take {self.tensor_bytes}")

    def copier(self, layout: FixedLayout, rows: Rows, at: Sequence[int]) -> Callable[[int, memoryview], None] | None:
        """Return what copies pixels from their fixed place in a payload to a row; None where more than that is needed.

        The reader calls it before it verifies the payload's CRC, which then finds the bytes in the processor's cache.
        """
        size, start = self.tensor_bytes, layout.image_offset
        if not size or len(self.pipelines) > 1 or self.pipelines[0].ops or not self.columns.images:
            return None
        images = rows[self.columns.images[0].name]
        if isinstance(images, list):
            return None
        assert images.flags.c_contiguous, "each row is memory of the batch"
        flat = images.reshape(len(images), size)
        targets = [flat[row] for row in at]

        def copy(number: int, payload: memoryview) -> None:
            if len(payload) >= start + size:
                np.copyto(targets[number], np.ndarray(size, np.uint8, payload, start))

        return copy

    def _scratch(self, size: int) -> Pixels:
        """Return memory of this thread to decode into: fresh memory would cost page faults for each image."""
        scratch: Pixels | None = getattr(_thread, "scratch", None)
        if scratch is None or size > len(scratch):
            scratch = _thread.scratch = make_scratch(size)
        return scratch[:size]


def make_decoders(sources: Sequence[Source], options: LoaderOptions) -> list[Decoder]:
    """Return a decoder of each source; all of them make the same columns.

    Raises:
        OptionError: a source does not fit the options, or two of them would make columns of other names or types.
    """
    if len(sources) == 1:
        decoder = Decoder(sources[0], options)
        decoder.check_sizes()
        return [decoder]
    labelled = all(source.dataset.manifest.labelled for source in sources)
    if options.columns is None or options.columns == "default":
        own = [IMAGE, *(["label"] if labelled else []), *([SAMPLE] if options.columns is None else [])]
        options = replace(options, columns=own)
    for tries_left in (1, 0):
        decoders, padded = list[Decoder](), dict[str, int]()
        for source in sources:
            try:
                decoders.append(Decoder(source, options))
                decoders[-1].check_sizes()
            except OptionError as error:
                where = "" if source.dataset.url in str(error) else f"{source.label}: "
                raise OptionError(f"{where}{error}. All sources of a mixture have the columns asked for") from error
        first = {column.name: column for column in decoders[0].columns}
        for source, decoder in zip(sources[1:], decoders[1:], strict=True):
            found = {column.name: column for column in decoder.columns}
            for name in {**first, **found}:
                if first.get(name) == found.get(name):
                    continue
                # The list whose own column, lengths or visibility this is, as each source has it.
                of = next((each.columns[0].name for each in _lists_of(name, decoders) if each is not None), name)
                lists = [each.columns[0].shape[0] for each in _lists_of(of, decoders) if each is not None]
                if not tries_left or len(lists) < len(decoders):
                    raise OptionError(_differing(of, sources[0], first.get(of), source, found.get(of)))
                padded[of] = max(lists)
        if not padded:
            return decoders
        options = replace(options, pad={**padded, **(options.pad or {})})
    raise AssertionError("the second try returns or raises")


def _lists_of(name: str, decoders: Sequence[Decoder]) -> list[Items | None]:
    """Return for each source the list that fills a column; None where something else does, as a tensor."""
    found = list[Items | None]()
    for decoder in decoders:
        lists = (each for each in decoder.columns.fields if isinstance(each, Items) and decoder.is_list(each.spec))
        found.append(next((each for each in lists if name in [column.name for column in each.columns]), None))
    return found


def _differing(name: str, first: Source, column: Column | None, other: Source, found: Column | None) -> str:
    said = ["missing" if each is None else f"{each.dtype} {each.shape}" for each in (column, found)]
    ops = "give ops that end in one size, or " if column is not None and column.dtype == "uint8" else ""
    return (
        f"the column {name!r} is {said[0]} in {first.label} and {said[1]} in {other.label}; a batch needs one shape "
        f"and type: {ops}leave the column out of columns="
    )


class _Record(NamedTuple):
    """A record that was read: its image and integers at fixed places, all of its bytes, and its name for errors."""

    image: memoryview
    ints: tuple[int, ...]
    payload: memoryview
    where: str


def _own_ops(dataset: Dataset) -> Sequence[Op]:
    """Return the ops that a cache's manifest leaves to loaders."""
    manifest = dataset.manifest
    ops = [] if manifest.cache is None else [from_dict(each) for each in manifest.cache.final]
    for op in ops:
        if isinstance(op, Custom):  # the author of a manifest must not choose what is imported here
            raise OptionError(
                f"{dataset.url}: its manifest names {shown(op.target)} among the final ops, and no loader "
                "imports what a manifest names. If you want it to run, pass all of them: "
                f"ops=[..., Custom({shown(op.target)})]"
            )
    return ops


def _view_seed(seed: int, view: int) -> int:
    """The seed of a view's draws; the first has the loader's own."""
    return seed if not view else seed ^ int.from_bytes(hashlib.blake2b(b"%d" % view, digest_size=7).digest(), "little")


def _view_targets(columns: Sequence[Column], sizes: Sequence[tuple[int, int] | None]) -> list[tuple[str, int | None]]:
    """Return the column of each view, and its place there; None for the one view of a loader without views."""
    if not columns:
        return []
    if len(sizes) == 1 and len(columns[0].shape) < 4:
        return [(columns[0].name, None)]
    taken: dict[str, int] = {}
    targets: list[tuple[str, int | None]] = []
    for size in sizes:
        name = next(column.name for column in columns if column.shape[1:3] == size)
        targets.append((name, taken.get(name, 0)))
        taken[name] = taken.get(name, 0) + 1
    return targets


def decode_samples(
    decoder: Decoder,
    reader: Reader,
    places: Sequence[tuple[int, int]],
    draws: Sequence[DrawnBatch],
    rows: Rows,
    at: Sequence[int],
) -> ChunkResult:
    """Fill a row of every column with each of the samples at `places`, (shard, record).

    Args:
        decoder: of their dataset.
        reader: of the variant.
        places: where they lie.
        draws: `[view][op][sample]`.
        rows: arrays, or lists.
        at: the row of each sample; a range where these adjoin.

    Raises:
        RecordError: one is damaged, or its image does not decode; names shard and record, and where the framing is
            damaged the byte.
        OpError: one of the ops failed; names shard and record.
        ShardError: a shard is not the manifest's.
    """
    begun = perf_counter()
    copy = decoder.copier(reader.layout, rows, at)
    payloads = reader.read_many(places, copy)
    read_seconds, dropped, columns = perf_counter() - begun, 0, decoder.columns
    found, images = list[Sequence[int]](), decoder.single_images(rows)
    if copy is not None and not columns.fields:
        at_once = reader.layout.decode_ints(payloads, decoder.tensor_bytes)
        found = [] if at_once is None else at_once.tolist()
    for number, payload in enumerate(payloads[len(found) :]):
        try:
            image, ints = reader.layout.decode(payload)
            decoder.check_size(image)
            found.append(ints)
            copied = copy is not None and reader.layout.is_fixed(payload)
            if not columns.fields and (copied or not columns.images):
                continue
            if images is not None:
                decoder.run(image, [op[number] for op in draws[0]], images[at[number]])
                continue
            drawn = [[op[number] for op in view] for view in draws]
            where = reader.place(*places[number]) if columns.fields else ""
            dropped += decoder.fill(_Record(image, ints, payload, where), drawn, rows, at[number], copied)
        except OpError as error:
            raise OpError(f"{reader.place(*places[number])}: {error}") from error
        except (ImageError, RecordError) as error:  # no other ValueError: that would be a bug, not the record's fault
            where = reader.place(*places[number])
            said = str(error).removeprefix(f"{where}: ")
            raise RecordError(f"{where}: {said}") from error
    index: Any = slice(at.start, at.stop) if isinstance(at, range) else at
    for scalar in columns.scalars:
        values = [ints[scalar.position or 0] for ints in found]
        rows[scalar.columns[0].name][index] = decoder.joined(values) if scalar.spec.name == LABEL else values
    return ChunkResult(read_seconds, 0.0, sum(map(len, payloads)), dropped)
