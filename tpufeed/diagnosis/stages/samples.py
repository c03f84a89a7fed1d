"""A few samples of a dataset in memory, and small datasets made of them: what a change would come to is tried there."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpufeed.dataset.index import encode_index
from tpufeed.dataset.manifest import CacheInfo, IndexFile, Manifest, Shard, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import ENCODED, LABEL, TENSOR, FeatureSpec, fixed_ints, record_layout
from tpufeed.dataset.writer import ShardWriter, WrittenShard
from tpufeed.diagnosis.sampling import draw_evenly, iter_payloads
from tpufeed.engines.engine import available_cores
from tpufeed.errors import ImageError, RecordError, StoreError
from tpufeed.images.ops import Op
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.policy import ImagePolicy, store_image
from tpufeed.storage.staging.folder import MEMORY, free_bytes, make_folder
from tpufeed.storage.temporary import temporary_folder
from tpufeed.tfrecord.crc32c import BytesLike, crc32c

SPLIT = "train"

_SAMPLES = 512
_BLOCK = 16
_SHARDS = 8
_PLENTY_BYTES = 128 << 20  # past the processor's cache, or copying would look faster than it is
_MOST_ROUNDS = 64
_LEAST_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Sample:
    """Some samples of a split.

    Attributes:
        images: as their records hold them.
        labels: of each, 0 where there are none.
        damaged: records that could not be read, as messages.
    """

    images: list[bytes]
    labels: list[int]
    damaged: tuple[str, ...] = ()

    @property
    def image_bytes(self) -> float:
        """Of an image, on average."""
        return float(np.mean([len(image) for image in self.images]))


def take_sample(dataset: Dataset, split: str, seconds: float, count: int = _SAMPLES) -> Sample:
    """Samples from all over the first variant of a split, as many as come in this time and at least one block.

    Raises:
        StoreError, ShardError: they cannot be read at all.
    """
    reader, stop = dataset.reader(split), time.monotonic() + seconds
    places = draw_evenly(dataset, split, count, seed=0)
    stride = max(1, len(places) // _BLOCK)
    spread = [places[at] for start in range(stride) for at in range(start, len(places), stride)]
    ints = fixed_ints(dataset.manifest.features)
    images, labels, damaged = list[bytes](), list[int](), list[str]()
    for start in range(0, len(spread), _BLOCK):
        if images and time.monotonic() > stop:
            break
        for payload in iter_payloads(reader, spread[start : start + _BLOCK]):
            try:
                if isinstance(payload, RecordError):
                    raise payload
                image, values = reader.layout.decode(payload)
            except RecordError as error:
                damaged.append(str(error))
                continue
            images.append(bytes(image))
            labels.append(dict(zip(ints, values, strict=True)).get(LABEL, 0))
    reader.release()
    return Sample(images, labels, tuple(damaged))


@contextmanager
def sample_folder() -> Iterator[Path]:
    """A folder for small datasets: in memory where there is room, else among the temporary files. It does not stay.

    Raises:
        StoreError: there is no place for one.
    """
    try:
        with temporary_folder(_place_in_memory()) as folder:
            yield folder
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"small datasets cannot be made to try things with: {error}; set TMPDIR") from error


def _place_in_memory() -> Path | None:
    place = MEMORY / f"tpufeed-doctor-{os.getuid()}"
    try:
        if free_bytes(MEMORY) > _LEAST_FREE_BYTES:
            make_folder(place)
            return place
    except OSError:
        pass
    return None


def write_sample(folder: Path, sample: Sample, shape: tuple[int, int, int] | None = None) -> str:
    """A dataset of these samples, of raw pixels where there is a `shape`; gives its URL.

    They come again and again until there are enough bytes for the processor's cache to be no help.

    Raises:
        StoreError: it cannot be written.
    """
    image = FeatureSpec(ENCODED, "bytes") if shape is None else FeatureSpec(TENSOR, "uint8", shape)
    features = (image, FeatureSpec(LABEL, "int64"))
    rounds = min(_PLENTY_BYTES, _half_free(folder)) // max(1, sum(map(len, sample.images)))
    rounds = max(1, min(rounds, _MOST_ROUNDS))
    records = list(zip(sample.images, sample.labels, strict=True))
    shards, offsets = list[Shard](), []
    try:
        folder.mkdir(parents=True)
        for number in range(min(_SHARDS, len(records))):
            name, part = f"sample-{number}.tfrecord", records[number::_SHARDS] * rounds
            written = _write_shard(folder / name, part, features)
            shards.append(Shard(name, written.bytes, written.crc32c, len(part)))
            offsets.append(written.offsets)
        index = encode_index(offsets)
        (folder / "sample.index.npy").write_bytes(index)
        variant = Variant(tuple(shards), IndexFile("sample.index.npy", len(index), crc32c(index)))
        manifest = _manifest(Split(sum(shard.records for shard in shards), (), (variant,)), features, shape)
        (folder / MANIFEST).write_bytes(encode_manifest(manifest))
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}") from error
    return str(folder)


def restore(sample: Sample, policy: ImagePolicy, seconds: float) -> Sample:
    """The images as `tpufeed shard` would store them under this policy, as many as are made in this time."""
    return _change(sample, lambda image, _: store_image(image, policy).data, seconds)


def warm(sample: Sample, ops: Sequence[Op], seconds: float) -> Sample:
    """The pixels that a raw cache of encoded images would hold, as many as are made in this time."""
    pipeline = Pipeline(ops, seed=0)
    draws = pipeline.draw(0, np.arange(len(sample.images)))

    def run(image: bytes, number: int) -> bytes:
        return pipeline.run_encoded(memoryview(image), [op[number] for op in draws]).tobytes()

    return _change(sample, run, seconds)


def _change(sample: Sample, change: Callable[[bytes, int], bytes], seconds: float) -> Sample:
    """All cores at once; an image that cannot be changed is left out. Raises OpError."""
    stop = time.monotonic() + seconds

    def run(number: int) -> bytes | None:
        if number >= _BLOCK and time.monotonic() > stop:
            return None
        try:
            return change(sample.images[number], number)
        except ImageError:
            return None

    with ThreadPoolExecutor(available_cores(), "tpufeed-doctor") as executor:
        made = list(executor.map(run, range(len(sample.images))))
    kept = [(image, label) for image, label in zip(made, sample.labels, strict=True) if image is not None]
    return Sample([image for image, _ in kept], [label for _, label in kept])


def _write_shard(
    path: Path, records: Sequence[tuple[BytesLike, int]], features: tuple[FeatureSpec, ...]
) -> WrittenShard:
    with ShardWriter(path, record_layout(features)) as writer:
        for image, label in records:
            writer.add(image, (label,), b"")
    return writer.finish()


def _manifest(split: Split, features: tuple[FeatureSpec, ...], shape: tuple[int, int, int] | None) -> Manifest:
    from tpufeed import __version__

    cache = None
    if shape is not None:
        cache = CacheInfo("", (), (), "raw", shape, "uint8", 1, 0, "sample")
    return Manifest(
        run_id="doctor",
        tool_version=__version__,
        splits={SPLIT: split},
        class_names=(),
        features=features,
        options={},
        input_digest="",
        rejects={},
        images={},
        odd={},
        cache=cache,
    )


def _half_free(folder: Path) -> int:
    try:
        return free_bytes(folder.parent) // 2
    except OSError:
        return _PLENTY_BYTES
