"""Protect a destination: a build that is killed anywhere ends, when it is run again, with the same bytes.

The plan is put first, each task's shards before its report, the manifest last.

A destination belongs to the run whose plan is there. A run with --overwrite takes it over in one step: it replaces the
version of the plan that it has seen. Only then it removes the objects that it noted before, see `removals_name`. A run
that has lost the destination publishes nothing.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from crc32c import crc32c

from tpufeed.builds.plan import Plan, PlanHeader, TaskRef, read_plan, read_run_id
from tpufeed.dataset.manifest import Levels, Manifest, Markers
from tpufeed.dataset.naming import (
    DIGESTS,
    DUPLICATES,
    MANIFEST,
    PLAN,
    PROBE,
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
from tpufeed.errors import (
    BuildError,
    DamageError,
    DatasetExistsError,
    DuplicateWriterError,
    ManifestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    mask_secrets,
)
from tpufeed.storage.reading import READS, read_certain
from tpufeed.storage.store import ObjectInfo, Store, open_store

_LOOKS = 10
_logger = logging.getLogger(__name__)


class Reject(msgspec.Struct, frozen=True):
    """An input not taken."""

    path: str
    reason: str
    message: str


class ShardReport(msgspec.Struct, frozen=True):
    """A shard at the destination.

    `lengths` has the sizes of its records, with framing. `generation` is the object's, if the store has generations.
    """

    name: str
    bytes: int
    crc32c: int
    lengths: tuple[int, ...]
    generation: str | None = None


class Report(msgspec.Struct, frozen=True):
    """Result of a task: a shard for each variant, and the rejects.

    `images` counts images by how they were stored, `odd` the odd cases that a policy dealt with, `markers` the restart
    markers of kept JPEGs, `retries` repeated requests to stores. `run_id` is the plan's. `digests` has the digests of
    the source images, see `builds.digests`. `checksum` is the CRC-32C of the encoded report with checksum 0. Only a
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
    levels: Levels = msgspec.UNSET


class _RunId(msgspec.Struct):
    run_id: str = ""


_REPORT = msgspec.json.Decoder(Report)
_REMOVALS = msgspec.json.Decoder(dict[str, str])
_RUN_ID = msgspec.json.Decoder(_RunId)


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that a destination belongs to: the id in its plan, and the version of the plan's object."""

    run_id: str
    version: str


