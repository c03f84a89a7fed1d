"""`warmup`: from a dataset, or raw images, to a cache, and the preview of it."""

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tpufeed.build.commit import (
    check_destination,
    check_names,
    find_finished,
    find_lost,
    foreign_names,
    is_stored,
    join_or_begin,
    open_part,
)
from tpufeed.build.destination import check_space, choose_engine, refuse_source
from tpufeed.build.plan import differing_options, read_plan, write_plan
from tpufeed.build.rejects import RejectBudget, parse_budget
from tpufeed.build.run import BuildResult, ProgressListener, finished_result, run_build
from tpufeed.build.versions import publish, put_version
from tpufeed.cache.moving import Mover, encode_pixels
from tpufeed.cache.options import CacheOptions, Encoding, Size, fingerprint
from tpufeed.cache.plan import KIND, SOURCE_VERSION, Planning, Warmable, count_shards, record_size
from tpufeed.cache.source import CacheSource, Sample
from tpufeed.cache.worker import ENTRY, REACH, Augmenter, CacheContext
from tpufeed.dataset.manifest import GROWN_VERSION, Manifest, Part
from tpufeed.dataset.naming import part_folder
from tpufeed.dataset.reader import Dataset
from tpufeed.engines.engine import Engine, Job
from tpufeed.errors import DamageError, DatasetExistsError, ImageError, ObjectNotFoundError, OpError, mask_secrets
from tpufeed.images.decoding import MAX_PIXELS, Pixels, decode
from tpufeed.images.pipeline import Pipeline, check_deterministic
from tpufeed.images.protocols import Op
from tpufeed.options import checked
from tpufeed.processes.limits import available_cores
from tpufeed.sharding.options import ShardOptions
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

_READ_WHOLE_BYTES = 2 * 10**9  # of a finished cache, to verify it
_PROBED_SAMPLES, _FIRST_SAMPLES = 16, 4
_PROBED_SECONDS = 1.0  # an op may take seconds an image


_ELSEWHERE = {
    "presize": "a cache has all images of one size: give size=..., or ops=[...] of which one fixes it",
    **dict.fromkeys(
        ("columns", "image_columns", "masks", "boxes", "box_format", "keypoints", "flip_pairs", "box_columns"),
        "make a dataset of them with tpufeed.shard, and warm that",
    ),
}


