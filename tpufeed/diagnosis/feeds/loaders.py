"""The loaders that a benchmark measures, by name, and what each of them is expected to give."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tpufeed.dataset.reader import Dataset
from tpufeed.diagnosis.feeds.naive import NaiveLoader
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import OptionError
from tpufeed.images.ops import HorizontalFlip, Op, RandomResizedCrop
from tpufeed.profiling.fingerprints import Expected

IMAGE_PX = 224
FEWEST_BATCHES = 3


@dataclass(frozen=True, slots=True)
class Opened:
    """A loader that is ready to be iterated; `close` ends it.

    Where nothing is `expected` of it nobody looks for drops and repeats.
    """

    loader: Iterable[Any]
    expected: Expected | None
    close: Callable[[], object]


def open_loader(name: str, dataset: Dataset, split: str, batch_size: int, options: dict[str, Any]) -> Opened:
    """The loader `name`.

    Args:
        name: one of `feeds.options.LOADERS`.
        dataset: what it reads.
        split: which part of it.
        batch_size: of its batches.
        options: further options of the loader; those that are None are not given.

    Raises:
        OptionError: a split of less than a batch, or options that do not fit.
        MissingExtraError: the loader's framework is not installed.
    """
    records = check_split(dataset, split, batch_size)
    given = {name: value for name, value in options.items() if value is not None}
    ops = given.pop("ops") if "ops" in given else _default_ops(dataset)
    endless = name.startswith("tf")
    if name == "naive":
        variants = _variants(dataset, [] if dataset.manifest.tensor_shape else [RandomResizedCrop()])
        return Opened(NaiveLoader(dataset, split, batch_size), Expected(records, batch_size, variants), _nothing)
    expected = Expected(records, batch_size, _variants(dataset, ops), endless)
    loader = _make(name, dataset.url, split, {"batch_size": batch_size, "ops": ops, **given})
    return Opened(loader, expected, getattr(loader, "close", _nothing))


def check_split(dataset: Dataset, split: str, batch_size: int) -> int:
    """The samples of a split. Raises OptionError where they are less than a batch."""
    records = dataset.split(split).records
    if records < batch_size:
        raise OptionError(
            f"split {split!r} of {dataset.url} has {number_of(records, 'sample')}, less than a batch of {batch_size}: "
            "give a smaller --batch, or a larger dataset"
        )
    return records


def small_dataset(expected: Expected | None) -> tuple[str, ...]:
    """Why figures of so few samples say little, as sentences."""
    if expected is None or expected.batches >= FEWEST_BATCHES:
        return ()
    batches = number_of(expected.batches, "batch", "batches")
    return (
        f"an epoch has {batches} of {expected.batch_size}: too few to measure anything but the start of epochs; take a "
        "larger dataset or a smaller --batch",
    )


def _make(name: str, url: str, split: str, options: dict[str, Any]) -> Any:
    if name == "numpy":
        from tpufeed.loaders.stream import numpy_loader

        return numpy_loader(url, split, **options)
    if name == "torch":
        from tpufeed.loaders.torch.loader import torch_loader

        return torch_loader(url, split, **options)
    if name == "xla":
        from tpufeed.loaders.xla.loader import xla_loader

        return xla_loader(url, split, **options)
    if name == "jax":
        from tpufeed.loaders.jax.loader import jax_loader

        return jax_loader(url, split, **options)
    from tpufeed.loaders.tf.dataset import tf_dataset

    # One iteration over all epochs: to begin another one costs a tf.data.Dataset up to 0.4 s.
    return tf_dataset(url, split, direct=name == "tf-direct", repeat=True, **options)


def _default_ops(dataset: Dataset) -> list[Op] | None:
    return [RandomResizedCrop(size=IMAGE_PX), HorizontalFlip()] if dataset.manifest.cache is None else None


def _variants(dataset: Dataset, ops: list[Op] | None) -> int | None:
    """See `Expected.variants`. Only a random-resized crop never draws the same window for a photograph twice."""
    cache = dataset.manifest.cache
    crop = RandomResizedCrop.__name__
    live = [type(op).__name__ for op in ops] if ops is not None else [op["op"] for op in cache.final] if cache else []
    if crop in live:
        return None
    return cache.variants if cache is not None and crop in [op["op"] for op in cache.ops] else 1


def _nothing() -> None:
    pass
