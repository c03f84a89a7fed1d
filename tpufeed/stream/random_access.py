"""Read samples by number, in any order, in any process."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.manifest import Variant
from tpufeed.dataset.order import places_of
from tpufeed.dataset.reader import Dataset, open_dataset, own_ids, reopen_dataset
from tpufeed.dataset.records import Reader
from tpufeed.errors import OptionError, ShardError, mask_secrets
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.store import open_store
from tpufeed.stream.batch import Decoder
from tpufeed.stream.columns import SAMPLE
from tpufeed.stream.decoding import plan_decoding, warn_of_flips
from tpufeed.stream.executor import LEAST_KEPT, make_copies
from tpufeed.stream.mixture import DatasetLike, Mixture
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.sampler import SampleSource

_logger = logging.getLogger(__name__)

_FIRST_SHARDS = 32  # twice the lanes of a host
_FEWEST_OPEN = 4
_STALE_TOUCHES = 64
_JUDGED_RECORDS = 256  # records read by requests before a warning about the order
_CONNECTIONS = 16  # for all workers of a rank together. Each needs 8 MiB


class PortableSamples:
    """The samples of a split by number, for this process and all processes that get a copy.

    A pickle holds neither manifest nor index: a process that unpickles it opens the dataset itself, and refuses another
    dataset at that URL. A forked process opens it as well, and shares no connection, lock or thread with its parent.
    Thread-safe. For the arguments see `SplitSamples`.

    Attributes:
        url: the dataset's URL.
        split: the name of the split.
        options: the options.
        records: number of samples.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: the options do not fit the dataset.
    """

    def __init__(self, url: DatasetLike, split: str, options: LoaderOptions) -> None:
        if isinstance(url, Mixture):
            raise OptionError("a mixture has no numbered samples, only an order; give it to tpufeed.Loader")
        self._dataset: Dataset | None = url if isinstance(url, Dataset) else open_dataset(url)
        self.url, self.split = self._dataset.url, split
        self.records = self._dataset.split(split).records
        self._version, self._selection = self._dataset.number, self._dataset.selection
        self._digest, self._stored = self._dataset.content_digest, self._dataset.manifest.content_digest
        self.options = options
        self._opened: SplitSamples | None = SplitSamples(self._dataset, split, options)
        warn_of_flips([self._opened.plan])
        self._process, self._opening = os.getpid(), threading.Lock()

    @property
    def content_digest(self) -> str:
        """Digest of the content of the dataset, or of the view."""
        return self._digest

    def open(self, workers: int = 1) -> "SplitSamples":
        """Return the samples for this process. `workers` processes share its local copies and samples.

        Raises:
            ObjectChangedError: the URL has another dataset now.
            DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        """
        # The process first: after a fork another thread may be about to replace the parent's.
        if self._process == os.getpid() and (opened := self._opened) is not None:
            return opened
        if self._process != os.getpid():  # a thread of the parent may have held the lock
            self._opened, self._process, self._opening = None, os.getpid(), threading.Lock()
        with self._opening:
            if self._opened is None:
                if self._dataset is None:
                    # Not while unpickling: a worker that fails there dies without a message.
                    dataset = reopen_dataset(self.url, self._stored, self._version)
                    self._dataset = dataset if self._selection is None else dataset.view(self._selection)
                else:  # forked: the manifest stays in memory that both processes share
                    self._dataset = replace(self._dataset, store=open_store(self.url, follow=False))
                self._opened = SplitSamples(self._dataset, self.split, self.options, workers)
            return self._opened

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what each process must open for itself."""
        own = {"_dataset": None, "_opened": None, "_process": 0, "_opening": None}
        return self.__dict__ | own