@checked(_ELSEWHERE)
def warmup(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    size: int | None = None,
    ops: Sequence[Op] | None = None,
    final: Sequence[Op] | None = None,
    variants: int = 1,
    encode: Encoding = "raw",
    quality: int = 90,
    seed: int = 0,
    shard_bytes: str | int | None = None,
    shares: str | Mapping[str, float] | None = None,
    split_by: str | None = None,
    image: str | None = None,
    label: str = "auto",
    classes: str | Path | Sequence[str] | None = None,
    max_pixels: int = MAX_PIXELS,
    min_side: int = 1,
    policy: Mapping[str, str] | None = None,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    allow_augmented: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
) -> BuildResult:
    """Precompute the expensive part of an augmentation: a second dataset whose images are ready for the step.

    An interrupted call, made again with the same arguments, goes on where it stopped; a finished one is verified and
    nothing is rewritten. Where `src` is a dataset that has grown since, only the samples that are new are warmed, and
    become the next version of the cache.

    Args:
        src: a dataset, or raw images as `tpufeed.shard` takes them: these are decoded once for all variants.
        dst: where the cache goes.
        size: side in pixels of the default ops, `RandomResizedCrop(size)` and `HorizontalFlip()`; 224 by default.
        ops: applied to every sample, with other random numbers in every variant.
        final: ops that loaders apply live to what the cache holds, with other random numbers in every epoch. None of
            the user's own: a loader imports nothing that a manifest names, and has to be given `ops=[...]`.
        variants: K; epoch e reads variant e mod K.
        encode: "raw" stores uint8 pixels, the others encode them.
        quality: of JPEG and WebP, 1 to 100.
        seed: of the random numbers.
        shard_bytes: aim for shards of this size; None: 128 MB, and less where there would be fewer than 64 shards.
        shares: for raw images, as in `tpufeed.shard`; a dataset has its splits and labels.
        split_by: for raw images, too.
        image: for raw images, too.
        label: for raw images, too.
        classes: for raw images, too.
        max_pixels: for raw images, too.
        min_side: for raw images, too.
        policy: for raw images, too.
        max_rejects: fail where more samples than this cannot be taken, as in `tpufeed.shard`.
        overwrite: remove another cache or dataset that stands at `dst`, or the beginnings of one.
        fsync: bring the shards to the disk before the manifest, as in `tpufeed.shard`.
        allow_augmented: take a `src` that is itself a cache which random ops have augmented; of its variants the first
            is read.
        workers: processes; all cores by default.
        engine: what runs the tasks, as in `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times a second.

    Raises:
        OptionError, SourceError, NoInputsError, DatasetNotFoundError, DatasetExistsError, DuplicateWriterError: nothing
            was changed.
        OpError: an op fails on one of the first samples, or gives other pixels when it is run again.
        TooManyRejectsError, TaskError, BuildError: the work failed; what is done stays, and the same call goes on.
    """
    options = CacheOptions(
        size=size,
        ops=ops,
        final=final,
        variants=variants,
        encode=encode,
        quality=quality,
        seed=seed,
        shard_bytes=shard_bytes,
    )
    raw = ShardOptions(
        shares=shares,
        split_by=split_by,
        image=image,
        label=label,
        classes=classes,
        max_pixels=max_pixels,
        min_side=min_side,
        policy=policy,
    )
    request = _check_request(src, dst, options, raw, max_rejects, overwrite, allow_augmented, workers, engine)
    if request.finished is not None:
        return finished_result(request.finished)
    source, identity, base = request.source, request.identity, request.base
    if base is not None and not source.has_new:
        return finished_result(_cover(base, source, options, request))
    destination = request.store

    def make_plan(path: Path, freed_bytes: int) -> None:
        with source.plan(options, request.size) as planning:
            probe = probe_samples(planning, source.reader, options, request.size)
            check_space(destination, probe.bytes, freed_bytes)
            header = msgspec.structs.replace(planning.header, splits=probe.shards)
            write_plan(path, header, planning.iter_tasks(probe.shards))

    with request.engine.prepare(ENTRY):
        plan, joined = join_or_begin(
            destination, KIND, source.url, request.plan_identity, make_plan, overwrite or request.is_stale
        )
        if joined:
            source.check_joined(destination, plan, options, request.size)
        job = Job(ENTRY, CacheContext(source.reader, destination.url, plan.header, options, plan.owner), REACH)
        result = run_build(
            destination,
            plan,
            job,
            engine=request.engine,
            budget=request.budget,
            joined=joined,
            cache=options.cache_info(plan.header.input_digest, identity, request.size),
            fsync=fsync,
            listener=listener,
        )
    if base is not None:
        result = _publish(base, Dataset(destination, result.manifest), source, result)
    return replace(result, warnings=(*plan.header.warnings, *result.warnings))


def _publish(base: Dataset, part: Dataset, source: Warmable, result: BuildResult) -> BuildResult:
    """Make the part of a cache that holds what is new in its source the cache's next version."""
    grown = publish(base, part, _about(base, source, part.manifest))
    total = finished_result(grown)
    return replace(
        result,
        url=base.url,
        manifest=grown.manifest,
        images=total.images,
        bytes=total.bytes,
        earlier_images=total.images - result.images + result.earlier_images,
        added=result.images // len(next(iter(base.manifest.splits.values())).variants),
    )


def _cover(base: Dataset, source: Warmable, options: CacheOptions, request: "_Request") -> Dataset:
    """Note that a cache covers a version of its source that has the same samples, as that of a compaction."""
    manifest = msgspec.structs.replace(
        base.manifest,
        run_id=secrets.token_hex(8),
        format_version=GROWN_VERSION,
        version=base.number + 1,
        cache=options.cache_info(source.digest(), request.identity, request.size),
        options={"command": KIND, "source": mask_secrets(source.url), **request.identity, **source.facts},
        input_digest=source.digest(),
    )
    about = msgspec.structs.replace(_about(base, source, manifest), folder="", records={}, follows=base.content_digest)
    return put_version(base, msgspec.structs.replace(manifest, parts=(*base.manifest.history, about)))


