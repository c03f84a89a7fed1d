"""torch: a map-style dataset for DataLoader, DistributedSampler, Lightning and Accelerate."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import get_worker_info

from tpufeed.dataset.order import World
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError, mask_secrets
from tpufeed.images.protocols import Op
from tpufeed.options import Rule, checked
from tpufeed.stream.decoding import FIX_SIZE
from tpufeed.stream.mixture import DatasetLike
from tpufeed.stream.options import LabelFormat, LoaderOptions, Shared
from tpufeed.stream.random_access import PortableSamples, SplitSamples
from tpufeed.stream.training import Epoch
from tpufeed.stream.world import count_ranks, thread_world

_logger = logging.getLogger(__name__)

_EPOCH, _READ = range(2)  # indices into the tensor that all workers share
_MOST_COUNTED = (1 << 16) - 1  # reads of a sample. Later reads draw the same numbers as the last one
_REPEATED = 1.5  # a rank that has read this many times its share must have read samples again


class TFRecordImages(TorchDataset[Any]):
    """The samples of a split by number, for `torch.utils.data.DataLoader` and `DistributedSampler`.

    `dataset[i]` is `(image, label)`, a uint8 tensor of shape (height, width, 3) and an int, or the image alone if there
    are no labels. Other columns are int, float32, str or bytes, or tensors if they have a shape.

    Shards that are local files can be read in any order. Remote shards are copied as `Loader` describes, when one of
    their samples is first read. In a random order (`shuffle=True`, `DistributedSampler`) copies help only if the whole
    split fits. Otherwise samples are read one by one, with a warning. `LaneSampler` reads shard by shard.

    Random numbers of ops, and the variant of a cache, are those of the epoch last given to `set_epoch`:
    `LaneSampler.set_epoch` passes it on, `DistributedSampler.set_epoch` does not. The first read of a sample per epoch
    has the random numbers of all loaders. Later reads, by samplers that repeat samples, draw new ones: these depend on
    seed, epoch, sample and the number of reads, and with worker processes also on which worker reads, so runs may
    differ. Counting takes 2 bytes of shared memory for each sample of the split, if ops draw random numbers.

    A pickle holds neither manifest nor index: a process that unpickles it opens the dataset, and refuses another one.

    Args:
        url: a dataset or cache, at a path or a URL.
        split: the name of the split.
        transform: called with each image, a uint8 HWC numpy array, instead of making a tensor of it. Transforms of
            torchvision that need PIL images begin with `ToPILImage()`. It is also an attribute that may be set later.
            Workers of a DataLoader keep the one that they were started with.
        ops: ops of each image. Without an op that fixes the size, images keep their own sizes, and come one at a time
            unless there is a transform. `Loader` explains this and the other options.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: an option does not fit the dataset.
    """

    @checked(dict.fromkeys(("batch_size", "shuffle", "num_workers", "drop_last"), "give it to the DataLoader"))
    def __init__(  # noqa: PLR0913  # each option is a parameter that editors show
        self,
        url: DatasetLike,
        split: str = "train",
        *,
        transform: Annotated[Callable[[Any], Any], Rule("a function", callable)] | None = None,
        ops: Sequence[Op] | None = None,
        columns: Sequence[str] | None = "default",
        seed: int = 0,
        local_dir: str | Path | None = None,
        local_bytes: str | int | None = None,
        pad: Mapping[str, int] | None = None,
        truncate: bool | Sequence[str] = False,
        fill: Mapping[str, float | str] | None = None,
        label_format: LabelFormat = "ids",
        min_visibility: float = 0.0,
        views: Sequence[Any] | None = None,
        share: Shared | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in LoaderOptions.__slots__}
        self.transform = transform
        self._samples = PortableSamples(url, split, LoaderOptions(**given))
        # In shared memory: workers that outlive an epoch see that the next one has begun.
        self._shared = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._drawn = _counts(len(self)) if self._open().draws else None  # reads of each sample since `set_epoch`
        self._owner = os.getpid()
        self._ranks = (thread_world() or World()).size

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes. A label is an index into them."""
        return self.dataset.class_names

    @property
    def dataset(self) -> Dataset:
        """The dataset of the samples."""
        return self._open().dataset

    @property
    def split(self) -> str:
        """Name of the split."""
        return self._samples.split

    @checked()
    def set_epoch(self, epoch: Epoch) -> None:
        """Read samples with the random numbers, and in a cache the variant, of this epoch from now on."""
        self._part_from_other_ranks()
        self._shared[_EPOCH] = epoch
        self._shared[_READ] = 0
        if self._drawn is not None:
            self._drawn.zero_()

    def __repr__(self) -> str:
        epoch = int(self._shared[_EPOCH])
        url = mask_secrets(self._samples.url)
        return f"{type(self).__name__}({url!r}, {self.split!r}, samples={len(self)}, epoch={epoch})"

    def __len__(self) -> int:
        """Return the number of samples of the split."""
        return self._samples.records

    def __getitem__(self, index: int) -> Any:
        """Return sample number `index`. Raises IndexError, or RecordError if it is damaged."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples at once, as DataLoader asks for them."""
        if not len(indices):
            return []
        opened = self._open()
        samples = np.array([int(index) for index in indices], np.int64)
        for index in samples[(samples < -len(self)) | (samples >= len(self))]:
            raise IndexError(f"sample {index} of a split of {len(self)}")
        samples %= len(self)
        # Before the first batch: if a rank first failed in the middle of an epoch, the others would wait for it.
        batched = len(samples) > 1 and self.transform is None
        if batched and opened.columns.pooled and None in opened.plan.sizes:
            raise OptionError(
                f"{self._samples.url}: no op fixes the size of the images, which must be equal in a batch; {FIX_SIZE}. "
                "If all sizes are equal, or a collate_fn handles others, pass transform=torch.from_numpy"
            )
        self._part_from_other_ranks()
        columns = opened.read(samples, int(self._shared[_EPOCH]), self._number(samples))
        images = [column.name for column in opened.columns.images]
        for name, values in columns.items():
            if self.transform is not None and name in images:
                columns[name] = [self.transform(value) for value in values]
            elif isinstance(values[0], np.ndarray):
                columns[name] = [torch.from_numpy(value) for value in values]
        self._count(opened, len(samples))
        if self._samples.options.columns is None:
            return [{name: columns[name][row] for name in opened.names} for row in range(len(samples))]
        chosen = [columns[name] for name in opened.names]
        return list(chosen[0]) if len(chosen) == 1 else list(zip(*chosen, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, with this one's epoch."""
        self._part_from_other_ranks()
        # A spawned worker of a DataLoader cannot know how many ranks there are.
        state = self.__dict__ | {"_ranks": max(self._ranks, count_ranks())}
        if self._drawn is not None and get_spawning_popen() is None:
            state["_drawn"] = _counts(0)  # not the counts, which are as large as the split: a copy counts for itself
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared.share_memory_()  # a copy has private memory, where forked workers would not see `set_epoch`
        if self._drawn is not None and not len(self._drawn):
            self._drawn = _counts(len(self))

    def _open(self) -> SplitSamples:
        worker = get_worker_info()
        return self._samples.open(1 if worker is None else worker.num_workers)

    def _number(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | int:
        """Count these samples as read. Return a number for each that differs from read to read, and is 0 at first.

        Workers count together without a lock, so the number of a later read contains the worker's number. Only if two
        workers first read a sample within the same microsecond do they draw equal numbers for it.
        """
        if self._drawn is None:
            return 0
        worker, counts = get_worker_info(), self._drawn.numpy().view(np.uint16).data
        workers, own = (1, 0) if worker is None else (worker.num_workers, worker.id)
        numbers = np.zeros(len(samples), np.int64)
        for row, sample in enumerate(samples.tolist()):
            if count := counts[sample]:
                numbers[row] = count * workers + own
            counts[sample] = min(count + 1, _MOST_COUNTED)
        return numbers

    def _count(self, opened: SplitSamples, samples: int) -> None:
        """Count samples as read. Workers count together without a lock: a few may be lost, and two may warn at once."""
        read, variants = int(self._shared[_READ]), len(self.dataset.split(self.split).variants)
        if read < 0 or not opened.changes_by_epoch or variants == 1:
            return
        self._shared[_READ] = read + samples
        if read + samples > _REPEATED * len(self) / max(self._ranks, count_ranks()):
            self._shared[_READ] = -1
            epoch = int(self._shared[_EPOCH])
            _logger.warning(
                "%s, split %r: samples are read again from variant %d of %d, that of epoch %d. Call set_epoch(epoch) "
                "of the TFRecordImages, or of a tpufeed.LaneSampler over it, before each epoch",
                mask_secrets(self._samples.url),
                self.split,
                epoch % variants,
                variants,
                epoch,
            )

    def _part_from_other_ranks(self) -> None:
        """Separate from the other ranks, if they were launched with the same dataset: each sets its own epoch."""
        if self._owner != os.getpid() and get_worker_info() is None and count_ranks() > 1:
            self._shared = self._shared.clone().share_memory_()
            self._drawn = None if self._drawn is None else _counts(len(self))
            self._owner = os.getpid()


def _counts(samples: int) -> torch.Tensor:
    counts: torch.Tensor = torch.zeros(samples, dtype=torch.int16).share_memory_()
    return counts
