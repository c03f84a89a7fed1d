"""The plan of a sharding, as a function of inventory and options: nothing but arithmetic."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tpufeed.dataset.plan import Input, PlanHeader, Task
from tpufeed.errors import OptionError
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.options import ShardOptions

KIND = "shard"
FEATURES_BYTES = 320  # of a record, besides the image, its path and further columns


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """How many bytes a record takes: `slope` times its file, and `fixed` more."""

    slope: float = 1.0
    fixed: float = FEATURES_BYTES


def count_shards(inventory: Inventory, options: ShardOptions, estimate: SizeEstimate) -> dict[str, tuple[int, float]]:
    """By split: how many shards it gets, and about how many bytes they hold together.

    Raises:
        OptionError: a shard would be smaller than its largest record.
    """
    totals = inventory.totals()
    sizes = {
        name: estimate.slope * size + estimate.fixed * count + extra for name, (count, size, extra) in totals.items()
    }
    largest = max(sizes.values())
    shard_bytes = options.shard_bytes if options.shards is None else largest / options.shards
    if options.shards is None:
        path, record = inventory.largest(estimate.slope, estimate.fixed)
        if record > shard_bytes:
            raise OptionError(
                f"a shard of {options.shard_bytes} bytes cannot hold {path}, whose record takes {record}; give a "
                "--shard-size of at least that, better 64MB to 256MB"
            )
    hosts = options.hosts
    wanted = {name: hosts * max(1, round(size / shard_bytes / hosts)) for name, size in sizes.items()}
    return {name: (_at_most(totals[name][0], wanted[name], hosts), size) for name, size in sizes.items()}


def _at_most(inputs: int, shards: int, hosts: int) -> int:
    """No shard may be empty; where there are enough inputs for it, a multiple of the hosts they stay."""
    return shards if shards <= inputs else inputs // hosts * hosts or inputs


def plan_shards(
    inventory: Inventory, options: ShardOptions, estimate: SizeEstimate, source: str
) -> tuple[PlanHeader, Iterator[Task]]:
    """Header and tasks: each split's inputs in the global order, cut into shards of nearly equal size.

    Raises:
        OptionError: a shard would be smaller than its largest record.
    """
    shards = count_shards(inventory, options, estimate)
    counts = {name: count for name, (count, _, _) in inventory.totals().items()}
    header = PlanHeader(
        kind=KIND,
        source=source,
        options=options.to_dict(),
        run_id=secrets.token_hex(8),
        input_digest=inventory.digest(),
        splits={name: count for name, (count, _) in shards.items()},
        variants=None,
        class_names=inventory.classes.names,
        features=inventory.features,
        base=inventory.base,
        notes={"images": len(inventory), "listed_twice": inventory.listed_twice()},
        ignored_files=inventory.ignored_files,
        warnings=inventory.warnings,
    )
    return header, _iter_tasks(inventory, estimate, shards, counts)


def _iter_tasks(
    inventory: Inventory, estimate: SizeEstimate, shards: Mapping[str, tuple[int, float]], inputs: Mapping[str, int]
) -> Iterator[Task]:
    number = 0
    for split, (count, total) in shards.items():
        sized = (
            (item, estimate.slope * item.bytes + estimate.fixed + extra) for item, extra in inventory.iter_inputs(split)
        )
        for shard, run in enumerate(cut(sized, inputs[split], count, total)):
            yield Task(number, split, shard, count, tuple(run))
            number += 1


def cut(sized: Iterable[tuple[Input, float]], count: int, shards: int, total: float) -> Iterator[list[Input]]:
    """`shards` runs of nearly equal size of `count` inputs: one belongs to the run in which its middle byte falls."""
    run: list[Input] = []
    position, number = 0.0, 0
    for place, (item, size) in enumerate(sized):
        runs_left = shards - number - 1
        full = (position + size / 2) * shards >= total * (number + 1)
        if run and runs_left and (full or count - place <= runs_left):  # none may be empty
            yield run
            run, number = [], number + 1
        run.append(item)
        position += size
    if run:
        yield run
