"""The stage of a remote dataset's shards, and which shards it admits where the order of reading is not known before."""

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tpufeed.dataset.manifest import Variant
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.errors import ShardError, mask_secrets
from tpufeed.loaders.mixture import Source
from tpufeed.loaders.options import LoaderOptions
from tpufeed.storage.stage import ShardStage
from tpufeed.storage.stage_folder import RemoteShard

_logger = logging.getLogger(__name__)

_FIRST_SHARDS = 32  # twice the lanes of a host
_FEWEST_OPEN = 4
_STALE_TOUCHES = 64
_JUDGED_RECORDS = 256  # that were refused, before a warning judges the order


def make_stage(remote: Sequence[Dataset], options: LoaderOptions, connections: int = 16) -> ShardStage | None:
    """Return the one stage of remote datasets; None where the options want none. `connections` as in `ShardStage`."""
    folder, budget, stores = options.stage_dir, options.stage_bytes, [dataset.shards for dataset in remote]
    if budget == 0:
        return None
    return ShardStage(
        stores[0],
        None if folder is None else Path(folder),
        None if budget is None else int(budget),
        connections,
        others={store.url: store for store in stores},
    )


def pick_staged(sources: Sequence[Source], shares: Sequence[float], lanes: int, budget_bytes: int) -> frozenset[int]:
    """Return the sources of a mixture whose shards are fetched whole; records of the others come by ranges.

    A rank reads one shard of each source in each of its lanes at a time, and those of a source that is rarely due
    would fill the stage for hours. Where the sources do not fit it together, those go first that give the most samples
    for the bytes they hold, until they hold half of it: the other half is for the shards that are due next.

    Args:
        sources: of the mixture.
        shares: of the samples that each gives.
        lanes: of this rank.
        budget_bytes: of the stage.
    """
    sizes = [sum(shard.bytes for shard in source.entry.variants[0].shards) for source in sources]
    if sum(sizes) <= budget_bytes:
        return frozenset(range(len(sources)))
    held = [
        min(size, lanes * size // max(1, len(source.entry.variants[0].shards)))
        for source, size in zip(sources, sizes, strict=True)
    ]
    remote = [number for number, source in enumerate(sources) if source.dataset.is_remote]
    picked, taken = set[int](), 0
    for number in sorted(remote, key=lambda number: -shares[number] / max(1, held[number])):
        taken += held[number]
        if picked and taken > budget_bytes // 2:
            break
        picked.add(number)
    return frozenset(picked)


class ShardAdmission:
    """Fetches the shards of a split that samples are read from into the stage, if that pays. Thread-safe.

    Where a variant fits into the stage, each of its shards is fetched once. Where it does not, a shard fetched for a
    sample in a random order would push out another one, and be pushed out before it has served a second. So fetching
    has to pay for itself: beyond the first few shards no more bytes are fetched than twice what the copies have served.
    Orders that read shard by shard earn that; others go on by ranges, and a warning says so once.

    Args:
        stage: of the store that holds the shards.
        variants: of the split.
        where: names the split in the warning.
    """

    def __init__(self, stage: ShardStage, variants: Sequence[Variant], where: str) -> None:
        self.stage = stage
        self._variants = variants
        self._where = where
        self._total_bytes = max(sum(shard.bytes for shard in variant.shards) for variant in variants)
        self._mean_bytes = max(1, self._total_bytes // max(1, len(variants[0].shards)))
        self._variant = 0
        self._touches = 0
        self._wanted: dict[RemoteShard, int] = {}  # and when they were last touched
        self._served_bytes = 0
        self._served, self._refused = 0, 0
        self._warned = False
        self._lock = threading.Lock()

    @property
    def most_open(self) -> int:
        """Number of shards that a reader may keep open: those cannot make room for others."""
        held = len(self._variants[0].shards) if self._fits else self.stage.budget_bytes // self._mean_bytes // 2
        return max(_FEWEST_OPEN, held)

    @property
    def _fits(self) -> bool:
        return self._total_bytes <= self.stage.budget_bytes

    def touch(self, reader: Reader, variant: int, numbers: Iterable[int]) -> None:
        """Note that `reader` has read records of these shards of a variant; each shard is named once a record."""
        with self._lock:
            if variant != self._variant:
                self._variant = variant
                self._wanted.clear()
            self._touches += 1
            missing = dict[RemoteShard, int]()
            for number, records in Counter(numbers).items():
                entry, shard = self._variants[variant].shards[number], reader.to_stage(number)
                staged = False
                with suppress(ShardError):  # a shard that is damaged at its source never will be
                    staged = self.stage.open(shard) is not None
                if staged:
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
                self._warn()

    def _ask(self, reader: Reader, missing: dict[RemoteShard, int]) -> None:
        """Have those of the missing shards fetched that pay."""
        before = set(self._wanted)
        credit = None
        if not self._fits:
            # A copy that others have read to its end must not be kept for this process.
            fresh = self._touches - _STALE_TOUCHES
            self._wanted = {shard: touched for shard, touched in self._wanted.items() if touched > fresh}
            # Copies that other processes have fetched cost nothing.
            statistics = self.stage.statistics()
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
            # The index first: without it each shard that is opened costs a request more.
            self.stage.fetch([*reader.due(()), *self._wanted])

    def _warn(self) -> None:
        read = self._served + self._refused
        shards = self._variants[self._variant].shards
        requests = sum(shard.records for shard in shards) * self._refused // read
        budget, total = self.stage.budget_bytes, self._total_bytes
        _logger.warning(
            f"{mask_secrets(self._where)}: its samples are asked for in an order that the stage cannot follow. "
            f"{self._refused} of {read} came by requests of their own, as the stage holds "
            f"{100 * budget // max(1, total)} % of the shards ({budget:,} of {total:,} bytes); so an epoch takes about "
            f"{requests:,} requests, where {len(shards):,} shards could be fetched whole. Give the DataLoader "
            f"sampler=tpufeed.LaneSampler(dataset), or stage_bytes of {total:,} or more"
        )