class Destination:
    """A store that a build puts a dataset into. Its methods are the commit protocol.

    Attributes:
        store: the store of the dataset, or of the part that a growing dataset gets.
        owner: the run that should own the store. None for files that any run may put.
        plan: the plan of the build, once it was found, put or joined.
        old: objects that a build with --overwrite removes, see `find_build`.
        foreign: names of all other files, if there is no plan to continue.
    """

    plan: Plan

    def __init__(self, store: Store, owner: Owner | None = None) -> None:
        self.store, self.owner, self.url = store, owner, store.url
        self.old, self.foreign = list[ObjectInfo](), set[str]()

    def part(self, folder: str) -> "Destination":
        """Return the destination of a part of the dataset, in its folder. An empty name stands for this one."""
        return Destination(open_store(f"{self.url.rstrip('/')}/{folder}", follow=False)) if folder else self

    def inspect(self, overwrite: bool) -> bool:
        """Learn what is there before a build begins. Return true if a build left a plan, which this one may continue.

        Raises:
            DatasetExistsError: as `find_build` does.
            ManifestError: the plan cannot be understood.
        """
        self.old, self.foreign = self.find_build() if overwrite else [], set()
        if not overwrite and self.store.stat(PLAN) is not None:
            self._read_current_plan()
            return True
        self.foreign = {info.name for info in self.store.iter_objects()} - {info.name for info in self.old}
        return False

    def check_fits(self, header: PlanHeader, size_bytes: int) -> None:
        """Check that there is room for the shards of a new plan, before it is put. Changes nothing.

        Raises:
            BuildError: shards of `size_bytes` bytes do not fit, even after the removals.
            DuplicateWriterError: a foreign file has a name that the plan needs.
        """
        free, old = self.store.free_bytes(), self.old
        room = None if free is None else free + sum(info.size_bytes for info in old)
        if room is not None and size_bytes > room:
            raise BuildError(
                f"{self.url} has room for {room / 1e6:,.1f} MB. The shards will take about {size_bytes / 1e6:,.1f} MB. "
                "Nothing was changed. Make room, take another destination, or store smaller images"
            )
        if not self.foreign:
            return
        outputs = header.output_names
        taken = sorted(name for name in self.foreign if uncounted(name) in outputs)
        if taken and old:
            # The present build may be running: files that it has put since `old` was listed are not foreign.
            known = {info.name for info in self.find_build()}
            taken = [name for name in taken if name not in known and self.store.stat(name) is not None]
        if taken and (old or self.store.stat(PLAN) is None):
            raise DuplicateWriterError(
                f"{self.url} holds {taken[0]} ({len(taken)} such files), which no known build has put there. Take "
                "another destination or remove them"
            )

    def put_plan(self, path: Path, plan: Plan) -> bool:
        """Put a new plan, written to `path`. It replaces the one in `old`. Return false if another run was faster.

        A note is put first that names the objects to remove, since the old plan, which names them, will be gone. It
        also has the missing outputs of that plan, because its run may still be running.
        """
        seen = {info.name: info for info in self.old}
        # The version that was seen: a plan that another run has put meanwhile is not replaced.
        replaced, removals = seen.pop(PLAN, None), removals_name(plan.header.run_id)
        if not self.store.conditional:  # a listing may spell a version differently
            replaced = self.store.stat(PLAN)
        if self.old:
            noted = self._noted_names(seen) | {name: info.version for name, info in seen.items()}
            self.store.put(removals, msgspec.json.encode(noted))
        try:
            stored = self.store.put_file(PLAN, path, replaced)
        except ObjectExistsError:  # the same command was started twice
            self.store.delete(removals)
            self._read_current_plan()
            return False
        self.plan, self.owner = plan, Owner(plan.header.run_id, stored.version)
        return True

    def find_build(self) -> list[ObjectInfo]:
        """List the objects of the dataset or the build that is there, in the order of removal: the plan last.

        Adopted shards, and files that no build of tpufeed has named, are not listed.

        Raises:
            DatasetExistsError: a manifest cannot be read, and no plan tells what it is.
        """
        while True:
            plan = self.store.stat(PLAN)
            found = self._find_build()
            if self.store.stat(PLAN) == plan:
                return found
            # Another run with --overwrite has taken over meanwhile: the listing does not belong to the plan.

    def _find_build(self) -> list[ObjectInfo]:
        present = {info.name: info for info in self.store.iter_objects()}
        noted = self._noted_names(present).items()
        names = [
            name for name, version in noted if not version or (name in present and present[name].version == version)
        ]
        try:
            dataset = find_dataset(self.store)
        except DamageError as error:
            if not names:
                raise DatasetExistsError(
                    f"{error}. Nothing was changed. If it is no longer needed, remove {self.url} by hand"
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
            names += [
                name for name, index in indexes if index is not None and index[0] in splits and index[1] in numbers
            ]
            folders = {name.partition("/")[0] for name in present}
            for folder in map(part_folder, numbers):
                if folder in folders:
                    names += [f"{folder}/{info.name}" for info in self.part(folder).find_build()]
        names = [MANIFEST, *filter(is_build_name, names), REJECTS, DIGESTS, DUPLICATES] if names else []
        reports = [name for name in present if name.startswith((f"{REPORTS}/", f"{REMOVALS}-", f"{VERSIONS}/"))]
        return [present[name] for name in dict.fromkeys((*names, *reports, PLAN)) if name in present]

    def find_finished(self) -> Dataset | None:
        """Return the finished dataset that is there, unless an interrupted --overwrite still has to remove it.

        Raises:
            ManifestError: its manifest cannot be understood.
        """
        if self.store.stat(MANIFEST) is None:
            return None
        with suppress(ObjectNotFoundError, DamageError):
            if self.store.stat(removals_name(read_run_id(self.store))) is not None:
                return None
        return find_dataset(self.store)

    def _noted_names(self, present: Mapping[str, ObjectInfo]) -> dict[str, str]:
        """Return the names in the plan and in notes of removals, with the versions to remove. "" means any version."""
        noted: dict[str, str] = {}
        with suppress(ObjectNotFoundError, DamageError):
            outputs = read_plan(self.store).header.output_names
            noted |= dict.fromkeys([*sorted(outputs), *(name for name in present if uncounted(name) in outputs)], "")
        for name in present:
            if name.startswith(f"{REMOVALS}-"):
                noted = {**(self._read_removals(name) or {}), **noted}
        return noted

    def _read_current_plan(self) -> None:
        """Take the plan that is there, and its run for the owner. Raises as `read_plan` does."""
        while True:
            found = self.store.stat(PLAN)
            try:
                plan = read_plan(self.store)
            except DamageError:
                if found == self.store.stat(PLAN):
                    raise
                continue  # it was replaced while it was read
            if found is not None and found == self.store.stat(PLAN):
                self.plan, self.owner = plan, Owner(plan.header.run_id, found.version)
                return

    def check_owner(self) -> None:
        """Raise BuildError if the destination has an owner, and belongs to another run now."""
        if self.owner is None:
            return
        found = self.store.stat(PLAN)
        if found is not None and found.version == self.owner.version:
            return
        try:  # other hosts may see other times of files
            run_id = read_run_id(self.store, self.owner.run_id)
        except (ObjectNotFoundError, DamageError):
            raise BuildError(
                f"{self.url}/{PLAN}, the plan of this build, is gone or damaged. Nothing was published. Run the same "
                "command again, with --overwrite if it finds files in the way"
            ) from None
        if run_id != self.owner.run_id:
            raise self.replaced()

    def replaced(self) -> BuildError:
        """Return the error for a build that has lost its destination."""
        return BuildError(
            f"{self.url}: another run with --overwrite has replaced this build. Nothing of it was published"
        )

    def see(self, run_id: str) -> dict[str, str]:
        """Return the run whose plan this host sees, by the plan's URL, or an empty dict if it sees no plan.

        Raises:
            StoreError: the store does not answer, or refuses reading or writing.
        """
        try:
            seen = read_run_id(self.store, run_id)
        except ObjectNotFoundError:
            return {}
        except ManifestError:
            seen = "unreadable"
        name = f"{PROBE}-{secrets.token_hex(8)}"
        probe = self.store.put(name, b"")
        with suppress(StoreError):  # the user may be allowed to create objects, but not to remove them
            self.store.delete(name, probe.version)
        return {f"{self.url}/{PLAN}": seen}

    def remove_leftovers(self, manifest: Manifest | None = None) -> None:
        """Remove the objects that the build has noted, the manifest first, but none of its own outputs.

        Each run of the same command does this before it starts (an earlier one may have been killed halfway) and again
        when it ends (a run that has lost the destination may have put something since). If the store is not
        conditional, its versions may follow from the content, and new outputs look like old ones. Then all noted
        objects are removed the first time, and the note with them, so that there is no second time.

        Args:
            manifest: manifest of the build, when it ends. Then shards of interrupted tasks are removed as well, if
                another count of records gave them another name: a glob would find such a shard beside the right one.
                All other outputs were replaced by the task's next run.
        """
        store, header = self.store, self.plan.header
        note, counted = removals_name(header.run_id), manifest is not None and header.are_counted
        noted = self._read_removals(note)
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
            is_noted = noted is not None and (
                name in noted or uncounted(name) in noted or name.startswith(f"{REPORTS}/")
            )
            is_old = not store.conditional or uncounted(name) not in ours or (noted or {}).get(name) == info.version
            if is_orphan or (is_noted and is_old and is_build_name(name)):  # a forged note may have other names
                store.delete(name, info.version if store.conditional else "")
        # Before this run puts its manifest: beside the note, `find_finished` takes a manifest for the one to remove.
        if manifest is not None or not store.conditional:
            store.delete(note)

    def _read_removals(self, name: str) -> dict[str, str] | None:
        try:
            return _REMOVALS.decode(read_certain(self.store, name))
        except ObjectNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}

    def put(self, name: str, content: bytes | Path, size_bytes: int = 0, crc: int = 0) -> ObjectInfo:
        """Put an object of a build. An object of this name with the same bytes stays. Another one is replaced.

        A replaced shard is an orphan: its task was interrupted before its report, perhaps with another version of a
        decoder. All other files follow from the reports.

        Args:
            name: name of the object.
            content: its bytes, or a local file of `size_bytes` bytes with CRC-32C `crc`.

        Raises:
            BuildError: the destination belongs to another run afterwards, and the object was removed again.
            BuildError: the object keeps changing.
        """
        if isinstance(content, bytes):
            size_bytes, crc = len(content), crc32c(content)
        replaces = None
        for _ in range(_LOOKS):
            try:
                if isinstance(content, bytes):
                    stored = self.store.put(name, content, replaces)
                else:
                    stored = self.store.put_file(name, content, replaces)
            except ObjectExistsError:
                found = self.store.stat(name)
                is_same = found is not None and self._holds(found, size_bytes, crc)
                self.check_owner()  # after that look, so that it did not see an object of a later owner
                if found is not None and is_same:
                    return found
                replaces = found  # another run of this build may be faster: then look again
                continue
            if replaces is not None:
                _logger.info("replaced %s/%s, which had other bytes", mask_secrets(self.url), name)
            try:  # another run may have taken the destination over between the look and the put
                self.check_owner()
            except BuildError:
                self.store.delete(name, stored.version)
                raise
            return stored
        raise BuildError(f"{self.url}/{name} keeps changing: is another program writing there?")

    def put_report(self, report: Report) -> None:
        """Put a task's report: from here on the task is done."""
        assert self.owner is not None, "a task belongs to a run"
        # A replaced build may have left reports of tasks with the same numbers: so each report names its run.
        report = msgspec.structs.replace(report, run_id=self.owner.run_id)
        sealed = msgspec.structs.replace(report, checksum=checksum(report))
        self.put(report_name(report.task), msgspec.json.encode(sealed))

    def read_report(self, task: TaskRef, run_id: str) -> Report | None:
        """Return the report of a task of the plan `run_id`, or None if it is missing or damaged."""
        name, data = report_name(task.number), b""
        for _ in range(READS):
            try:
                data = self.store.read_document(name)
                report = _REPORT.decode(data)
            except ObjectNotFoundError:
                return None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if report.checksum == checksum(report):
                return report if report.run_id == run_id else None  # None: it belongs to a replaced build
        _logger.warning("%s/%s is damaged. Its task runs again", mask_secrets(self.url), name)
        self._discard(name, data)
        return None

    def discard_report(self, report: Report) -> None:
        """Remove a wrong report, so that its task runs again."""
        self._discard(report_name(report.task), msgspec.json.encode(report))

    def _discard(self, name: str, data: bytes) -> None:
        """Remove an object that holds `data`, unless another run has replaced it since."""
        found = self.store.stat(name)
        with suppress(ObjectNotFoundError, ObjectChangedError):
            if found is not None and self.store.read(name, found.version) == data:
                self.store.delete(name, found.version)

    def iter_lost(self, manifest: Manifest) -> Iterator[str]:
        """Yield each file of a manifest that is missing or has another size or, if the store knows it, another CRC.

        This lists the store once, and reads nothing.
        """
        present = {info.name: info for info in self.store.iter_objects()}
        for split in manifest.splits.values():
            for file in (file for variant in split.variants for file in variant.files):
                found = present.get(file.name)
                if found is None or found.size_bytes != file.bytes or found.crc32c not in (None, file.crc32c):
                    yield file.name

    def is_stored(self, name: str, size_bytes: int, crc: int) -> bool:
        """Return true if the object `name` has this size and CRC-32C."""
        found = self.store.stat(name)
        return found is not None and self._holds(found, size_bytes, crc)

    def _holds(self, found: ObjectInfo, size_bytes: int, crc: int) -> bool:
        if found.size_bytes != size_bytes:
            return False
        if found.crc32c is not None:
            return found.crc32c == crc
        try:
            return stored_crc32c(self.store, found.name, size_bytes, crc) == crc
        except ObjectNotFoundError:  # replaced at this moment by another run of the same build
            return False


def checksum(report: Report) -> int:
    """Return the checksum of a report."""
    return crc32c(msgspec.json.encode(msgspec.structs.replace(report, checksum=0)))
