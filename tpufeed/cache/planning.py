"""Plan a warmup: find its source, a dataset or raw images, and the plan that follows from either."""

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tpufeed.cache.plan import KIND, CacheOptions, cached_schema, iter_ranges
from tpufeed.cache.source import CacheSource, DatasetSource, RawSource
from tpufeed.dataset.naming import PLAN, check_split_name
from tpufeed.dataset.plan import Plan, PlanHeader, Task, iter_tasks
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.dataset.schema import record_schema
from tpufeed.errors import DatasetNotFoundError, OptionError
from tpufeed.images.ops import OPS
from tpufeed.sharding.advice import iter_label_warnings
from tpufeed.sharding.build import take_inventory
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.joined import check_joined, forged
from tpufeed.sharding.options import ShardKeywords, ShardOptions, make_options
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

Size = tuple[int, int]

_OF_SHARDS = frozenset(
    {"shard_bytes", "shards", "hosts", "seed", "check", "encode", "quality", "presize_px", "presize_mode"}
)
_PROBED = 16


@dataclass(frozen=True, slots=True)
class Planning:
    """A plan in the making.

    Attributes:
        header: without the numbers of shards.
        samples: of each split.
        first: tasks of a few samples, for a probe.
        iter_tasks: all tasks, for so many shards of each split.
    """

    header: PlanHeader
    samples: dict[str, int]
    first: list[Task]
    iter_tasks: Callable[[Mapping[str, int]], Iterator[Task]]


class Warmable(Protocol):
    """Something that a cache can be made of.

    Attributes:
        url: where it is.
        reader: what workers read it with.
        stores: that workers read from.
        size: of all images, as (height, width), where they are equal.
        identity: what decides its bytes, as plain data.
    """

    url: str
    reader: CacheSource
    stores: tuple[Store, ...]
    size: Size | None
    identity: dict[str, Any]

    def plan(self, options: CacheOptions, size: Size) -> AbstractContextManager[Planning]:
        """Begin a plan."""

    def digest(self) -> str:
        """Digest of what the source holds now."""

    def check_joined(self, store: Store, plan: Plan, options: CacheOptions, size: Size) -> None:
        """Check a plan at `store` that another run has put there, see `sharding.joined`. Raises ManifestError."""


def open_warmable(src: str | Path, keywords: ShardKeywords, allow_augmented: bool) -> Warmable:
    """The dataset at `src`, or else the raw images.

    Raises:
        OptionError: options for raw images, where there is a dataset; or an augmented cache that is not allowed.
        DatasetNotFoundError: a dataset that is not finished.
    """
    store = open_store(src)
    dataset = find_dataset(store)
    if dataset is None:
        if store.stat(PLAN) is not None:
            raise DatasetNotFoundError(
                f"{store.url} holds the beginnings of a dataset; run its command again to finish it first"
            )
        return _Images(store.url, make_options(keywords))
    if keywords:
        raise OptionError(
            f"{store.url} is a dataset, whose splits and labels stand; these options are for raw images: "
            f"{', '.join(keywords)}"
        )
    if not allow_augmented:
        _refuse_augmented(dataset)
    return _OfDataset(dataset)


def _refuse_augmented(dataset: Dataset) -> None:
    """Raise OptionError for a cache whose images are no longer what its source has."""
    cache = dataset.manifest.cache
    ops = () if cache is None else cache.ops
    random = [str(op["op"]) for op in ops if op["op"] not in OPS or OPS[op["op"]].draws]
    if cache is not None and random:
        raise OptionError(
            f"{dataset.url} is a cache that random ops have augmented ({', '.join(random)}): its images are cropped or "
            f"changed for good, and of its variants ({cache.variants}) only the first would be read. Warm from its "
            f"source, {dataset.manifest.options.get('source')}, or give allow_augmented=True (--allow-augmented)"
        )


