"""`compact`: join the small shards that many appends leave, as the next version of a dataset.

Runs of adjacent small shards are joined in their order, so that sample i stays sample i. Records are copied unchanged,
and their CRCs verified. The small shards stay for earlier versions, until `prune` removes them.
"""

import itertools
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tpufeed.builds.destination import Destination
from tpufeed.builds.plan import Plan, PlanHeader, Task, at_place
from tpufeed.builds.recipe import Draft, Recipe, SplitPreview
from tpufeed.builds.run import ProgressListener
from tpufeed.builds.run import run as run_recipe
from tpufeed.builds.versions import COMPACT, Layout, Piece, follows, read_offsets
from tpufeed.builds.worker import Output, TaskContext
from tpufeed.dataset.manifest import Manifest, Shard
from tpufeed.dataset.naming import MANIFEST, report_name
from tpufeed.dataset.reader import Dataset
from tpufeed.display.summary import Summary
from tpufeed.engines.engine import Engine
from tpufeed.errors import BuildError, DatasetNotFoundError, ManifestError, OptionError, advised
from tpufeed.options import checked
from tpufeed.tfrecord.framing import join_crc32c

_LARGE_SHARD, _SMALL_SHARD, _ENOUGH_SHARDS = 128 * 10**6, 16 * 10**6, 64
_MOST_HOSTS = 1 << 20
_SMALL = 2  # a shard smaller than the usual size divided by this is small


@dataclass(frozen=True, slots=True, repr=False)
class CompactResult(Summary):
    """Result of a compaction.

    Attributes:
        url: URL of the dataset.
        version: its number now.
        shards_before: number of shards of all splits and variants before.
        shards: their number now, the same if there was nothing to join.
        copied_bytes: size of the shards that were written.
        seconds: time that it took.
    """

    url: str
    version: int
    shards_before: int
    shards: int
    copied_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """Shards `[start, stop)` of a split, which are joined to `shards` new ones."""

    start: int
    stop: int
    shards: int


@dataclass(frozen=True, slots=True)
class CompactContext(TaskContext):
    """Context that all tasks of a compaction share."""

    dataset: Dataset

    def write(self, task: Task, output: Output) -> None:
        """Copy the records of the old shards."""
        for variant, writer in enumerate(output.writers):
            for payload in self.dataset.reader(task.split, variant).iter_payloads(task.first, task.stop):
                writer.write(payload)
                output.add(images=1, size=len(payload))
        output.retries = self.dataset.shards.retries  # class counts are copied from the version before


@checked()
def compact(  # noqa: PLR0913  # the public face
    url: str | Path,
    *,
    overwrite: bool = False,
    fsync: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
    progress: bool | None = None,
) -> CompactResult:
    """Join the small shards of a dataset or a cache that has grown, as its next version.

    Shards smaller than half the usual size are joined with their neighbours, in the same order: samples keep their
    numbers. Readers of the version before are not disturbed, and its files stay until `tpufeed.prune` removes them. If
    the call is interrupted, the same call resumes.

    Args:
        url: URL of the dataset.
        overwrite: discard the remains of an interrupted append or compaction. Nothing else is removed.
        fsync: write the new shards to the disk before the manifest.
        workers: number of processes. Default: one per core, fewer with little memory.
        engine: what runs the tasks, as in `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times a second.
        progress: show a progress bar, as in `tpufeed.shard`.

    Raises:
        DatasetNotFoundError: there is no dataset.
        OptionError: it was adopted, so its shards belong to another program.
        DuplicateWriterError: an append is running, or was interrupted. Nothing was changed.
        RecordError, ShardError: a record is damaged. No version was published.
        TaskError, BuildError: the work failed. Finished work stays, and the same call resumes.
    """
    start, recipe = time.monotonic(), Compaction()
    result = run_recipe(
        recipe,
        url,
        max_rejects=0,
        overwrite=overwrite,
        fsync=fsync,
        workers=workers,
        engine=engine,
        listener=listener,
        progress=progress,
    )
    return CompactResult(
        url=result.url,
        version=result.manifest.number,
        shards_before=_count_shards(recipe.manifest),
        shards=_count_shards(result.manifest),
        copied_bytes=0 if recipe.base is None else result.bytes,
        seconds=time.monotonic() - start,
    )


