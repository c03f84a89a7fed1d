"""Put results in place so that a build that is killed anywhere ends, when it is run again, with the same bytes.

The plan is put first, each task's shards before its report, the manifest last.

A destination belongs to the run whose plan is there. A run with --overwrite takes it over in one step: it replaces the
version of the plan that it has seen. Only then it removes the objects that it noted before, see `removals_name`. A run
that has lost the destination publishes nothing.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from tpufeed.builds.plan import (
    Owner,
    Plan,
    PlanHeader,
    TaskRef,
    check_same_plan,
    find_same_plan,
    read_plan,
    read_run_id,
)
from tpufeed.dataset.manifest import Manifest, Markers
from tpufeed.dataset.naming import (
    DIGESTS,
    DUPLICATES,
    MANIFEST,
    PLAN,
    REJECTS,
    REMOVALS,
    REPORTS,
    VERSIONS,
    is_build_name,
    parse_version_index,
    part_folder,
    removals_name,
    report_name,
    uncounted,
)
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.dataset.walk import stored_crc32c
from tpufeed.dataset.writer import check_writable
from tpufeed.errors import (
    BuildError,
    DamageError,
    DatasetExistsError,
    DuplicateWriterError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    SourceError,
    mask_secrets,
)
from tpufeed.storage.reading import READS, read_certain
from tpufeed.storage.store import ObjectInfo, Store, open_store

_LOOKS = 10
_logger = logging.getLogger(__name__)

_REPLACED = "{}: another run with --overwrite has replaced this build; nothing of it was published"


class Reject(msgspec.Struct, frozen=True):
    """An input not taken."""

    path: str
    reason: str
    message: str


class ShardReport(msgspec.Struct, frozen=True):
    """A shard at the destination.

    `lengths` has the sizes of its records, with framing; `generation` is the object's, if the store has generations.
    """

    name: str
    bytes: int
    crc32c: int
    lengths: tuple[int, ...]
    generation: str | None = None


class Report(msgspec.Struct, frozen=True):
    """Result of a task: a shard for each variant, and the rejects.

    `images` counts images by how they were stored, `odd` the odd cases that a policy dealt with, `markers` the restart
    markers of kept JPEGs, `retries` repeated requests to stores. `run_id` is the plan's; `digests` has the digests of
    the source images, see `build.digests`. `checksum` is the CRC-32C of the encoded report with checksum 0; only a
    stored report has one.
    """

    task: int
    shards: tuple[ShardReport, ...]
    class_counts: tuple[int, ...]
    images: dict[str, int]
    rejects: tuple[Reject, ...]
    odd: dict[str, int] = {}
    retries: int = 0
    run_id: str = ""
    checksum: int = 0
    markers: Markers | msgspec.UnsetType = msgspec.UNSET
    digests: bytes | msgspec.UnsetType = msgspec.UNSET
    heights: dict[int, int] = {}
    widths: dict[int, int] = {}


_REPORT = msgspec.json.Decoder(Report)
_REMOVALS = msgspec.json.Decoder(dict[str, str])


class Standing(NamedTuple):
    """Contents of a destination before a build begins."""

    plan: Plan | None  # of an earlier run of the same build
    old: list[ObjectInfo]  # that a build with --overwrite removes, see `find_build`
    foreign: set[str]  # names of all other files


def check_destination(
    store: Store,
    kind: str,
    source: str,
    identity: dict[str, Any],
    overwrite: bool,
    follow: Callable[[Plan], Plan | None] = lambda _: None,
) -> Standing:
    """Check that a build can begin or continue at `store`. Changes nothing. `follow` is the recipe's.

    Raises:
        DuplicateWriterError: the destination belongs to a build with another source or other options.
        DatasetExistsError: as `find_build` does.
        SourceError: the source's path is not UTF-8, so a plan cannot hold it.
        StoreError: the folder cannot be made or written to.
    """
    if source.encode("utf-8", "replace").decode() != source:
        raise SourceError(f"the path of the source, {source!r}, is not UTF-8; rename it")
    old = find_build(store) if overwrite else []
    plan = None if overwrite or store.stat(PLAN) is None else _read_current_plan(store)
    if plan is not None:
        plan = find_same_plan(store, plan, kind, source, identity, follow)
    check_writable(store)  # now, not after hours of work
    foreign = set() if plan is not None else {info.name for info in store.iter_objects()} - {info.name for info in old}
    return Standing(plan, old, foreign)


def check_fits(store: Store, header: PlanHeader, size_bytes: int, standing: Standing) -> None:
    """Check that there is room for the shards of a new plan, before it is put. Changes nothing.

    Raises:
        BuildError: shards of `size_bytes` bytes do not fit, even after the removals.
        DuplicateWriterError: a foreign file has a name that the plan needs.
    """
    free, old = store.free_bytes(), standing.old
    room = None if free is None else free + sum(info.size_bytes for info in old)
    if room is not None and size_bytes > room:
        raise BuildError(
            f"{store.url} has room for {room / 1e6:,.1f} MB; the shards will take about {size_bytes / 1e6:,.1f} MB. "
            "Nothing was changed. Make room, take another destination, or store smaller images"
        )
    if not standing.foreign:
        return
    outputs = header.output_names
    taken = sorted(name for name in standing.foreign if uncounted(name) in outputs)
    if taken and old:
        # The present build may be running: files that it has put since `old` was listed are not foreign.
        known = {info.name for info in find_build(store)}
        taken = [name for name in taken if name not in known and store.stat(name) is not None]
    if taken and (old or store.stat(PLAN) is None):
        raise DuplicateWriterError(
            f"{store.url} holds {taken[0]} ({len(taken)} such files), which no known build has put there; take another "
            "destination or remove them"
        )


def put_plan(store: Store, path: Path, plan: Plan, standing: Standing) -> Plan | None:
    """Put a new plan, written to `path`; it replaces the one among `standing.old`.

    Returns None if another run of the same command was faster.

    A note is put first that names the objects to remove, since the old plan, which names them, will be gone. It also
    has the missing outputs of that plan, because its run may still be running.
    """
    seen = {info.name: info for info in standing.old}
    # The version that was seen: a plan that another run has put meanwhile is not replaced.
    replaced, removals = seen.pop(PLAN, None), removals_name(plan.header.run_id)
    if not store.conditional:  # a listing may spell a version differently
        replaced = store.stat(PLAN)
    if standing.old:
        noted = _noted_names(store, seen) | {name: info.version for name, info in seen.items()}
        store.put(removals, msgspec.json.encode(noted))
    try:
        stored = store.put_file(PLAN, path, replaced)
    except ObjectExistsError:  # the same command was started twice
        store.delete(removals)
        return None
    return replace(plan, owner=Owner(plan.header.run_id, stored.version))


def join_plan(store: Store, kind: str, source: str, identity: dict[str, Any], overwrite: bool) -> Plan:
    """Return the plan that another, faster run has put.

    Raises:
        DuplicateWriterError: it has another source or other options.
        BuildError: the same, and both runs overwrite.
    """
    plan = _read_current_plan(store)
    try:
        check_same_plan(store, plan.header, kind, source, identity)
    except DuplicateWriterError as error:
        if not overwrite:
            raise
        raise BuildError(_REPLACED.format(store.url)) from error
    return plan


def find_build(store: Store) -> list[ObjectInfo]:
    """List the objects of a dataset or a build at `store`, in the order of removal: the plan last.

    Adopted shards, and files that no build of tpufeed has named, are not listed.

    Raises:
        DatasetExistsError: a manifest cannot be read, and no plan tells what it is.
    """
    while True:
        plan = store.stat(PLAN)
        found = _find_build(store)
        if store.stat(PLAN) == plan:
            return found
        # Another run with --overwrite has taken over meanwhile: the listing does not belong to the plan.


def _find_build(store: Store) -> list[ObjectInfo]:
    present = {info.name: info for info in store.iter_objects()}
    noted = _noted_names(store, present).items()
    names = [name for name, version in noted if not version or (name in present and present[name].version == version)]
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
        # The indexes of all versions, and the parts that they have added, with the one of an interrupted append.
        numbers, splits = range(2, dataset.number + 2), dataset.manifest.splits
        indexes = ((name, parse_version_index(name)) for name in present)
        names += [name for name, index in indexes if index is not None and index[0] in splits and index[1] in numbers]
        folders = {name.partition("/")[0] for name in present}
        for number in numbers:
            if (folder := part_folder(number)) in folders:
                names += [f"{folder}/{info.name}" for info in find_build(open_part(store, number))]
    names = [MANIFEST, *filter(is_build_name, names), REJECTS, DIGESTS, DUPLICATES] if names else []
    reports = [name for name in present if name.startswith((f"{REPORTS}/", f"{REMOVALS}-", f"{VERSIONS}/"))]
    return [present[name] for name in dict.fromkeys((*names, *reports, PLAN)) if name in present]


def find_finished(store: Store) -> Dataset | None:
    """Return the dataset that `store` holds; None if an interrupted --overwrite still has to remove it.

    Raises:
        ManifestError: its manifest cannot be understood.
    """
    if store.stat(MANIFEST) is None:
        return None
    with suppress(ObjectNotFoundError, DamageError):
        if store.stat(removals_name(read_run_id(store))) is not None:
            return None
    return find_dataset(store)


def _noted_names(store: Store, present: Mapping[str, ObjectInfo]) -> dict[str, str]:
    """Return the names in the plan and in notes of removals at `store`, with the versions to remove; "" means any."""
    noted: dict[str, str] = {}
    with suppress(ObjectNotFoundError, DamageError):
        outputs = read_plan(store).header.output_names
        noted |= dict.fromkeys([*sorted(outputs), *(name for name in present if uncounted(name) in outputs)], "")
    for name in present:
        if name.startswith(f"{REMOVALS}-"):
            noted = {**(_read_removals(store, name) or {}), **noted}
    return noted


def _read_current_plan(store: Store) -> Plan:
    """Return the plan with its version. Raises as `read_plan` does."""
    while True:
        found = store.stat(PLAN)
        try:
            plan = read_plan(store)
        except DamageError:
            if found == store.stat(PLAN):
                raise
            continue  # it was replaced while it was read
        if found is not None and found == store.stat(PLAN):
            return replace(plan, owner=Owner(plan.header.run_id, found.version))


def check_owner(store: Store, owner: Owner) -> None:
    """Raise BuildError if the destination belongs to another run now."""
    found = store.stat(PLAN)
    if found is not None and found.version == owner.version:
        return
    try:  # other hosts may see other times of files
        run_id = read_run_id(store, owner.run_id)
    except (ObjectNotFoundError, DamageError):
        raise BuildError(
            f"{store.url}/{PLAN}, the plan of this build, is gone or damaged; nothing was published. Run the same "
            "command again, with --overwrite if it finds files in the way"
        ) from None
    if run_id != owner.run_id:
        raise BuildError(_REPLACED.format(store.url))


def remove_leftovers(store: Store, header: PlanHeader, manifest: Manifest | None = None) -> None:
    """Remove the objects that a build has noted, the manifest first, but none of its own outputs.

    Each run of the same command does this before it starts (an earlier one may have been killed halfway) and again when
    it ends (a run that has lost the destination may have put something since). If the store is not conditional, its
    versions may follow from the content, and new outputs look like old ones: then all noted objects are removed the
    first time, and the note with them, so that there is no second time.

    Args:
        store: the destination.
        header: header of the build's plan.
        manifest: manifest of the build, when it ends. Then shards of interrupted tasks are removed as well, if another
            count of records gave them another name: a glob would find such a shard beside the right one. All other
            outputs were replaced by the task's next run.
    """
    note, counted = removals_name(header.run_id), manifest is not None and header.are_counted
    noted = _read_removals(store, note)
    if noted is None and not counted:
        return
    outputs, present = header.output_names, {info.name: info for info in store.iter_objects()}
    standing = present.pop(MANIFEST, None)
    if noted is not None and standing is not None:
        try:  # another run of this build may have put its manifest
            of_twin = _RUN_ID.decode(read_certain(store, MANIFEST, standing.version)).run_id == header.run_id
        except (ObjectNotFoundError, ObjectChangedError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            of_twin = False
        if not of_twin:
            # First, so that no reader finds a manifest whose shards are gone.
            store.delete(MANIFEST, standing.version if store.conditional else "")
    ours = {*outputs, REJECTS, DIGESTS, DUPLICATES, *map(report_name, range(sum(header.splits.values())))}
    splits = () if manifest is None else manifest.splits.values()
    made = {file.name for split in splits for variant in split.variants for file in variant.files}
    for name, info in present.items():
        is_orphan = counted and name not in made and uncounted(name) in outputs
        is_noted = noted is not None and (name in noted or uncounted(name) in noted or name.startswith(f"{REPORTS}/"))
        is_old = not store.conditional or uncounted(name) not in ours or (noted or {}).get(name) == info.version
        if is_orphan or (is_noted and is_old and is_build_name(name)):  # a forged note may have other names
            store.delete(name, info.version if store.conditional else "")
    # Before this run puts its manifest: beside the note, `find_finished` takes a manifest for the one to remove.
    if manifest is not None or not store.conditional:
        store.delete(note)


def _read_removals(store: Store, name: str) -> dict[str, str] | None:
    try:
        return _REMOVALS.decode(read_certain(store, name))
    except ObjectNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def open_part(store: Store, version: int) -> Store:
    """Return the store below a dataset in which this version is built."""
    return open_store(f"{store.url.rstrip('/')}/{part_folder(version)}", follow=False)


def put(
    store: Store, name: str, content: bytes | Path, owner: Owner | None, size_bytes: int = 0, crc: int = 0
) -> ObjectInfo:
    """Put an object of a build. An object of this name with the same bytes stays; any other one is replaced.

    A replaced shard is an orphan: its task was interrupted before its report, perhaps with another version of a
    decoder. All other files follow from the reports.

    Args:
        store: the destination.
        name: name of the object.
        content: its bytes, or a local file of `size_bytes` bytes with CRC-32C `crc`.
        owner: the run that should own the destination; if it does not afterwards, the object is removed again. None for
            a version of a dataset, which any run may put.

    Raises:
        BuildError: as `check_owner` does; or the object keeps changing.
    """
    if isinstance(content, bytes):
        size_bytes, crc = len(content), crc32c(content)
    replaces = None
    for _ in range(_LOOKS):
        try:
            if isinstance(content, bytes):
                stored = store.put(name, content, replaces)
            else:
                stored = store.put_file(name, content, replaces)
        except ObjectExistsError:
            found = store.stat(name)
            is_same = found is not None and _holds(store, found, size_bytes, crc)
            if owner is not None:
                check_owner(store, owner)  # after that look, so that it did not see an object of a later owner
            if found is not None and is_same:
                return found
            replaces = found  # another run of this build may be faster: then look again
            continue
        if replaces is not None:
            _logger.info("replaced %s/%s, which had other bytes", mask_secrets(store.url), name)
        if owner is not None:
            try:  # another run may have taken the destination over between the look and the put
                check_owner(store, owner)
            except BuildError:
                store.delete(name, stored.version)
                raise
        return stored
    raise BuildError(f"{store.url}/{name} keeps changing: is another program writing there?")


def put_report(store: Store, report: Report, owner: Owner) -> None:
    """Put a task's report: from here on the task is done."""
    # A replaced build may have left reports of tasks with the same numbers: so each report names its run.
    report = msgspec.structs.replace(report, run_id=owner.run_id)
    sealed = msgspec.structs.replace(report, checksum=_checksum(report))
    put(store, report_name(report.task), msgspec.json.encode(sealed), owner)