class SplitSamples:
    """Samples of a split by number, for one process: a fork must not use it.

    Args:
        dataset: the dataset to read.
        split: the name of the split.
        options: a loader's options. Options of order and batches are ignored.
        workers: number of processes that share the local copies and the samples.

    Attributes:
        draws: True if ops draw random numbers for a sample.
        changes_by_epoch: True if a sample differs from epoch to epoch.

    Raises:
        OptionError: the options do not fit the dataset.
    """

    def __init__(self, dataset: Dataset, split: str, options: LoaderOptions, workers: int = 1) -> None:
        self.dataset, self._split, self._options, self._workers = dataset, split, options, workers
        self._source = SampleSource(dataset, split, own_ids(dataset))
        self.plan = plan_decoding(self._source, options)
        self.columns, self._decoder = self.plan.columns, Decoder(self.plan)
        self.names = self.columns.names
        self._variants = dataset.split(split).variants
        self._starts = np.cumsum([0, *(shard.records for shard in self._variants[0].shards)])
        self._chosen = dataset.chosen(split)
        self._readers: dict[int, Reader] = {}
        self._admission: ShardAdmission | None = None
        self._opening = threading.Lock()  # threads that begin together open a variant once
        ops = (op for pipeline in self.plan.pipelines for op in pipeline.ops)
        moves = bool(self.columns.images) or any(field.moves for field in self.columns.fields)
        self.draws = moves and any(op.draws for op in ops)
        self.changes_by_epoch = self.draws or (moves and len(self._variants) > 1)

    def read(
        self, samples: npt.NDArray[np.int64], epoch: int, numbers: npt.NDArray[np.int64] | int = 0
    ) -> dict[str, Sequence[Any]]:
        """Return the columns of these samples in `epoch`, one value per sample: arrays, ints, floats and texts.

        An image is (height, width, channels), after the frames of a clip, or (views, ...) for several views of one
        size. Thread-safe.

        Args:
            samples: numbers of the samples, from 0. They are their ids, but not in a view.
            epoch: number of the epoch, which decides random numbers and the variant.
            numbers: for each sample 0 for the random numbers that all loaders draw for it, or a higher number for
                others.

        Raises:
            RecordError: a record is damaged, or its image does not decode.
        """
        variant = epoch % len(self._variants)
        reader = self._readers.get(variant)
        if reader is None:
            with self._opening:
                reader = self._readers.get(variant) or self._open(variant)
        samples = samples if self._chosen is None else self._chosen.samples(samples)
        places = places_of(samples, self._starts)
        rows: dict[str, list[Any]] = {column.name: [None] * len(samples) for column in self.columns.every}
        drawn = samples + numbers * self._starts[-1]  # ids of no other sample
        draws = [pipeline.draw(epoch, drawn) for pipeline in self.plan.pipelines]
        self._decoder.decode(reader, places, draws, rows, range(len(samples)))
        if self._admission is not None:
            self._admission.touch(reader, variant, [shard for shard, _ in places])
        for column in self.columns.images if len(self.columns.views) > 1 else ():
            rows[column.name] = [np.stack(views) for views in rows[column.name]]
        return rows | {SAMPLE: samples.tolist()}

    def _open(self, variant: int) -> Reader:
        """Open the reader of a variant. The other readers release their local copies."""
        copies, most_open = None, len(self._starts)  # reopening a shard costs as much as reading twenty raw records
        if self.dataset.is_remote:
            for reader in self._readers.values():
                reader.release()
            if self._admission is None and self._source.kept >= LEAST_KEPT:
                made = make_copies([self.dataset], self._options, max(2, _CONNECTIONS // self._workers))
                where = f"{self.dataset.url}, split {self._split!r}"
                self._admission = None if made is None else ShardAdmission(made, self._variants, where)
            if self._admission is not None:
                copies, most_open = self._admission.copies, self._admission.most_open
        found = self._readers[variant] = self.dataset.reader(self._split, variant, copies, most_open)
        return found


class ShardAdmission:
    """Decides which remote shards to copy if the order of reading is not known in advance. Thread-safe.

    If all shards of a variant fit, each is copied once. If not, with a random order a copied shard would push out
    another one, and be pushed out before it has served a second sample. So copying has to pay for itself: beyond the
    first few shards, at most twice the bytes that the copies have served are copied. Orders that read shard by shard
    earn that. For others records are read by ranges, and a warning says so once.

    Args:
        copies: the local copies.
        variants: variants of the split.
        where: name of the split in the warning.
    """

    def __init__(self, copies: LocalCopies, variants: Sequence[Variant], where: str) -> None:
        self.copies, self._variants, self._where = copies, variants, where
        self._total_bytes = max(sum(shard.bytes for shard in variant.shards) for variant in variants)
        self._mean_bytes = max(1, self._total_bytes // max(1, len(variants[0].shards)))
        self._variant = self._touches = 0
        self._wanted: dict[RemoteShard, int] = {}  # the touch at which each was last wanted
        self._served_bytes = self._served = self._refused = 0
        self._warned, self._lock = False, threading.Lock()

    @property
    def most_open(self) -> int:
        """Number of shards that a reader may keep open: open shards cannot make room for others."""
        held = len(self._variants[0].shards) if self._fits else self.copies.budget_bytes // self._mean_bytes // 2
        return max(_FEWEST_OPEN, held)

    @property
    def _fits(self) -> bool:  # may change: the budget shrinks when the disk is full
        return self._total_bytes <= self.copies.budget_bytes

    def touch(self, reader: Reader, variant: int, numbers: Iterable[int]) -> None:
        """Note that `reader` has read records from these shards. Each shard is named once per record."""
        with self._lock:
            if variant != self._variant:
                self._variant = variant
                self._wanted.clear()
            self._touches += 1
            missing = dict[RemoteShard, int]()
            for number, records in Counter(numbers).items():
                entry, shard = self._variants[variant].shards[number], reader.to_copy(number)
                copied = False
                with suppress(ShardError):  # a shard that is damaged in the store is never copied
                    copied = self.copies.open(shard) is not None
                if copied:
                    self._wanted.pop(shard, None)
                    self._served += records
                    self._served_bytes += records * entry.bytes // max(1, entry.records)
                elif shard in self._wanted:
                    self._wanted[shard] = self._touches
                else:
                    missing[shard] = records
            if missing:
                self._ask(reader, missing)
            if not self._warned and self._refused >= max(_JUDGED_RECORDS, self._served // 16):
                self._warned = True
                shards, read = self._variants[variant].shards, self._served + self._refused
                requests = sum(shard.records for shard in shards) * self._refused // read
                budget, total = self.copies.budget_bytes, self._total_bytes
                _logger.warning(
                    f"{mask_secrets(self._where)}: samples are read in an order that local copies cannot follow. "
                    f"{self._refused} of {read} came by requests of their own, as the copies hold "
                    f"{100 * budget // max(1, total)} % of the shards ({budget:,} of {total:,} bytes); so an epoch "
                    f"takes about {requests:,} requests, though {len(shards):,} shards could be copied whole. Give the "
                    f"DataLoader sampler=tpufeed.LaneSampler(dataset), or local_bytes of {total:,} or more"
                )

    def _ask(self, reader: Reader, missing: dict[RemoteShard, int]) -> None:
        """Copy those of the missing shards that pay."""
        before, credit = set(self._wanted), None
        if not self._fits:
            # Copies that other processes have read to the end must not be kept for this one.
            fresh = self._touches - _STALE_TOUCHES
            self._wanted = {shard: touched for shard, touched in self._wanted.items() if touched > fresh}
            # Copies that other processes have made cost nothing.
            statistics = self.copies.statistics()
            first = min(_FIRST_SHARDS * self._mean_bytes, max(self._mean_bytes, statistics.budget_bytes // 2))
            asked = sum(shard.size_bytes for shard in self._wanted)
            credit = first + 2 * self._served_bytes - statistics.bytes_fetched - asked
        for shard, records in missing.items():
            if credit is None or shard.size_bytes <= credit:
                self._wanted[shard] = self._touches
                credit = None if credit is None else credit - shard.size_bytes
            else:
                self._refused += records
        if self._wanted.keys() != before:
            # The index first: without it each shard that is opened costs one more request.
            self.copies.fetch([*reader.due(()), *self._wanted])
