"""`append`: new images become the next version of a dataset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpufeed.build.commit import check_destination, find_finished, join_or_begin, open_part
from tpufeed.build.destination import check_space, choose_engine, refuse_source
from tpufeed.build.plan import Plan, differing_options, read_plan, write_plan
from tpufeed.build.rejects import RejectBudget, parse_budget
from tpufeed.build.run import BuildResult, ProgressListener, finished_result, run_build
from tpufeed.build.versions import check_base, check_class_names, publish
from tpufeed.dataset.manifest import Part
from tpufeed.dataset.naming import REJECTS, part_folder
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import record_schema
from tpufeed.dataset.writer import check_writable
from tpufeed.engines.engine import Engine, Job
from tpufeed.errors import (
    BuildError,
    DatasetNotFoundError,
    DuplicateWriterError,
    ObjectNotFoundError,
    OptionError,
)
from tpufeed.options import Names, checked
from tpufeed.sharding.coco import is_coco
from tpufeed.sharding.duplicates import report_duplicates
from tpufeed.sharding.inventory import Inventory, take_inventory
from tpufeed.sharding.joined import check_joined
from tpufeed.sharding.options import POLICIES, ROLES, Handling, Role, ShardOptions
from tpufeed.sharding.plan import KIND, SizeEstimate, count_shards, needs_probe, plan_options, plan_shards, probe_images
from tpufeed.sharding.preview import Preview, preview_build
from tpufeed.sharding.sample import iter_turn_warnings
from tpufeed.sharding.standing import StandingDataset
from tpufeed.sharding.worker import ENTRY, REACH, ShardContext
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

_TRIES = 5  # where another append has been quicker
# What decides no bytes of records.
_OF_SOURCE = {"command", "source"} | {name for name, role in ROLES.items() if role is not Role.RECORDS}
_STORED_OTHERWISE = {"shares", "shards", "policy", "image_columns"}  # than they are given


def append(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    image: str | None = None,
    label: str | None = None,
    split_by: str | None = None,
    masks: str | Path | None = None,
    duplicates: Handling | None = None,
    unset: Sequence[str] = (),
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
) -> BuildResult:
    """Add new images to a dataset that stands, as its next version. Nothing that stands is moved or written again.

    The images are stored as the dataset's are: all options are those of its first build, except for places of its
    source (the folder of COCO's images, the folder of masks). Images that are in it already, of the same path with the
    same bytes, are skipped and counted. An image that an earlier build has rejected is tried again, unless nothing has
    changed that may have been the reason. Classes are known by their names, and new ones come behind the old ones, so
    that ids stay. Readers that have opened a version go on with it.

    An interrupted call, made again with the same arguments, goes on where it stopped. Made again when it is done, it
    finds nothing new.

    Args:
        src: a folder, table, tars or COCO's .json, as `tpufeed.shard` takes it; it may be the whole source that has
            grown.
        dst: the dataset.
        image: what says how to read the new source where that is another than the dataset's first one; see
            `tpufeed.shard`. COCO's folder of images is not taken from the first build.
        label: the same.
        split_by: the same.
        masks: the folder of masks that is parallel to this source, where the dataset has such masks.
        duplicates: of images that are in the dataset under another path, or twice among the new ones: see
            `tpufeed.shard`; by default as the dataset's first build.
        unset: options of the dataset's first build that do not hold for the new source, by the names that they have in
            `tpufeed.shard`, like ["image", "columns"]: as if that build had not been given them.
        max_rejects: fail, and leave the dataset as it is, where more of the new images than this cannot be taken.
        overwrite: discard what an append that was interrupted has left, in place of going on with it.
        fsync: bring the new shards to the disk before the manifest.
        workers: processes; all cores by default.
        engine: what runs the tasks, see `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times a second.

    Raises:
        DatasetNotFoundError: there is no dataset to append to.
        OptionError, NoInputsError, SourceError: the source does not fit the dataset; nothing was changed.
        DuplicateWriterError: another append is at work, or was interrupted.
        TooManyRejectsError, TaskError, BuildError: the work failed; the dataset is as it was.
    """
    given = {"image": image, "label": label, "split_by": split_by, "masks": masks, "duplicates": duplicates}
    run = AppendRun(parse_budget(max_rejects), overwrite, fsync, workers, engine, listener)
    return run.append(src, dst, lambda base, source: options_of(base, source, given, unset), allow_different=True)


OptionsFor = Callable[[Dataset, str], ShardOptions]  # of the dataset and the URL of the source


@dataclass(frozen=True, slots=True)
class _Request:
    """An append, checked as far as it can be before the source is listed."""

    standing: StandingDataset
    part: Store
    options: ShardOptions
    different: dict[str, Any]

    @property
    def base(self) -> Dataset:
        """The version that it begins with."""
        return self.standing.dataset

    @property
    def identity(self) -> dict[str, Any]:
        """The options that its plan is known by."""
        return plan_options(self.options, self.base)


@dataclass(frozen=True, slots=True)
class AppendRun:
    """How an append is run."""

    budget: RejectBudget
    overwrite: bool
    fsync: bool
    workers: int | None
    engine: Engine | str | None
    listener: ProgressListener | None

    def append(self, src: str | Path, dst: str | Path, options_for: OptionsFor, allow_different: bool) -> BuildResult:
        """Append to the version that stands; where that is a newer one by the end of the build, to that."""
        source, store, engine = self._open(src, dst)
        for _ in range(_TRIES):
            base = _find_base(store, source.url)
            try:
                request = _check_request(base, source.url, options_for, allow_different)
                return self._append_to(request, source.url, engine)
            except (DuplicateWriterError, BuildError):
                now = find_finished(store)
                if now is None or now.number == base.number:
                    raise
        raise BuildError(f"{store.url} has grown {_TRIES} times meanwhile; run the same command again")

    def preview(self, src: str | Path, dst: str | Path, options_for: OptionsFor, allow_different: bool) -> Preview:
        """Tell what `append` with the same arguments would do. Raises as it does, and changes nothing."""
        source, store, _ = self._open(src, dst)
        base = _find_base(store, source.url)
        request = _check_request(base, source.url, options_for, allow_different)
        part, options = request.part, request.options
        try:
            plan, old = check_destination(part, KIND, source.url, request.identity, self.overwrite)
        except DuplicateWriterError as error:
            raise DuplicateWriterError(_at_work(part, base)) from error
        if plan is not None:
            _check_joined(request, plan, source.url)
        with take_inventory(source.url, options, request.standing) as inventory:
            preview = preview_build(
                inventory,
                options,
                source=source.url,
                destination=part,
                base=base,
                budget=self.budget,
                plan=plan,
                old=old,
                workers=self.workers,
                complete=not inventory.count,
            )
            return replace(
                preview,
                destination=store.url,
                version=base.number + bool(inventory.count),
                warnings=(*preview.warnings, *_warnings(inventory)),
            )

    def _open(self, src: str | Path, dst: str | Path) -> tuple[Store, Store, Engine]:
        source, store = open_store(src), open_store(dst, follow=False)
        refuse_source(store, source)
        return source, store, choose_engine(self.engine, self.workers, source, store)

    def _append_to(self, request: _Request, source: str, engine: Engine) -> BuildResult:
        base, part_store, options = request.base, request.part, request.options
        warnings = list[str]()

        def make_plan(path: Path, freed_bytes: int) -> None:
            with take_inventory(source, options, request.standing) as inventory:
                inventory.prepare(options)
                warnings.extend(_warnings(inventory))
                if inventory.count == inventory.dropped:
                    raise _NothingNewError(inventory.skipped + inventory.dropped)
                estimate = probe_images(inventory, options).estimate if needs_probe(options.images) else SizeEstimate()
                size = sum(size for _, size in count_shards(inventory, options, estimate).values())
                check_space(part_store, size, freed_bytes)
                write_plan(path, *plan_shards(inventory, options, estimate, source, base))

        with engine.prepare(ENTRY):
            try:
                plan, joined = join_or_begin(part_store, KIND, source, request.identity, make_plan, self.overwrite)
            except _NothingNewError as found:
                return replace(
                    finished_result(base), skipped=found.skipped, added=0, rejected={}, warnings=tuple(warnings)
                )
            except DuplicateWriterError as error:
                raise DuplicateWriterError(_at_work(part_store, base)) from error
            if joined:
                _check_joined(request, plan, source)
            result = self._build(part_store, plan, options, engine, joined, request.standing.parts)
        about = Part(
            folder=part_folder(base.number + 1),
            kind="append",
            source=plan.header.source,
            run_id=plan.header.run_id,
            input_digest=plan.header.input_digest,
            records={name: split.records for name, split in result.manifest.splits.items()},
            skipped=plan.header.notes.get("skipped", 0),
            different=request.different,
        )
        grown = publish(base, Dataset(part_store, result.manifest), about)
        return replace(
            result,
            url=base.url,
            manifest=grown.manifest,
            skipped=about.skipped,
            added=sum(about.records.values()),
            images_from=plan.header.base if is_coco(source) else "",
            warnings=(
                *options.warnings,
                *warnings,
                *plan.header.warnings,
                *iter_turn_warnings(result.manifest.odd),
                *result.warnings,
            ),
        )

    def _build(  # of one append
        self,
        store: Store,
        plan: Plan,
        options: ShardOptions,
        engine: Engine,
        joined: bool,
        standing: Sequence[tuple[str, Store]],
    ) -> BuildResult:
        job = Job(ENTRY, ShardContext(store.url, plan.header, options.images, plan.owner), REACH)
        return run_build(
            store,
            plan,
            job,
            engine=engine,
            budget=self.budget,
            joined=joined,
            fsync=self.fsync,
            listener=self.listener,
            conclude=None
            if options.duplicates == "keep"
            else lambda folder: report_duplicates(store, plan, folder, standing),
        )


class _NothingNewError(Exception):  # internal: there is nothing to plan
    def __init__(self, skipped: int) -> None:
        super().__init__()
        self.skipped = skipped


def preview_append(  # noqa: PLR0913  # those of `append`
    src: str | Path,
    dst: str | Path,
    given: Mapping[str, Any],
    *,
    unset: Sequence[str] = (),
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
) -> Preview:
    """Tell what `append` would do; `given` are its arguments from `image` to `duplicates`.

    Raises as `append` does. Changes nothing.
    """
    run = AppendRun(parse_budget(max_rejects), overwrite, fsync=False, workers=workers, engine=engine, listener=None)
    return run.preview(src, dst, lambda base, source: options_of(base, source, given, unset), allow_different=True)


def _check_request(base: Dataset, source: str, options_for: OptionsFor, allow_different: bool) -> _Request:
    """Check all that an append and its preview check before they list the source."""
    standing, options = StandingDataset(base), options_for(base, source)
    different = _different(base, options)
    if different and not allow_different:
        raise OptionError(
            f"these options are not those of {base.url}: {'; '.join(_said(base, options))}. Nothing was "
            "changed. Give those of the dataset (tpufeed append takes them by itself), or --allow-different"
        )
    check_writable(base.store)
    check_base(base)
    return _Request(standing, open_part(base.store, base.number + 1), options, different)


def _check_joined(request: _Request, plan: Plan, source: str) -> None:
    """Check the plan of an append that another run has put."""
    check_class_names(request.base, plan.header.class_names)
    check_joined(request.part, plan, source, request.options, None, record_schema(labelled=False)[0])


def _find_base(store: Store, source: str) -> Dataset:
    base = find_finished(store)
    if base is None:
        raise DatasetNotFoundError(
            f"{store.url} holds no dataset to append to; make one with: tpufeed shard {source} {store.url}"
        )
    return base


@checked()
def options_of(base: Dataset, source: str, given: Mapping[str, Any], unset: Names = ()) -> ShardOptions:
    """Return the options of a dataset's first build for a further source.

    Args:
        base: the dataset.
        source: the URL of the further source.
        given: options that the user gives for it; None is none.
        unset: names of those of the first build that do not hold for it.

    Raises:
        OptionError: the dataset was made of masks in a parallel folder, and none is given; or there is no such option
            to unset.
    """
    stored, given = base.manifest.options, {name: value for name, value in given.items() if value is not None}
    left_out = {name.replace("-", "_") for name in unset}
    unknown = sorted(left_out - (ROLES.keys() - {"keeps_classes"}))
    if unknown:
        raise OptionError(f"there is no option {unknown[0]!r} to unset; the names are those that tpufeed.shard has")
    both = sorted(left_out & given.keys())
    if both:
        raise OptionError(f"{both[0]} is given, and to be unset; leave out either")
    is_of_coco = is_coco(source) or is_coco(str(stored.get("source")))
    places = {Role.PLACE, Role.COCO_PLACE} if is_of_coco else {Role.PLACE}
    inherited = {name for name, role in ROLES.items() if role not in places} - left_out
    options: dict[str, Any] = {
        name: stored[name] for name in inherited - _STORED_OTHERWISE if stored.get(name) is not None
    }
    options["keeps_classes"] = "classes" in options
    if "policy" in inherited:
        options["policy"] = {name: stored[name] for name in POLICIES if name in stored}
    if "shares" in inherited:
        options["shares"] = stored.get("split")
    if "shards" in inherited & stored.keys():  # a number for all images says nothing of how many there are for new ones
        shards = [shard for split in base.manifest.splits.values() for shard in split.variants[0].shards]
        options["shard_bytes"] = max(1, *(shard.bytes for shard in shards))
    if "image_columns" in inherited & stored.keys():
        options["image_columns"] = dict(each.split("=", 1) for each in stored["image_columns"])
    if stored.get("masks") is not None and "masks" not in given.keys() | left_out:
        raise OptionError(
            f"{base.url} was made with masks in a folder parallel to its images ({stored['masks']}); say where those "
            "of the new images lie: --masks DIR"
        )
    if "split_by" in given:
        options["shares"] = None
    return ShardOptions(**(options | given))


def _different(base: Dataset, options: ShardOptions) -> dict[str, Any]:
    """Return the options that decide bytes and are not those of the dataset."""
    there, here = _deciding(base.manifest.options), _deciding(options.to_dict())
    return {name: here.get(name) for name in {**there, **here} if there.get(name) != here.get(name)}


def _said(base: Dataset, options: ShardOptions) -> list[str]:
    return differing_options(_deciding(base.manifest.options), _deciding(options.to_dict()))


def _deciding(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in options.items() if name not in _OF_SOURCE}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _warnings(inventory: Inventory) -> list[str]:
    said, by_size, renewed = [], inventory.compared_by_size, inventory.renewed
    if inventory.rejected_before:
        said.append(
            f"{inventory.rejected_before:,} inputs are left out, as this dataset has rejected them before and they are "
            f"as they were; the {REJECTS} of its versions name them"
        )
    if by_size:
        said.append(
            f"{by_size:,} images were compared with those of the dataset by path and size alone, as an older tpufeed "
            "has stored no digests of them"
        )
    if renewed:
        said.append(
            f"{renewed:,} images have the path of an image in the dataset and other content: they are added, and the "
            "older ones stay"
        )
    return said


def _at_work(part: Store, base: Dataset) -> str:
    try:
        header = read_plan(part).header
        found = f"of {header.source}"
    except (ObjectNotFoundError, OSError):
        found = "of another source"
    return (
        f"another append {found} to {base.url} is at work, or was interrupted; nothing was changed. Run that command "
        "again to finish it, or say --overwrite to discard what it has left"
    )
