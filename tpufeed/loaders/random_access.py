"""Samples by number, in whatever order they are asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.loaders.admission import ShardAdmission
from tpufeed.loaders.batch import Decoded, Decoder, decode_samples
from tpufeed.loaders.columns import IMAGE, SAMPLE, Column, find_column, resolve_columns
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.sources import make_stage
from tpufeed.tfrecord.example import decode_example

_CONNECTIONS = 16  # of all workers of a rank together; each has 8 MiB


class SplitSamples:
    """Samples of a split by number, for one process: it must not be carried across a fork.

    Args:
        dataset: what to read.
        split: which part of it.
        options: `ops`, `columns`, `seed`, `stage_dir` and `stage_bytes` count.
        workers: processes that share this one's stage and samples.

    Raises:
        OptionError: options that do not fit the dataset.
    """

    def __init__(self, dataset: Dataset, split: str, options: LoaderOptions, workers: int = 1) -> None:
        self.dataset = dataset
        self.names = resolve_columns(dataset.manifest, options.columns)
        self.decoder = Decoder(dataset, options.ops, options.seed, wanted=IMAGE in self.names)
        self._split = split
        self._variants = dataset.split(split).variants
        self._columns = [find_column(dataset.manifest, name) for name in self.names if name not in (IMAGE, SAMPLE)]
        self._starts = np.cumsum([0, *(shard.records for shard in self._variants[0].shards)])
        self._readers: dict[int, Reader] = {}
        self._options = options
        self._workers = workers
        self._touched: ShardAdmission | None = None

    @property
    def changes_by_epoch(self) -> bool:
        """Return true where a sample differs in the next epoch."""
        return IMAGE in self.names and (len(self._variants) > 1 or any(op.draws for op in self.decoder.pipeline.ops))

    def read(self, samples: npt.NDArray[np.int64], epoch: int) -> dict[str, Sequence[Any]]:
        """The columns of these samples as they are in `epoch`; an image is uint8 (height, width, 3).

        Raises:
            RecordError: one is damaged, or its image does not decode.
        """
        variant = epoch % len(self._variants)
        reader = self._readers.get(variant) or self._open(variant)
        shards = np.searchsorted(self._starts, samples, side="right") - 1
        places = list(zip(shards.tolist(), (samples - self._starts[shards]).tolist(), strict=True))
        decoded = decode_samples(self.decoder, reader, places, self.decoder.pipeline.draw(epoch, samples))
        if self._touched is not None:
            self._touched.touch(reader, variant, shards.tolist())
        columns: dict[str, Sequence[Any]] = {IMAGE: decoded.pixels, SAMPLE: samples.tolist()}
        for column in self._columns:
            if column.position is not None:
                columns[column.name] = [ints[column.position] for ints in decoded.ints]
        parsed = [column for column in self._columns if column.position is None]
        return columns | (_parse(parsed, decoded, reader, places) if parsed else {})

    def _open(self, variant: int) -> Reader:
        """The reader of a variant; the others let go of what they hold in the stage."""
        stage, most = None, len(self._starts)  # opening one again costs as much as reading twenty raw records
        if self.dataset.is_remote:
            for reader in self._readers.values():
                reader.release()
            self._touched = self._touched or self._make_touched()
            if self._touched is not None:
                stage, most = self._touched.stage, self._touched.most_open
        found = self._readers[variant] = self.dataset.reader(self._split, variant, stage, most)
        return found

    def _make_touched(self) -> ShardAdmission | None:
        stage = make_stage(self.dataset, self._options, max(2, _CONNECTIONS // self._workers))
        where = f"{self.dataset.url}, split {self._split!r}"
        return None if stage is None else ShardAdmission(stage, self._variants, where)


def _parse(
    columns: Sequence[Column], decoded: Decoded, reader: Reader, places: Sequence[tuple[int, int]]
) -> dict[str, list[Any]]:
    """The columns that have no fixed place in a record."""
    features = [decode_example(payload) for payload in decoded.payloads]
    where = [reader.place(*place) for place in places]
    found = dict[str, list[Any]]()
    for column in columns:
        values = [column.value(each, place) for each, place in zip(features, where, strict=True)]
        found[column.name] = [np.float32(value) for value in values] if column.dtype == "float32" else values
    return found