def _about(base: Dataset, source: Warmable, part: Manifest) -> Part:
    return Part(
        folder=part_folder(base.number + 1),
        kind="warmup",
        source=mask_secrets(source.url),
        run_id=part.run_id,
        input_digest=part.input_digest,
        records={name: split.records for name, split in part.splits.items()},
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `warmup`, checked.

    Attributes:
        destination: where the cache stands, or is to stand.
        store: where the build works: in the destination, or in the part of a cache that grows.
        identity: every option that decides bytes.
        plan_identity: the options of the plan, which says besides which version of the cache it follows.
        finished: the cache that is asked for, where it stands already.
        base: the cache of an earlier version of the source, which stands already, and grows.
        is_stale: in the part stand the beginnings of one for another version of the source, which have no use.
    """

    budget: RejectBudget
    source: Warmable
    destination: Store
    store: Store
    size: Size
    engine: Engine
    identity: dict[str, Any]
    plan_identity: dict[str, Any]
    finished: Dataset | None
    base: Dataset | None
    is_stale: bool


def _check_request(  # noqa: PLR0913, PLR0917  # those of `warmup`
    src: str | Path,
    dst: str | Path,
    options: CacheOptions,
    raw: ShardOptions,
    max_rejects: str | int | None,
    overwrite: bool,
    allow_augmented: bool,
    workers: int | None,
    engine: Engine | str | None,
) -> _Request:
    """Check all that `warmup` and its preview check before they make a plan."""
    budget = parse_budget(max_rejects)
    source, destination = Warmable(src, raw, allow_augmented), open_store(dst, follow=False)
    size = options.output_size(source.size)
    chosen = choose_engine(engine, workers, *source.stores, destination)
    # Every option that decides bytes, as it comes back from JSON.
    identity = msgspec.json.decode(msgspec.json.encode({**source.identity, **options.to_dict()}))
    refuse_source(destination, *source.stores)
    present = _find_present(destination, source, identity, overwrite)
    base = present if source.follows else None
    finished = None if source.follows else present
    store = destination if base is None else open_part(destination, base.number + 1)
    plan_identity = {**identity, **source.facts, **source.follows}
    return _Request(
        budget,
        source,
        destination,
        store,
        size,
        chosen,
        identity,
        plan_identity,
        finished,
        base,
        base is not None and _is_stale(store, plan_identity),
    )


def _is_stale(part: Store, wanted: Mapping[str, Any]) -> bool:
    """Return true where a part was begun for the same version of the cache, and another version of its source."""
    try:
        found = read_plan(part).header.options
    except (ObjectNotFoundError, DamageError):
        return False
    names = (found.keys() | wanted.keys()) - {"source_digest", SOURCE_VERSION}
    same = all(found.get(name) == wanted.get(name) for name in names)
    return same and found.get("source_digest") != wanted["source_digest"]


def _find_present(destination: Store, source: Warmable, identity: dict[str, Any], overwrite: bool) -> Dataset | None:
    """The cache that is asked for, where it stands there already, or that of an earlier version of the source.

    The latter grows, see `Warmable.grow`. Another one is refused, or will be removed.
    """
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
    if overwrite:
        return None
    if source.grow(present):  # of an earlier version of this source
        differing = differing_options({**_options_of(present), "source_digest": identity["source_digest"]}, identity)
        if not differing and _is_sound(present):
            return present
    if not differing:
        raise DatasetExistsError(
            f"{present.url} already holds this cache, but it is damaged. Run: tpufeed verify {present.url}; say "
            "--overwrite to warm it again"
        )
    what = "another cache: " if present.manifest.cache is not None else ""
    raise DatasetExistsError(
        f"{present.url} already holds {what}{'; '.join(differing)} (see: tpufeed info {present.url}). Nothing "
        "was changed. Say --overwrite to replace it, or take another destination"
    )


def _options_of(present: Dataset) -> dict[str, Any]:
    left_out = ("command", "source", SOURCE_VERSION)
    return {name: value for name, value in present.manifest.options.items() if name not in left_out}


def _differences(present: Dataset, source: Warmable, identity: dict[str, Any]) -> list[str]:
    """Return what the cache at the destination has otherwise, as parts of a sentence; nothing where it is this one."""
    if present.manifest.cache is None:
        return ["a dataset that is no cache"]
    stored = _options_of(present)
    if stored.get("source_digest") != identity.get("source_digest"):
        return [f"it was warmed from another source, or {source.url} has changed since"]
    differing = differing_options(stored, identity)
    if not differing and present.manifest.cache.source_digest != source.digest():
        differing = [f"the images of {source.url} have changed since"]
    return differing


def _is_sound(present: Dataset) -> bool:
    """Return true where all files have their sizes and, up to 2 GB, their CRCs."""
    files = [file for s in present.manifest.splits.values() for variant in s.variants for file in variant.files]
    if find_lost(present.store, present.manifest) is not None:
        return False
    if sum(file.bytes for file in files) > _READ_WHOLE_BYTES:
        return True
    with ThreadPoolExecutor(available_cores(), "tpufeed-verify") as executor:
        return all(executor.map(lambda file: is_stored(present.store, file.name, file.bytes, file.crc32c), files))


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of warming a few samples.

    Attributes:
        shards: of each variant, by split.
        bytes: of all variants together, about.
        seconds_a_sample: that all variants take one core.
        samples: tried.
    """

    shards: dict[str, int]
    bytes: float
    seconds_a_sample: float
    samples: int


def probe_samples(planning: Planning, source: CacheSource, options: CacheOptions, size: Size) -> Probe:
    """Warm a few samples, and run each op of the first of them twice.

    Raises:
        OpError: an op raises, returns what is no image of its size, or gives other pixels the second time; names op
            and sample.
        OptionError: a shard would be smaller than a record.
    """
    seed = source.draws_seed(options.seed)
    augment = Augmenter(options, seed, source.upright)
    ops, final = Pipeline(options.applied, seed), Pipeline(options.final or (), seed)
    mover, moving = Mover(source.features, options, augment.pipeline), list[int]()
    lengths, seconds = list[int](), list[float]()
    begun = time.monotonic()
    tried = (sample for task in planning.first for sample in source.iter_samples(planning.header, task))
    for sample in tried:
        if not isinstance(sample, Sample):
            continue
        start = time.perf_counter()
        try:
            variants = augment(sample)
            moved = (
                mover.encode(sample.moving, sample.name, sample.image, augment.draws(sample.number)) if mover else []
            )
        except ImageError:
            continue
        moving += map(len, moved)
        lengths += [len(encode_pixels(pixels, options)) for pixels in variants]
        seconds.append(time.perf_counter() - start)
        if len(seconds) <= _FIRST_SAMPLES:
            pixels = sample.image if isinstance(sample.image, np.ndarray) else decode(sample.image)
            _check_repeats(sample, ops, pixels)
            _check_repeats(sample, final, variants[0])
        slow = len(seconds) >= _FIRST_SAMPLES and time.monotonic() - begun > _PROBED_SECONDS
        if slow or len(seconds) >= _PROBED_SAMPLES:
            break
    # What plans are cut by must be no matter of time: the mean of the first samples alone.
    first = slice(_FIRST_SAMPLES * options.variants)
    shards = count_shards(
        planning.samples, options, record_size(options, size, _mean(lengths[first]), _mean(moving[first]))
    )
    total = (
        record_size(options, size, _mean(lengths), _mean(moving)) * options.variants * sum(planning.samples.values())
    )
    return Probe(shards, total, _mean(seconds), len(seconds))


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / max(1, len(numbers))


def _check_repeats(sample: Sample, pipeline: Pipeline, pixels: Pixels) -> None:
    draws = [op[0] for op in pipeline.draw(0, np.array([sample.number]))]
    try:
        check_deterministic(pipeline, pixels, draws)
    except OpError as error:
        raise OpError(f"{sample.name} (sample {sample.number}): {error}") from error


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
    options: CacheOptions,
    raw: ShardOptions | None = None,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    allow_augmented: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
) -> CachePreview:
    """Say what `warmup` with the same arguments would do; `raw` describes raw images. Changes nothing.

    Raises:
        OptionError, SourceError, NoInputsError, DatasetNotFoundError, OpError: as `warmup` does.
        DatasetExistsError, DuplicateWriterError: as `warmup` does.
        BuildError, StoreError: there is no room at the destination, or it cannot be written.
    """
    raw = ShardOptions() if raw is None else raw
    request = _check_request(src, dst, options, raw, max_rejects, overwrite, allow_augmented, workers, engine)
    source, destination, finished = request.source, request.store, request.finished is not None
    identity, overwrite = request.identity, overwrite or request.is_stale
    if request.base is not None and not source.has_new:
        finished = True
    wanted = request.plan_identity
    plan, old = (None, []) if finished else check_destination(destination, KIND, source.url, wanted, overwrite)
    if plan is not None:
        source.check_joined(destination, plan, options, request.size)
    with source.plan(options, request.size) as planning:
        probe = probe_samples(planning, source.reader, options, request.size)
        if not finished and plan is None:
            check_space(destination, probe.bytes, sum(info.size_bytes for info in old))
            header = msgspec.structs.replace(planning.header, splits=probe.shards)
            check_names(destination, header, foreign_names(destination, old), old)
        return CachePreview(
            source=source.url,
            destination=request.destination.url,
            samples=planning.samples,
            shards={name: shards * options.variants for name, shards in probe.shards.items()},
            variants=options.variants,
            bytes=int(probe.bytes),
            free_bytes=destination.free_bytes(),
            seconds=sum(planning.samples.values()) * probe.seconds_a_sample / (workers or available_cores()),
            seconds_a_sample=probe.seconds_a_sample,
            probed=probe.samples,
            fingerprint=fingerprint(planning.header.input_digest, identity),
            warnings=planning.header.warnings,
            complete=finished,
        )
