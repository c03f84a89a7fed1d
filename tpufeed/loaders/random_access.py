"""Read samples by their numbers, in any order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.loaders.admission import ShardAdmission, make_stage
from tpufeed.loaders.batch import Decoder, decode_samples, read_columns
from tpufeed.loaders.columns import IMAGE, SAMPLE, find_column, resolve_columns
from tpufeed.loaders.options import LoaderOptions

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
        self._admission: ShardAdmission | None = None

    @property
    def changes_by_epoch(self) -> bool:
        """True where a sample differs in the next epoch."""
        return IMAGE in self.names and (len(self._variants) > 1 or any(op.draws for op in self.decoder.pipeline.ops))

    def read(self, samples: npt.NDArray[np.int64], epoch: int) -> dict[str, Sequence[Any]]:
        """Return the columns of these samples as they are in `epoch`; an image is uint8 (height, width, 3).

        Raises:
            RecordError: one is damaged, or its image does not decode.
        """
        variant = epoch % len(self._variants)
        reader = self._readers.get(variant) or self._open(variant)
        shards = np.searchsorted(self._starts, samples, side="right") - 1
        places = list(zip(shards.tolist(), (samples - self._starts[shards]).tolist(), strict=True))
        decoded = decode_samples(self.decoder, reader, places, self.decoder.pipeline.draw(epoch, samples))
        if self._admission is not None:
            self._admission.touch(reader, variant, shards.tolist())
        columns: dict[str, Sequence[Any]] = dict(read_columns(self._columns, decoded, reader, places))
        for column in self._columns:
            if column.dtype == "float32":  # a Python float would be collated as float64
                columns[column.name] = [np.float32(value) for value in columns[column.name]]
        return columns | {IMAGE: decoded.pixels, SAMPLE: samples.tolist()}

    def _open(self, variant: int) -> Reader:
        """Open the reader of a variant; the others let go of what they hold in the stage."""
        stage, most_open = None, len(self._starts)  # to open one again costs as much as reading twenty raw records
        if self.dataset.is_remote:
            for reader in self._readers.values():
                reader.release()
            if self._admission is None:
                made = make_stage(self.dataset, self._options, max(2, _CONNECTIONS // self._workers))
                where = f"{self.dataset.url}, split {self._split!r}"
                self._admission = None if made is None else ShardAdmission(made, self._variants, where)
            if self._admission is not None:
                stage, most_open = self._admission.stage, self._admission.most_open
        found = self._readers[variant] = self.dataset.reader(self._split, variant, stage, most_open)
        return found
