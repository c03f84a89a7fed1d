"""Read samples by their numbers, in any order, in any process."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.reader import Dataset, open_dataset, reopen_dataset
from tpufeed.dataset.records import Reader
from tpufeed.errors import OptionError
from tpufeed.loaders.admission import ShardAdmission, make_stage
from tpufeed.loaders.batch import Decoder, warn_of_flips
from tpufeed.loaders.columns import SAMPLE
from tpufeed.loaders.feed import DatasetLike
from tpufeed.loaders.mixture import Mixture, Source
from tpufeed.loaders.options import LoaderOptions
from tpufeed.storage.registry import open_store

_CONNECTIONS = 16  # of all workers of a rank together; each has 8 MiB


class PortableSamples:
    """The samples of a split by number, for a process and all processes that get a copy of this.

    A pickle holds neither the manifest nor the index: a process that unpickles it opens the dataset itself, and refuses
    another one in its place. A forked process opens it as well, and shares no connection, lock or thread with its
    parent. Thread-safe.

    Args:
        url: the dataset.
        split: which part of it.
        options: as in `SplitSamples`.
        decode: as in `SplitSamples`.

    Attributes:
        url: of the dataset.
        split: its name.
        options: as given.
        records: number of samples.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
    """

    def __init__(self, url: DatasetLike, split: str, options: LoaderOptions, decode: bool = True) -> None:
        if isinstance(url, Mixture):
            raise OptionError("a mixture has an order and no samples by number; give it to tpufeed.Loader")
        self._dataset: Dataset | None = url if isinstance(url, Dataset) else open_dataset(url)
        self.url, self.split = self._dataset.url, split
        self.records = self._dataset.split(split).records
        self._version, self._digest = self._dataset.number, ""
        self.options, self._decode = options, decode
        self._opened: SplitSamples | None = SplitSamples(self._dataset, split, options, decode)
        warn_of_flips([self._opened.decoder])
        self._process, self._opening = os.getpid(), threading.Lock()

    @property
    def content_digest(self) -> str:
        """The digest of the dataset's content."""
        return self._digest if self._dataset is None else self._dataset.content_digest

    def open(self, workers: int = 1) -> "SplitSamples":
        """Return what this process reads with. `workers` processes share its stage and samples.

        Raises:
            ObjectChangedError: another dataset is in the place of this one.
            DatasetNotFoundError, ManifestError: there is none that can be read.
        """
        # The process first: after a fork another thread may be about to replace what the parent had.
        if self._process == os.getpid() and (opened := self._opened) is not None:
            return opened
        if self._process != os.getpid():  # a thread of the parent may have held the lock
            self._opened, self._process, self._opening = None, os.getpid(), threading.Lock()
        with self._opening:
            if self._opened is None:
                if self._dataset is None:
                    # Not while unpickling: a worker that fails there dies without saying why.
                    self._dataset = reopen_dataset(self.url, self._digest, self._version)
                else:  # forked: the manifest stays in memory that both have
                    self._dataset = replace(self._dataset, store=open_store(self.url, follow=False))
                self._opened = SplitSamples(self._dataset, self.split, self.options, self._decode, workers)
            return self._opened

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what a process must open for itself."""
        return self.__dict__ | {
            "_digest": self.content_digest,
            "_dataset": None,
            "_opened": None,
            "_process": 0,
            "_opening": None,
        }


class SplitSamples:
    """Samples of a split by number, for one process: it must not be carried across a fork.

    Args:
        dataset: what to read.
        split: which part of it.
        options: those of an order and of batches are left out of account.
        decode: False leaves images as their encoded bytes.
        workers: processes that share this one's stage and samples.

    Attributes:
        draws: True if ops draw random numbers for a sample.
        changes_by_epoch: True where a sample differs in the next epoch.

    Raises:
        OptionError: options that do not fit the dataset.
    """

    def __init__(
        self, dataset: Dataset, split: str, options: LoaderOptions, decode: bool = True, workers: int = 1
    ) -> None:
        self.dataset = dataset
        source = Source(dataset, split)
        self.decoder = Decoder(source, options, encoded=not decode)
        self.columns = self.decoder.columns
        self.names = self.columns.names
        self._split = split
        self._variants = dataset.split(split).variants
        self._starts = np.cumsum([0, *(shard.records for shard in self._variants[0].shards)])
        self._readers: dict[int, Reader] = {}
        self._options = options
        self._workers = workers
        self._admission: ShardAdmission | None = None
        self._opening = threading.Lock()  # several threads that begin together make one stage
        ops = (op for pipeline in self.decoder.pipelines for op in pipeline.ops)
        moves = bool(self.columns.images) or self.columns.moves
        self.draws = moves and any(op.draws for op in ops)
        self.changes_by_epoch = self.draws or (moves and len(self._variants) > 1)

    def read(
        self, samples: npt.NDArray[np.int64], epoch: int, numbers: npt.NDArray[np.int64] | int = 0
    ) -> dict[str, Sequence[Any]]:
        """Return the columns of these samples as they are in `epoch`, a value for each: arrays, ints, floats and texts.

        An image is uint8 (height, width, 3), its bytes with `decode=False`; of several views of one size (views,
        height, width, 3). Thread-safe.

        Args:
            samples: their ids within the split.
            epoch: its number, of which random numbers and the variant are.
            numbers: for each sample 0 for the random numbers that all loaders draw for it; each other number of at
                least 0 gives it other ones.

        Raises:
            RecordError: one is damaged, or its image does not decode.
        """
        variant = epoch % len(self._variants)
        reader = self._readers.get(variant)
        if reader is None:
            with self._opening:
                reader = self._readers.get(variant) or self._open(variant)
        shards = np.searchsorted(self._starts, samples, side="right") - 1
        places = list(zip(shards.tolist(), (samples - self._starts[shards]).tolist(), strict=True))
        rows: dict[str, list[Any]] = {column.name: [None] * len(samples) for column in self.columns}
        drawn = samples + numbers * self._starts[-1]  # ids that no other sample has
        draws = [pipeline.draw(epoch, drawn) for pipeline in self.decoder.pipelines]
        self.decoder.decode(reader, places, draws, rows, range(len(samples)))
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
