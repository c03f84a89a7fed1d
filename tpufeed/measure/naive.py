"""Feed images as people first write it, with Pillow and without tpufeed: the "before" of every comparison.

bench feeds from a dataset by `NaiveLoader`. The doctor measures raw images, which are not yet a dataset, by
`measure_files`.
"""

import io
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
from PIL import Image

from tpufeed.builds.item import Item
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import LABEL
from tpufeed.errors import (
    DatasetNotFoundError,
    ImageError,
    NoInputsError,
    OpError,
    OptionError,
    SourceError,
    TpufeedError,
)
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.protocols import Op
from tpufeed.measure.alternatives import try_alternatives
from tpufeed.measure.prediction import ASSEMBLY, DECODING, OPS, READING, TRANSFER, Alternative, Measurements, Storage
from tpufeed.measure.results import Stage
from tpufeed.measure.stages import measure_threads, measure_transfer
from tpufeed.processes.limits import available_cores
from tpufeed.sources.inputs import Files, files_of, iter_read
from tpufeed.sources.kinds import find_source
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.source import Found, Source
from tpufeed.sources.table import TableSource
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.store import read_span
from tpufeed.text import format_count
from tpufeed.tfrecord.example import ABSENT, decode_example

_IMAGE_PX = 224
_LISTING_SECONDS = 20.0
_SAMPLES = 256


class NaiveLoader:
    """The loader that people write first: Pillow in one thread, one sample after the other.

    It reads records in order, and takes random crops of 224 pixels and flips. Tensors of a raw cache stay unchanged.
    Batches are (uint8 (n, height, width, 3), int64 (n,)). An epoch drops its incomplete last batch.
    """

    def __init__(self, dataset: Dataset, split: str, batch_size: int) -> None:
        manifest = dataset.manifest
        if manifest.pixels != RGB8 or manifest.is_coded:
            raise OptionError(f"the naive loader reads 8-bit RGB, and {dataset.label} has other images")
        self.dataset, self.split, self.batch_size = dataset, split, batch_size
        self._image_key = manifest.features[0].key
        self._label_key = next((spec.key for spec in manifest.features if spec.name == LABEL), "")
        self._entry = dataset.split(split)
        self._rng = random.Random(0)
        self._epoch = 0

    def __len__(self) -> int:
        return self._entry.records // self.batch_size

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        variant = self._epoch % len(self._entry.variants)
        self._epoch += 1
        payloads = self.dataset.iter_payloads(self.split, variant, 0, len(self) * self.batch_size)
        shape = self.dataset.manifest.tensor_shape
        for _ in range(len(self)):
            images, labels = list[Any](), list[int]()
            for _ in range(self.batch_size):
                sample = decode_example(next(payloads))
                label = sample.get(self._label_key, ABSENT).values
                labels.append(self.dataset.label_of(int(label[0])) if len(label) else -1)
                data: Any = sample[self._image_key].values[0]
                if shape is not None:
                    images.append(np.frombuffer(bytes(data), np.uint8).reshape(shape))
                    continue
                image = random_crop(read_image(data), _IMAGE_PX, self._rng)
                if self._rng.random() < 0.5:
                    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                images.append(np.asarray(image))
            yield np.stack(images), np.array(labels, np.int64)


def read_image(data: bytes) -> Image.Image:
    """Decode an image to RGB. Raises Pillow's errors."""
    with Image.open(io.BytesIO(data)) as file:
        return file.convert("RGB")


def random_crop(image: Image.Image, side_px: int, rng: random.Random) -> Image.Image:
    """Crop a window that is drawn like that of torchvision's RandomResizedCrop, and resize it to a square."""
    width, height = image.size
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        cut_width, cut_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            left, top = rng.randint(0, width - cut_width), rng.randint(0, height - cut_height)
            break
    else:
        cut_width = cut_height = min(width, height)
        left, top = (width - cut_width) // 2, (height - cut_height) // 2
    image = image.crop((left, top, left + cut_width, top + cut_height))
    return image.resize((side_px, side_px), Image.Resampling.BILINEAR)


