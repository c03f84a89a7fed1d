"""Read samples by their numbers, in any order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.loaders.admission import ShardAdmission, make_stage
from tpufeed.loaders.batch import Decoder, decode_samples
from tpufeed.loaders.columns import SAMPLE
from tpufeed.loaders.options import LoaderOptions

_CONNECTIONS = 16  # of all workers of a rank together; each has 8 MiB


class SplitSamples:
    """Samples of a split by number, for one process: it must not be carried across a fork.

    Args:
        dataset: what to read.
        split: which part of it.
        options: those of an order and of batches are left out of account.
        workers: processes that share this one's stage and samples.

    Raises:
        OptionError: options that do not fit the dataset.
    """

    def __init__(self, dataset: Dataset, split: str, options: LoaderOptions, workers: int = 1) -> None:
        self.dataset = dataset
        self.decoder = Decoder(dataset, options)
        self.columns = self.decoder.columns
        self.names = self.columns.names
        self._split = split
        self._variants = dataset.split(split).variants
        self._starts = np.cumsum([0, *(shard.records for shard in self._variants[0].shards)])
        self._readers: dict[int, Reader] = {}
        self._options = options
        self._workers = workers
        self._admission: ShardAdmission | None = None

    @property
    def changes_by_epoch(self) -> bool:
        """True where a sample differs in the next epoch."""
        ops = (op for pipeline in self.decoder.pipelines for op in pipeline.ops)
        moves = bool(self.columns.images) or self.columns.moves
        return moves and (len(self._variants) > 1 or any(op.draws for op in ops))

    def read(self, samples: npt.NDArray[np.int64], epoch: int) -> dict[str, Sequence[Any]]:
        """Return the columns of these samples as they are in `epoch`, a value for each: arrays, ints, floats and texts.

        An image is uint8 (height, width, 3); of several views of one size (views, height, width, 3).

        Raises:
            RecordError: one is damaged, or its image does not decode.
        """
        variant = epoch % len(self._variants)
        reader = self._readers.get(variant) or self._open(variant)
        shards = np.searchsorted(self._starts, samples, side="right") - 1
        places = list(zip(shards.tolist(), (samples - self._starts[shards]).tolist(), strict=True))
        rows: dict[str, list[Any]] = {column.name: [None] * len(samples) for column in self.columns}
        draws = self.decoder.draw(epoch, samples)
        decode_samples(self.decoder, reader, places, draws, rows, range(len(samples)))
        if self._admission is not None:
            self._admission.touch(reader, variant, shards.tolist())
        for column in self.columns.images:
            if len(column.shape) == 4:
                rows[column.name] = [np.stack(views) for views in rows[column.name]]
        return rows | {SAMPLE: samples.tolist()}

    def _open(self, variant: int) -> Reader:
        """Open the reader of a variant; the others let go of what they hold in the stage."""
        stage, most_open = None, len(self._starts)  # to open one again costs as much as reading twenty raw records
        if self.dataset.is_remote:
            for reader in self._readers.values():
                reader.release()
            if self._admission is None:
                made = make_stage([self.dataset], self._options, max(2, _CONNECTIONS // self._workers))
                where = f"{self.dataset.url}, split {self._split!r}"
                self._admission = None if made is None else ShardAdmission(made, self._variants, where)
            if self._admission is not None:
                stage, most_open = self._admission.stage, self._admission.most_open
        found = self._readers[variant] = self.dataset.reader(self._split, variant, stage, most_open)
        return found
