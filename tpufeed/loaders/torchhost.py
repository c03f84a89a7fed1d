"""torch: a map-style dataset for DataLoader, DistributedSampler, Lightning and Accelerate."""

import bisect
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.records import Reader
from tpufeed.dataset.schema import LABEL, fixed_ints
from tpufeed.errors import MissingExtraError
from tpufeed.images.ops import Op
from tpufeed.loaders.decoder import Decoder, decode_samples

try:
    import torch
    from torch.utils.data import Dataset as TorchDataset
except ImportError as error:
    raise MissingExtraError("torch", "torch") from error


class TFRecordImages(TorchDataset[Any]):
    """The samples of a split by number, for `torch.utils.data.DataLoader` and `DistributedSampler`.

    `dataset[i]` is `(image, label)`, or the image alone where there are no labels: a uint8 tensor of shape
    (height, width, 3) and an int. Picklable: workers of any start method open the shards themselves.

    Args:
        url: a dataset or cache, at a path or a URL.
        split: which part of it.
        ops: applied to each image with random numbers of (seed, epoch, i); by default a cache's `final` ops, or none.
            Without an op that fixes the size, images have their own.
        transform: called with each image, uint8 HWC as a numpy array, in place of making a tensor of it.
        seed: of the ops.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
    """

    def __init__(
        self,
        url: str | Path,
        split: str = "train",
        *,
        ops: Sequence[Op] | None = None,
        transform: Callable[[Any], Any] | None = None,
        seed: int = 0,
    ) -> None:
        self._dataset = open_dataset(url)
        self._split, self._ops, self._seed = split, ops, int(seed)
        self._transform = transform
        self._entry = self._dataset.split(split)
        self._starts = [0, *itertools.accumulate(shard.records for shard in self._entry.variants[0].shards)]
        # In shared memory: workers that outlive an epoch see that the next one has begun.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._open()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; a label is a place among them."""
        return self._dataset.manifest.class_names

    @property
    def dataset(self) -> Dataset:
        """The dataset that the samples come from."""
        return self._dataset

    def set_epoch(self, epoch: int) -> None:
        """From now on samples are those of epoch number `epoch`: its random numbers and, in a cache, its variant."""
        self._epoch[0] = epoch

    def __len__(self) -> int:
        """Samples of the split."""
        return self._entry.records

    def __getitem__(self, index: int) -> Any:
        """Sample number `index`. Raises IndexError, and RecordError where it is damaged."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples at once, as DataLoader asks for them."""
        epoch = int(self._epoch[0])
        reader = self._reader(epoch % len(self._entry.variants))
        samples = [self._check(int(index)) for index in indices]
        draws = self._decoder.pipeline.draw(epoch, np.array(samples, np.int64))
        decoded = decode_samples(self._decoder, reader, [self._place(sample) for sample in samples], draws)
        images = [
            torch.from_numpy(image) if self._transform is None else self._transform(image) for image in decoded.pixels
        ]
        ints = fixed_ints(self._dataset.manifest.features)
        if LABEL not in ints:
            return images
        label = ints.index(LABEL)
        return [(image, values[label]) for image, values in zip(images, decoded.ints, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        """Without what a process must open for itself."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_decoder", "_readers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epoch.share_memory_()  # a copy is in private memory, where forked workers would not see `set_epoch`
        self._open()

    def _open(self) -> None:
        self._decoder = Decoder(self._dataset, self._ops, self._seed)
        self._readers: dict[int, Reader] = {}

    def _reader(self, variant: int) -> Reader:
        if variant not in self._readers:
            self._readers[variant] = self._dataset.reader(self._split, variant)
        return self._readers[variant]

    def _check(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a split of {len(self)}")
        return index % len(self)

    def _place(self, sample: int) -> tuple[int, int]:
        shard = bisect.bisect_right(self._starts, sample) - 1
        return shard, sample - self._starts[shard]
