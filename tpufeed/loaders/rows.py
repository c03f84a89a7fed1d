"""Filling the rows of a batch: what the decoding threads run."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy.typing as npt

from tpufeed.dataset.order import Places
from tpufeed.dataset.reader import Reader
from tpufeed.images.pipeline import DrawnBatch
from tpufeed.loaders.buffers import BufferPool
from tpufeed.loaders.columns import IMAGE, SAMPLE, Column
from tpufeed.loaders.decoder import Decoder, decode_record
from tpufeed.tfrecord.example import decode_example

Array: TypeAlias = npt.NDArray[Any]

_CHUNK_ROWS = 16


@dataclass(frozen=True, slots=True)
class Work:
    """A batch that is being filled: where its samples lie, their random numbers, and the memory that they go to."""

    reader: Reader
    places: list[tuple[int, int]]
    draws: DrawnBatch
    arrays: dict[str, Array]


class Rows:
    """Fills rows of batches; shared by all threads."""

    def __init__(self, decoder: Decoder, pool: BufferPool, columns: tuple[Column, ...], batch_size: int) -> None:
        self._decoder = decoder
        self._pool = pool
        self._columns = columns
        self._parses = any(column.position is None for column in columns)
        self.chunks = [(start, min(start + _CHUNK_ROWS, batch_size)) for start in range(0, batch_size, _CHUNK_ROWS)]

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
        for row in range(start, stop):
            place = work.places[row]
            drawn = [draws[row] for draws in work.draws]
            _, ints, payload = decode_record(self._decoder, work.reader, place, drawn, images[row])
            features = decode_example(payload) if self._parses else {}
            for column in self._columns:
                value = (
                    column.value(features, work.reader.place(*place))
                    if column.position is None
                    else ints[column.position]
                )
                work.arrays[column.name][row] = value
