"""`shard`: from raw images to a dataset."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from tpufeed.dataset.build import Build, BuildResult, ProgressListener, finished_result, owner_of, run_build
from tpufeed.dataset.commit import (
    find_finished,
    find_lost,
    join_or_begin,
)
from tpufeed.dataset.destination import check_space, choose_engine, refuse_source
from tpufeed.dataset.naming import PLAN
from tpufeed.dataset.plan import Plan, check_same_plan, iter_tasks, read_plan, write_plan
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.rejects import RejectBudget, parse_budget
from tpufeed.dataset.schema import record_schema
from tpufeed.engines.engine import Engine, Job
from tpufeed.errors import BuildError, DatasetExistsError, ObjectNotFoundError
from tpufeed.sharding.advice import iter_label_warnings
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.joined import check_joined, forged
from tpufeed.sharding.options import ShardKeywords, ShardOptions, make_options
from tpufeed.sharding.plan import KIND, SizeEstimate, count_shards, needs_probe, plan_shards, probe_images
from tpufeed.sharding.sources import find_source
from tpufeed.sharding.worker import ENTRY, REACH, ShardContext
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store


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
    request = check_request(src, dst, max_rejects, overwrite, workers, engine, options)
    if request.finished is not None:
        return finished_result(request.finished)
    source, destination, checked = request.source.url, request.destination, request.options

    def make_plan(path: Path, freed_bytes: int) -> None:
        write_shard_plan(path, source, destination, checked, freed_bytes)

    with request.engine.prepare(ENTRY):
        plan, joined = join_or_begin(destination, KIND, source, checked.to_dict(), make_plan, overwrite)
        if joined:
            check_joined_plan(destination, plan, source, checked)
        job = Job(ENTRY, ShardContext(destination.url, plan.header, checked.images, owner_of(plan)), REACH)
        result = run_build(Build(destination, plan, job, request.engine, request.budget, joined, fsync=fsync), listener)
    unlabelled = iter_label_warnings(source, checked.label, plan.header.features)
    return replace(result, warnings=(*unlabelled, *plan.header.warnings, *result.warnings))


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `shard`, checked; `finished` is the dataset of the same call, where it stands already."""

    options: ShardOptions
    budget: RejectBudget
    source: Store
    destination: Store
    engine: Engine
    finished: Dataset | None


def check_request(  # noqa: PLR0913, PLR0917  # those of `shard`
    src: str | Path,
    dst: str | Path,
    max_rejects: str | int | None,
    overwrite: bool,
    workers: int | None,
    engine: Engine | str | None,
    options: ShardKeywords,
) -> Request:
    """Check all that `shard` and its preview check before they list the source."""
    checked, budget = make_options(options), parse_budget(max_rejects)
    source, destination = open_store(src), open_store(dst)
    chosen = choose_engine(engine, workers, source, destination)
    refuse_source(destination, source)
    finished = None if overwrite else find_finished(destination)
    if finished is not None:
        _check_same_dataset(finished, source.url, checked)
    return Request(checked, budget, source, destination, chosen, finished)


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


def check_joined_plan(destination: Store, plan: Plan, source: str, options: ShardOptions) -> None:
    """Raise ManifestError where the plan at the destination cannot be one of this source and these options."""
    header = plan.header
    if header.variants is not None or header.features[:1] != record_schema(labelled=False)[:1]:
        raise forged(destination, source, "it makes a cache")
    check_joined(destination, plan, source, options.image)


@contextmanager
def take_inventory(source: str, options: ShardOptions) -> Iterator[Inventory]:
    """List all inputs of a source into a file that is removed afterwards.

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
            changes = inventory.describe_changes(
                item for task in iter_tasks(finished.store, plan) for item in task.inputs
            )
            raise DatasetExistsError(
                f"{finished.url} already holds the dataset of this command, but {source} has changed since: "
                f"{plan.header.notes['images']:,} inputs then, {len(inventory):,} now{changes and '; '}{changes}. "
                "Nothing was changed. Take another destination, or say --overwrite to build it anew"
            )
