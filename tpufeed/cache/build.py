"""`warmup`: from a dataset, or raw images, to a cache."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import msgspec

from tpufeed.cache.plan import KIND, CacheKeywords, CacheOptions, count_shards, fingerprint, make_options, record_size
from tpufeed.cache.planning import Planning, Size, Warmable, open_warmable
from tpufeed.cache.probe import Probe, probe_samples
from tpufeed.cache.worker import ENTRY, REACH, CacheContext
from tpufeed.dataset.build import Build, BuildResult, ProgressListener, finished_result, owner_of, run_build
from tpufeed.dataset.commit import (
    check_destination,
    check_names,
    find_finished,
    find_lost,
    foreign_names,
    is_stored,
    join_or_begin,
)
from tpufeed.dataset.destination import check_space, choose_engine, refuse_source
from tpufeed.dataset.plan import check_same_plan, differing_options, read_plan, write_plan
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.rejects import RejectBudget, parse_budget
from tpufeed.engines.engine import Engine, Job, available_cores
from tpufeed.errors import DamageError, DatasetExistsError, DuplicateWriterError, ObjectNotFoundError, OptionError
from tpufeed.images import Custom
from tpufeed.images.ops import from_dict, to_dict
from tpufeed.images.pipeline import Pipeline
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

_READ_WHOLE_BYTES = 2 * 10**9  # of a finished cache, to verify it


def warmup(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    new_dir: bool = False,
    allow_augmented: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
    **options: Unpack[CacheKeywords],
) -> BuildResult:
    """Precompute the expensive part of an augmentation: a second dataset whose images are ready for the step.

    An interrupted call, made again with the same arguments, goes on where it stopped; a finished one is verified and
    nothing is rewritten.

    Args:
        src: a dataset, or raw images as `tpufeed.shard` takes them: these are decoded once for all variants.
        dst: where the cache goes.
        max_rejects: fail where more samples than this cannot be taken, as in `tpufeed.shard`.
        overwrite: remove another cache or dataset that stands at `dst`, or the beginnings of one.
        fsync: bring the shards to the disk before the manifest, as in `tpufeed.shard`.
        new_dir: put this one beside it, into a folder that is named by its fingerprint.
        allow_augmented: take a `src` that is itself a cache which random ops have augmented; of its variants the first
            is read.
        workers: processes; all cores by default.
        engine: what runs the tasks, as in `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times a second.
        **options: what decides the bytes: size, in pixels, of the default ops (`RandomResizedCrop(size)`,
            `HorizontalFlip()`), or ops; the others of `tpufeed.cache.plan.CacheOptions` (final, variants, encode,
            quality, seed, shard_bytes); for raw images also split, split_by, image, label, classes, max_pixels,
            min_side and policy, as in `tpufeed.shard`.

    Raises:
        OptionError, SourceError, NoInputsError, DatasetNotFoundError, DatasetExistsError, DuplicateWriterError: nothing
            was changed.
        OpError: an op fails on one of the first samples, or gives other pixels when it is run again.
        TooManyRejectsError, TaskError, BuildError: the work failed; what is done stays, and the same call goes on.
    """
    request = _check_request(src, dst, max_rejects, overwrite, new_dir, allow_augmented, workers, engine, options)
    if request.finished is not None:
        return finished_result(request.finished)
    source, destination, checked, size = request.source, request.destination, request.options, request.size

    def make_plan(path: Path, freed_bytes: int) -> None:
        with source.plan(checked, size) as planning:
            measured = _measure(planning, source, checked, size)
            check_space(destination, measured.bytes, freed_bytes)
            header = msgspec.structs.replace(planning.header, splits=measured.shards)
            write_plan(path, header, planning.iter_tasks(measured.shards))

    with request.engine.prepare(ENTRY):
        plan, joined = join_or_begin(destination, KIND, source.url, request.identity, make_plan, overwrite)
        if joined:
            source.check_joined(destination, plan, checked, size)
        job = Job(ENTRY, CacheContext(source.reader, destination.url, plan.header, checked, owner_of(plan)), REACH)
        info = checked.cache_info(plan.header.input_digest, request.identity, size)
        result = run_build(Build(destination, plan, job, request.engine, request.budget, joined, info, fsync), listener)
    return replace(result, warnings=(*plan.header.warnings, *result.warnings))


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `warmup`, checked; `finished` is the cache that is asked for, where it stands already."""

    options: CacheOptions
    budget: RejectBudget
    source: Warmable
    destination: Store
    size: Size
    engine: Engine
    identity: dict[str, Any]
    finished: Dataset | None


def _check_request(  # noqa: PLR0913, PLR0917  # those of `warmup`
    src: str | Path,
    dst: str | Path,
    max_rejects: str | int | None,
    overwrite: bool,
    new_dir: bool,
    allow_augmented: bool,
    workers: int | None,
    engine: Engine | str | None,
    options: CacheKeywords,
) -> _Request:
    """Check all that `warmup` and its preview check before they make a plan."""
    checked, for_images = make_options(options)
    budget = parse_budget(max_rejects)
    if overwrite and new_dir:
        raise OptionError("either overwrite the cache that stands there, or take a new folder; not both")
    source, destination = open_warmable(src, for_images, allow_augmented), open_store(dst)
    size = _output_size(source, checked)
    chosen = choose_engine(engine, workers, *source.stores, destination)
    identity = _identity(source, checked)
    if new_dir and _is_taken(destination, source, identity):
        destination = open_store(f"{destination.url}-{fingerprint(source.digest(), identity)[:12]}")
    refuse_source(destination, *source.stores)
    finished = _find_finished(destination, source, identity, overwrite)
    return _Request(checked, budget, source, destination, size, chosen, identity, finished)


@dataclass(frozen=True, slots=True)
class CachePreview:
    """Forecast of a warmup, from a few samples.

    Attributes:
        samples, shards: by split; the shards of all variants together.
        bytes: of all variants together, about.
        free_bytes: at the destination; None where nobody can say.
        seconds: about what it would take.
        seconds_a_sample: of one core, for all variants of a sample.
        fingerprint: of the cache that it would be.
        warnings: what raw images may not have been meant to become, as sentences.
        complete: the cache stands there already: nothing would be done.
    """

    source: str
    destination: str
    samples: dict[str, int]
    shards: dict[str, int]
    variants: int
    bytes: int
    free_bytes: int | None
    seconds: float
    seconds_a_sample: float
    probed: int
    fingerprint: str
    warnings: tuple[str, ...]
    complete: bool = False


def preview_warmup(  # noqa: PLR0913  # those of `warmup`
    src: str | Path,
    dst: str | Path,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    new_dir: bool = False,
    allow_augmented: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    **options: Unpack[CacheKeywords],
) -> CachePreview:
    """Say what `warmup` with the same arguments would do. Changes nothing.

    Raises:
        OptionError, SourceError, NoInputsError, DatasetNotFoundError, OpError: as `warmup` does.
        DatasetExistsError, DuplicateWriterError: as `warmup` does.
        BuildError, StoreError: there is no room at the destination, or it cannot be written.
    """
    request = _check_request(src, dst, max_rejects, overwrite, new_dir, allow_augmented, workers, engine, options)
    source, destination, checked = request.source, request.destination, request.options
    finished, identity = request.finished is not None, request.identity
    plan, old = (None, []) if finished else check_destination(destination, KIND, source.url, identity, overwrite)
    if plan is not None:
        source.check_joined(destination, plan, checked, request.size)
    with source.plan(checked, request.size) as planning:
        measured = _measure(planning, source, checked, request.size)
        if not finished and plan is None:
            check_space(destination, measured.bytes, sum(info.size_bytes for info in old))
            header = msgspec.structs.replace(planning.header, splits=measured.shards)
            check_names(destination, header, foreign_names(destination, old), old)
        samples = sum(planning.samples.values())
        return CachePreview(
            source=source.url,
            destination=destination.url,
            samples=planning.samples,
            shards={name: shards * checked.variants for name, shards in measured.shards.items()},
            variants=checked.variants,
            bytes=int(measured.bytes),
            free_bytes=destination.free_bytes(),
            seconds=samples * measured.probe.seconds_a_sample / (workers or available_cores()),
            seconds_a_sample=measured.probe.seconds_a_sample,
            probed=measured.probe.samples,
            fingerprint=fingerprint(planning.header.input_digest, identity),
            warnings=planning.header.warnings,
            complete=finished,
        )


@dataclass(frozen=True, slots=True)
class _Measured:
    probe: Probe
    shards: dict[str, int]
    bytes: float


def _measure(planning: Planning, source: Warmable, options: CacheOptions, size: Size) -> _Measured:
    probe = probe_samples(source.reader, planning.header, planning.first, options)
    shards = count_shards(planning.samples, options, record_size(options, size, probe.first_bytes))
    each = record_size(options, size, probe.image_bytes)
    return _Measured(probe, shards, each * options.variants * sum(planning.samples.values()))


def _identity(source: Warmable, options: CacheOptions) -> dict[str, Any]:
    """Every option that decides bytes, as it comes back from JSON."""
    identity: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({**source.identity, **options.to_dict()}))
    return identity


def _output_size(source: Warmable, options: CacheOptions) -> Size:
    size = Pipeline(options.ops, options.seed).output_size(source.size)
    if size is None:
        raise OptionError(
            "these ops leave images of different sizes; end with one that fixes the size, like "
            "RandomResizedCrop(size=224) or Resize(256) and CenterCrop(224)"
        )
    Pipeline(options.final, options.seed).output_size(size)  # raises where they are no ops
    for op in options.ops:
        if isinstance(op, Custom) and op.obstacle:  # also where this process does all: another one may go on
            raise OptionError(op.obstacle)
    for op in options.final:
        if isinstance(op, Custom):
            raise OptionError(
                f"{op} cannot be a final op, as no loader imports what a manifest names. Leave it out here, and pass "
                f"all final ops to each loader: ops=[..., {op}]"
            )
        from_dict(to_dict(op))  # as loaders will, which know no ops but tpufeed's
    return size


def _is_taken(destination: Store, source: Warmable, identity: dict[str, Any]) -> bool:
    """Return true where another cache or dataset stands, or the beginnings of one."""
    try:
        present = find_finished(destination)
        if present is not None:
            return bool(_differences(present, source, identity))
        check_same_plan(destination, read_plan(destination).header, KIND, source.url, identity)
    except ObjectNotFoundError:
        return False
    except (DuplicateWriterError, DamageError):
        return True
    return False


def _find_finished(destination: Store, source: Warmable, identity: dict[str, Any], overwrite: bool) -> Dataset | None:
    """The cache that is asked for, where it stands there already; another one is refused, or will be removed."""
    try:
        present = find_finished(destination)
    except DamageError:
        if not overwrite:
            raise
        return None
    if present is None:
        return None
    differing = _differences(present, source, identity)
    if not differing and _is_sound(present):
        return present
    if not overwrite:
        raise DatasetExistsError(_refusal(present, differing))
    return None


def _differences(present: Dataset, source: Warmable, identity: dict[str, Any]) -> list[str]:
    """Return what the cache at the destination has otherwise, as parts of a sentence; nothing where it is this one."""
    if present.manifest.cache is None:
        return ["a dataset that is no cache"]
    stored = {name: value for name, value in present.manifest.options.items() if name not in ("command", "source")}
    if stored.get("source_digest") != identity.get("source_digest"):
        return [f"it was warmed from another source, or {source.url} has changed since"]
    differing = differing_options(stored, identity)
    if not differing and present.manifest.cache.source_digest != source.digest():
        differing = [f"the images of {source.url} have changed since"]
    return differing


def _refusal(present: Dataset, differing: Sequence[str]) -> str:
    if not differing:
        return (
            f"{present.url} already holds this cache, but it is damaged. Run: tpufeed verify {present.url}; say "
            "--overwrite to warm it again"
        )
    what = "another cache: " if present.manifest.cache is not None else ""
    return (
        f"{present.url} already holds {what}{'; '.join(differing)} (see: tpufeed info {present.url}). Nothing "
        "was changed. Say --overwrite to replace it, --new-dir to put this one beside it, or take another destination"
    )


def _is_sound(present: Dataset) -> bool:
    """Return true where all files have their sizes and, up to 2 GB, their CRCs."""
    files = [file for s in present.manifest.splits.values() for variant in s.variants for file in variant.files]
    if find_lost(present.store, present.manifest) is not None:
        return False
    if sum(file.bytes for file in files) > _READ_WHOLE_BYTES:
        return True
    with ThreadPoolExecutor(available_cores(), "tpufeed-verify") as executor:
        return all(executor.map(lambda file: is_stored(present.store, file.name, file.bytes, file.crc32c), files))
