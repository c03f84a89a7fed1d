"""How people feed an accelerator before they think about it: one thread, one sample after the other, with Pillow."""

import io
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from tpufeed.dataset.reader import Dataset
from tpufeed.tfrecord.example import Feature, decode_example

SIZE_PX = 224
_TRIES = 10


class NaiveLoader:
    """Records in their order, a random-resized crop to 224 pixels and a flip; the tensors of a raw cache as they are.

    Batches are (uint8 (n, height, width, 3), int64 (n,)); an epoch leaves out what is less than a batch.
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
            images = np.stack([self._read_image(sample) for sample in samples])
            yield images, np.array([_label(sample) for sample in samples], np.int64)

    def _read_image(self, sample: dict[str, Feature]) -> Any:
        shape = self.dataset.manifest.tensor_shape
        if shape is not None:
            return np.frombuffer(_bytes(sample["image/tensor"]), np.uint8).reshape(shape)
        with Image.open(io.BytesIO(_bytes(sample["image/encoded"]))) as file:
            image = file.convert("RGB")
        left, top, width, height = random_window(image.width, image.height, self._rng)
        box = left, top, left + width, top + height
        image = image.crop(box).resize((SIZE_PX, SIZE_PX), Image.Resampling.BILINEAR)
        if self._rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)


def random_window(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop: (left, top, width, height)."""
    for _ in range(_TRIES):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        cut_width, cut_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            return rng.randint(0, width - cut_width), rng.randint(0, height - cut_height), cut_width, cut_height
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def _bytes(feature: Feature) -> bytes:
    return bytes(memoryview(feature.values[0]))  # type: ignore[arg-type]  # its kind is bytes


def _label(sample: dict[str, Feature]) -> int:
    label = sample.get("image/class/label")
    return -1 if label is None else int(label.values[0])
