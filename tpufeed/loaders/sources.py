"""Sources of records: the readers of a split's variants, and the stage of remote ones."""

from pathlib import Path
from typing import Protocol

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import OPEN_SHARDS, Reader
from tpufeed.loaders.crew import Due
from tpufeed.loaders.options import LoaderOptions
from tpufeed.storage.shard_cache import ShardCache
from tpufeed.storage.shard_folder import RemoteShard

_FEWEST_STAGED = 32


class Source(Protocol):
    """Readers by epoch."""

    def variant(self, epoch: int) -> int:
        """Return the number of the variant that an epoch reads."""

    def reader(self, epoch: int) -> Reader:
        """The reader of that variant."""

    def settle(self, epoch: int) -> None:
        """A batch of `epoch` is done, and so are those before it: readers of other variants may let go."""

    def fetch(self, due: Due) -> None:
        """Fetch shards, see `Crew.fetch`."""

    def close(self) -> None:
        """Let go of everything; what is asked for again is opened again."""


class VariantSource:
    """Epoch e reads variant e modulo their number. One thread asks for readers, and one settles.

    Args:
        dataset: what to read.
        split: which part of it.
        options: its `stage_dir` and `stage_bytes` count.
        lanes: how many lanes of the order are read at a time.
    """

    def __init__(self, dataset: Dataset, split: str, options: LoaderOptions, lanes: int) -> None:
        self._dataset = dataset
        self._split = split
        self._variants = len(dataset.split(split).variants)
        self._readers: dict[int, Reader] = {}
        self._stage = make_stage(dataset, options)
        # Twice the lanes: those that are read, and those that the batches ahead have come to.
        self._open_shards = max(OPEN_SHARDS if self._stage is None else _FEWEST_STAGED, 2 * lanes)
        self._settled = 0

    def variant(self, epoch: int) -> int:
        return epoch % self._variants

    def reader(self, epoch: int) -> Reader:
        variant = self.variant(epoch)
        if variant not in self._readers:
            self._readers[variant] = self._dataset.reader(self._split, variant, self._stage, self._open_shards)
        return self._readers[variant]

    def settle(self, epoch: int) -> None:
        variant = self.variant(epoch)
        # Local shards stay mapped: they may be deleted meanwhile.
        if self._dataset.is_remote and variant != self._settled:
            self._settled = variant
            self._release(keep=variant)

    def fetch(self, due: Due) -> None:
        if self._stage is not None:
            shards = dict[RemoteShard, None]()
            for variant, numbers in due:
                shards |= dict.fromkeys(self.reader(variant).due(numbers))
            self._stage.fetch(shards)

    def close(self) -> None:
        self._release(keep=None)
        if self._stage is not None:
            self._stage.close()

    def _release(self, keep: int | None) -> None:
        for variant, reader in list(self._readers.items()):  # another thread may open one
            if variant != keep:
                reader.release()


def make_stage(dataset: Dataset, options: LoaderOptions, connections: int = 16) -> ShardCache | None:
    """The stage of a remote dataset, unless the options want none; `connections` as in `ShardCache`."""
    if options.stage_bytes == 0 or not dataset.is_remote:
        return None
    folder, budget = options.stage_dir, options.stage_bytes
    return ShardCache(
        dataset.shards,
        None if folder is None else Path(folder),
        None if budget is None else int(budget),
        connections,
    )
