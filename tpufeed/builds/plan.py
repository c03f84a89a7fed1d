"""The plan: all that a build will do, stored before it starts, so that a later run continues without a new listing.

It has JSON lines: the header, one line per task, and the CRC-32C of them all. A worker gets the byte range and the
digest of its line, so that workers neither receive nor read a whole plan, which may have any size.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from crc32c import crc32c

from tpufeed.builds.item import Item
from tpufeed.dataset.listed import UNLISTED, Listed
from tpufeed.dataset.naming import PLAN, check_split_name, index_name, kaggle_shard_name, shard_name
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import (
    DuplicateWriterError,
    ManifestError,
    ManifestVersionError,
    OptionError,
    StoreError,
    mask_secrets,
    url_identity,
)
from tpufeed.processes.limits import room_left
from tpufeed.storage.reading import READS, open_object, read_line, settle
from tpufeed.storage.store import Span, Store
from tpufeed.text import shorten

PLAN_VERSION = 1
_DIGEST_BYTES = 16
_MOST_VARIANTS = 1000
_MOST_OUTPUTS = 1 << 21  # files, whose names are in memory: a cache of 200 TB has fewer
_SAID = 200  # characters of an option's value in a message


class _TaskHead(msgspec.Struct, frozen=True):
    number: int
    split: str
    shard: int
    shards: int


class Task(_TaskHead, frozen=True):
    """The work that makes one shard, or one shard of each variant: shard number `shard` of `shards` of a split.

    Its records come from files (`inputs`), or from the samples `[first, stop)` of the same split of another dataset.
    """

    inputs: tuple[Item, ...] = ()
    first: int = 0
    stop: int = 0


_TASK_HEAD, _TASK = msgspec.json.Decoder(_TaskHead), msgspec.json.Decoder(Task)


class _End(msgspec.Struct, frozen=True):
    """The last line: the CRC of all lines before it."""

    crc32c: int


_END = msgspec.json.Decoder(_End)


class PlanHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Data that all tasks share. `kind`, `source` and `options` are the plan's identity: they decide every byte.

    `splits` has the number of shards of each split. `variants` is None if there is only one, without a number. Files of
    inputs are relative to `base`. `source` and `base` hold no secret of a URL, see `with_access`.
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
    base: str = ""
    images: int  # inputs of all tasks, once for each variant
    skipped: int = 0  # inputs of an append that are in the dataset already
    listed: Listed = UNLISTED  # what the source was taken for. A run that continues says it again
    tool_version: str = ""  # another version may take inputs that this one has rejected

    def shard_names(self, task: _TaskHead) -> list[str]:
        """Return the shards that a task makes, one per variant. See `naming.counted` for names with counts."""
        name = kaggle_shard_name if self.are_counted else shard_name
        return [name(task.split, variant, task.shard, task.shards) for variant in self.variant_numbers]

    @property
    def are_counted(self) -> bool:
        """True if the names of shards end in their number of records."""
        return self.options.get("names") == "kaggle"

    @property
    def variant_numbers(self) -> list[int | None]:
        """`[None]`, or the numbers of a cache's variants."""
        return [None] if self.variants is None else list(range(self.variants))

    @property
    def output_names(self) -> set[str]:
        """Names of all shards and indexes of the finished dataset, as `naming.uncounted` gives them."""
        shards = {
            name
            for split, count in self.splits.items()
            for shard in range(count)
            for name in self.shard_names(_TaskHead(0, split, shard, count))
        }
        return shards | {index_name(split, variant) for split in self.splits for variant in self.variant_numbers}


_FIELDS, _HEADER = msgspec.json.Decoder(dict[str, Any]), msgspec.json.Decoder(PlanHeader)


