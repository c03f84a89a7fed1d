"""`append`: new images become the next version of a dataset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tpufeed.dataset.build import BuildResult, ProgressListener, finished_result, run_build
from tpufeed.dataset.commit import find_finished, join_or_begin, open_part
from tpufeed.dataset.destination import check_space, choose_engine, refuse_source
from tpufeed.dataset.manifest import Part
from tpufeed.dataset.naming import part_folder
from tpufeed.dataset.plan import Plan, differing_options, read_plan, write_plan
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.rejects import RejectBudget, parse_budget
from tpufeed.dataset.schema import record_schema
from tpufeed.dataset.versions import publish
from tpufeed.engines.engine import Engine, Job
from tpufeed.errors import (
    BuildError,
    DatasetNotFoundError,
    DuplicateWriterError,
    ObjectNotFoundError,
    OptionError,
    mask_secrets,
)
from tpufeed.sharding.duplicates import report_duplicates
from tpufeed.sharding.inventory import take_inventory
from tpufeed.sharding.joined import check_joined
from tpufeed.sharding.options import POLICIES, Handling, ShardOptions
from tpufeed.sharding.plan import KIND, SizeEstimate, count_shards, needs_probe, plan_options, plan_shards, probe_images
from tpufeed.sharding.preview import Preview, make_preview
from tpufeed.sharding.standing import StandingDataset
from tpufeed.sharding.worker import ENTRY, REACH, ShardContext
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

_TRIES = 5  # where another append has been quicker
# What says how to read a source, and how large shards are; everything else decides the bytes of records.
_OF_SOURCE = frozenset({
    "command", "source", "shard_bytes", "shards", "hosts", "image", "label", "split_by", "masks", "columns",
    "image_columns", "boxes", "box_format", "keypoints", "flip_pairs", "box_columns", "duplicates",
})  # fmt: skip
# Options that stand in the manifest as they are given.
_STORED = {field.name for field in fields(ShardOptions) if field.init} - {
    "shares",
    "shards",
    "policy",
    "masks",
    "image_columns",
}


def append(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    image: str | None = None,
    label: str | None = None,
    split_by: str | None = None,
    masks: str | Path | None = None,
    duplicates: Handling | None = None,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
) -> BuildResult:
    """Add new images to a dataset that stands, as its next version. Nothing that stands is moved or written again.

    The images are stored as the dataset's are: all options are those of its first build, but for what says how to read
    the new source. Images that are in it already, of the same path with the same bytes, are skipped and counted. New
    classes come behind the old ones, so that ids stay. Readers that have opened a version go on with it.

    An interrupted call, made again with the same arguments, goes on where it stopped. Made again when it is done, it
    finds nothing new.

    Args:
        src: a folder, table, tars or COCO's .json, as `tpufeed.shard` takes it; it may be the whole source that has
            grown.
        dst: the dataset.
        image: what says how to read the new source where that is another than the dataset's first one; see
            `tpufeed.shard`.
        label: the same.
        split_by: the same.
        masks: the folder of masks that is parallel to this source, where the dataset has such masks.
        duplicates: of images that are in the dataset under another path, or twice among the new ones: see
            `tpufeed.shard`; by default as the dataset's first build.
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
    return run.append(src, dst, lambda base: options_of(base, given), allow_different=True)


