"""The recipe of `cache warmup`: make a cache of a dataset, or the next version of a cache."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from tpufeed.builds.compact import default_shard_bytes
from tpufeed.builds.destination import Destination
from tpufeed.builds.digests import Duplicates
from tpufeed.builds.plan import Plan, PlanHeader, Task, at_place, differing_options, read_plan
from tpufeed.builds.prices import gets_of_shards
from tpufeed.builds.recipe import Draft, Recipe, SplitPreview
from tpufeed.builds.versions import follows, put_version
from tpufeed.cache.moving import cached_spec, encode_pixels
from tpufeed.cache.options import CacheOptions, Size, fingerprint
from tpufeed.cache.origin import iter_samples, open_origin
from tpufeed.cache.worker import Augmenter, CacheContext
from tpufeed.dataset.clips import frames_of
from tpufeed.dataset.listed import Listed
from tpufeed.dataset.manifest import CacheInfo, Manifest, Part
from tpufeed.dataset.naming import EVALUATION, check_split_name, is_evaluation, part_folder
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.sample import iter_flip_warnings
from tpufeed.dataset.schema import (
    CHANNELS,
    FILENAME,
    FORMAT,
    HEIGHT,
    LABEL,
    ONE_HOT,
    SIZE,
    TENSOR,
    TEXT,
    WIDTH,
    FeatureSpec,
    kaggle_features,
    kaggle_keys,
    plain_boxes,
    record_schema,
)
from tpufeed.errors import (
    DamageError,
    DatasetExistsError,
    ImageError,
    ObjectNotFoundError,
    OpError,
    OptionError,
    advised,
    mask_secrets,
)
from tpufeed.images.decoding import decode
from tpufeed.images.description import short_text
from tpufeed.images.ops import Custom
from tpufeed.images.pipeline import Pipeline, check_deterministic
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.protocols import Op, evaluation_of
from tpufeed.processes.limits import available_cores
from tpufeed.sharding.recipe import one_hot_bytes

KIND = "cache warmup"
SOURCE_VERSION = "source_version"  # option: the version of the source that a cache covers, if the source has grown
SELECT = "select"  # option: what a view selects, if the source is one
_EVALUATION = "without random ops"  # another text if `evaluation_of` comes to make other pixels
_FEATURES_BYTES = 400  # size of a record without its image
_READ_WHOLE_BYTES = 2 * 10**9  # verify the CRCs of a finished cache up to this size
_PROBED_SAMPLES, _FIRST_SAMPLES = 16, 4
_PROBED_SECONDS = 1.0  # an op may take seconds per image


class CacheRecipe(Recipe):
    """Makes a cache, or adds the new samples of a source that has grown.

    Args:
        src: the path or URL of a dataset, or an open one.
        options: options of the cache.
        allow_augmented: as in `tpufeed.cache.warmup`.

    Raises:
        OptionError: the images would differ in size, or as `open_origin` raises it.
    """

    kind, worker, grows_by, verb = KIND, "tpufeed.cache.worker", "warmup", "warming"

    def __init__(self, src: str | Path | Dataset, options: CacheOptions, allow_augmented: bool = False) -> None:
        origin = open_origin(src, allow_augmented)
        self.origin, self.options, self.source = origin, options, origin.url
        self.stores = origin.store, origin.shards
        pixels = origin.manifest.pixels
        self.size = options.output_size(origin.manifest.image_size, pixels)
        is_rgb8 = pixels == RGB8 or (pixels.frame == RGB8 and options.encode != "dct")
        if not is_rgb8 and options.encode != "raw":
            raise OptionError(
                f"encode={options.encode!r} is for 8-bit RGB, and the images of {origin.url} are {pixels}: leave it "
                "out, and the cache holds their values"
            )
        lacking = (sum(origin.class_counts(name)) < origin.split(name).records for name in origin.manifest.splits)
        if options.names == "kaggle" and origin.manifest.has_unlabelled and any(lacking):
            raise OptionError(f"names='kaggle' needs a class for each sample, and {origin.url} has samples without one")
        if pixels.frames and options.names == "kaggle":
            raise OptionError(f"names='kaggle' is for single images, and those of {origin.url} are clips: leave it out")
        # A view may keep no sample of a split.
        given = ((check_split_name(name), origin.split(name).records) for name in origin.manifest.splits)
        self.samples = {name: count for name, count in given if count or not origin.manifest.splits[name].records}
        draws = not options.all_splits_random and any(op.draws for op in (*options.applied, *(options.live or ())))
        self.evaluated = [name for name in self.samples if draws and is_evaluation(name)]
        # All options that decide bytes, as JSON returns them.
        identity = {"source_digest": origin.content_digest, **options.to_dict()}
        if self.evaluated:
            identity[EVALUATION] = _EVALUATION
        self.wanted = msgspec.json.decode(msgspec.json.encode(identity))
        # Options that do not decide bytes.
        self.facts: dict[str, Any] = {SOURCE_VERSION: origin.number} if origin.number > 1 else {}
        if origin.selection is not None:
            self.facts[SELECT] = origin.selection.text

    def look(self, destination: Destination, overwrite: bool) -> Dataset | None:
        """Return the cache at the destination if it is this one. A cache of an earlier version of the source grows."""
        self.base, self.is_stale, self._is_behind = None, False, False
        self.before = dict[str, int]()  # samples per split that the cache already has
        self.identity = self.wanted | self.facts
        try:
            present = destination.find_finished()
        except DamageError:
            if not overwrite:
                raise
            return None
        if present is None:
            return None
        differing = self._differences(present)
        if not differing and _is_sound(present):
            return present
        if overwrite:
            return None
        covered = present.manifest.cache
        before = None if covered is None else self.origin.records_of(covered.source_digest)
        if before is not None:  # it is of an earlier version of this source
            there = {**_options_of(present), "source_digest": self.wanted["source_digest"]}
            differing = differing_options(there, self.wanted)
            if not differing and _is_sound(present):
                return self._grow(present, before)
        if not differing:
            raise DatasetExistsError(
                f"{present.url} already holds this cache, but it is damaged. Run: "
                f"{advised('verify', present.url)}. Remove the damaged files, and the same command makes "
                "them again, or pass --overwrite to warm it again"
            )
        what = "another cache: " if present.manifest.cache is not None else ""
        raise DatasetExistsError(
            f"{present.url} already holds {what}{'; '.join(differing)} (see: {advised('info', present.url)}). "
            "Nothing was changed. Pass --overwrite to replace it, or choose another destination"
        )

    def _grow(self, present: Dataset, before: dict[str, int]) -> Dataset | None:
        """Let the cache grow, or return it if the newer version of its source has the same samples."""
        if all(count <= before.get(name, 0) for name, count in self.samples.items()):
            self._is_behind = True
            return present
        self.base, self.before = present, before
        self.identity |= follows(present)
        try:
            part = Destination(present.store).part(part_folder(present.number + 1))
            found = read_plan(part.store).header.options
        except (ObjectNotFoundError, DamageError):
            return None
        # Someone began to grow this version of the cache, but from another version of its source.
        names = (found.keys() | self.identity.keys()) - {"source_digest", SOURCE_VERSION}
        same = all(found.get(name) == self.identity.get(name) for name in names)
        self.is_stale = same and found.get("source_digest") != self.identity["source_digest"]
        return None

    def _differences(self, present: Dataset) -> list[str]:
        """Return how the cache at the destination differs, as parts of a sentence, empty if it is this one."""
        cache, stored = present.manifest.cache, _options_of(present)
        if cache is None:
            return ["a dataset that is not a cache"]
        there, here = (each.get(SELECT, "all samples") for each in (present.manifest.options, self.facts))
        if stored.get("source_digest") != self.wanted.get("source_digest"):
            if there != here:
                return [f"it was warmed from {there} of its source, not from {here}"]
            source = f"{self.source} ({here})" if SELECT in self.facts else self.source
            return [f"it was warmed from another source, or {source} has changed since then"]
        return differing_options(stored, self.wanted)

    def finish(self, finished: Dataset) -> tuple[Dataset, Duplicates | None]:
        """Record that the cache covers a newer version of its source with the same samples, e.g. a compacted one."""
        if not self._is_behind:
            return finished, None
        digest = self.origin.content_digest
        manifest = msgspec.structs.replace(
            finished.manifest,
            run_id=secrets.token_hex(8),
            version=finished.number + 1,
            cache=self._cache_info(digest),
            options={"command": KIND, "source": mask_secrets(self.source), **self.identity},
            input_digest=digest,
        )
        about = Part(
            folder="",
            kind=self.grows_by,
            source=mask_secrets(self.source),
            run_id=manifest.run_id,
            input_digest=digest,
            records={},
            follows=finished.content_digest,
        )
        return put_version(finished, msgspec.structs.replace(manifest, parts=(*finished.manifest.history, about))), None

    @contextmanager
    def draft(self, is_preview: bool) -> Iterator[Draft]:
        """Warm a few samples, and plan the build."""
        samples, header = self._new, self._header({})
        few = {name: min(count, _PROBED_SAMPLES) for name, count in samples.items()}
        first = iter_ranges(few, dict.fromkeys(few, 1), self.before)
        shards, record_bytes, seconds = self._probe(header, samples, list(first))
        variants = self.options.variants
        read = [shard.bytes for name in samples for shard in self.origin.split(name).variants[0].shards]
        yield Draft(
            header=msgspec.structs.replace(header, splits=shards),
            tasks=iter_ranges(samples, shards, self.before),
            splits={
                name: SplitPreview(count, shards[name] * variants, int(count * variants * record_bytes))
                for name, count in samples.items()
            },
            source_bytes=sum(read),
            gets=gets_of_shards(read),
            probed=len(seconds),
            probed_seconds=fmean(seconds or [0]),
            fingerprint=fingerprint(header.input_digest, self.wanted),
        )

    def _probe(
        self, header: PlanHeader, samples: dict[str, int], first: Sequence[Task]
    ) -> tuple[dict[str, int], float, list[float]]:
        """Warm the samples of `first`, and run all ops twice on the first few of them.

        Return the number of shards per variant by split, the mean size of a record, and the seconds of each sample.
        Raises:
            OpError: an op raises, returns a wrong type or size, or gives different pixels the second time. The message
                names op and sample.
            OptionError: a shard would be smaller than a record.
        """
        options, (height, width) = self.options, self.size
        seed = self.origin.manifest.draws_seed(options.seed)
        kept = self.origin.manifest.pixels
        ops, live = (Pipeline(each, seed, pixels=kept.frame) for each in (options.applied, options.live or ()))
        of_split = {task.split: Augmenter(options, self.origin.manifest, task.split, mends=False) for task in first}
        lengths, moving, seconds = list[int](), list[int](), list[float]()
        begun = time.monotonic()
        tried = ((task.split, each) for task in first for each in iter_samples(self.origin, header, task))
        for split, sample in tried:
            start = time.perf_counter()
            try:
                _, variants, moved = of_split[split](sample)
            except ImageError:
                continue
            moving += map(len, moved)
            lengths += [len(encode_pixels(pixels, options)) for pixels in variants]
            seconds.append(time.perf_counter() - start)
            if len(seconds) <= _FIRST_SAMPLES:
                image, made = sample.image, variants[0]
                if kept.frames:  # ops see one frame at a time
                    image = image[0] if isinstance(image, np.ndarray) else frames_of(memoryview(image), kept)[0]
                    made = made[0]
                stored = image if isinstance(image, np.ndarray) else decode(image)
                for pipeline, pixels in ((ops, stored), (live, made)):
                    draws = [op[0] for op in pipeline.draw(0, np.array([sample.number]))]
                    try:
                        check_deterministic(pipeline, pixels, draws)
                    except OpError as error:
                        raise OpError(f"{sample.name} (sample {sample.number}): {error}") from error
            slow = len(seconds) >= _FIRST_SAMPLES and time.monotonic() - begun > _PROBED_SECONDS
            if slow or len(seconds) >= _PROBED_SAMPLES:
                break

        def record_bytes(stop: int | None) -> float:
            """Return the mean size of the first records. The size of raw pixels is known in advance."""
            is_raw, whole = options.encode == "raw", kept.bytes_of(kept.shape((height, width)))
            image = whole if is_raw else fmean(lengths[:stop] or [0])
            own = one_hot_bytes(header.class_names) if header.are_counted else 0
            return image + fmean(moving[:stop] or [0]) + _FEATURES_BYTES + own

        # A plan must not depend on speed, so it follows from the first samples alone.
        return (
            count_shards(samples, options, record_bytes(_FIRST_SAMPLES * options.variants)),
            record_bytes(None),
            seconds,
        )

    def follow(self, plan: Plan) -> Plan:
        """Return the plan for the present URL of the dataset, whose contents its options name."""
        return at_place(plan, self.source)

    def context(self, destination: Destination) -> CacheContext:
        """Return the context that all tasks share."""
        header, owner = destination.plan.header, destination.owner
        return CacheContext(destination.url, header, owner, self.origin, self.options)

    def conclude(self, destination: Destination, folder: Path, manifest: Manifest) -> tuple[Manifest, None]:
        """Add the description of the cache to the manifest."""
        info, levels = self._cache_info(destination.plan.header.input_digest), self.origin.manifest.levels
        return msgspec.structs.replace(manifest, cache=info, levels=levels), None

    def _cache_info(self, source_digest: str) -> CacheInfo:
        """Return the manifest's entry for the cache of a source with these contents."""
        return CacheInfo(
            source_digest=source_digest,
            ops=tuple(self.wanted["ops"]),  # as a manifest has them: with lists instead of tuples
            live=tuple(self.wanted["live"]),
            encode=self.options.encode,
            shape=self.origin.manifest.pixels.shape(self.size),
            dtype=self.origin.manifest.pixels.dtype,
            variants=self.options.variants,
            seed=self.options.seed,
            fingerprint=fingerprint(source_digest, self.wanted),
            quality=self.options.quality if self.options.encode == "dct" else msgspec.UNSET,
        )

    def _ops_by_split(self) -> dict[str, str]:
        """Return for people the ops of the splits for evaluation, and of the others. Empty if all have the same."""
        if not self.evaluated:
            return {}
        others, live = sorted(self.samples.keys() - {*self.evaluated}), self.options.live or ()

        def said(ops: Sequence[Op], live: Sequence[Op]) -> str:
            text, later = (", ".join(map(short_text, each)) or "no op" for each in (ops, live))
            return f"{text}; loaders add {later}" if self.options.live else text

        random = {", ".join(others): said(self.options.applied, live)} if others else {}
        ops = said(evaluation_of(self.options.applied), evaluation_of(live))
        return random | {", ".join(self.evaluated): f"for evaluation, {ops}"}

    @property
    def _new(self) -> dict[str, int]:
        return {name: count - self.before.get(name, 0) for name, count in self.samples.items()}

    def _header(self, shards: dict[str, int]) -> PlanHeader:
        """Return the header of the plan with these numbers of shards."""
        origin, manifest = self.origin, self.origin.manifest
        plain = plain_boxes(manifest.features, manifest.options)
        warnings = [*iter_flip_warnings(manifest.features, self.options.applied)]
        if plain:
            warnings.append(
                f"{', '.join(plain)}: left out, as they look like boxes and are plain numbers, which a crop does not "
                "move. To have them, build the dataset with --boxes, or with --column NAME:TYPE if they are no boxes"
            )
        warnings += (
            f"{origin.label} has no sample of split {name!r}, so the cache has no such split"
            for name in manifest.splits
            if name not in self.samples
        )
        warnings += (
            f"{op} may draw, so {', '.join(self.evaluated)} go without it. If it draws nothing, give "
            "Custom(..., random=False), and if they need it anyway, --all-splits-random"
            for op in self.options.applied
            if self.evaluated and isinstance(op, Custom) and op.random
        )
        features = [spec for spec in manifest.features if spec.name not in plain]
        return PlanHeader(
            kind=KIND,
            source=self.source,
            options=self.identity,
            run_id=secrets.token_hex(8),
            input_digest=origin.content_digest,
            splits=shards,
            variants=self.options.variants,
            class_names=origin.class_names,
            features=cached_schema(features, self.options, self.size, len(origin.class_names)),
            images=self.options.variants * sum(self._new.values()),
            listed=Listed(warnings=tuple(warnings), ops=self._ops_by_split()),
        )