def read_report(store: Store, task: TaskRef, run_id: str) -> Report | None:
    """Return the report of a task of the plan `run_id`; None if there is none, or it cannot be read."""
    name, data = report_name(task.number), b""
    for _ in range(READS):
        try:
            data = store.read_document(name)
            report = _REPORT.decode(data)
        except ObjectNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if report.checksum == _checksum(report):
            return report if report.run_id == run_id else None  # None: it belongs to a replaced build
    _logger.warning("%s/%s is damaged; its task runs again", mask_secrets(store.url), name)
    _discard(store, name, data)
    return None


def discard_report(store: Store, report: Report) -> None:
    """Remove a wrong report, so that its task runs again."""
    _discard(store, report_name(report.task), msgspec.json.encode(report))


def _discard(store: Store, name: str, data: bytes) -> None:
    """Remove an object that holds `data`, unless another run has replaced it since."""
    found = store.stat(name)
    with suppress(ObjectNotFoundError, ObjectChangedError):
        if found is not None and store.read(name, found.version) == data:
            store.delete(name, found.version)


def find_lost(store: Store, manifest: Manifest) -> str | None:
    """Return the first file that `iter_lost` yields."""
    return next(iter_lost(store, manifest), None)


def iter_lost(store: Store, manifest: Manifest) -> Iterator[str]:
    """Yield each file of a manifest that is missing or has another size or, if the store knows it, another CRC.

    This lists the store once, and reads nothing.
    """
    present = {info.name: info for info in store.iter_objects()}
    for split in manifest.splits.values():
        for file in (file for variant in split.variants for file in variant.files):
            found = present.get(file.name)
            if found is None or found.size_bytes != file.bytes or found.crc32c not in (None, file.crc32c):
                yield file.name


def is_stored(store: Store, name: str, size_bytes: int, crc: int) -> bool:
    """Return true if the object `name` has this size and CRC-32C."""
    found = store.stat(name)
    return found is not None and _holds(store, found, size_bytes, crc)


def _holds(store: Store, found: ObjectInfo, size_bytes: int, crc: int) -> bool:
    if found.size_bytes != size_bytes:
        return False
    if found.crc32c is not None:
        return found.crc32c == crc
    try:
        return stored_crc32c(store, found.name, size_bytes, crc) == crc
    except ObjectNotFoundError:  # replaced at this moment by another run of the same build
        return False


class _RunId(msgspec.Struct):
    run_id: str = ""


_RUN_ID = msgspec.json.Decoder(_RunId)


def _checksum(report: Report) -> int:
    return crc32c(msgspec.json.encode(msgspec.structs.replace(report, checksum=0)))
