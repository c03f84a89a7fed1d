"""One task of a cache: a range of samples, decoded once each, written to a shard of every variant."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpufeed.cache.plan import CacheOptions
from tpufeed.dataset.commit import Reject, Report, ShardReport, put_report, put_shard
from tpufeed.dataset.plan import PlanHeader, Task, TaskRef, read_task
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import CHANNELS, FILENAME, FORMAT, HEIGHT, LABEL, WIDTH, fixed_ints, record_layout
from tpufeed.dataset.writer import ShardWriter, WrittenShard
from tpufeed.engines import engine
from tpufeed.errors import ImageError
from tpufeed.images.decoding import Pixels
from tpufeed.images.encoding import encode
from tpufeed.images.ops import Draws
from tpufeed.images.pipeline import DrawnBatch, Pipeline
from tpufeed.storage.registry import open_store
from tpufeed.tfrecord.buffer import BytesLike
from tpufeed.tfrecord.example import Feature, decode_example

ENTRY = "tpufeed.cache.worker:run"
_BLOCK = 128


@dataclass(frozen=True, slots=True)
class CacheContext:
    """What the tasks of a cache share."""

    source: Dataset
    destination: str
    header: PlanHeader
    options: CacheOptions


def run(context: CacheContext, ref: TaskRef, report_progress: engine.ReportProgress) -> None:
    """Make the shards that `ref` refers to."""
    destination = open_store(context.destination)
    task = read_task(destination, ref)
    names = context.header.shard_names(task)
    with destination.temporary_folder() as folder:
        paths = [folder / f"variant-{number}" for number in range(len(names))]
        made = _write(context, task, paths, engine.ProgressMeter(report_progress))
        shards = []
        for name, path, written in zip(names, paths, made.shards, strict=True):
            put_shard(destination, name, path, written)
            shards.append(ShardReport(name, written.bytes, written.crc32c, written.lengths))
    put_report(destination, Report(task.number, tuple(shards), made.counts, made.images, made.rejects))


@dataclass(frozen=True, slots=True)
class _Made:
    """What came of the samples: a shard a variant, and the counts of a report."""

    shards: list[WrittenShard]
    counts: tuple[int, ...]
    images: dict[str, int]
    rejects: tuple[Reject, ...]


def _write(context: CacheContext, task: Task, paths: Sequence[Path], meter: engine.ProgressMeter) -> _Made:
    header, encoding = context.header, context.options.encode
    layout = record_layout(header.features)
    source_features = context.source.manifest.features
    source, source_ints = record_layout(source_features), fixed_ints(source_features)
    keys, int_names = {feature.name: feature.key for feature in source_features[1:]}, fixed_ints(header.features)
    augment = Augmenter(context.source, context.options)
    counts, rejects, done = [0] * len(header.class_names), list[Reject](), 0
    with ExitStack() as stack:
        writers = [stack.enter_context(ShardWriter(path, layout)) for path in paths]
        for sample, payload in iter_payloads(context.source, task.split, task.first, task.stop):
            image, values = source.decode(payload)
            ints = dict(zip(source_ints, values, strict=True))
            stored = decode_example(payload)
            features = {name: stored[key] for name, key in keys.items() if key in stored}
            try:
                variants = augment(sample, image)
            except ImageError as error:
                rejects.append(Reject(_text(features, FILENAME), error.reason, str(error)))
                meter.add(rejects=len(paths))
                continue
            rest = {name: value for name, value in features.items() if name not in int_names}
            rest[FORMAT] = Feature("bytes", (encoding.encode(),))
            for writer, pixels in zip(writers, variants, strict=True):
                ints |= zip((HEIGHT, WIDTH, CHANNELS), pixels.shape, strict=True)
                data = encode_pixels(pixels, context.options)
                writer.add(data, [ints[name] for name in int_names], rest)
                meter.add(images=1, size=len(data))
            if header.class_names:
                counts[ints[LABEL]] += 1
            done += 1
    meter.flush()
    shards = [writer.finish() for writer in writers]
    return _Made(shards, tuple(counts), {f"{encoding}, augmented": done}, tuple(rejects))


class Augmenter:
    """The variants of a sample, from one decoding."""

    def __init__(self, source: Dataset, options: CacheOptions) -> None:
        self._pipeline = Pipeline(options.ops, options.seed)
        self._variants = options.variants
        self._tensor_shape = source.manifest.tensor_shape
        self._scratch = np.empty(0, np.uint8)
        self._block, self._draws = -1, list[DrawnBatch]()

    def __call__(self, sample: int, image: memoryview) -> list[Pixels]:
        draws = self._draw(sample)
        if self._tensor_shape is None:
            return self._pipeline.run_variants(image, draws, [None] * self._variants, self._memory)
        pixels = np.frombuffer(image, np.uint8).reshape(self._tensor_shape)
        return [self._pipeline.run(pixels, drawn) for drawn in draws]

    def _draw(self, sample: int) -> list[list[Draws]]:
        """Random numbers come in blocks: one call a block and variant rather than one a sample."""
        block, row = divmod(sample, _BLOCK)
        if block != self._block:
            samples = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
            self._draws = [self._pipeline.draw(variant, samples) for variant in range(self._variants)]
            self._block = block
        return [[op[row] for op in drawn] for drawn in self._draws]

    def _memory(self, size: int) -> Pixels:
        if size > len(self._scratch):
            self._scratch = np.empty(size, np.uint8)
        return self._scratch[:size]


def iter_payloads(source: Dataset, split: str, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
    """The samples `[start, stop)` of a split with their records' payloads."""
    reader = source.reader(split)
    first = 0
    for shard, entry in enumerate(source.split(split).variants[0].shards):
        for sample in range(max(first, start), min(first + entry.records, stop)):
            yield sample, reader.read(shard, sample - first)
        first += entry.records


def encode_pixels(pixels: Pixels, options: CacheOptions) -> BytesLike:
    """The bytes that a record holds of uint8 pixels."""
    if options.encode == "raw":
        return np.ascontiguousarray(pixels).data.cast("B")
    return encode(pixels, options.encode, options.quality)


def _text(features: Mapping[str, Feature], name: str) -> str:
    feature = features.get(name)
    return str(feature.values[0], "utf-8", "replace") if feature and isinstance(feature.values[0], memoryview) else ""
