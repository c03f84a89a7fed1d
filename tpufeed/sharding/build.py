"""`shard`: from raw images to a dataset."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from tpufeed.dataset.build import BuildResult, ProgressListener, local_engine, run_build
from tpufeed.dataset.commit import join_or_begin
from tpufeed.dataset.plan import encode_plan
from tpufeed.dataset.reader import refuse_existing
from tpufeed.engines.engine import Job
from tpufeed.errors import ImageError
from tpufeed.images.policy import ImagePolicy
from tpufeed.sharding.options import ShardOptions, parse_size, parse_splits
from tpufeed.sharding.plan import KIND, SizeEstimate, plan_shards
from tpufeed.sharding.sources import Listing, list_images
from tpufeed.sharding.worker import ENTRY, ShardContext, take_image
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

_PROBED_IMAGES = 48
_FEATURES_BYTES = 320  # of a record, besides the image and its path


def shard(  # noqa: PLR0913  # the public face: flat keywords, gathered into ShardOptions at once
    src: str | Path,
    dst: str | Path,
    *,
    shard_bytes: str | int = "64MB",
    split: str | Mapping[str, float] = "train",
    presize: int | None = None,
    check: Literal["full", "header"] = "full",
    seed: int = 0,
    workers: int | None = None,
    listener: ProgressListener | None = None,
) -> BuildResult:
    """Turn a folder of images into a dataset of TFRecord shards.

    An interrupted call, made again with the same arguments, goes on where it stopped and ends with the same bytes.

    Args:
        src: a folder of class folders, or of unlabelled images; a path or a URL.
        dst: where the dataset goes; a path or a URL that holds no dataset yet.
        shard_bytes: aim for shards of this size, like "64MB".
        split: shares of splits, like "train=0.9,val=0.1", dealt by a stable hash of each image's path.
        presize: shrink images whose shorter side is longer than this many pixels to it.
        check: "full" decodes every image strictly; "header" trusts what follows a sound header.
        seed: of the global order in which images go into shards.
        workers: processes; all cores by default.
        listener: called with a `BuildProgress` a few times a second.

    Raises:
        OptionError, NoInputsError, SourceError, DatasetExistsError, DuplicateWriterError: nothing was changed.
        TaskError, BuildError: the work failed; what is done stays, and the same call goes on from there.
    """
    splits = parse_splits(split) if isinstance(split, str) else dict(split)
    options = ShardOptions(parse_size(shard_bytes), splits, seed, ImagePolicy(check, presize))
    source, destination = open_store(src), open_store(dst)
    engine = local_engine(workers, source, destination)
    refuse_existing(destination)
    plan, _ = join_or_begin(destination, KIND, source.url, options.to_dict(), partial(_make_plan, source, options))
    job = Job(ENTRY, ShardContext(destination.url, plan.header, options.images))
    return run_build(destination, plan, job, engine, listener)


def _make_plan(source: Store, options: ShardOptions) -> bytes:
    listing = list_images(source.url)
    header, tasks = plan_shards(listing, options, _record_size(source, listing, options.images))
    return encode_plan(header, tasks)


def _record_size(source: Store, listing: Listing, policy: ImagePolicy) -> SizeEstimate:
    """Sizes of records: of the files, where they are kept; else the mean of a few that are made for it."""
    if policy.presize_px is None:
        return lambda item: item.bytes + _FEATURES_BYTES + len(item.path)
    sizes = []
    for item in listing.inputs[:: max(1, len(listing.inputs) // _PROBED_IMAGES)]:
        try:
            sizes.append(len(take_image(source, item, policy).data))
        except ImageError:
            continue
    mean = sum(sizes) // max(1, len(sizes))
    return lambda item: mean + _FEATURES_BYTES + len(item.path)
