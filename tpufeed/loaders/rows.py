"""Filling the rows of a batch: what the decoding threads run."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy.typing as npt

from tpufeed.dataset.order import Places
from tpufeed.dataset.records import Reader
from tpufeed.images.pipeline import DrawnBatch
from tpufeed.loaders.buffers import BufferPool
from tpufeed.loaders.columns import IMAGE, SAMPLE, Column
from tpufeed.loaders.decoder import Decoder, decode_samples
from tpufeed.tfrecord.example import decode_example

Array: TypeAlias = npt.NDArray[Any]

_FEWEST_ROWS, _MOST_ROWS = 4, 64


@dataclass(frozen=True, slots=True)
class Work:
    """A batch that is being filled: where its samples lie, their random numbers, and the memory that they go to."""

    reader: Reader
    places: list[tuple[int, int]]
    draws: DrawnBatch
    arrays: dict[str, Array]


class Rows:
    """Fills the rows of batches; shared by all threads, each of which takes one of `chunks` at a time."""

    def __init__(
        self, decoder: Decoder, pool: BufferPool, columns: tuple[Column, ...], chunks: list[tuple[int, int]]
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._columns = columns
        self._parsed = [column for column in columns if column.position is None]
        self.chunks = chunks

    def begin(self, places: Places, epoch: int, reader: Reader) -> Work:
        """A batch to be filled."""
        rows = len(places.sample)
        arrays: dict[str, Array] = {column.name: column.empty(rows) for column in self._columns}
        arrays[IMAGE] = self._pool.take()
        arrays[SAMPLE] = places.sample
        where = list(zip(places.shard.tolist(), places.record.tolist(), strict=True))
        return Work(reader, where, self._decoder.pipeline.draw(epoch, places.sample), arrays)

    def fill(self, work: Work, start: int, stop: int) -> None:
        """Decode the rows `[start, stop)`."""
        images = work.arrays[IMAGE]
        places = work.places[start:stop]
        draws = [op[start:stop] for op in work.draws]
        decoded = decode_samples(self._decoder, work.reader, places, draws, [images[row] for row in range(start, stop)])
        for column in self._columns:
            values = work.arrays[column.name]
            if column.position is not None:
                values[start:stop] = [ints[column.position] for ints in decoded.ints]
        if self._parsed:
            for row, payload in enumerate(decoded.payloads, start):
                features, where = decode_example(payload), work.reader.place(*work.places[row])
                for column in self._parsed:
                    work.arrays[column.name][row] = column.value(features, where)


def cut_chunks(batch_size: int, threads: int) -> list[tuple[int, int]]:
    """Runs of rows small enough that all threads have work, and large enough that handing them over costs little."""
    step = max(_FEWEST_ROWS, min(_MOST_ROWS, -(-batch_size // threads)))
    return [(start, min(start + step, batch_size)) for start in range(0, batch_size, step)]
