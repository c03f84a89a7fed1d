"""Decode records into the rows of a batch, in any number of threads.

A thread holds the GIL for some 20 us a JPEG and 10 us a raw image; the rest of the work runs in parallel.
"""

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.order import Places
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.errors import ImageError, OpError, OptionError, RecordError
from tpufeed.images.decoding import Pixels
from tpufeed.images.ops import Custom, Draws, Op, from_dict
from tpufeed.images.parameters import shown
from tpufeed.images.pipeline import DrawnBatch, Pipeline
from tpufeed.loaders.columns import IMAGE, MASK, SAMPLE, Column, find_column, resolve_columns
from tpufeed.loaders.options import LoaderOptions
from tpufeed.tfrecord.example import decode_example
from tpufeed.tfrecord.layout import FixedLayout

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

# Chunks of fewer rows cost more to hand over than they gain; larger ones leave threads without work.
_FEWEST_ROWS, _MOST_ROWS = 4, 64
_ADVICE = "To skip some, give max_bad_records=N; tpufeed verify lists all damage"
_NO_SIZE = (
    "its images may differ in size and none of the ops fixes one; pass for training "
    "ops=[RandomResizedCrop(size=224), HorizontalFlip()], for evaluation ops=[Resize(256), CenterCrop(224)] "
    "(from tpufeed.images)"
)


class BatchRequest(NamedTuple):
    """A batch to be filled: where its samples lie in an epoch; the mask is False where a slot is padding."""

    epoch: int
    places: Places
    mask: Mask


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that was skipped: `where` is its variant, shard and number, `message` says what is wrong."""

    where: tuple[int, int, int]
    message: str


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A batch, and what it took.

    Attributes:
        arrays: its columns by name, also image, sample and mask where the loader was not asked for them.
        bad: records that were skipped.
        read_seconds: of all threads together, reading and verifying records; of raw images copying them, too.
        decode_seconds: of all threads together, decoding and ops.
        read_bytes: of records.
    """

    arrays: dict[str, Array]
    bad: tuple[BadRecord, ...]
    read_seconds: float
    decode_seconds: float
    read_bytes: int


@dataclass(slots=True)
class BatchJob:
    """A batch that is being filled: its samples and their random numbers, its memory, and its bad rows by number."""

    reader: Reader
    variant: int
    places: list[tuple[int, int]]
    draws: DrawnBatch
    arrays: dict[str, Array]
    bad: dict[int, str] = field(default_factory=dict)


class ChunkResult(NamedTuple):
    """What filling some rows took; see `DecodedBatch`."""

    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    read_bytes: int = 0


