"""Measure with the real loader how fast a sample of images could be fed if it were stored in another way.

Each alternative is made as `tpufeed shard` or `tpufeed cache warmup` would make it, and written as a small dataset. The
loader then feeds from that for a short time.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from shlex import quote

import numpy as np
from crc32c import crc32c

from tpufeed.dataset.index import encode_index
from tpufeed.dataset.manifest import CacheInfo, IndexFile, Manifest, Shard, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.schema import ENCODED, TENSOR, FeatureSpec, record_layout
from tpufeed.dataset.writer import ShardWriter
from tpufeed.errors import ImageError, StoreError, TpufeedError
from tpufeed.images.affine import HorizontalFlip
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.policy import ImagePolicy, store_image
from tpufeed.images.protocols import Op
from tpufeed.images.windows import RandomResizedCrop
from tpufeed.measure.prediction import Alternative
from tpufeed.measure.stages import measure_loader
from tpufeed.measure.wording import reason_of
from tpufeed.processes.limits import available_cores
from tpufeed.storage.copies_folder import free_bytes

_SPLIT = "train"
_BLOCK = 16
_PLENTY_BYTES = 128 << 20  # more than the processor's cache holds, or copying would look faster than it is
_MOST_ROUNDS = 64

_VARIANTS = 4  # in a raw cache
_MARGIN = 8 / 7  # makes 256 of 224: people presize to that
_SMALLER = 0.8  # share of the bytes: a smaller gain is not worth a build
_FEATURES_BYTES = 400  # size of a record without its image


def write_sample(
    folder: Path,
    images: Sequence[bytes],
    shape: tuple[int, int, int] | None = None,
    shards: int = 8,
    least_bytes: int = _PLENTY_BYTES,
    split: str = _SPLIT,
) -> Dataset:
    """Write a dataset of these images, which are raw pixels if a `shape` is given, and open it.

    The images are repeated up to `least_bytes`, so that the processor's cache does not help.

    Raises:
        StoreError: the dataset cannot be written.
    """
    from tpufeed import __version__

    features = (FeatureSpec(ENCODED, "bytes") if shape is None else FeatureSpec(TENSOR, "uint8", shape),)
    made, offsets = list[Shard](), []
    try:
        folder.mkdir(parents=True)
        rounds = min(least_bytes, free_bytes(folder) // 2) // max(1, sum(map(len, images)))
        rounds = max(1, min(rounds, _MOST_ROUNDS))
        for number in range(min(shards, len(images))):
            name, part = f"sample-{number}.tfrecord", [*images[number::shards]] * rounds
            with closing(ShardWriter(folder / name, record_layout(features))) as writer:
                for image in part:
                    writer.add(image, (), b"")
            made.append(Shard(name, writer.offsets[-1], writer.crc32c, len(part)))
            offsets.append(np.array(writer.offsets, np.uint64))
        index = encode_index(offsets)
        (folder / "sample.index.npy").write_bytes(index)
        variant = Variant(tuple(made), IndexFile("sample.index.npy", len(index), crc32c(index)))
        manifest = Manifest(
            run_id="doctor",
            tool_version=__version__,
            splits={split: Split(sum(shard.records for shard in made), (), (variant,))},
            class_names=(),
            features=features,
            options={},
            input_digest="",
            rejects={},
            images={},
            odd={},
            cache=None if shape is None else CacheInfo("", (), (), "raw", shape, "uint8", 1, 0, "sample"),
        )
        (folder / MANIFEST).write_bytes(encode_manifest(manifest))
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}") from error
    return open_dataset(folder)


def try_alternatives(  # noqa: PLR0913  # each option is a parameter that editors show
    url: str,
    images: Sequence[bytes],
    folder: Path,
    seconds: float,
    *,
    records: int,
    ops: Sequence[Op],
    batch_size: int,
    are_files: bool = False,
) -> tuple[tuple[Alternative, ...], list[str]]:
    """Measure other ways to store encoded images. Return them, and notes on those that could not be tried.

    Args:
        url: the dataset or the files, for the commands in the advice.
        images: a sample of the images.
        folder: a folder for small datasets.
        seconds: time of each measurement.
        records: number of all images.
        ops: ops of the loader, which bring images to one size.
        batch_size: batch size of the loader.
        are_files: the images are files; there is no dataset yet.
    """
    url, ops = quote(url), tuple(ops)
    pipeline = Pipeline(ops, seed=0)
    size = pipeline.output_size(None)
    assert size is not None, "the loader only takes ops that bring images to one size"
    side = round(max(size) * _MARGIN)
    draws = pipeline.draw(0, np.arange(len(images)))

    def store(number: int) -> bytes:
        return store_image(images[number], ImagePolicy()).data

    def presize(number: int) -> bytes:
        return store_image(images[number], ImagePolicy(presize_px=side)).data

    def warm(number: int) -> bytes:
        return pipeline.run_stored(memoryview(images[number]), None, [op[number] for op in draws]).tobytes()

    flags = "".join(f" --op {quote(repr(op))}" for op in ops)
    if ops == (RandomResizedCrop(size[0]), HorizontalFlip()):  # the default of warmup
        flags = f" --size {size[0]}"
    command = f"give --presize {side} and a new DST to the `tpufeed shard` that made it"
    if are_files:
        command = f"tpufeed shard {url} DATASET-{side} --presize {side}"
    cache = f"tpufeed cache warmup {url} CACHE{flags} --variants {_VARIANTS}"
    ways = {f"make shards of the files: tpufeed shard {url} DATASET": store} if are_files else {}
    ways |= {f"presize to {side}: {command}": presize, f"warm a raw cache: {cache}": warm}
    found, notes = list[Alternative](), list[str]()
    for number, (do, change) in enumerate(ways.items()):
        is_raw = change is warm
        variants = _VARIANTS if is_raw else 1
        try:
            start = time.perf_counter()
            made = _change(change, len(images), seconds)
            took = time.perf_counter() - start
            if not made:
                continue  # a build would reject all of them
            mean_bytes = float(np.mean([len(image) for image in made]))
            if change is presize and mean_bytes > _SMALLER * float(np.mean([len(image) for image in images])):
                continue
            small = write_sample(folder / f"alternative-{number}", made, (*size, 3) if is_raw else None)
            rate = measure_loader(small, _SPLIT, batch_size, seconds, ops=() if is_raw else ops).whole
        except (TpufeedError, OSError, MemoryError) as error:
            notes.append(f"{do.partition(':')[0]}: could not be tried: {reason_of(error)}")
            continue
        record_bytes = mean_bytes + _FEATURES_BYTES
        total, minutes = records * variants * record_bytes, records * variants * took / len(made) / 60
        cost = f"{total / 1e9:,.1f} GB" if total >= 1e8 else f"{total / 1e6:,.1f} MB"
        cost += f" for {variants} variants" if variants > 1 else ""
        cost += f", about {minutes:,.0f} minutes" if minutes >= 2 else f", about {max(1, round(minutes * 60))} s"
        found.append(Alternative(do, rate, record_bytes, total, f"{cost} on this host"))
    return tuple(found), notes


def _change(change: Callable[[int], bytes], count: int, seconds: float) -> list[bytes]:
    """Convert images on all cores for some seconds, at least one block; bad images are left out."""
    stop = time.monotonic() + seconds

    def run(number: int) -> bytes | None:
        if number >= _BLOCK and time.monotonic() > stop:
            return None
        try:
            return change(number)
        except ImageError:
            return None

    with ThreadPoolExecutor(available_cores(), "tpufeed-doctor") as executor:
        return [image for image in executor.map(run, range(count)) if image is not None]