def measure_files(
    url: str, ops: Sequence[Op], batch_size: int, seconds: float, tell: Callable[[str], None]
) -> Measurements:
    """Measure raw images as a torch Dataset would read and decode them on all cores. Try shards and caches of them.

    Each measurement takes `seconds`. `tell` is called with a description of it. A listing that takes long is cut off.

    Raises:
        DatasetNotFoundError: there are no images.
        OptionError: the ops leave images of different sizes.
    """
    tell("the files")
    size = Pipeline(ops, 0).output_size(None)
    if size is None:
        raise OptionError(
            "the ops leave images of different sizes; end with one that fixes the size, like CenterCrop(224)"
        )
    try:
        source = find_source(url, ShardOptions())
        count, total_bytes, drawn, is_whole = _list(source)
    except (SourceError, NoInputsError) as error:
        raise DatasetNotFoundError(
            f"{url} holds neither a dataset (no manifest.json) nor images: {error}. Give the URL of a dataset, or of "
            "images as `tpufeed shard` takes them"
        ) from error
    cores, files = available_cores(), Files(source.base)
    reading = measure_reading(files, drawn, cores, seconds)
    images, unreadable = list[bytes](), list[str]()
    start = time.perf_counter()
    with closing(iter_read(files, drawn)) as read:
        for item, data in read:
            if isinstance(data, ImageError):
                unreadable.append(f"{item.path}: {data}")
            else:
                images.append(data[0])
            if images and time.perf_counter() - start > seconds:
                break
    notes, listed = [f"there is no dataset here yet, only images: {count:,}"], ""
    if not is_whole:
        listed = f"the first {count:,} images"
        notes = [
            f"there is no dataset here yet, only images: more than {count:,}. Listing them took longer than "
            f"{_LISTING_SECONDS:.0f} s and was cut off, so sizes and times are those of the first {count:,}"
        ]
    if unreadable:
        notes.append(f"{len(unreadable):,} of the images in the sample cannot be read, the first: {unreadable[0]}")
    if isinstance(source, TableSource):  # the printed commands cannot know its columns
        notes.append("if its columns need it, add --label COLUMN or --split-by COLUMN to the commands")
    mean = total_bytes / count if count else 0.0
    stages = [Stage(ASSEMBLY, why_not="none of the files in the sample can be read")]
    alternatives: tuple[Alternative, ...] = ()
    if images:
        threads = format_count(cores, "thread")
        decoding = measure_pillow(images, (), cores, seconds)
        whole = measure_pillow(images, ops, cores, seconds)
        later = 1 / (1 / whole - 1 / decoding) if 0 < whole < decoding else None
        tell(TRANSFER)
        stages = [
            Stage(READING, reading or None, f"file by file, in {threads}"),
            Stage(DECODING, decoding or None, "Pillow"),
            Stage(OPS, later, "over Pillow's pixels" if later else "", "not measurable apart from decoding"),
            Stage(
                ASSEMBLY,
                # A thread reads, decodes and crops one image after the other.
                1 / (1 / reading + 1 / whole) if reading and whole else None,
                f"Pillow in {threads}, as in a hand-written Dataset, without tpufeed",
                "Pillow decodes none of the images in the sample",
            ),
            measure_transfer((*size, 3), batch_size, seconds),
        ]
        tell("shards and caches of them")
        with temporary_folder() as folder:
            given: dict[str, Any] = {"records": count, "of_which": listed, "ops": ops, "batch_size": batch_size}
            alternatives, untried = try_alternatives(url, images, folder, seconds, are_files=True, **given)
        notes += untried
    return Measurements(
        split="all",
        record_bytes=mean,
        total_bytes=float(total_bytes),
        storage=Storage(why_not="files are read one by one, see reading"),
        stages={stage.name: stage for stage in stages},
        alternatives=alternatives,
        notes=tuple(notes),
    )


def _list(source: Source) -> tuple[int, int, list[Item], bool]:
    """Return the number of images, their bytes, a random sample of them, and whether these are all images."""
    drawn, total_bytes, count, is_whole = list[Item](), 0, 0, True
    draw, stop = random.Random(0), time.monotonic() + _LISTING_SECONDS
    for item in source.iter_items(Found()):
        is_whole = count % _SAMPLES > 0 or not count or time.monotonic() < stop
        if not is_whole:
            break
        count += 1
        total_bytes += item.bytes
        if len(drawn) < _SAMPLES:
            drawn.append(item)
        elif (place := draw.randrange(count)) < _SAMPLES:  # every item has the same chance to be in the sample
            drawn[place] = item
    draw.shuffle(drawn)
    return count, total_bytes, drawn, is_whole


def measure_reading(files: Files, items: Sequence[Item], threads: int, seconds: float) -> float:
    """Return the images per second whose files threads of this process read, each thread one after the other."""

    def read(number: int) -> Iterator[int]:
        for item in items[number::threads]:
            with suppress(TpufeedError):  # the sample names those that cannot be read
                yield all(isinstance(read_span(*files.find(file)), bytes) for file in files_of(item))

    return measure_threads(read, threads, seconds)


def measure_pillow(images: Sequence[bytes], ops: Sequence[Op], threads: int, seconds: float) -> float:
    """Return the images per second that threads of this process decode with Pillow, and apply ops to.

    Images that Pillow rejects do not count.
    """
    pipeline = Pipeline(ops, seed=0)
    draws = pipeline.draw(0, np.arange(len(images)))

    def decode(first: int) -> Iterator[int]:
        for tried, place in enumerate(itertools.count(first), 1):
            number, done = place % len(images), 0
            # An op that fails fails in all alternatives, too, which say so.
            with suppress(OSError, ValueError, SyntaxError, Image.DecompressionBombError, OpError):
                pixels = np.asarray(read_image(images[number]))
                pipeline.run(pixels, [op[number] for op in draws])
                done = 1
            if done or tried >= len(images):
                yield done

    return measure_threads(decode, threads, seconds)