def _options_of(present: Dataset) -> dict[str, Any]:
    left_out = ("command", "source", SOURCE_VERSION, SELECT)
    return {name: value for name, value in present.manifest.options.items() if name not in left_out}


def _is_sound(present: Dataset) -> bool:
    """Return True if the CRCs of all files (up to 2 GB) are right, or if files are lost. A run repairs these."""
    files = [file for s in present.manifest.splits.values() for variant in s.variants for file in variant.files]
    destination = Destination(present.store)
    if any(destination.iter_lost(present.manifest)):
        return True
    if sum(file.bytes for file in files) > _READ_WHOLE_BYTES:
        return True
    with ThreadPoolExecutor(available_cores(), "tpufeed-verify") as executor:
        return all(executor.map(lambda file: destination.is_stored(file.name, file.bytes, file.crc32c), files))


def count_shards(samples: Mapping[str, int], options: CacheOptions, record_bytes: float) -> dict[str, int]:
    """Return the number of shards per variant, by split.

    Raises:
        OptionError: a shard would be smaller than a record.
    """
    target: float | None = options.size_bytes
    if target is None:
        target = default_shard_bytes(max(samples.values(), default=0) * record_bytes)
    elif record_bytes > target:
        raise OptionError(
            f"a shard of {options.size_bytes} bytes cannot hold a record of {record_bytes:.0f} bytes. Give a "
            "--shard-size of 64MB to 256MB"
        )
    return {name: min(count, max(1, round(count * record_bytes / target))) for name, count in samples.items()}