class _OfDataset:
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.url = dataset.url
        self.reader: CacheSource = DatasetSource(dataset)
        self.stores: tuple[Store, ...] = (dataset.store, dataset.shards)
        shape = dataset.manifest.tensor_shape
        self.size: Size | None = None if shape is None else shape[:2]
        self.identity: dict[str, Any] = {"source_digest": dataset.content_digest}

    def digest(self) -> str:
        return self._dataset.content_digest

    @contextmanager
    def plan(self, options: CacheOptions, size: Size) -> Iterator[Planning]:
        manifest = self._dataset.manifest
        samples = {check_split_name(name): split.records for name, split in manifest.splits.items()}
        header = PlanHeader(
            kind=KIND,
            source=self.url,
            options={**self.identity, **options.to_dict()},
            run_id=secrets.token_hex(8),
            input_digest=self.digest(),
            splits={},
            variants=options.variants,
            class_names=manifest.class_names,
            features=cached_schema(manifest.features, options, size),
            notes={"images": options.variants * sum(samples.values())},
        )
        first = [Task(0, name, 0, 1, (), 0, min(count, _PROBED)) for name, count in samples.items()]
        yield Planning(header, samples, first, lambda shards: iter_ranges(samples, shards))

    def check_joined(self, store: Store, plan: Plan, options: CacheOptions, size: Size) -> None:
        header = plan.header
        with self.plan(options, size) as planning:
            wanted = msgspec.structs.replace(planning.header, run_id=header.run_id, source=header.source)
            wanted = msgspec.structs.replace(wanted, splits=header.splits, options=header.options)
            if wanted != header or header.splits.keys() != planning.samples.keys():
                raise forged(store, self.url, "its header says other than the dataset")
            tasks = planning.iter_tasks(header.splits)
            if any(task != found for task, found in itertools.zip_longest(tasks, iter_tasks(store, plan))):
                raise forged(store, self.url, "its tasks are not the parts of the dataset")


class _Images:
    def __init__(self, url: str, options: ShardOptions) -> None:
        self.url, self._options = url, options
        self.reader: CacheSource = RawSource(options.images)
        self.stores: tuple[Store, ...] = (open_store(url),)
        self.size: Size | None = None  # they differ
        self.identity = {name: value for name, value in options.to_dict().items() if name not in _OF_SHARDS}
        if options.split is not None:  # whose order matters, and a dict's is none to JSON
            self.identity["split"] = list(options.split.items())
        self._digest: str | None = None

    def digest(self) -> str:
        if self._digest is None:
            with take_inventory(self.url, self._options) as inventory:
                self._digest = inventory.digest()
        return self._digest

    @contextmanager
    def plan(self, options: CacheOptions, size: Size) -> Iterator[Planning]:
        with take_inventory(self.url, self._options) as inventory:
            samples = {name: count for name, (count, _, _) in inventory.totals().items()}
            unlabelled = iter_label_warnings(self.url, self._options.label, inventory.features)
            header = PlanHeader(
                kind=KIND,
                source=self.url,
                options={**self.identity, **options.to_dict()},
                run_id=secrets.token_hex(8),
                input_digest=inventory.digest(),
                splits={},
                variants=options.variants,
                class_names=inventory.classes.names,
                features=cached_schema((*record_schema(inventory.labelled), *inventory.schema), options, size),
                base=inventory.base,
                notes={"images": options.variants * len(inventory), "listed_twice": inventory.listed_twice()},
                ignored_files=inventory.ignored_files,
                warnings=(*unlabelled, *inventory.warnings),
            )
            first = list(_iter_inputs(inventory, {name: min(count, _PROBED) for name, count in samples.items()}))
            yield Planning(header, samples, first, lambda shards: _iter_inputs(inventory, samples, shards))

    def check_joined(self, store: Store, plan: Plan, options: CacheOptions, size: Size) -> None:
        header = plan.header
        image, *_ = cached_schema(header.features, options, size)
        if header.variants != options.variants or header.features[:1] != (image,):
            raise forged(store, self.url, "it makes other variants, or no cache")
        check_joined(store, plan, self.url, self._options.image)


def _iter_inputs(
    inventory: Inventory, samples: Mapping[str, int], shards: Mapping[str, int] | None = None
) -> Iterator[Task]:
    """The ranges with their inputs. A sample's id is its place in the global order, whether it is taken or not."""
    inputs = {split: inventory.iter_inputs(split) for split in samples}
    for task in iter_ranges(samples, dict.fromkeys(samples, 1) if shards is None else shards):
        run = tuple(next(inputs[task.split])[0] for _ in range(task.stop - task.first))
        yield Task(task.number, task.split, task.shard, task.shards, run, task.first, task.stop)
