"""The plan: what a build will do, stored before it starts, so that a later run goes on without listing anything again.

JSON lines: the header, then one line a task. A worker is told the byte range of its line, so a plan of any size is
neither passed around nor read whole by workers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from tpufeed.dataset.naming import PLAN, index_name, shard_name
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import DuplicateWriterError, ManifestError, ManifestVersionError
from tpufeed.storage.store import Store

PLAN_VERSION = 1


class Input(msgspec.Struct, frozen=True, array_like=True):
    """One file of the source: its identity, and its class (-1 without labels)."""

    path: str
    bytes: int
    version: str
    label: int = -1


class Task(msgspec.Struct, frozen=True):
    """The work that makes one shard, or one shard of each variant: shard number `shard` of `shards` of a split.

    It is made of files (`inputs`), or of the samples `[first, stop)` of the same split of another dataset.
    """

    number: int
    split: str
    shard: int
    shards: int
    inputs: tuple[Input, ...] = ()
    first: int = 0
    stop: int = 0


class PlanHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks share. `kind`, `source` and `options` are the plan's identity: they decide every byte.

    `splits` says how many shards each split has, `variants` is None where a dataset has only one, unnumbered.
    """

    plan_version: int = PLAN_VERSION
    kind: str
    source: str
    options: dict[str, Any]
    run_id: str
    input_digest: str
    splits: dict[str, int]
    variants: int | None
    class_names: tuple[str, ...]
    features: tuple[FeatureSpec, ...]
    notes: dict[str, int] = {}

    def shard_names(self, task: Task) -> list[str]:
        """The shards that a task makes, one a variant."""
        return [shard_name(task.split, variant, task.shard, task.shards) for variant in self.variant_numbers]

    @property
    def variant_numbers(self) -> list[int | None]:
        """`[None]`, or the numbers of a cache's variants."""
        return [None] if self.variants is None else list(range(self.variants))

    @property
    def output_names(self) -> set[str]:
        """Every shard and index of the finished dataset."""
        return {
            name
            for split, shards in self.splits.items()
            for variant in self.variant_numbers
            for name in (index_name(split, variant), *(shard_name(split, variant, i, shards) for i in range(shards)))
        }


class TaskRef(NamedTuple):
    """Where the plan holds a task: what an engine carries. `name` is its first shard, for messages."""

    number: int
    split: str
    start: int
    stop: int
    name: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A stored plan."""

    header: PlanHeader
    tasks: tuple[TaskRef, ...]


def encode_plan(header: PlanHeader, tasks: Iterable[Task]) -> bytes:
    """The file's bytes."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in (header, *tasks))


def read_plan(store: Store) -> Plan:
    """The plan at a destination.

    Raises:
        ObjectNotFoundError: there is none.
        ManifestError: it cannot be understood.
    """
    data = store.read(PLAN)
    where = f"{store.url}/{PLAN}"
    stop = data.find(b"\n")
    try:
        version = msgspec.json.decode(data[:stop], type=dict[str, Any]).get("plan_version")
        if version != PLAN_VERSION:
            raise ManifestVersionError(
                f"{where}: plan version {version}; this tpufeed goes on with version {PLAN_VERSION} only. Finish "
                "the build with the tpufeed that began it, or take another destination"
            )
        header = msgspec.json.decode(data[:stop], type=PlanHeader)
        refs = []
        while (start := stop + 1) < len(data):
            stop = data.index(b"\n", start)
            task = msgspec.json.decode(data[start:stop], type=Task)
            refs.append(TaskRef(task.number, task.split, start, stop, header.shard_names(task)[0]))
        if len(refs) != sum(header.splits.values()):
            raise ValueError(f"{len(refs)} tasks where {sum(header.splits.values())} belong")
    except (msgspec.DecodeError, ValueError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(f"{where}: not a readable plan: {error}. Remove {store.url} and build again") from error
    return Plan(header, tuple(refs))


def read_task(store: Store, ref: TaskRef) -> Task:
    """The task that `ref` refers to."""
    return msgspec.json.decode(store.read_range(PLAN, ref.start, ref.stop), type=Task)


def check_same_plan(store: Store, found: PlanHeader, kind: str, source: str, options: dict[str, Any]) -> None:
    """Raises DuplicateWriterError, naming what differs, where the destination belongs to another build."""
    wanted = msgspec.json.decode(msgspec.json.encode({"command": kind, "source": source, **options}))
    stored = {"command": found.kind, "source": found.source, **found.options}
    differing = [
        f"{name} is {_say(stored.get(name))} there and {_say(wanted.get(name))} here"
        for name in (*wanted, *(stored.keys() - wanted.keys()))
        if stored.get(name) != wanted.get(name)
    ]
    if differing:
        raise DuplicateWriterError(
            f"{store.url} belongs to another build: {'; '.join(differing)}. Give the options of that build to go on "
            "with it, take another destination, or remove this one"
        )


def _say(value: object) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()