class BatchDecoder:
    """Fills the rows of batches; shared by all threads, each of which takes one of `chunks` at a time.

    Attributes:
        image_shape: (height, width, channels) of every image.
        columns: columns of a batch besides image, sample and mask.
        pipeline: the ops, with their seed.
        chunks: the rows of a batch as ranges `(start, stop)`.

    Raises:
        OptionError: the options do not fit the dataset.
    """

    def __init__(self, dataset: Dataset, options: LoaderOptions, threads: int) -> None:
        names = resolve_columns(dataset.manifest, options.columns)
        self.columns = tuple(find_column(dataset.manifest, name) for name in names if name not in (IMAGE, SAMPLE))
        self._decoder = Decoder(dataset, options.ops, options.seed, wanted=IMAGE in names)
        self.image_shape = self._decoder.batch_shape
        self.pipeline = self._decoder.pipeline
        size = options.batch_size
        step = max(_FEWEST_ROWS, min(_MOST_ROWS, -(-size // threads)))
        self.chunks = [(start, min(start + step, size)) for start in range(0, size, step)]
        self._skips = options.max_bad_records > 0

    def begin(self, request: BatchRequest, reader: Reader, variant: int, images: Pixels) -> BatchJob:
        """Return the job that fills a batch, with the memory of `images`, from the reader of this variant."""
        epoch, places, mask = request
        arrays: dict[str, Array] = {column.name: column.empty(len(places.sample)) for column in self.columns}
        arrays |= {IMAGE: images, SAMPLE: places.sample, MASK: mask}
        where = list(zip(places.shard.tolist(), places.record.tolist(), strict=True))
        return BatchJob(reader, variant, where, self.pipeline.draw(epoch, places.sample), arrays)

    def fill(self, job: BatchJob, start: int, stop: int) -> ChunkResult:
        """Decode the rows `[start, stop)`. Raises RecordError for a bad record, unless such records are skipped."""
        try:
            begun = perf_counter()
            images, places = job.arrays[IMAGE], job.places[start:stop]
            draws = [op[start:stop] for op in job.draws]
            outs = [images[row] for row in range(start, stop)]
            decoded = decode_samples(self._decoder, job.reader, places, draws, outs)
            for name, values in read_columns(self.columns, decoded, job.reader, places).items():
                job.arrays[name][start:stop] = values
            seconds = perf_counter() - begun - decoded.read_seconds
            return ChunkResult(decoded.read_seconds, seconds, sum(map(len, decoded.payloads)))
        except RecordError as error:
            if not self._skips:
                raise RecordError(f"{error}. {_ADVICE}") from error
            if stop - start == 1:
                job.bad[start] = str(error)
                return ChunkResult()
        # Row by row, which finds the bad ones and fills the others.
        return _sum(self.fill(job, row, row + 1) for row in range(start, stop))

    def finish(self, job: BatchJob, results: Iterable[ChunkResult]) -> DecodedBatch:
        """Return the batch when all of its rows are done. A bad row repeats the good one before it, masked.

        Raises:
            RecordError: no row is good.
        """
        bad = sorted(job.bad.items())
        if bad:
            good = [row for row in range(len(job.places)) if row not in job.bad]
            if not good:
                raise RecordError(f"all {len(bad)} records of a batch are bad, the first one: {bad[0][1]}")
            for row, _ in bad:
                repeated = good[max(0, int(np.searchsorted(good, row)) - 1)]
                for name, values in job.arrays.items():
                    values[row] = False if name == MASK else values[repeated]
        skipped = tuple(BadRecord((job.variant, *job.places[row]), message) for row, message in bad)
        return DecodedBatch(job.arrays, skipped, *_sum(results))


def _sum(results: Iterable[ChunkResult]) -> ChunkResult:
    return ChunkResult(*map(sum, zip(*results, strict=True)))


class Decoder:
    """Decodes images of one dataset and applies the ops. Thread-safe.

    Args:
        dataset: the dataset of the images.
        ops: by default those of the manifest.
        seed: the user's.
        wanted: False where no image is asked for: then none is decoded, and one undefined pixel stands for each.

    Raises:
        OptionError: `ops` are none, or the ops that the manifest names cannot be taken.
    """

    def __init__(self, dataset: Dataset, ops: Sequence[Op] | None, seed: int, wanted: bool = True) -> None:
        manifest = dataset.manifest
        if ops is None:
            ops = [] if manifest.cache is None else [from_dict(each) for each in manifest.cache.final]
            for op in ops:
                if isinstance(op, Custom):  # the author of a manifest must not choose what is imported here
                    raise OptionError(
                        f"{dataset.url}: its manifest names {shown(op.target)} among the final ops, and no loader "
                        "imports what a manifest names. If you want it to run, pass all of them: "
                        f"ops=[..., Custom({shown(op.target)})]"
                    )
        self.pipeline = Pipeline(ops, manifest.draws_seed(seed), fast=True, upright=manifest.upright)
        self.output_size = self.pipeline.output_size(None if manifest.cache is None else manifest.cache.shape[:2])
        self._tensor_shape = manifest.tensor_shape
        self._url = dataset.url
        self._wanted = wanted
        self._local = threading.local()

    @property
    def batch_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image. Raises OptionError where they differ."""
        if not self._wanted:
            return 1, 1, 3
        if self.output_size is None:
            raise OptionError(f"{self._url}: {_NO_SIZE}")
        return (*self.output_size, 3)

    def decode(self, image: memoryview, draws: Sequence[Draws], out: Pixels | None = None) -> Pixels:
        """Return the pixels of a record's image after the ops, in `out` where it is given.

        Raises:
            ImageError: the image does not decode.
        """
        if not self._wanted:
            return np.empty(self.batch_shape, np.uint8) if out is None else out
        if self._tensor_shape is None:
            return self.pipeline.run_encoded(image, draws, out, self._scratch)
        return self.pipeline.run(np.frombuffer(image, np.uint8).reshape(self._tensor_shape), draws, out)

    def check_size(self, image: memoryview) -> None:
        """Raise RecordError where the bytes are not those of a tensor of the dataset's shape."""
        if self._tensor_shape is not None and len(image) != (size := math.prod(self._tensor_shape)):
            raise RecordError(f"the image has {len(image)} bytes; {self._tensor_shape} take {size}")

    def copier(self, layout: FixedLayout, outs: Sequence[Pixels]) -> Callable[[int, memoryview], None] | None:
        """Return what copies pixels from their fixed place in a payload to `outs`; None where more than that is needed.

        The reader calls it before it verifies the payload's CRC, which then finds the bytes in the processor's cache.
        """
        shape, start = self._tensor_shape, layout.image_offset
        if shape is None or self.pipeline.ops or not self._wanted:
            return None
        size = math.prod(shape)

        def copy(number: int, payload: memoryview) -> None:
            if len(payload) >= start + size:
                np.copyto(outs[number], np.frombuffer(payload, np.uint8, size, start).reshape(shape))

        return copy

    def _scratch(self, size: int) -> Pixels:
        """Return memory of this thread to decode into: fresh memory would cost page faults for each image."""
        scratch: Pixels | None = getattr(self._local, "scratch", None)
        if scratch is None or size > len(scratch):
            scratch = self._local.scratch = np.empty(size, np.uint8)
        return scratch[:size]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Samples in their order: pixels, fixed integers, the payloads of their records, the seconds that reading took."""

    pixels: list[Pixels]
    ints: list[tuple[int, ...]]
    payloads: list[memoryview]
    read_seconds: float


def decode_samples(
    decoder: Decoder,
    reader: Reader,
    places: Sequence[tuple[int, int]],
    draws: Sequence[Sequence[Draws]],
    outs: Sequence[Pixels] | None = None,
) -> Decoded:
    """Return the samples at `places`, each (shard, record).

    Args:
        decoder: of their dataset.
        reader: of the variant.
        places: where they lie.
        draws: for each op those of each sample.
        outs: memory for each image.

    Raises:
        RecordError: one is damaged, or its image does not decode; names shard and record, and where the framing is
            damaged the byte.
        OpError: one of the ops failed; names shard and record.
        ShardError: a shard is not the manifest's.
    """
    begun = perf_counter()
    copy = None if outs is None else decoder.copier(reader.layout, outs)
    payloads = reader.read_many(places, copy)
    read_seconds = perf_counter() - begun
    pixels, ints = list[Pixels](), list[tuple[int, ...]]()
    for row, payload in enumerate(payloads):
        try:
            image, values = reader.layout.decode(payload)
            decoder.check_size(image)
            ints.append(values)
            if outs is None:  # copied, as it may be a view of the shard, or of scratch that the next one overwrites
                pixels.append(decoder.decode(image, [op[row] for op in draws]).copy())
            elif copy is None or not reader.layout.is_fixed(payload):
                decoder.decode(image, [op[row] for op in draws], outs[row])
        except OpError as error:
            raise OpError(f"{reader.place(*places[row])}: {error}") from error
        except (ImageError, RecordError) as error:  # no other ValueError: that would be a bug, not the record's fault
            raise RecordError(f"{reader.place(*places[row])}: {error}") from error
    return Decoded(pixels if outs is None else list(outs), ints, payloads, read_seconds)


def read_columns(
    columns: Sequence[Column], decoded: Decoded, reader: Reader, places: Sequence[tuple[int, int]]
) -> dict[str, list[Any]]:
    """Return the values of these columns by name. Only columns without a fixed place in a record have it parsed.

    Raises:
        RecordError: a record does not have exactly one value; names shard and record.
    """
    found = {
        column.name: [] if column.position is None else [ints[column.position] for ints in decoded.ints]
        for column in columns
    }
    parsed = [column for column in columns if column.position is None]
    if parsed:
        for payload, place in zip(decoded.payloads, places, strict=True):
            features, where = decode_example(payload), reader.place(*place)
            for column in parsed:
                found[column.name].append(column.value(features, where))
    return found
