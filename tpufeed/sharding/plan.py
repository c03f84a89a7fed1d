"""The plan of a sharding, as a pure function of listing and options."""

import hashlib
import itertools
import secrets
from collections.abc import Iterator, Sequence
from typing import Protocol

from tpufeed.dataset.plan import Input, PlanHeader, Task
from tpufeed.dataset.schema import record_schema
from tpufeed.errors import OptionError
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.sources import Listing

KIND = "shard"


class SizeEstimate(Protocol):
    """How many bytes an input's record will take."""

    def __call__(self, item: Input) -> int:
        """Bytes of the record, framing included."""


def plan_shards(listing: Listing, options: ShardOptions, record_bytes: SizeEstimate) -> tuple[PlanHeader, list[Task]]:
    """Header and tasks: inputs in a global seeded order, dealt to splits by a hash of their paths, cut into shards.

    Raises:
        OptionError: a shard would be smaller than its largest record.
    """
    largest = max(listing.inputs, key=record_bytes)
    if record_bytes(largest) > options.shard_bytes:
        raise OptionError(
            f"a shard of {options.shard_bytes} bytes cannot hold {largest.path}, whose record takes "
            f"{record_bytes(largest)}; give a --shard-size of at least that, better 64MB to 256MB"
        )
    ordered = sorted(listing.inputs, key=lambda item: _path_hash(item.path, options.seed))
    by_split: dict[str, list[Input]] = {name: [] for name in options.splits}
    for item in ordered:
        by_split[split_of(item.path, options.splits)].append(item)
    tasks: list[Task] = []
    for split, inputs in by_split.items():
        cuts = list(_cut(inputs, options.shard_bytes, record_bytes))
        tasks += [Task(len(tasks) + n, split, n, len(cuts), tuple(cut)) for n, cut in enumerate(cuts)]
    header = PlanHeader(
        kind=KIND,
        source=listing.url,
        options=options.to_dict(),
        run_id=secrets.token_hex(8),
        input_digest=input_digest(listing.inputs),
        splits={split: sum(task.split == split for task in tasks) for split in options.splits},
        variants=None,
        class_names=listing.class_names,
        features=record_schema(labelled=bool(listing.class_names)),
        notes={"images": len(listing.inputs), "ignored_files": listing.ignored_files},
    )
    return header, tasks


def split_of(path: str, splits: dict[str, float]) -> str:
    """The split of a path: stable, so that adding files moves none of the old ones."""
    point = int.from_bytes(_path_hash(path, None)[:8], "big") / 2**64
    for name, stop in zip(splits, itertools.accumulate(splits.values()), strict=True):
        if point < stop:
            return name
    return list(splits)[-1]


def input_digest(inputs: Sequence[Input]) -> str:
    """Identity of all inputs together, whatever their order: paths, sizes, versions and labels."""
    digest = hashlib.blake2b(digest_size=16)
    for item in sorted(inputs, key=lambda item: item.path):
        digest.update(f"{item.path}\0{item.bytes}\0{item.version}\0{item.label}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _path_hash(path: str, seed: int | None) -> bytes:
    """blake2b of (seed, path): a global order that an external sort of ten million names gives as well."""
    data = path.encode("utf-8", "surrogateescape")
    person = b"split" if seed is None else b"order"
    return hashlib.blake2b(f"{seed}\0".encode() + data, digest_size=16, person=person).digest()


def _cut(inputs: Sequence[Input], shard_bytes: int, record_bytes: SizeEstimate) -> Iterator[list[Input]]:
    """Runs of nearly equal size: an input belongs to the shard in which its middle byte falls."""
    total = sum(map(record_bytes, inputs))
    if not inputs:
        return
    shards = min(len(inputs), max(1, round(total / shard_bytes)))
    run: list[Input] = []
    position, number = 0, 0
    for item in inputs:
        size = record_bytes(item)
        if run and (position + size / 2) * shards >= total * (number + 1):
            yield run
            run, number = [], number + 1
        run.append(item)
        position += size
    yield run
