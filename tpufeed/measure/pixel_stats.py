"""Statistics of the pixels of a split by channel: exact, and in memory that does not grow with the images.

A table counts the upper 16 bits of values, which are all bits of integers. Of floats, which are read twice, further
tables then count the lower bits where a percentile is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.clips import pipeline_of
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError
from tpufeed.images.decoding import Pixels
from tpufeed.images.masks import decode_mask
from tpufeed.sources.options import NODATA
from tpufeed.tfrecord.example import decode_arrays

PERCENTILES = (0, 1, 2, 25, 50, 75, 98, 99, 100)
_BITS = 16
_VALUES = 1 << _BITS


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """Statistics of a channel, without its NaN and infinite values, and without pixels that a mask "nodata" leaves out.

    Attributes:
        mean: the mean. `deviation` is the standard deviation.
        percentiles: the largest value that is not above this share, in percent: the least at 0, the greatest at 100.
        not_finite: number of NaN and infinite values.
        nodata: number of pixels without data.
    """

    mean: float
    deviation: float
    percentiles: dict[int, float]
    not_finite: int = 0
    nodata: int = 0


def measure_pixels(dataset: Dataset, split: str) -> list[ChannelStats]:
    """Return the statistics of each channel of the images of a split, in a cache those of the first variant.

    Raises:
        OptionError: the split has no samples.
        ImageError, RecordError, ShardError: something is damaged.
    """
    pixels = dataset.manifest.pixels
    if not dataset.split(split).records:
        raise OptionError(f"split {split!r} of {dataset.label} has no samples")
    tables = [_Table() for _ in range(pixels.channels)]
    empty = 0
    for image, masked in _iter_images(dataset, split):
        empty += masked
        for channel, table in enumerate(tables):
            table.add(image[..., channel].ravel())
    places = [table.find_places() for table in tables]
    if pixels.dtype == "float32":
        for image, _ in _iter_images(dataset, split):
            for channel, table in enumerate(tables):
                table.add_lower(image[..., channel].ravel())
    found = [table.summarise(each) for table, each in zip(tables, places, strict=True)]
    return [replace(each, nodata=empty) for each in found]


def _iter_images(dataset: Dataset, split: str) -> Iterator[tuple[Pixels, int]]:
    """Yield the pixels of each image that have data, (..., channels), and the number of others."""
    manifest, layout = dataset.manifest, dataset.reader(split).layout
    pipeline = pipeline_of(manifest.pixels)((), seed=0, upright=manifest.upright, pixels=manifest.pixels)
    spec = next((spec for spec in manifest.features if spec.name == NODATA and spec.kind == "mask"), None)
    for payload in dataset.iter_payloads(split):
        image = pipeline.run_stored(layout.decode(payload)[0], manifest.tensor_shape, ())
        if spec is None:
            yield image, 0
        else:
            data: Any = decode_arrays(payload)[spec.key].values[0]
            empty = (np.frombuffer(data, np.uint8).reshape(spec.shape) if spec.shape else decode_mask(data, "mask")) > 0
            yield image[~empty], int(empty.sum())


def _keys(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return whole numbers in the order of the values: of a negative float all bits turn, of others the sign."""
    if values.dtype.kind == "u":
        return values.astype(np.uint32)
    bits = values[np.isfinite(values)].view(np.uint32)
    keys: npt.NDArray[np.uint32] = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return keys


def _value(key: int) -> float:
    bits = np.uint32(key & ~(1 << 31) if key >> 31 else ~key & 0xFFFFFFFF)
    return float(bits.view(np.float32))


class _Table:
    def __init__(self) -> None:
        self._counts, self._lower = np.zeros(_VALUES, np.int64), dict[int, npt.NDArray[np.int64]]()
        self._number, self._mean, self._squares, self._dropped = 0, 0.0, 0.0, 0

    def add(self, values: npt.NDArray[Any]) -> None:
        keys = _keys(values)
        self._counts += np.bincount(keys >> _BITS if values.dtype.kind == "f" else keys, minlength=_VALUES)
        sound = values[np.isfinite(values)] if values.dtype.kind == "f" else values
        self._dropped += values.size - sound.size
        if not sound.size:
            return
        # Chan et al. 1983: sums of squares would lose digits.
        mean, number = float(sound.mean(dtype=np.float64)), self._number + sound.size
        away = mean - self._mean
        self._squares += float(sound.var(dtype=np.float64)) * sound.size + away**2 * self._number * sound.size / number
        self._mean, self._number = self._mean + away * sound.size / number, number

    def find_places(self) -> dict[int, tuple[int, int]]:
        """Return for each percentile the place in the table, and its rank there."""
        ends, found = np.cumsum(self._counts), dict[int, tuple[int, int]]()
        for percent in PERCENTILES if self._number else ():
            rank = percent * (self._number - 1) // 100
            place = int(np.searchsorted(ends, rank, "right"))
            found[percent] = place, rank - int(ends[place] - self._counts[place])
        self._lower = {place: np.zeros(_VALUES, np.int64) for place, _ in found.values()}
        return found

    def add_lower(self, values: npt.NDArray[Any]) -> None:
        keys = _keys(values)
        for place, counts in self._lower.items():
            inside = keys[keys >> _BITS == place] & (_VALUES - 1)
            np.add(counts, np.bincount(inside, minlength=_VALUES), counts)

    def summarise(self, places: dict[int, tuple[int, int]]) -> ChannelStats:
        percentiles = dict[int, float]()
        for percent, (place, rank) in places.items():
            counts = self._lower[place]
            below = int(np.searchsorted(np.cumsum(counts), rank, "right"))
            percentiles[percent] = _value(place << _BITS | below) if counts.any() else float(place)
        return ChannelStats(self._mean, (self._squares / max(1, self._number)) ** 0.5, percentiles, self._dropped)
