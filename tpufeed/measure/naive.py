"""What people write first to feed images: Pillow, one image after the other."""

import io
import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from tpufeed.dataset.reader import Dataset
from tpufeed.tfrecord.example import Feature, decode_example

_IMAGE_PX = 224


class NaiveLoader:
    """The loader that people write first: one thread, one sample after the other, with Pillow.

    It reads records in their order, and gives them a random-resized crop to 224 pixels and a flip; tensors of a raw
    cache stay as they are. Batches are (uint8 (n, height, width, 3), int64 (n,)). An epoch leaves out what is less
    than a batch.
    """

    def __init__(self, dataset: Dataset, split: str, batch_size: int, seed: int = 0) -> None:
        self.dataset, self.split, self.batch_size = dataset, split, batch_size
        self._entry = dataset.split(split)
        self._rng = random.Random(seed)
        self._epoch = 0

    def __len__(self) -> int:
        return self._entry.records // self.batch_size

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        variant = self._epoch % len(self._entry.variants)
        self._epoch += 1
        payloads = self.dataset.reader(self.split, variant).iter_payloads(0, len(self) * self.batch_size)
        for _ in range(len(self)):
            samples = [decode_example(next(payloads)) for _ in range(self.batch_size)]
            labels = [sample.get("image/class/label") for sample in samples]
            yield (
                np.stack([self._read_image(sample) for sample in samples]),
                np.array([-1 if label is None else int(label.values[0]) for label in labels], np.int64),
            )

    def _read_image(self, sample: dict[str, Feature]) -> Any:
        shape = self.dataset.manifest.tensor_shape
        data: Any = sample["image/encoded" if shape is None else "image/tensor"].values[0]
        if shape is not None:
            return np.frombuffer(bytes(data), np.uint8).reshape(shape)
        image = random_crop(read_image(data), _IMAGE_PX, self._rng)
        if self._rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)


def read_image(data: bytes) -> Image.Image:
    """Return an encoded image in RGB. Raises what Pillow does."""
    with Image.open(io.BytesIO(data)) as file:
        return file.convert("RGB")


def random_crop(image: Image.Image, side_px: int, rng: random.Random) -> Image.Image:
    """Return a window of the image as torchvision's RandomResizedCrop draws it, resized to a square."""
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


def measure_pillow(images: Sequence[bytes], side_px: int | None, threads: int, seconds: float) -> float:
    """Return images a second that so many threads of this process decode, and crop to a side where one is given.

    An image that Pillow refuses does not count.
    """

    def run(number: int) -> float:
        draw, done = random.Random(number), 0
        start = now = time.perf_counter()
        for tried, image in enumerate(itertools.islice(itertools.cycle(images), number, None), 1):
            try:
                picture = read_image(image)
                if side_px is not None:
                    np.asarray(random_crop(picture, side_px, draw))
                done += 1
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
                pass
            now = time.perf_counter()
            if now - start >= seconds and (done or tried >= len(images)):
                break
        return done / (now - start)

    with ThreadPoolExecutor(threads, "tpufeed-doctor") as executor:
        return sum(executor.map(run, range(threads)))