def iter_ranges(samples: Mapping[str, int], shards: Mapping[str, int], before: Mapping[str, int]) -> Iterator[Task]:
    """Yield tasks of equal size: each is the range `[first, stop)` of a split.

    The id of a sample is its place in the global order, even if it is rejected. In a cache that grows, the ids of each
    split continue after the samples of `before`.
    """
    number = 0
    for split, count in samples.items():
        start = before.get(split, 0)
        for shard in range(shards[split]):
            first, stop = (start + count * edge // shards[split] for edge in (shard, shard + 1))
            yield Task(number, split, shard, shards[split], (), first, stop)
            number += 1


def cached_schema(
    features: Sequence[FeatureSpec], options: CacheOptions, size: Size, classes: int
) -> tuple[FeatureSpec, ...]:
    """Return the features of a cache made from a source with `features` and this many classes.

    Raises:
        OptionError: programs that follow Kaggle's guides cannot read such features.
    """
    label = next((feature for feature in features if feature.name == LABEL), None)
    several = label.lengths if label is not None and label.shape is None else None
    kept = features[0].pixels
    own = record_schema(label is not None, several if isinstance(several, tuple) else None, pixels=kept)
    made = {HEIGHT, WIDTH, CHANNELS, FORMAT}
    if options.names == "kaggle":
        if several is not None:
            raise OptionError(
                "names='kaggle' is for one class per image, and here samples have lists of labels: leave it out"
            )
        own, made = kaggle_features(own, classes), made | {TEXT, SIZE, ONE_HOT}
    stored = {feature.name: feature for feature in features if feature.name not in (SIZE, ONE_HOT)}
    known = {feature.name for feature in own} | {SIZE, ONE_HOT}
    present = stored.keys() | made
    others = (f for f in features[1:] if f.name not in known)
    pixels, image = kept or RGB8, own[0]
    if options.encode == "raw":
        image = FeatureSpec(TENSOR, pixels.dtype, pixels.shape(size), pixels=kept)
    # Other tools' records may lack a name or a text, or have lists of them.
    as_stored = {TEXT, FILENAME} - made
    lists = (
        stored.get(f.name, f) if f.shape is None or f.name in as_stored else f for f in own[1:] if f.name in present
    )
    schema = (image, *(cached_spec(feature, options, size) for feature in (*lists, *others)))
    return kaggle_keys(schema) if options.names == "kaggle" else schema
