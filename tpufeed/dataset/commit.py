"""Putting results in place so that a build killed anywhere ends, when run again, with the same bytes.

The plan is put first and create-only, each task's shards before its report, the manifest last.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tpufeed.dataset.naming import MANIFEST, PLAN, REJECTS, REPORTS, report_name
from tpufeed.dataset.plan import (
    READS,
    Plan,
    PlanHeader,
    TaskRef,
    check_same_plan,
    read_plan,
    read_plan_file,
    with_access,
)
from tpufeed.dataset.reader import find_dataset
from tpufeed.dataset.space import check_writable
from tpufeed.dataset.writer import WrittenShard
from tpufeed.errors import (
    DamageError,
    DatasetExistsError,
    DuplicateWriterError,
    ObjectExistsError,
    ObjectNotFoundError,
    SourceError,
    mask_secrets,
)
from tpufeed.storage.store import ObjectInfo, Store
from tpufeed.tfrecord.crc32c import crc32c

_logger = logging.getLogger(__name__)

_BLOCK_BYTES = 8 << 20


class Reject(msgspec.Struct, frozen=True):
    """An input not taken."""

    path: str
    reason: str
    message: str


class ShardReport(msgspec.Struct, frozen=True):
    """A shard that stands at the destination.

    `lengths` are its records' sizes, framing included; `generation` is the object's where the store gives them out.
    """

    name: str
    bytes: int
    crc32c: int
    lengths: tuple[int, ...]
    generation: str | None = None


class Report(msgspec.Struct, frozen=True):
    """What came of a task: a shard a variant, and what was not taken.

    `images` counts how images were stored, `odd` the odd cases that a policy dealt with, `retries` the requests to
    stores that were made again. `checksum` is the CRC-32C of
    the encoded report with none; only a stored report has one.
    """

    task: int
    shards: tuple[ShardReport, ...]
    class_counts: tuple[int, ...]
    images: dict[str, int]
    rejects: tuple[Reject, ...]
    odd: dict[str, int] = {}
    retries: int = 0
    checksum: int = 0


def join_or_begin(
    store: Store,
    kind: str,
    source: str,
    options: dict[str, Any],
    make_plan: Callable[[Path, int], None],
    overwrite: bool = False,
) -> tuple[Plan, bool]:
    """The plan of this build at `store`, and whether an earlier run had stored it already.

    `make_plan` is called only where there is none yet, or none that counts; it writes the plan to a new file, and is
    told how many bytes will be removed before there are shards.

    Args:
        overwrite: once there is a new plan, remove what stands at `store`, see `find_build`. A source that cannot be
            planned costs nothing.

    Raises:
        DuplicateWriterError, DatasetExistsError, SourceError, StoreError: as `check_destination` does.
    """
    plan, old = check_destination(store, kind, source, options, overwrite)
    joined = plan is not None
    if plan is None:
        plan = _begin(store, make_plan, old)
        joined = plan is None
    if plan is None:
        plan = read_plan(store)
        check_same_plan(store, plan.header, kind, source, options)
    return with_access(plan, source), joined


def check_destination(
    store: Store, kind: str, source: str, options: dict[str, Any], overwrite: bool
) -> tuple[Plan | None, list[ObjectInfo]]:
    """Check that a build can begin or go on at `store`. Changes nothing.

    Returns:
        The plan that an earlier run of this build has stored, if any; and what `overwrite` removes, see `find_build`.

    Raises:
        DuplicateWriterError: the destination belongs to a build with another source or other options.
        DatasetExistsError: as `find_build` does.
        SourceError: a source whose path is not UTF-8 cannot stand in a plan.
        StoreError: the folder cannot be made, or not be written to.
    """
    if source.encode("utf-8", "replace").decode() != source:
        raise SourceError(f"the path of the source, {source!r}, is not UTF-8; rename it")
    old = find_build(store) if overwrite else []
    plan = None if overwrite or store.stat(PLAN) is None else read_plan(store)
    if plan is not None:
        check_same_plan(store, plan.header, kind, source, options)
    check_writable(store)
    return plan, old


def find_build(store: Store) -> list[ObjectInfo]:
    """What stands at `store` of a dataset or of a build, in the order in which to remove it: manifest first, plan last.

    Shards that were adopted are not among it, nor is any file that no build of tpufeed has named.

    Raises:
        DatasetExistsError: a manifest that cannot be read, and no plan to say what it is.
    """
    names: list[str] = []
    with suppress(ObjectNotFoundError, DamageError):
        names += sorted(read_plan(store).header.output_names)
    try:
        dataset = find_dataset(store)
    except DamageError as error:
        if not names:
            raise DatasetExistsError(
                f"{error}. Nothing was changed; if it is no longer needed, remove {store.url} by hand"
            ) from error
        _logger.warning("a manifest that cannot be read will be removed: %s", error)
        dataset = None
    if dataset is not None:
        adopted = dataset.manifest.options.get("command") == "adopt"
        variants = [variant for split in dataset.manifest.splits.values() for variant in split.variants]
        names += [file.name for variant in variants for file in ([variant.index] if adopted else variant.files)]
    names = [MANIFEST, *names, REJECTS] if names else []
    present = {info.name: info for info in store.iter_objects()}
    reports = [name for name in present if name.startswith(f"{REPORTS}/")]
    return [present[name] for name in dict.fromkeys((*names, *reports, PLAN)) if name in present]


def _begin(store: Store, make_plan: Callable[[Path, int], None], old: Sequence[ObjectInfo]) -> Plan | None:
    """Put a new plan in the place of `old`. None where another run of the same command was quicker."""
    foreign = foreign_names(store, old)
    with store.temporary_folder() as folder:
        make_plan(folder / "plan", sum(info.size_bytes for info in old))
        plan = read_plan_file(folder / "plan")
        check_names(store, plan.header, foreign, old)
        for info in old:
            store.delete(info.name)
        try:
            store.put_file(PLAN, folder / "plan")
        except ObjectExistsError:  # the same command was started twice
            return None
    return plan


def foreign_names(store: Store, old: Sequence[ObjectInfo]) -> set[str]:
    """Names of all objects at `store` but those of `old`, which a build will remove."""
    return {info.name for info in store.iter_objects()} - {info.name for info in old}


def check_names(store: Store, header: PlanHeader, foreign: set[str], old: Sequence[ObjectInfo]) -> None:
    """Raises DuplicateWriterError where one of the `foreign` files has a name that the plan needs."""
    taken = sorted(foreign & header.output_names)
    if taken and (old or store.stat(PLAN) is None):
        raise DuplicateWriterError(
            f"{store.url} holds {taken[0]} ({len(taken)} such files) of no build that is known here; take another "
            "destination or remove them"
        )


def put_shard(store: Store, name: str, path: Path, written: WrittenShard) -> ShardReport:
    """Put a task's shard from a local file. One that is there already with the same bytes is the same shard.

    Other bytes under the name are an orphan: a task of this plan that was cut off before its report, under another
    version of a decoder perhaps. It is replaced.
    """

    def put(replaces: ObjectInfo | None) -> ObjectInfo:
        if replaces is not None:
            _logger.warning("replacing %s/%s, which no report vouches for", mask_secrets(store.url), name)
        return store.put_file(name, path, replaces)

    stored = _put(store, name, written.bytes, written.crc32c, put)
    generation = stored.version if store.generations else None
    return ShardReport(name, written.bytes, written.crc32c, written.lengths, generation)


def put_made(store: Store, name: str, path: Path, size_bytes: int, crc: int) -> None:
    """Put a file that follows from the reports; what is there under its name is the same, or replaced."""
    _put(store, name, size_bytes, crc, lambda replaces: store.put_file(name, path, replaces))


def put_data(store: Store, name: str, data: bytes) -> None:
    """Put a small object; what is there under its name is the same, or replaced."""
    _put(store, name, len(data), crc32c(data), lambda replaces: store.put(name, data, replaces))


def _put(
    store: Store, name: str, size_bytes: int, crc: int, put: Callable[[ObjectInfo | None], ObjectInfo]
) -> ObjectInfo:
    replaces = None
    while True:
        try:
            return put(replaces)
        except ObjectExistsError:
            found = store.stat(name)
            if found is not None and _holds(store, found, size_bytes, crc):
                return found
            replaces = found  # the same build's other run may be quicker, and then this is asked again


def put_report(store: Store, report: Report) -> None:
    """Put a task's report: from here on the task is done."""
    sealed = msgspec.structs.replace(report, checksum=_checksum(report))
    put_data(store, report_name(report.task), msgspec.json.encode(sealed))


