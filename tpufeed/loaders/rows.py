"""Filling the rows of a batch: what the decoding threads run."""

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.errors import RecordError
from tpufeed.images.decoding import Pixels
from tpufeed.images.pipeline import DrawnBatch, Pipeline
from tpufeed.loaders.batch import Decoder, decode_samples
from tpufeed.loaders.columns import IMAGE, MASK, SAMPLE, Column, find_column, resolve_columns
from tpufeed.loaders.crew import Array, BadRecord, Filled, Request
from tpufeed.loaders.options import LoaderOptions
from tpufeed.tfrecord.example import decode_example

_FEWEST_ROWS, _MOST_ROWS = 4, 64
_ADVICE = "To skip some, give max_bad_records=N; tpufeed verify lists all damage"


@dataclass(frozen=True, slots=True)
class Work:
    """A batch that is being filled: where its samples lie, their random numbers, and the memory that they go to."""

    reader: Reader
    places: list[tuple[int, int]]
    draws: DrawnBatch
    arrays: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Done:
    """Seconds that filling some rows took, and the rows whose records are bad, with what is wrong."""

    read_seconds: float
    decode_seconds: float
    read_bytes: int
    bad: tuple[tuple[int, str], ...] = ()


class Rows:
    """Fills the rows of batches; shared by all threads, each of which takes one of `chunks` at a time.

    `image_shape` is (height, width, channels).

    Args:
        decoder: of the dataset.
        columns: besides image, sample and mask.
        chunks: runs of rows.
        skips: whether a bad record is skipped; else it fails its batch.
    """

    def __init__(
        self, decoder: Decoder, columns: tuple[Column, ...], chunks: list[tuple[int, int]], skips: bool
    ) -> None:
        self.columns = columns
        self.image_shape = decoder.batch_shape
        self._decoder = decoder
        self._parsed = [column for column in columns if column.position is None]
        self._skips = skips
        self.chunks = chunks

    @property
    def pipeline(self) -> Pipeline:
        """The ops, with their seed."""
        return self._decoder.pipeline

    def begin(self, request: Request, reader: Reader, images: Pixels) -> Work:
        """A batch to be filled, in the memory of `images`."""
        epoch, places, mask = request
        rows = len(places.sample)
        arrays: dict[str, Array] = {column.name: column.empty(rows) for column in self.columns}
        arrays |= {IMAGE: images, SAMPLE: places.sample, MASK: mask}
        where = list(zip(places.shard.tolist(), places.record.tolist(), strict=True))
        return Work(reader, where, self._decoder.pipeline.draw(epoch, places.sample), arrays)

    def fill(self, work: Work, start: int, stop: int) -> Done:
        """Decode the rows `[start, stop)`."""
        try:
            return self._fill(work, start, stop)
        except RecordError as error:
            if not self._skips:
                raise RecordError(f"{error}. {_ADVICE}") from error
            if stop - start == 1:
                return Done(0.0, 0.0, 0, ((start, str(error)),))
        return _sum(self.fill(work, row, row + 1) for row in range(start, stop))

    def finish(self, work: Work, variant: int, parts: Iterable[Done]) -> Filled:
        """The batch, when all of its rows have been seen: a bad one repeats the good one before it, masked.

        Raises:
            RecordError: none is good.
        """
        done = _sum(parts)
        if done.bad:
            self._repeat_good(work, dict(done.bad))
        bad = tuple(BadRecord((variant, *work.places[row]), message) for row, message in done.bad)
        return Filled(work.arrays, bad, done.read_seconds, done.decode_seconds, done.read_bytes)

    def _fill(self, work: Work, start: int, stop: int) -> Done:
        begun = perf_counter()
        images = work.arrays[IMAGE]
        places = work.places[start:stop]
        draws = [op[start:stop] for op in work.draws]
        decoded = decode_samples(self._decoder, work.reader, places, draws, [images[row] for row in range(start, stop)])
        for column in self.columns:
            values = work.arrays[column.name]
            if column.position is not None:
                values[start:stop] = [ints[column.position] for ints in decoded.ints]
        if self._parsed:
            for row, payload in enumerate(decoded.payloads, start):
                features, where = decode_example(payload), work.reader.place(*work.places[row])
                for column in self._parsed:
                    work.arrays[column.name][row] = column.value(features, where)
        read = decoded.read_seconds
        return Done(read, perf_counter() - begun - read, sum(map(len, decoded.payloads)))

    def _repeat_good(self, work: Work, bad: dict[int, str]) -> None:
        good = [row for row in range(len(work.places)) if row not in bad]
        if not good:
            raise RecordError(f"all {len(bad)} records of a batch are bad, the first one: {next(iter(bad.values()))}")
        for row in bad:
            repeated = good[max(0, int(np.searchsorted(good, row)) - 1)]
            for name, values in work.arrays.items():
                values[row] = False if name == MASK else values[repeated]


def make_rows(dataset: Dataset, options: LoaderOptions, threads: int) -> Rows:
    """Return what fills batches of a dataset. Raises OptionError for options that do not fit it."""
    names = resolve_columns(dataset.manifest, options.columns)
    columns = tuple(find_column(dataset.manifest, name) for name in names if name not in (IMAGE, SAMPLE))
    decoder = Decoder(dataset, options.ops, options.seed, wanted=IMAGE in names)
    return Rows(decoder, columns, cut_chunks(options.batch_size, threads), skips=options.max_bad_records > 0)


def cut_chunks(batch_size: int, threads: int) -> list[tuple[int, int]]:
    """Runs of rows small enough that all threads have work, and large enough that handing them over costs little."""
    step = max(_FEWEST_ROWS, min(_MOST_ROWS, -(-batch_size // threads)))
    return [(start, min(start + step, batch_size)) for start in range(0, batch_size, step)]


def _sum(parts: Iterable[Done]) -> Done:
    read, decode, size, bad = 0.0, 0.0, 0, list[tuple[int, str]]()
    for part in parts:
        read, decode, size = read + part.read_seconds, decode + part.decode_seconds, size + part.read_bytes
        bad += part.bad
    return Done(read, decode, size, tuple(sorted(bad)))
