"""The loaders that a benchmark measures: a table of them, what each is expected to give, and the naive one."""

import io
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

import tpufeed
from tpufeed.dataset.reader import Dataset
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import OptionError
from tpufeed.images.ops import HorizontalFlip, Op, RandomResizedCrop
from tpufeed.profiling.accelerator import Expected
from tpufeed.tfrecord.example import Feature, decode_example

IMAGE_PX = 224

Package = tuple[str, str, str]  # (module, its name for people, extra)
TORCH: Package = ("torch", "torch", "torch")
TF: Package = ("tensorflow", "TensorFlow", "tf")
XLA: Package = ("torch_xla", "torch_xla (with torch 2.9)", "xla")
JAX: Package = ("jax", "JAX", "jax")


@dataclass(frozen=True, slots=True)
class LoaderKind:
    """A loader, with everything needed to open it.

    Attributes:
        function: its name in `tpufeed`; the naive loader is no part of it.
        packages: that it cannot do without.
        options: that it is always given.
    """

    function: str = ""
    packages: tuple[Package, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


# tf.data iterates over all epochs at once: to begin another one costs a tf.data.Dataset up to 0.4 s.
LOADERS = {
    "numpy": LoaderKind("numpy_loader"),
    "torch": LoaderKind("torch_loader", (TORCH,)),
    "tf": LoaderKind("tf_dataset", (TF,), {"repeat": True}),
    "tf-direct": LoaderKind("tf_dataset", (TF,), {"repeat": True, "direct": True}),
    "xla": LoaderKind("xla_loader", (XLA,)),
    "jax": LoaderKind("jax_loader", (JAX,)),
    "naive": LoaderKind(),
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A loader that is ready to be iterated; `close` ends it.

    Where nothing is `expected` of it nobody looks for drops and repeats.
    """

    loader: Iterable[Any]
    expected: Expected | None
    close: Callable[[], object]


def open_loader(name: str, dataset: Dataset, split: str, batch_size: int, options: dict[str, Any]) -> Opened:
    """Open a loader.

    Args:
        name: one of `LOADERS`.
        dataset: to read.
        split: which part of it.
        batch_size: of its batches.
        options: further options of the loader; those that are None are not given.

    Raises:
        OptionError: a split of less than a batch, or options that do not fit.
        MissingExtraError: the loader's framework is not installed.
    """
    records, cache = check_split(dataset, split, batch_size), dataset.manifest.cache
    given = {name: value for name, value in options.items() if value is not None}
    kind = LOADERS[name]
    if name == "naive":
        loader: Any = NaiveLoader(dataset, split, batch_size)
        ops: list[Op] | None = [] if dataset.manifest.tensor_shape else [RandomResizedCrop(size=IMAGE_PX)]
    else:
        ops = [RandomResizedCrop(size=IMAGE_PX), HorizontalFlip()] if cache is None else None
        ops = given.pop("ops", ops)
        function: Callable[..., Any] = getattr(tpufeed, kind.function)
        loader = function(dataset.url, split, batch_size=batch_size, ops=ops, **kind.options, **given)

    # How often the same pixels may come: only a random-resized crop never draws one window of a photograph twice.
    crop = RandomResizedCrop.__name__
    live = [type(op).__name__ for op in ops] if ops is not None else [op["op"] for op in cache.final] if cache else []
    variants: int | None = 1
    if crop in live:
        variants = None
    elif cache is not None and crop in [op["op"] for op in cache.ops]:
        variants = cache.variants
    expected = Expected(records, batch_size, variants, endless=kind.function == "tf_dataset")
    return Opened(loader, expected, getattr(loader, "close", lambda: None))


def check_split(dataset: Dataset, split: str, batch_size: int) -> int:
    """Return the samples of a split. Raises OptionError where they are less than a batch."""
    records = dataset.split(split).records
    if records < batch_size:
        raise OptionError(
            f"split {split!r} of {dataset.url} has {number_of(records, 'sample')}, less than a batch of {batch_size}: "
            "give a smaller --batch, or a larger dataset"
        )
    return records


class NaiveLoader:
    """The loader that people write first: one thread, one sample after the other, with Pillow.

    Records in their order, a random-resized crop to 224 pixels and a flip; the tensors of a raw cache as they are.
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
        with Image.open(io.BytesIO(data)) as file:
            image = file.convert("RGB")
        left, top, width, height = random_window(image.width, image.height, self._rng)
        box = left, top, left + width, top + height
        image = image.crop(box).resize((IMAGE_PX, IMAGE_PX), Image.Resampling.BILINEAR)
        if self._rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)


def random_window(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    """Return (left, top, width, height) as torchvision's RandomResizedCrop draws them."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        cut_width, cut_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            return rng.randint(0, width - cut_width), rng.randint(0, height - cut_height), cut_width, cut_height
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side
