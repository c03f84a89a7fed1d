"""`shard`: from raw images to a dataset."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from tpufeed.dataset.advice import iter_warnings
from tpufeed.dataset.build import Build, BuildResult, ProgressListener, finished_result, owner_of, run_build
from tpufeed.dataset.commit import (
    check_destination,
    check_names,
    find_finished,
    find_lost,
    foreign_names,
    join_or_begin,
)
from tpufeed.dataset.naming import PLAN
from tpufeed.dataset.plan import Plan, check_same_plan, read_plan, write_plan
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.rejects import RejectBudget, parse_budget, too_many
from tpufeed.dataset.schema import further_columns, record_schema
from tpufeed.dataset.space import check_space
from tpufeed.dataset.stores import choose_engine, refuse_source
from tpufeed.engines.engine import Engine, Job, available_cores
from tpufeed.errors import BuildError, DatasetExistsError, ObjectNotFoundError
from tpufeed.sharding.advice import iter_label_warnings
from tpufeed.sharding.changes import describe_changes
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.joined import check_joined, forged
from tpufeed.sharding.options import ShardKeywords, ShardOptions, make_options
from tpufeed.sharding.plan import KIND, SizeEstimate, count_shards, plan_shards
from tpufeed.sharding.probe import Probe, needs_probe, probe_images
from tpufeed.sharding.sources import find_source
from tpufeed.sharding.worker import ENTRY, REACH, ShardContext
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store
from tpufeed.storage.temporary import temporary_folder


def shard(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
    **options: Unpack[ShardKeywords],
) -> BuildResult:
    """Turn raw images into a dataset of TFRecord shards.

    An interrupted call, made again with the same arguments, goes on where it stopped and ends with the same bytes; one
    that is finished is recognised, and its source compared.

    Args:
        src: a folder of class folders (in folders of splits, or none), or of unlabelled images; a table of paths (.csv,
            .tsv, .jsonl, .parquet); one or more WebDataset tars. A path or a URL.
        dst: where the dataset goes; a path or a URL.
        max_rejects: fail, before there is a dataset, where more inputs than this cannot be taken: "1%" or a number.
            By default 1 %, and 10 of however few.
        overwrite: remove what stands at `dst`, a dataset or what a build has left of one, once the source is listed.
        fsync: bring the shards of a local `dst` to the disk before the manifest, so that a power cut right after the
            build loses nothing. Slower by what the disk takes.
        workers: processes; all cores by default.
        engine: what runs the tasks: "ray" or "beam" beyond this host, or an `Engine`, see docs/scaleout.md; `workers`
            processes of this host by default.
        listener: called with a `BuildProgress` a few times a second.
        **options: what decides the bytes: those of `tpufeed.sharding.options.ShardOptions` (shard_bytes, shards, hosts,
            split, split_by, image, label, classes, seed) and of `tpufeed.images.policy.ImagePolicy` (check, encode,
            quality, presize, presize_mode, max_pixels, min_side, and policy={"alpha": "black", ...} for odd cases).

    Raises:
        OptionError, NoInputsError, SourceError, DatasetExistsError, DuplicateWriterError: nothing was changed.
        TooManyRejectsError: what is done stays, and the same call with a larger budget goes on from there.
        TaskError, BuildError: the work failed; what is done stays, and the same call goes on from there.
    """
    request = _check_request(src, dst, max_rejects, overwrite, workers, engine, options)
    if request.finished is not None:
        return finished_result(request.finished)
    source, destination, checked = request.source.url, request.destination, request.options

    def make_plan(path: Path, freed_bytes: int) -> None:
        write_shard_plan(path, source, destination, checked, freed_bytes)

    with request.engine.prepare(ENTRY):
        plan, joined = join_or_begin(destination, KIND, source, checked.to_dict(), make_plan, overwrite)
        if joined:
            _check_joined(destination, plan, source, checked)
        job = Job(ENTRY, ShardContext(destination.url, plan.header, checked.images, owner_of(plan)), REACH)
        result = run_build(Build(destination, plan, job, request.engine, request.budget, joined, fsync=fsync), listener)
    unlabelled = iter_label_warnings(source, checked.label, plan.header.features)
    return replace(result, warnings=(*unlabelled, *plan.header.warnings, *result.warnings))


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `shard`, checked; `finished` is the dataset of the same call, where it stands already."""

    options: ShardOptions
    budget: RejectBudget
    source: Store
    destination: Store
    engine: Engine
    finished: Dataset | None


