"""Decode records into the rows of a batch, in any number of threads.

A thread holds the GIL for a few lines per image. Decoding and copying run in parallel.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from tpufeed.dataset import schema
from tpufeed.dataset.clips import run_clip_views
from tpufeed.dataset.records import Reader
from tpufeed.dataset.sample import Sample
from tpufeed.errors import ImageError, OpError, RecordError, ShardError
from tpufeed.images.decoding import Pixels, Scratch
from tpufeed.images.mending import mend, seen_size
from tpufeed.images.pipeline import DrawnBatch, run_views
from tpufeed.images.protocols import Draws
from tpufeed.stream.buffers import BufferLayout, Memory
from tpufeed.stream.columns import DEVICE_NUMBERS, SAMPLE, SOURCE, Array, Picture, Rows
from tpufeed.stream.decoding import Decoding, plan_batches
from tpufeed.stream.mixing import mix_on_host
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.sampler import BatchRequest, SampleSource, group_rows
from tpufeed.tfrecord.example import decode_arrays

# Smaller chunks cost more to hand over than they gain. Larger chunks leave threads without work.
_FEWEST_ROWS, _MOST_ROWS = 4, 64
_scratch = Scratch()  # for all decoders
_ADVICE = "To skip some, give max_bad_records=N; tpufeed verify lists all damage"
_ADVICE_ON_SHARDS = "To train without it, give max_bad_shards=N"
WHOLE_SHARD = -1  # instead of the number of a record


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record or a whole shard that was skipped: `where` is its dataset, variant, shard and number or `WHOLE_SHARD`.

    `message` says what is wrong.
    """

    where: tuple[int, int, int, int]
    message: str


class Cost(NamedTuple):
    """What some rows, or a batch, cost. Fields as in `LoaderStats`. Requests are counted for a batch alone."""

    read_seconds: float
    decode_seconds: float
    read_bytes: int
    dropped_boxes: int
    requested_records: int = 0