class Compaction(Recipe):
    """The recipe of `compact`. `look` finds its dataset."""

    kind = grows_by = COMPACT
    verb = "compacting"
    worker = "tpufeed.builds.worker"

    def look(self, destination: Destination, overwrite: bool) -> Dataset | None:
        """Look at the dataset. It is finished if there are no small shards to join."""
        base = destination.find_finished()
        if base is None:
            raise DatasetNotFoundError(
                f"{destination.url} holds no dataset to compact. Make one with: {advised('shard', 'PHOTOS', 'DATASET')}"
            )
        manifest = self.manifest = base.manifest
        if manifest.options.get("command") == "adopt" or manifest.data_url is not None:
            raise OptionError(
                f"{destination.url} was adopted: its shards belong to another program, so they are not joined. Nothing "
                "was changed"
            )
        self.runs = find_runs(manifest)
        if not self.runs:
            self.base = None
            return base
        self.base, self.source, self.layout = base, base.url, compact_layout(manifest, self.runs)
        self.identity = follows(base) | {
            name: manifest.options[name] for name in ("names",) if name in manifest.options
        }
        self.tasks = list(_iter_tasks(base, self.runs))
        return None

    @contextmanager
    def draft(self, is_preview: bool) -> Iterator[Draft]:
        """Plan one task per new shard."""
        base, manifest = self._base, self.manifest
        variants = len(next(iter(manifest.splits.values())).variants)
        splits = dict[str, SplitPreview]()
        for name, runs in self.runs.items():
            old = [
                shard
                for variant in manifest.splits[name].variants
                for run in runs
                for shard in variant.shards[run.start : run.stop]
            ]
            shards = sum(run.shards for run in runs)
            samples = sum(shard.records for shard in old) // variants
            splits[name] = SplitPreview(samples, shards * variants, sum(shard.bytes for shard in old))
        header = PlanHeader(
            kind=COMPACT,
            source=self.source,
            options=self.identity,
            run_id=secrets.token_hex(8),
            input_digest=base.content_digest,
            splits={name: sum(run.shards for run in runs) for name, runs in self.runs.items()},
            variants=None if manifest.cache is None else variants,
            class_names=manifest.class_names,
            features=manifest.features,
            images=variants * sum(split.inputs for split in splits.values()),
        )
        fingerprint = "" if manifest.cache is None else manifest.cache.fingerprint
        yield Draft(header=header, tasks=self.tasks, splits=splits, fingerprint=fingerprint)

    def follow(self, plan: Plan) -> Plan:
        """Return the plan for the present URL of the dataset, whose contents its options name."""
        return at_place(plan, self.source)

    def context(self, destination: Destination) -> "CompactContext":
        """Return what all tasks share."""
        return CompactContext(destination.url, destination.plan.header, destination.owner, self._base)

    def conclude(self, destination: Destination, folder: Path, manifest: Manifest) -> tuple[Manifest, None]:
        """Keep the manifest's entry of a cache, and check that joined shards have the bytes of the old ones.

        Each record's CRCs tell that it is sound, but not that it is the right one. No byte is read for this.

        Raises:
            BuildError: they have not. Reports of their tasks are removed, so that these run again.
        """
        for name, runs in self.runs.items():
            made = itertools.accumulate((run.shards for run in runs), initial=0)
            for first, run in zip(made, runs, strict=False):
                for old, new in zip(self.manifest.splits[name].variants, manifest.splits[name].variants, strict=True):
                    shards = new.shards[first : first + run.shards]
                    if _crc32c_of(old.shards[run.start : run.stop]) == _crc32c_of(shards):
                        continue
                    for ref in destination.plan.tasks:
                        if ref.split == name:
                            destination.store.delete(report_name(ref.number))
                    raise BuildError(
                        f"{destination.url}/{shards[0].name}: reads of {self._base.url}/{old.shards[run.start].name} "
                        "or of shards after it returned other records than were asked for. Nothing was published. Look "
                        "for a fault of the store or of a proxy, then run the same command again"
                    )
        return msgspec.structs.replace(manifest, cache=self.manifest.cache), None

    @property
    def _base(self) -> Dataset:
        assert self.base is not None, "there is nothing to compact"
        return self.base