def _check_request(  # noqa: PLR0913, PLR0917  # those of `shard`
    src: str | Path,
    dst: str | Path,
    max_rejects: str | int | None,
    overwrite: bool,
    workers: int | None,
    engine: Engine | str | None,
    options: ShardKeywords,
) -> _Request:
    """Check all that `shard` and its preview check before they list the source."""
    checked, budget = make_options(options), parse_budget(max_rejects)
    source, destination = open_store(src), open_store(dst)
    chosen = choose_engine(engine, workers, source, destination)
    refuse_source(destination, source)
    finished = None if overwrite else find_finished(destination)
    if finished is not None:
        _check_same_dataset(finished, source.url, checked)
    return _Request(checked, budget, source, destination, chosen, finished)


def write_shard_plan(path: Path, source: str, destination: Store, options: ShardOptions, freed_bytes: int) -> None:
    """Write the plan of a build to a new file, in memory that does not grow with the inputs.

    `freed_bytes` of the destination will be removed before there are shards.

    Raises:
        OptionError, NoInputsError, SourceError: the source cannot be understood.
        BuildError: the destination has no room for the shards.
    """
    with take_inventory(source, options) as inventory:
        probed = needs_probe(options.images)
        estimate = probe_images(inventory, options.images).estimate if probed else SizeEstimate()
        size = sum(size for _, size in count_shards(inventory, options, estimate).values())
        check_space(destination, size, freed_bytes)
        write_plan(path, *plan_shards(inventory, options, estimate, source))