class TaskRef(NamedTuple):
    """Place of a task in the plan: engines pass this around.

    `name` is its first shard, for messages. `digest` is the digest of the task's line. A CRC would not do: an attacker
    who replaces the plan during a build could give another line the same CRC.
    """

    number: int
    split: str
    start: int
    stop: int
    name: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan, without the inputs of its tasks."""

    header: PlanHeader
    tasks: tuple[TaskRef, ...]


def write_plan(path: Path, header: PlanHeader, tasks: Iterable[Task]) -> Plan:
    """Write a plan to the disk itself, as a build relies on it. Raises StoreError."""
    header = msgspec.structs.replace(header, source=url_identity(header.source), base=url_identity(header.base))
    first = msgspec.json.encode(header) + b"\n"
    refs = list[TaskRef]()
    try:
        with path.open("wb") as file:
            file.write(first)
            start, crc = len(first), crc32c(first)
            for task in tasks:
                inputs = (x if x.problem is None else _masked(x) for x in task.inputs)
                task = msgspec.structs.replace(task, inputs=tuple(inputs))  # noqa: PLW2901  # what is written
                line = msgspec.json.encode(task)
                stop = start + len(line)
                name = header.shard_names(task)[0]
                refs.append(TaskRef(task.number, task.split, start, stop, name, _digest(line)))
                line += b"\n"
                start, crc = stop + 1, crc32c(line, crc)
                file.write(line)
            file.write(msgspec.json.encode(_End(crc)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}{room_left(error, path)}") from error
    return Plan(_HEADER.decode(first), tuple(refs))  # decoded as in a later run


def read_plan(store: Store) -> Plan:
    """Return the plan at a destination. If it looks damaged it is read again, as that may have happened on the way.

    Raises:
        ObjectNotFoundError: there is no plan.
        ManifestError: it cannot be understood.
    """
    where, reads = f"{store.url}/{PLAN}", 0
    while True:
        try:
            with open_object(store, PLAN) as file:
                return _read_plan(file, where)
        except (msgspec.DecodeError, ValueError, RecursionError, ManifestError) as error:
            reads += 1
            if reads < READS:
                continue
            if isinstance(error, ManifestError):
                raise
            raise ManifestError(
                f"{where}: not a readable plan: {error}. Remove {store.url}, or build again with --overwrite"
            ) from error


def _read_plan(file: BinaryIO, where: str) -> Plan:
    """Read a plan of any size line by line. Raises ValueError, or as the parser does, if it is not a plan."""
    first = read_line(file)
    version = _FIELDS.decode(first).get("plan_version")
    if version != PLAN_VERSION:
        raise ManifestVersionError(
            f"{where}: plan version {version}. This tpufeed continues only version {PLAN_VERSION}. Finish the build "
            "with the tpufeed that began it, or take another destination"
        )
    header = _HEADER.decode(first)
    # A header that no build writes is refused: the names and the number of files follow from it.
    if header.variants is not None and not 1 <= header.variants <= _MOST_VARIANTS:
        raise ValueError(f"it makes {header.variants} variants")
    for split, shards in header.splits.items():
        try:
            check_split_name(split)
        except OptionError as error:
            raise ValueError(str(error)) from error
        if shards < 0:
            raise ValueError(f"split {split!r} has {shards} shards")
    if sum(header.splits.values()) * (header.variants or 1) > _MOST_OUTPUTS:
        raise ValueError(f"it makes {sum(header.splits.values()):,} shards of {header.variants or 1} variants")
    expected = ((split, shard, shards) for split, shards in header.splits.items() for shard in range(shards))
    refs: list[TaskRef] = []
    start, crc = len(first), crc32c(first)
    for place in expected:
        line = read_line(file)
        if not line:
            raise ValueError(f"it is cut off after {len(refs)} of {sum(header.splits.values())} tasks")
        crc = crc32c(line, crc)
        task = _TASK_HEAD.decode(line)
        if (task.number, task.split, task.shard, task.shards) != (len(refs), *place):
            raise ValueError(f"task {task.number} is shard {task.shard} of {task.split!r} instead of {place}")
        stop = start + len(line) - 1
        name = header.shard_names(task)[0]
        refs.append(TaskRef(task.number, task.split, start, stop, name, _digest(line[:-1])))
        start += len(line)
    last = read_line(file)
    if not last:
        raise ValueError(f"it is cut off after {len(refs)} of {sum(header.splits.values())} tasks")
    end = _END.decode(last)
    if end.crc32c != crc:
        raise ValueError(f"its CRC-32C is {crc:#010x}, and {end.crc32c:#010x} was written")
    return Plan(header, tuple(refs))


def read_run_id(store: Store, expected: str = "") -> str:
    """Return the id of the run whose plan is at a destination, from its first line.

    It is read again unless it is the `expected` one: it may have been damaged on the way.

    Raises:
        ObjectNotFoundError: there is no plan.
        ManifestError: the line cannot be understood.
    """

    def read() -> str | Exception:
        try:
            with open_object(store, PLAN) as file:
                return _HEADER.decode(read_line(file)).run_id
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return error

    found = settle(f"{store.url}/{PLAN}", read, identity=str, is_sure=lambda found: found == expected)
    if isinstance(found, Exception):
        raise ManifestError(f"{store.url}/{PLAN}: not a readable plan: {found}") from found
    return found


def read_task(store: Store, ref: TaskRef, line: bytes | StoreError = b"") -> Task:
    """Return the task of `ref`, from its `line` if that was read and is sound, or read it again.

    Raises:
        ManifestError: the plan has no such task: it was replaced, or is damaged.
    """
    for reads_left in reversed(range(READS + 1)):
        if isinstance(line, bytes) and _digest(line) == ref.digest:
            try:
                return _TASK.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ManifestError(
                    f"{store.url}/{PLAN}: not a task at bytes {ref.start} to {ref.stop}: {error}. It was forged, or "
                    f"written by another program. Remove {store.url}"
                ) from error
        if reads_left:
            line = store.read_range(PLAN, ref.start, ref.stop)
    raise ManifestError(
        f"{store.url}/{PLAN}: the task of {ref.name} at bytes {ref.start} to {ref.stop} has changed since the build "
        f"began, in each of {READS} reads. Was it replaced? Run the same command again"
    )


def iter_tasks(store: Store, plan: Plan) -> Iterator[Task]:
    """Yield all tasks in order. Many tasks of a remote plan are read at once. Raises as `read_task` does."""
    inputs, classes = 0, range(-1, len(plan.header.class_names))
    with closing(store.read_many(Span(PLAN, ref.start, ref.stop) for ref in plan.tasks)) as read:
        for ref, line in zip(plan.tasks, read, strict=True):
            task = read_task(store, ref, line)
            inputs += len(task.inputs)
            # The caller looks up classes, and has as many digests as the header says.
            are_known = all(
                item.label in classes and all(each in classes for each in item.labels) for item in task.inputs
            )
            if inputs > plan.header.images or not are_known:
                raise ManifestError(
                    f"{store.url}/{PLAN}: not a task at bytes {ref.start} to {ref.stop}: it exceeds the plan's "
                    f"{plan.header.images} images or its {len(classes) - 1} classes. It was forged, or written by "
                    f"another program. Remove {store.url}"
                )
            yield task


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=_DIGEST_BYTES).digest()


def with_access(plan: Plan, source: str) -> Plan:
    """Return the plan with the secrets of the present URL `source`: its `base` was stored without them."""
    place = source
    while place and url_identity(place) != plan.header.base:
        place = place.rpartition("/")[0]  # a table is in its base
    return replace(plan, header=msgspec.structs.replace(plan.header, base=place)) if place else plan


def check_same_plan(url: str, found: PlanHeader, kind: str, source: str, options: dict[str, Any]) -> None:
    """Raise DuplicateWriterError, naming what differs, if the destination belongs to another build."""
    given = {"command": kind, "source": url_identity(source), **options}
    wanted = msgspec.json.decode(msgspec.json.encode(given))
    differing = differing_options({"command": found.kind, "source": found.source, **found.options}, wanted)
    if differing:
        raise DuplicateWriterError(
            f"{url} already holds a dataset, maybe unfinished, of another build: {'; '.join(differing)}; "
            "nothing was changed. Take another destination, give the options of that build, or pass --overwrite"
        )


def at_place(plan: Plan, source: str, base: str | None = None) -> Plan:
    """Return the plan of a source that has another URL now, and maybe another base."""
    place = {"source": url_identity(source)} | ({} if base is None else {"base": url_identity(base)})
    return replace(plan, header=msgspec.structs.replace(plan.header, **place))


def differing_options(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Describe how the options of two builds differ, both as JSON decodes them."""
    found: list[tuple[str, Any, Any]] = []
    for name in (*wanted, *sorted(stored.keys() - wanted.keys())):
        there, here = stored.get(name), wanted.get(name)
        are_ops = isinstance(there, list) and isinstance(here, list) and any(isinstance(x, dict) for x in there + here)
        if not are_ops:
            found.append((name, there, here))
            continue
        # Only the ops and parameters that differ are named: a message has no room for all.
        several = max(len(there), len(here)) > 1  # type: ignore[arg-type]  # they are lists
        for number, (old, new) in enumerate(itertools.zip_longest(there, here), 1):  # type: ignore[arg-type]
            place = f"{name}, number {number}" if several else name
            if isinstance(old, dict) and isinstance(new, dict) and old.get("op") == new.get("op") is not None:
                keys = dict.fromkeys((*new, *old))
                found += ((f"{key} of {new['op']} ({place})", old.get(key), new.get(key)) for key in keys)
            else:
                found.append((f"{place}," if several else place, old, new))
    return [f"{what} is {_format(old)} there and {_format(new)} here" for what, old, new in found if old != new]


def _masked(item: Item) -> Item:
    """Remove the signatures of URLs from an item that is not read: rejects.jsonl must not show them."""
    problem = None if item.problem is None else (item.problem[0], mask_secrets(item.problem[1]))
    images = tuple(msgspec.structs.replace(image, file=url_identity(image.file)) for image in item.images)
    return msgspec.structs.replace(item, file=url_identity(item.file), problem=problem, images=images)


def _format(value: object) -> str:
    if isinstance(value, dict) and "op" in value:
        parameters = [f"{key}={_format(given)}" for key, given in value.items() if key not in ("op", "version")]
        return f"{value['op']}({', '.join(parameters)})"
    return shorten("not set" if value is None else msgspec.json.encode(value).decode(), _SAID)