def is_reported(store: Store, task: int) -> bool:
    """Whether another run of the same build, at work at the same time, has done the task meanwhile."""
    return store.stat(report_name(task)) is not None


def read_report(store: Store, task: TaskRef) -> Report | None:
    """The report of a task, or None where there is none that can be read, however often it is fetched."""
    for _ in range(READS):
        try:
            report = msgspec.json.decode(store.read(report_name(task.number)), type=Report)
        except ObjectNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if report.checksum == _checksum(report):
            return report
    where = mask_secrets(store.url)
    _logger.warning("%s/%s is damaged; its task runs again", where, report_name(task.number))
    store.delete(report_name(task.number))
    return None


def is_intact(store: Store, report: Report) -> bool:
    """Whether all shards of a report are there with the size and CRC that it says; reads them whole."""
    return all(is_stored(store, shard.name, shard.bytes, shard.crc32c) for shard in report.shards)


def is_stored(store: Store, name: str, size_bytes: int, crc: int) -> bool:
    """Whether the object `name` has this size and CRC-32C."""
    found = store.stat(name)
    return found is not None and _holds(store, found, size_bytes, crc)


def _holds(store: Store, found: ObjectInfo, size_bytes: int, crc: int) -> bool:
    if found.size_bytes != size_bytes:
        return False
    if found.crc32c is not None:
        return found.crc32c == crc
    try:
        return stored_crc32c(store, found.name, size_bytes) == crc
    except ObjectNotFoundError:  # replaced at this moment by another run of the same build
        return False


def stored_crc32c(store: Store, name: str, size_bytes: int) -> int:
    """CRC-32C of an object's first `size_bytes` bytes, read in blocks."""
    crc = 0
    for start in range(0, size_bytes, _BLOCK_BYTES):
        crc = crc32c(store.read_range(name, start, min(start + _BLOCK_BYTES, size_bytes)), crc)
    return crc


def _checksum(report: Report) -> int:
    return crc32c(msgspec.json.encode(msgspec.structs.replace(report, checksum=0)))
