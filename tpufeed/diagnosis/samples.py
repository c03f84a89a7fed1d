"""Samples of a dataset, and what they would give stored or loaded otherwise: tried with the real loader.

An alternative is made of the samples themselves, as `tpufeed shard` and `tpufeed cache warmup` would make it, and
written as a small dataset in memory. The loader then feeds from that for a short time.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Literal

import numpy as np

from tpufeed.dataset.index import encode_index
from tpufeed.dataset.manifest import CacheInfo, IndexFile, Manifest, Shard, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.schema import ENCODED, TENSOR, FeatureSpec, record_layout
from tpufeed.dataset.writer import ShardWriter
from tpufeed.diagnosis.advice import LEAST_OF_WORKERS, Provenance
from tpufeed.diagnosis.prediction import Alternative
from tpufeed.diagnosis.sampling import draw_evenly, iter_payloads
from tpufeed.diagnosis.stages.measure import measure_throughput
from tpufeed.diagnosis.wording import number_of
from tpufeed.engines.engine import available_cores
from tpufeed.errors import ImageError, RecordError, StoreError, TpufeedError
from tpufeed.images.flips import HorizontalFlip
from tpufeed.images.ops import Op
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.policy import ImagePolicy, store_image
from tpufeed.images.windows import RandomResizedCrop
from tpufeed.loaders.executor import Workers, plan_workers
from tpufeed.loaders.options import LoaderOptions
from tpufeed.storage.staging.folder import MEMORY, free_bytes, make_folder
from tpufeed.storage.temporary import temporary_folder
from tpufeed.tfrecord.crc32c import crc32c

SPLIT = "train"

_SAMPLES = 512
_BLOCK = 16
_SHARDS = 8
_PLENTY_BYTES = 128 << 20  # past the processor's cache, or copying would look faster than it is
_MOST_ROUNDS = 64
_LEAST_FREE_BYTES = 1 << 30

_VARIANTS = 4  # of a raw cache
_MARGIN = 8 / 7  # of 224 that is 256, what people presize to
_SMALLER = 0.8  # of the bytes: less of a gain is not worth a build
_FEATURES_BYTES = 400  # of a record, besides the image


@dataclass(frozen=True, slots=True)
class Sample:
    """Some samples of a split.

    Attributes:
        images: as their records hold them.
        damaged: messages about records that could not be read.
    """

    images: list[bytes]
    damaged: tuple[str, ...] = ()

    @property
    def image_bytes(self) -> float:
        """Mean size of an image."""
        return float(np.mean([len(image) for image in self.images]))


def take_sample(dataset: Dataset, split: str, seconds: float, count: int = _SAMPLES) -> Sample:
    """Read samples from all over the first variant of a split: as many as come in this time, at least one block.

    Raises:
        StoreError, ShardError: they cannot be read at all.
    """
    reader, stop = dataset.reader(split), time.monotonic() + seconds
    places = draw_evenly(dataset, split, count, seed=0)
    random.Random(0).shuffle(places)  # time that runs out leaves no part of the split unseen
    images, damaged = list[bytes](), list[str]()
    for start in range(0, len(places), _BLOCK):
        if images and time.monotonic() > stop:
            break
        for payload in iter_payloads(reader, places[start : start + _BLOCK]):
            try:
                if isinstance(payload, RecordError):
                    raise payload
                images.append(bytes(reader.layout.decode(payload)[0]))
            except RecordError as error:
                damaged.append(str(error))
    reader.release()
    return Sample(images, tuple(damaged))


@contextmanager
def sample_folder() -> Iterator[Path]:
    """Make a folder for small datasets, in memory where there is room; it is removed on exit.

    Raises:
        StoreError: there is no place for one.
    """
    place: Path | None = None
    with suppress(OSError):
        if free_bytes(MEMORY) > _LEAST_FREE_BYTES:
            make_folder(MEMORY / f"tpufeed-doctor-{os.getuid()}")
            place = MEMORY / f"tpufeed-doctor-{os.getuid()}"
    try:
        with temporary_folder(place) as folder:
            yield folder
    except OSError as error:
        if isinstance(error, TpufeedError):  # some are OSErrors, too
            raise
        raise StoreError(f"small datasets cannot be made to try things with: {error}; set TMPDIR") from error


def write_sample(folder: Path, sample: Sample, shape: tuple[int, int, int] | None = None) -> str:
    """Write a dataset of these samples, of raw pixels where there is a `shape`, and return its URL.

    The samples are repeated until there are enough bytes for the processor's cache to be no help.

    Raises:
        StoreError: it cannot be written.
    """
    from tpufeed import __version__

    features = (FeatureSpec(ENCODED, "bytes") if shape is None else FeatureSpec(TENSOR, "uint8", shape),)
    shards, offsets = list[Shard](), []
    try:
        folder.mkdir(parents=True)
        rounds = min(_PLENTY_BYTES, free_bytes(folder) // 2) // max(1, sum(map(len, sample.images)))
        rounds = max(1, min(rounds, _MOST_ROUNDS))
        for number in range(min(_SHARDS, len(sample.images))):
            name, part = f"sample-{number}.tfrecord", sample.images[number::_SHARDS] * rounds
            with ShardWriter(folder / name, record_layout(features)) as writer:
                for image in part:
                    writer.add(image, (), b"")
            written = writer.finish()
            shards.append(Shard(name, written.bytes, written.crc32c, len(part)))
            offsets.append(written.offsets)
        index = encode_index(offsets)
        (folder / "sample.index.npy").write_bytes(index)
        variant = Variant(tuple(shards), IndexFile("sample.index.npy", len(index), crc32c(index)))
        manifest = Manifest(
            run_id="doctor",
            tool_version=__version__,
            splits={SPLIT: Split(sum(shard.records for shard in shards), (), (variant,))},
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
    return str(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Scenario of feeding: what is fed now, and how; alternatives differ from it in one thing.

    Attributes:
        url: of the dataset or the raw images, as the user wrote it.
        source: raw image files, a dataset of encoded images, or anything else.
        provenance: what `url` was made of, or is.
        records: of the split.
        sample: of the split.
        cached: (height, width, channels) of the images in a cache that stores them encoded.
        options: of the loader.
        ops: that it applies.
        size: (height, width) of what comes out.
        folder: for small datasets.
        seconds: of each measurement.
        expected: images a second of the loader, about.
    """

    url: str
    source: Literal["files", "encoded", "other"]
    provenance: Provenance
    records: int
    sample: Sample
    cached: tuple[int, int, int] | None = None
    options: LoaderOptions
    ops: tuple[Op, ...]
    size: tuple[int, int]
    folder: Path
    seconds: float
    expected: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Another way of storing samples: how to make it of them, and the command that makes it of the whole dataset."""

    kind: Literal["presize", "raw", "shard"]
    do: str
    make: Callable[[], Sample]
    shape: tuple[int, int, int] | None = None
    ops: tuple[Op, ...]
    variants: int = 1
    remarks: tuple[str, ...] = ()


def try_storages(scenario: Scenario) -> Iterator[Alternative | str]:
    """Yield each other way of storing the samples, or why it could not be tried."""
    for plan in _iter_plans(scenario):
        try:
            start = time.perf_counter()
            made = plan.make()
            seconds = time.perf_counter() - start
            if not made.images:
                continue  # no build would take any of them
            if plan.kind == "presize" and made.image_bytes > _SMALLER * scenario.sample.image_bytes:
                continue
            dataset = open_dataset(write_sample(scenario.folder / plan.kind, made, plan.shape))
            options = replace(scenario.options, ops=plan.ops or None, stage_bytes=None)
            rate = measure_throughput(dataset, SPLIT, options, scenario.seconds, scenario.expected).images_per_second
        except (TpufeedError, OSError, MemoryError) as error:
            yield f"{plan.do.partition(':')[0]}: could not be tried: {error or type(error).__name__}"
            continue
        record_bytes, records = made.image_bytes + _FEATURES_BYTES, scenario.records * plan.variants
        total, minutes = records * record_bytes, records * seconds / len(made.images) / 60
        size = f"{total / 1e9:,.1f} GB" if total >= 1e8 else f"{total / 1e6:,.1f} MB"
        size += f" for {plan.variants} variants" if plan.variants > 1 else ""
        lasts = f"{minutes:,.0f} minutes" if minutes >= 2 else number_of(max(1, round(minutes * 60)), "second")
        cost = f"{size}, about {lasts} on this host"
        with suppress(OSError):
            cost += f"; it {'fits' if total < free_bytes(MEMORY) else 'does not fit'} {MEMORY}"
        yield Alternative(
            kind=plan.kind,
            do=plan.do,
            images_per_second=rate,
            record_bytes=record_bytes,
            total_bytes=total,
            cost="; ".join((cost, *plan.remarks)),
        )


def _iter_plans(scenario: Scenario) -> Iterator[_Plan]:
    """Yield the ways that differ from what there is: shards of files, smaller images, pixels."""
    sample, ops, (height, width), seconds = scenario.sample, scenario.ops, scenario.size, scenario.seconds
    url, origin = quote(scenario.url), scenario.provenance
    if scenario.source == "files":
        yield _Plan(
            kind="shard",
            do=f"make shards of the files: tpufeed shard {url} DATASET",
            make=lambda: restore(sample, ImagePolicy(), seconds),
            ops=ops,
        )
    if scenario.source in ("files", "encoded"):
        side = round(max(height, width) * _MARGIN)
        yield _Plan(
            kind="presize",
            do=f"presize to {side}: tpufeed shard {quote(origin.source)} DATASET-{side}{origin.flags} --presize {side}",
            make=lambda: restore(sample, replace(origin.images, presize_px=side), seconds),
            ops=ops,
            remarks=origin.remarks,
        )
        flags = "".join(f" --op {quote(repr(op))}" for op in ops)
        if ops == (RandomResizedCrop(height), HorizontalFlip()):  # what it does by itself
            flags = f" --size {height}"
        yield _Plan(
            kind="raw",
            do=f"warm a raw cache: tpufeed cache warmup {url} CACHE{flags} --variants {_VARIANTS}",
            make=lambda: warm(sample, ops, seconds),
            shape=(height, width, 3),
            ops=(),
            variants=_VARIANTS,
        )
    if scenario.cached is not None:  # only what the cache holds becomes raw: its live ops stay live
        yield _Plan(
            kind="raw",
            do="store raw pixels: give the cache's `tpufeed cache warmup` --encode raw",
            make=lambda: warm(sample, (), seconds),
            shape=scenario.cached,
            ops=ops,
        )


def try_workers(scenario: Scenario, dataset: Dataset, split: str, now: Workers, assembly: float) -> Alternative | None:
    """Measure other processes and threads than the loader has now.

    Where the user asks for others than fit the host, those that do fit. Else as many threads in this process alone,
    which can only save what handing over takes: `assembly` is that share of an image's time.

    Raises:
        TpufeedError: the loader's errors.
    """
    other = plan_workers(dataset, replace(scenario.options, processes=None, threads=None))
    how = "leave out --processes and --threads"
    if other == now:
        if not now.processes or now.decoding < 2 or assembly < 1 - 1 / LEAST_OF_WORKERS:
            return None
        other, how = Workers(0, now.decoding), f"--processes 0 --threads {now.decoding}"
    who = number_of(other.threads, "thread")
    if other.processes:
        who = f"{number_of(other.processes, 'worker process', 'worker processes')} with {who} each"
    else:
        who += " of the training process itself"
    options = replace(scenario.options, processes=other.processes, threads=other.threads, stage_bytes=None)
    rate = measure_throughput(dataset, split, options, scenario.seconds, scenario.expected).images_per_second
    return Alternative(
        kind="workers",
        do=f"use {who}: {how}",
        images_per_second=rate,
        record_bytes=scenario.sample.image_bytes + _FEATURES_BYTES,
    )


def restore(sample: Sample, policy: ImagePolicy, seconds: float) -> Sample:
    """Return the images as `tpufeed shard` would store them by this policy, as many as are made in this time."""
    return _change(sample, lambda image, _: store_image(image, policy).data, seconds)


def warm(sample: Sample, ops: Sequence[Op], seconds: float) -> Sample:
    """Return the pixels that a raw cache of encoded images would hold, as many as are made in this time."""
    pipeline = Pipeline(ops, seed=0)
    draws = pipeline.draw(0, np.arange(len(sample.images)))

    def run(image: bytes, number: int) -> bytes:
        return pipeline.run_encoded(memoryview(image), [op[number] for op in draws]).tobytes()

    return _change(sample, run, seconds)


def _change(sample: Sample, change: Callable[[bytes, int], bytes], seconds: float) -> Sample:
    """Change images on all cores; one that cannot be changed is left out. Raises OpError."""
    stop = time.monotonic() + seconds

    def run(number: int) -> bytes | None:
        if number >= _BLOCK and time.monotonic() > stop:
            return None
        try:
            return change(sample.images[number], number)
        except ImageError:
            return None

    with ThreadPoolExecutor(available_cores(), "tpufeed-doctor") as executor:
        return Sample([image for image in executor.map(run, range(len(sample.images))) if image is not None])