@dataclass(frozen=True, slots=True)
class AppendRun:
    """How an append is run."""

    budget: RejectBudget
    overwrite: bool
    fsync: bool
    workers: int | None
    engine: Engine | str | None
    listener: ProgressListener | None

    def append(
        self, src: str | Path, dst: str | Path, options_for: Callable[[Dataset], ShardOptions], allow_different: bool
    ) -> BuildResult:
        """Append to the version that stands; where that is a newer one by the end of the build, to that."""
        source, store = open_store(src), open_store(dst)
        refuse_source(store, source)
        engine = choose_engine(self.engine, self.workers, source, store)
        for _ in range(_TRIES):
            base = _find_base(store, source.url)
            standing, options = StandingDataset(base), options_for(base)
            different = _different(base, options)
            if different and not allow_different:
                raise OptionError(
                    f"these options are not those of {base.url}: {'; '.join(_said(base, options))}. Nothing was "
                    "changed. Give those of the dataset (tpufeed append takes them by itself), or --allow-different"
                )
            try:
                return self._append_to(standing, source.url, options, engine, different)
            except (DuplicateWriterError, BuildError):
                now = find_finished(store)
                if now is None or now.number == base.number:
                    raise
        raise BuildError(f"{store.url} has grown {_TRIES} times meanwhile; run the same command again")

    def _append_to(
        self,
        standing: StandingDataset,
        source: str,
        options: ShardOptions,
        engine: Engine,
        different: dict[str, Any],
    ) -> BuildResult:
        base = standing.dataset
        part_store = open_part(base.store, base.number + 1)
        warnings = list[str]()

        def make_plan(path: Path, freed_bytes: int) -> None:
            with take_inventory(source, options, standing) as inventory:
                inventory.prepare(options)
                warnings.extend(_warnings(inventory.compared_by_size, inventory.renewed))
                if inventory.count == inventory.dropped:
                    raise _NothingNewError(inventory.skipped + inventory.dropped)
                estimate = probe_images(inventory, options).estimate if needs_probe(options.images) else SizeEstimate()
                size = sum(size for _, size in count_shards(inventory, options, estimate).values())
                check_space(part_store, size, freed_bytes)
                write_plan(path, *plan_shards(inventory, options, estimate, source, base))

        identity = plan_options(options, base)
        with engine.prepare(ENTRY):
            try:
                plan, joined = join_or_begin(part_store, KIND, source, identity, make_plan, self.overwrite)
            except _NothingNewError as found:
                result = finished_result(base)
                return replace(
                    result, skipped=found.skipped, added=0, earlier_images=result.images, warnings=tuple(warnings)
                )
            except DuplicateWriterError as error:
                raise DuplicateWriterError(_at_work(part_store, base)) from error
            if joined:
                check_joined(part_store, plan, source, options, None, record_schema(labelled=False)[0])
            result = self._build(part_store, plan, options, engine, joined, standing.parts)
        about = Part(
            folder=part_folder(base.number + 1),
            kind="append",
            source=mask_secrets(source),
            run_id=plan.header.run_id,
            input_digest=plan.header.input_digest,
            records={name: split.records for name, split in result.manifest.splits.items()},
            skipped=plan.header.notes.get("skipped", 0),
            different=different,
        )
        grown = publish(base, Dataset(part_store, result.manifest), about)
        return replace(
            result,
            url=base.url,
            manifest=grown.manifest,
            skipped=about.skipped,
            added=sum(about.records.values()),
            warnings=(*options.warnings, *warnings, *plan.header.warnings, *result.warnings),
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


def preview_append(
    src: str | Path,
    dst: str | Path,
    given: Mapping[str, Any] | ShardOptions,
    *,
    workers: int | None = None,
) -> Preview:
    """Tell what an append would do; `given` are all options, or those that say how to read the source.

    Raises as `append` does. Changes nothing.
    """
    source, store = open_store(src), open_store(dst)
    refuse_source(store, source)
    standing = StandingDataset(_find_base(store, source.url))
    options = given if isinstance(given, ShardOptions) else options_of(standing.dataset, given)
    with take_inventory(source.url, options, standing) as inventory:
        probe = probe_images(inventory, options)
        shards = count_shards(inventory, options, probe.estimate) if inventory.count else {}
        complete = not inventory.count
        reads = 0 if complete else inventory.count_reads(options)
        return make_preview(inventory, probe, shards, options, store, workers, complete, source.url, reads)


def _find_base(store: Store, source: str) -> Dataset:
    base = find_finished(store)
    if base is None:
        raise DatasetNotFoundError(
            f"{store.url} holds no dataset to append to; make one with: tpufeed shard {source} {store.url}"
        )
    return base


def options_of(base: Dataset, given: Mapping[str, Any]) -> ShardOptions:
    """Return the options of a dataset's first build, with those that say how to read a further source; None is none.

    Raises:
        OptionError: the dataset was made of masks in a parallel folder, and none is given.
    """
    stored, given = base.manifest.options, {name: value for name, value in given.items() if value is not None}
    options: dict[str, Any] = {name: stored[name] for name in _STORED if stored.get(name) is not None}
    options["policy"] = {name: stored[name] for name in POLICIES if name in stored}
    options["shares"] = stored.get("split")
    if "shards" in stored:  # a number for all images says nothing of how many there are for the new ones
        shards = [shard for split in base.manifest.splits.values() for shard in split.variants[0].shards]
        options["shard_bytes"] = max(1, *(shard.bytes for shard in shards))
    if "image_columns" in stored:
        options["image_columns"] = dict(each.split("=", 1) for each in stored["image_columns"])
    if stored.get("masks") is not None and "masks" not in given:
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


def _warnings(by_size: int, renewed: int) -> list[str]:
    said = []
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