_NOTHING = Cost(0.0, 0.0, 0, 0)


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A batch, and what it cost.

    Attributes:
        arrays: its columns by name, always with sample and mask.
        bad: records, and whole shards, that were skipped.
        cost: sum over its rows.
    """

    arrays: dict[str, Array]
    bad: tuple[BadRecord, ...]
    cost: Cost


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
    """Decodes batches. All threads share it. Each takes one of `chunks` at a time.

    Attributes:
        plans: how samples of each dataset are decoded. All have the same columns and ops.
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
        self.plans, self.on_device = plan_batches(sources, options, on_device), on_device
        self._sources = sources
        self._decoders, self.columns = [*map(Decoder, self.plans)], self.plans[0].columns
        size, pooled = options.batch_size, self.columns.pooled
        self.layout = BufferLayout((each.name, each.dtype, (size, *each.shape)) for each in pooled)
        self._others = [column for column in self.columns.every if column not in pooled]
        step = max(_FEWEST_ROWS, min(_MOST_ROWS, -(-size // threads)))
        self.chunks = [(start, min(start + step, size)) for start in range(0, size, step)]
        self._skips, self._skips_shards = options.max_bad_records > 0, options.max_bad_shards > 0
        # By dataset, variant and shard: what is wrong, once it is known.
        self._lost = dict[tuple[int, int, int], str]()

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
            (variant, reader), decoder = open_reader(source, epoch), self._decoders[source]
            rows = range(size) if isinstance(numbers, slice) else numbers.tolist()
            own = where if isinstance(numbers, slice) else [where[row] for row in rows]
            draws = [pipeline.draw(epoch, places.sample[numbers]) for pipeline in decoder.plan.drawn]
            if DEVICE_NUMBERS in arrays:
                arrays[DEVICE_NUMBERS][numbers] = decoder.plan.device_numbers(epoch, places.sample[numbers])
            job.parts.append(JobPart(source, epoch, variant, reader, decoder, own, draws, rows))
        return job

    def decode(self, job: BatchJob, number: int) -> list[Cost]:
        """Decode chunk number `number`. Raises RecordError or ShardError for bad ones, unless such are skipped."""
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
                for shard, _ in places if self._lost else ():
                    if lost := self._lost.get((part.source, part.variant, shard)):
                        raise ShardError(lost)
                costs.append(part.decoder.decode(part.reader, places, draws, job.arrays, rows))
            except (RecordError, ShardError) as error:
                of_shard = isinstance(error, ShardError)
                if not (self._skips_shards if of_shard else self._skips):
                    raise type(error)(f"{error}. {_ADVICE_ON_SHARDS if of_shard else _ADVICE}") from error
                if len(rows) > 1:  # this loop then takes the rows one by one, and so finds the bad ones
                    spans += [(part, at, at + 1) for at in range(first, last)]
                    continue
                shard, record = places[0]
                if of_shard and (part.source, part.variant, shard) not in self._lost:
                    self._check_some_left(part, shard, error)
                    self._lost[part.source, part.variant, shard] = str(error)
                where = (part.source, part.variant, shard, WHOLE_SHARD if of_shard else record)
                job.bad[rows[0]] = BadRecord(where, str(error))
        return costs

    def _check_some_left(self, part: JobPart, lost: int, error: Exception) -> None:
        """Raise ShardError if no shard is left, of all that the ranks read: this rank may have had one alone."""
        source, known = self._sources[part.source], self._lost
        records = enumerate(source.dataset.shard_records(source.split, part.variant))
        others = (shard for shard, kept in records if kept and shard != lost)
        if not part.reader.has_any(each for each in others if (part.source, part.variant, each) not in known):
            raise ShardError(
                f"{source.label}: all shards with samples of split {source.split!r} are lost, which max_bad_shards "
                f"does not allow; one is {error}"
            ) from error

    def finish(self, job: BatchJob, costs: Iterable[Iterable[Cost]]) -> DecodedBatch:
        """Return the batch once all rows are done. A bad row repeats the good row before it, masked.

        A batch of which all records are bad is zeros and empty texts.
        """
        bad = sorted(job.bad.items())
        if bad:
            good = [row for row in range(len(job.arrays[self.columns.mask])) if row not in job.bad]
            if not good:
                for name, values in job.arrays.items():
                    if name not in (SAMPLE, SOURCE, DEVICE_NUMBERS):
                        values[...] = "" if values.dtype == object else 0
            for row, _ in bad if good else ():
                repeated = good[max(0, int(np.searchsorted(good, row)) - 1)]
                for name, values in job.arrays.items():
                    values[row] = False if name == self.columns.mask else values[repeated]
        if (mixing := self.plans[0].mixing_here) is not None:
            mix_on_host(mixing, job.arrays, job.arrays.pop(DEVICE_NUMBERS))
        total = Cost(*map(sum, zip(_NOTHING, *itertools.chain.from_iterable(costs), strict=True)))
        requested = sum(part.reader.take_requested() for part in job.parts)
        cost = total._replace(requested_records=requested)
        return DecodedBatch(job.arrays, tuple(record for _, record in bad), cost)


class Decoder:
    """Decodes samples of one dataset and applies the ops. Thread-safe."""

    def __init__(self, plan: Decoding) -> None:
        self.plan, images = plan, plan.columns.images
        self._pictures = [each for each in plan.columns.fields if isinstance(each, Picture)]
        self._fields = [each for each in plan.columns.fields if not isinstance(each, Picture)]
        self._tensor_bytes = plan.pixels.bytes_of(plan.shape)  # 0: images are encoded
        one_view = len(plan.pipelines) == 1
        # The image column if there is one view and nothing else to decode: nearly always.
        alone = images and one_view and not plan.columns.fields
        self._alone = images[0].name if alone else None
        self._is_copied = bool(plan.shape and images and one_view and not plan.made[0].ops)

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
            at: the row of each sample. A range if rows adjoin.

        Raises:
            RecordError: a record is damaged, or its image does not decode; names shard and record, and the byte if the
                framing is damaged.
            OpError: an op failed; names shard and record.
            ShardError: a shard does not match the manifest.
        """
        begun, plan, layout, dropped = perf_counter(), self.plan, reader.layout, 0
        columns = plan.columns
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
                    raise RecordError(f"the image has {len(image)} bytes; {plan.shape} take {self._tensor_bytes}")
                found.append(ints)
                is_copied = copy is not None and layout.is_fixed(payload)
                if not columns.fields and (is_copied or not columns.images):
                    continue
                if images is not None:
                    drawn, out = [op[number] for op in draws[0]], images[at[number]]
                    plan.made[0].run_stored(image, plan.shape, drawn, out, _scratch)
                    continue
                views = [[op[number] for op in view] for view in draws]
                if columns.images and not is_copied and plan.joint is None:
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
                ids = plan.classes.of(values, lambda number: reader.place(*places[number]))
                target[index] = ids.tolist() if isinstance(target, list) else ids
            else:
                target[index] = values
        return Cost(read - begun, perf_counter() - read, sum(map(len, payloads)), dropped)

    def _parse(
        self, payload: memoryview, where: str, image: memoryview, ints: Sequence[int], draws: Sequence[Draws]
    ) -> Sample:
        """Return all features of a record, and how the ops of the first view move its pixels."""

        plan = self.plan

        def find_geometry() -> Any:
            if plan.shape is not None:
                height, width, _ = plan.shape[-3:]
            elif plan.size_at is not None:
                height, width = (ints[at] for at in plan.size_at)
            else:
                height, width = seen_size(image, plan.upright)
            return plan.pipelines[0].geometry(height, width, draws)

        features, visible = decode_arrays(payload), plan.min_visibility
        return Sample(
            features, where, plan.specs, find_geometry, visible, plan.classes, upright=plan.upright, draws=draws
        )

    def _decode_fields(self, sample: Sample, image: memoryview, draws: Sequence[Draws], rows: Rows, row: int) -> int:
        """Decode all fields of a sample. Return the number of boxes that were dropped.

        Raises ImageError, RecordError or OpError if the sample is damaged, or does not fit its row.
        """
        plan = self.plan
        if plan.joint is not None:
            # A copy: if the first ops fix no size, they leave a view of scratch memory.
            pixels, sample = plan.joint.run(
                lambda ops, drawn: ops.run_stored(image, plan.shape, drawn, None, _scratch).copy(), sample, draws
            )
            for column in plan.columns.images:
                rows[column.name][row] = pixels
        for each in self._fields:
            each.put(sample, rows, row)
        for picture in self._pictures:
            found, target = sample.values(picture.spec), rows[picture.columns[0].name]
            if len(found) != 1:
                raise RecordError(f"{sample.where}: {picture.spec.key} is missing")
            out = None if isinstance(target, list) else target[row]
            made = plan.pipelines[0].run_stored(found[0], picture.spec.shape, draws, out, _scratch)
            if out is None:
                target[row] = made.copy()
        return sample.dropped

    def _decode_image(self, image: memoryview, draws: Sequence[Sequence[Draws]], rows: Rows, row: int) -> None:
        """Decode all views of an image. Raises ImageError, OpError."""
        plan = self.plan
        outs: list[Pixels | None] = []
        for name, place in plan.columns.views:
            target = rows[name]
            found = None if isinstance(target, list) else target[row]
            outs.append(found if found is None or place is None else found[place])
        if plan.shape is None and len(plan.pipelines) > 1 and plan.pixels.frames:
            made = run_clip_views(plan.pipelines, plan.pixels, image, draws, outs, _scratch)
        elif plan.shape is None and len(plan.pipelines) > 1:
            try:
                made = run_views(plan.pipelines, image, draws, outs, _scratch)
            except ImageError as error:
                made = run_views(plan.pipelines, memoryview(mend(image, error)), draws, outs, _scratch)
        else:
            each = zip(plan.made, draws, outs, strict=True)
            made = [
                here.run_stored(image, plan.shape, drawn[: len(here.ops)], out, _scratch) for here, drawn, out in each
            ]
        for (name, place), pixels in zip(plan.columns.views, made, strict=True):
            target = rows[name]
            if isinstance(target, list):  # a copy: pixels may be a view of the shard, or of scratch memory
                if place is None:
                    target[row] = pixels.copy()
                else:
                    target[row] = [*(target[row] or ()), pixels.copy()]

    def _copier(self, start: int, rows: Rows, at: Sequence[int]) -> Callable[[int, memoryview], None] | None:
        """Return a function that copies pixels from byte `start` of a payload to a row. None if rows are lists.

        The reader calls it before it verifies the payload's CRC: see `decode_records`.
        """
        images, size = rows[self.plan.columns.images[0].name], self._tensor_bytes
        if isinstance(images, list):
            return None
        assert images.flags.c_contiguous, "rows are written in place"
        flat = images.reshape(len(images), -1).view(np.uint8)
        targets = [flat[row] for row in at]

        def copy(number: int, payload: memoryview) -> None:
            if len(payload) >= start + size:
                np.copyto(targets[number], np.ndarray(size, np.uint8, payload, start))

        return copy