@dataclass(frozen=True, slots=True)
class SplitPreview:
    """A split that a build would make.

    Attributes:
        inputs: images of the source.
        shards: how many.
        bytes: of all of them, about.
    """

    inputs: int
    shards: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a build would do, from listing its source and taking a few images.

    Attributes:
        source: as a URL.
        destination: likewise.
        splits: by name.
        classes: how many there are.
        columns: types of the further columns of a table, see `further_columns`.
        source_bytes: of the images as they are.
        ignored_files: in the source, that are no images by their names: how many, by their endings (`.txt`).
        listed_twice: inputs that the source names more than once.
        free_bytes: at the destination; None where nobody can say.
        seconds: about what it would take.
        probed: images taken for this.
        probed_rejects: those of them that cannot be taken.
        warnings: what would serve training better, as sentences.
        complete: the dataset stands there already: nothing would be done.
    """

    source: str
    destination: str
    splits: dict[str, SplitPreview]
    classes: int
    columns: dict[str, str]
    source_bytes: int
    ignored_files: dict[str, int]
    listed_twice: int
    free_bytes: int | None
    seconds: float
    probed: int
    probed_rejects: int
    warnings: tuple[str, ...]
    complete: bool = False

    @property
    def bytes(self) -> int:
        """Of all shards together, about."""
        return sum(split.bytes for split in self.splits.values())


def preview_shard(
    src: str | Path,
    dst: str | Path,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    **options: Unpack[ShardKeywords],
) -> Preview:
    """What `shard` with the same arguments would do. Changes nothing.

    Raises:
        OptionError, NoInputsError, SourceError, DatasetExistsError, DuplicateWriterError: as `shard` does.
        TooManyRejectsError: more inputs than the budget allows cannot be taken, of those alone that were tried or have
            no file or class.
        BuildError, StoreError: there is no room at the destination, it cannot be written, or no input can be taken.
    """
    request = _check_request(src, dst, max_rejects, overwrite, workers, engine, options)
    source, destination, checked = request.source.url, request.destination, request.options
    finished = request.finished is not None
    plan, old = (None, []) if finished else check_destination(destination, KIND, source, checked.to_dict(), overwrite)
    if plan is not None:
        _check_joined(destination, plan, source, checked)
    with take_inventory(source, checked) as inventory:
        probe = probe_images(inventory, checked.images)
        shards, totals = count_shards(inventory, checked, probe.estimate), inventory.totals()
        splits = {name: SplitPreview(totals[name][0], count, int(size)) for name, (count, size) in shards.items()}
        if not finished:
            _check_rejects(inventory, probe, request.budget)
        if not finished and plan is None:
            size = sum(size for _, size in shards.values())
            check_space(destination, size, sum(info.size_bytes for info in old))
            header, _ = plan_shards(inventory, checked, probe.estimate, source)
            check_names(destination, header, foreign_names(destination, old), old)
        warnings = [*iter_label_warnings(source, checked.label, inventory.features), *inventory.warnings]
        warnings += [
            warning
            for name, (count, size) in shards.items()
            for warning in iter_warnings(name, count, size, checked.hosts)
        ]
        return Preview(
            source=source,
            destination=destination.url,
            splits=splits,
            classes=len(inventory.classes.names),
            columns=further_columns(inventory.features),
            source_bytes=sum(size for _, size, _ in totals.values()),
            ignored_files=inventory.ignored_files,
            listed_twice=inventory.listed_twice(),
            free_bytes=destination.free_bytes(),
            seconds=len(inventory) * probe.seconds_an_image / (workers or available_cores()),
            probed=probe.images,
            probed_rejects=probe.rejects,
            warnings=tuple(warnings),
            complete=finished,
        )


def _check_joined(destination: Store, plan: Plan, source: str, options: ShardOptions) -> None:
    """Raise ManifestError where the plan at the destination cannot be one of this source and these options."""
    header = plan.header
    if header.variants is not None or header.features[:1] != record_schema(labelled=False)[:1]:
        raise forged(destination, source, "it makes a cache")
    check_joined(destination, plan, source, options.image)


def _check_rejects(inventory: Inventory, probe: Probe, budget: RejectBudget) -> None:
    """Raises as the build will where the inputs that cannot be taken, as far as they are known, are too many."""
    known, first = inventory.rejects()
    by_reason = known + Counter(reject.reason for reject in probe.read_rejects)
    some, allowed = [*first, *probe.read_rejects], budget.allowed(len(inventory))
    if by_reason.total() > allowed:
        advice = "Nothing was changed. Mend the source, or allow more with --max-rejects"
        raise too_many(dict(sorted(by_reason.items())), some, len(inventory), allowed, advice)
    if by_reason.total() == len(inventory):
        raise BuildError(
            f"none of the {len(inventory)} images can be taken; the first: {some[0].path}: {some[0].message}. Nothing "
            "was changed; mend the source"
        )


@contextmanager
def take_inventory(source: str, options: ShardOptions) -> Iterator[Inventory]:
    """All inputs of a source, in a file that is gone afterwards.

    Raises:
        OptionError, NoInputsError, SourceError: the source cannot be understood.
        BuildError: the folder for temporary files has no room for them.
    """
    found = find_source(source, options)
    with temporary_folder() as folder:  # of a killed run, too, nothing stays
        try:
            with Inventory(folder, found, options) as inventory:
                yield inventory
        except sqlite3.Error as error:
            raise BuildError(
                f"the list of inputs cannot be kept in {folder}: {error}. Nothing was changed. Make room there, or set "
                "TMPDIR to a folder that has some"
            ) from error


def _check_same_dataset(finished: Dataset, source: str, options: ShardOptions) -> None:
    """Raises where the dataset that stands is not what the call would build now."""
    try:
        plan = read_plan(finished.store)
    except ObjectNotFoundError:
        raise DatasetExistsError(
            f"{finished.url} already holds a dataset (see: tpufeed info {finished.url}), and {PLAN}, which would say "
            "whether it is this one, is gone; nothing was changed. Take another destination, or say --overwrite"
        ) from None
    check_same_plan(finished.store, plan.header, KIND, source, options.to_dict())
    lost = find_lost(finished.store, finished.manifest)
    if lost is not None:
        raise DatasetExistsError(
            f"{finished.url} already holds the dataset of this command, but {lost} is missing or damaged. Nothing was "
            f"changed. Run: tpufeed verify {finished.url}; say --overwrite to build it anew"
        )
    with take_inventory(source, options) as inventory:
        if inventory.digest() != plan.header.input_digest:
            changes = describe_changes(finished.store, plan, inventory)
            raise DatasetExistsError(
                f"{finished.url} already holds the dataset of this command, but {source} has changed since: "
                f"{plan.header.notes['images']:,} inputs then, {len(inventory):,} now{changes and '; '}{changes}. "
                "Nothing was changed. Take another destination, or say --overwrite to build it anew"
            )