def default_shard_bytes(split_bytes: float) -> float:
    """Return the size of the shards of a cache whose command gives none, by the bytes of its largest split."""
    return min(_LARGE_SHARD, max(_SMALL_SHARD, split_bytes / _ENOUGH_SHARDS))


def usual_shard_bytes(manifest: Manifest) -> float:
    """Return the intended size of a dataset's shards."""
    stated, number = manifest.options.get("shard_bytes"), manifest.options.get("shards")
    if isinstance(stated, int):
        return stated
    totals = [sum(shard.bytes for shard in split.variants[0].shards) for split in manifest.splits.values()]
    if isinstance(number, int) and number > 0:  # of the first build, whose shards come first
        return max(
            (shard.bytes for split in manifest.splits.values() for shard in split.variants[0].shards[:number]),
            default=1,
        )
    return default_shard_bytes(max(totals, default=0))


def find_runs(manifest: Manifest) -> dict[str, list[Run]]:
    """Return by split the runs of small shards that can be joined. Raises ManifestError. Pure."""
    usual, hosts = usual_shard_bytes(manifest), manifest.options.get("hosts", 1)
    if not isinstance(hosts, int) or not 1 <= hosts <= _MOST_HOSTS:
        raise ManifestError(f"{MANIFEST}: the number of hosts is {hosts!r}. The file was edited or damaged")
    found = dict[str, list[Run]]()
    for name, split in manifest.splits.items():
        stop = 0
        for is_small, group in itertools.groupby(split.variants[0].shards, lambda shard: shard.bytes * _SMALL < usual):
            shards = list(group)
            start, stop = stop, stop + len(shards)
            records, size = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
            count = min(records, hosts * max(1, round(size / usual / hosts)))  # so that none is empty
            if is_small and 0 < count < len(shards):
                found.setdefault(name, []).append(Run(start, stop, count))
    return found


def compact_layout(base: Manifest, runs: Mapping[str, list[Run]]) -> Layout:
    """Return the shards of each split once its runs are joined."""
    layout = dict[str, list[Piece]]()
    for name, split in base.splits.items():
        pieces, place, made = list[Piece](), 0, 0
        for run in runs.get(name, []):
            pieces += [Piece(False, place, run.start), Piece(True, made, made + run.shards)]
            place, made = run.stop, made + run.shards
        pieces.append(Piece(False, place, len(split.variants[0].shards)))
        layout[name] = [piece for piece in pieces if piece.start < piece.stop] or pieces[-1:]
    return layout


def _iter_tasks(base: Dataset, runs: Mapping[str, list[Run]]) -> Iterator[Task]:
    """Yield one task per new shard. The shards of a run have nearly equal sizes."""
    number = 0
    for name, of_split in runs.items():
        shards = base.manifest.splits[name].variants[0].shards
        firsts = [0, *itertools.accumulate(shard.records for shard in shards)]
        offsets, total, made = read_offsets(base, name, 0), sum(run.shards for run in of_split), 0
        for run in of_split:
            sizes = np.concatenate([np.diff(offsets[shard].astype(np.int64)) for shard in range(run.start, run.stop)])
            edges = _cut(sizes, run.shards)
            for start, stop in itertools.pairwise(edges):
                first = firsts[run.start]
                yield Task(number, name, made, total, (), first + start, first + stop)
                number, made = number + 1, made + 1


def _cut(sizes: "np.ndarray[Any, np.dtype[np.int64]]", count: int) -> list[int]:
    """Return `count` + 1 edges of runs of nearly equal size, none of them empty."""
    ends = np.cumsum(sizes)
    edges = [0]
    for number in range(1, count):
        edge = int(np.searchsorted(ends - sizes / 2, ends[-1] * number / count))  # by the middle bytes of records
        edges.append(min(max(edge, edges[-1] + 1), len(sizes) - (count - number)))
    return [*edges, len(sizes)]


def _crc32c_of(shards: Iterable[Shard]) -> int:
    """Return the CRC-32C of all these shards, one after the other."""
    crc = 0
    for shard in shards:
        crc = join_crc32c(crc, shard.crc32c, shard.bytes)
    return crc


def _count_shards(manifest: Manifest) -> int:
    return sum(len(variant.shards) for split in manifest.splits.values() for variant in split.variants)
