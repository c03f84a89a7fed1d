"""`warmup`: from a dataset to a cache."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tpufeed.cache.plan import KIND, CacheOptions, Encoding, plan_cache
from tpufeed.cache.worker import ENTRY, Augmenter, CacheContext, encode_pixels, iter_payloads
from tpufeed.dataset.build import BuildResult, ProgressListener, finished_result, local_engine, run_build
from tpufeed.dataset.commit import join_or_begin
from tpufeed.dataset.plan import encode_plan
from tpufeed.dataset.reader import Dataset, find_dataset, open_dataset
from tpufeed.dataset.schema import record_layout
from tpufeed.engines.engine import Job
from tpufeed.errors import DatasetExistsError, ImageError, OptionError
from tpufeed.images.ops import HorizontalFlip, Op, RandomResizedCrop
from tpufeed.images.pipeline import Pipeline
from tpufeed.sharding.options import parse_size
from tpufeed.storage.registry import open_store

_FEATURES_BYTES = 400  # of a record, besides the image
_PROBED_SAMPLES = 16


def warmup(  # noqa: PLR0913  # the public face: flat keywords, gathered into CacheOptions at once
    src: str | Path,
    dst: str | Path,
    *,
    size: int = 224,
    variants: int = 1,
    encode: Encoding = "raw",
    ops: Sequence[Op] | None = None,
    seed: int = 0,
    shard_bytes: str | int = "128MB",
    workers: int | None = None,
    listener: ProgressListener | None = None,
) -> BuildResult:
    """Precompute the expensive part of an augmentation: a second dataset whose images are ready for the step.

    An interrupted call, made again with the same arguments, goes on where it stopped; a finished one is recognised by
    its fingerprint and nothing is rewritten.

    Args:
        src: a dataset.
        dst: where the cache goes.
        size: side in pixels of the images, where no `ops` are given.
        variants: K differently augmented versions of each sample; epoch e reads number e mod K.
        encode: "raw" for uint8 pixels (fastest, 150 kB an image at 224), "jpeg" for a tenth of the bytes.
        ops: what is applied, by default RandomResizedCrop(size) and HorizontalFlip(). All images must come out equal in
            size.
        seed: of the random numbers.
        shard_bytes: aim for shards of this size.
        workers: processes; all cores by default.
        listener: called with a `BuildProgress` a few times a second.

    Raises:
        OptionError, DatasetNotFoundError, DatasetExistsError, DuplicateWriterError: nothing was changed.
        TaskError, BuildError: the work failed; what is done stays, and the same call goes on from there.
    """
    ops = (RandomResizedCrop(size=size), HorizontalFlip()) if ops is None else tuple(ops)
    options = CacheOptions(ops, variants, encode, seed, parse_size(shard_bytes))
    source, destination = open_dataset(src), open_store(dst)
    shape = _output_size(source, options)
    engine = local_engine(workers, source.store, destination)
    fingerprint = options.fingerprint(source.content_digest)
    present = find_dataset(destination)
    if present is not None:
        _check_same_cache(present, fingerprint)
        return finished_result(present)
    identity = options.to_dict(source.content_digest)
    plan, _ = join_or_begin(destination, KIND, source.url, identity, partial(_make_plan, source, options, shape))
    job = Job(ENTRY, CacheContext(source, destination.url, plan.header, options))
    return run_build(destination, plan, job, engine, listener, options.cache_info(source.content_digest, shape))


def _output_size(source: Dataset, options: CacheOptions) -> tuple[int, int]:
    shape = source.manifest.tensor_shape
    size = Pipeline(options.ops, options.seed).output_size(None if shape is None else shape[:2])
    if size is None:
        raise OptionError(
            "these ops leave images of different sizes; end with one that fixes the size, like "
            "RandomResizedCrop(size=224) or Resize(256) and CenterCrop(224)"
        )
    return size


def _check_same_cache(present: Dataset, fingerprint: str) -> None:
    found = None if present.manifest.cache is None else present.manifest.cache.fingerprint
    if found != fingerprint:
        held = "a dataset that is no cache" if found is None else f"a cache of another fingerprint ({found})"
        raise DatasetExistsError(
            f"{present.url} already holds {held}; this one would be {fingerprint} (see: tpufeed info {present.url}). "
            "Nothing was changed. Take another destination, or remove this one first"
        )
    for split in present.manifest.splits.values():
        for file in (file for variant in split.variants for file in variant.files):
            stat = present.store.stat(file.name)
            if stat is None or stat.size_bytes != file.bytes:
                raise DatasetExistsError(
                    f"{present.url} holds this cache, but {file.name} is damaged. Run: tpufeed verify {present.url}; "
                    "remove the cache and warm it again"
                )


def _make_plan(source: Dataset, options: CacheOptions, size: tuple[int, int]) -> bytes:
    return encode_plan(*plan_cache(source, options, size, _record_bytes(source, options, size)))


def _record_bytes(source: Dataset, options: CacheOptions, size: tuple[int, int]) -> int:
    """Bytes of a record: known for raw pixels, for JPEGs the mean of a few that are made for it."""
    if options.encode == "raw":
        return size[0] * size[1] * 3 + _FEATURES_BYTES
    augment, layout = Augmenter(source, options), record_layout(source.manifest.features)
    lengths = []
    for split in source.manifest.splits:
        for sample, payload in iter_payloads(source, split, 0, _PROBED_SAMPLES):
            with suppress(ImageError):
                lengths.append(len(encode_pixels(augment(sample, layout.decode(payload)[0])[0], options)))
    return sum(lengths) // max(1, len(lengths)) + _FEATURES_BYTES
