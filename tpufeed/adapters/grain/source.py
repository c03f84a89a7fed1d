"""Grain: samples of a split by number, also with the epochs of Grain's pipelines."""

import multiprocessing
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.protocols import Op
from tpufeed.options import checked
from tpufeed.processes.limits import available_cores
from tpufeed.stream.mixture import DatasetLike
from tpufeed.stream.options import LabelFormat, LoaderOptions, Shared
from tpufeed.stream.random_access import PortableSamples, SplitSamples

try:
    import grain
except ImportError as error:
    raise MissingExtraError("grain", "grain") from error

_IN_GRAIN = {
    "batch_size": "call batch(...) of the grain.MapDataset",
    "shuffle": "call seed(...).shuffle() of the grain.MapDataset",
    "num_workers": "call mp_prefetch(...) of the grain.IterDataset",
    "world": "take a slice of the grain.MapDataset, like samples[rank::ranks]",
    "repeat": "call repeat() of the grain.MapDataset",
}


@checked(_IN_GRAIN)
def grain_source(  # noqa: PLR0913  # each option is a parameter that editors show
    url: DatasetLike,
    split: str = "train",
    *,
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
) -> "GrainSource":
    """Return the samples of a split as a random-access source for Grain.

    A sample is a dict by column: image is uint8 (height, width, 3), label an int. Tensors are arrays, other columns
    int, float, str or bytes.

    - `grain_source(...).to_map_dataset()` is a `grain.MapDataset` that knows its epochs: after its `repeat()` each
      epoch has other random crops and, in a cache, the next variant. Sample s of epoch e has the pixels that all
      loaders give it for the same `ops` and `seed`.
    - The source itself is for `grain.MapDataset.source(...)` and `grain.DataLoader`. These do not tell a source the
      epoch, so it refuses to read samples that differ from epoch to epoch.

    It may be pickled, as Grain does for its worker processes, and forked: each process opens the dataset itself, and
    refuses another dataset in its place. Reading is thread-safe. Remote shards are copied as `Loader` describes, when
    one of their samples is first read.

    Args:
        url: a dataset or cache: a path, a URL, or an open dataset.
        split: the name of the split.
        ops: ops of each image. Without an op that fixes the size, images keep their own sizes. `Loader` explains this
            and the other options.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: an option does not fit the dataset.
    """
    given = {name: value for name, value in locals().items() if name in LoaderOptions.__slots__}
    return GrainSource(PortableSamples(url, split, LoaderOptions(**given)))


class GrainSource:
    """Samples of a split by number, made by `grain_source`. `len` is their number.

    Its `repr` has the digest of the dataset's content and no path: Grain stores it in the checkpoints of a
    `DataLoader`, and resumes only with the same samples, wherever they are.
    """

    def __init__(self, samples: PortableSamples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples.records

    def __repr__(self) -> str:
        samples = self._samples
        return f"GrainSource(content_digest={samples.content_digest!r}, split={samples.split!r}, samples={len(self)})"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes. A label is an index into them."""
        return self._open().dataset.class_names

    def to_map_dataset(self) -> "grain.MapDataset[dict[str, Any]]":
        """Return the samples as a `grain.MapDataset`, whose index gives sample and epoch."""
        return _EpochDataset(self)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Return sample number `index`, from 0 to `len - 1`.

        Raises:
            IndexError: there is no such sample.
            OptionError: samples differ from epoch to epoch.
            RecordError: it is damaged, or its image does not decode.
        """
        sample = operator.index(index)
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of a split of {len(self)}")
        if self._open().changes_by_epoch:
            raise OptionError(
                f"{self._samples.url}, split {self._samples.split!r}: samples differ from epoch to epoch, by random "
                "ops or by the variants of a cache, and Grain does not tell a source the epoch. Begin the pipeline "
                "with tpufeed.grain_source(...).to_map_dataset() instead of grain.MapDataset.source(...) or "
                "grain.DataLoader, or give ops without random numbers"
            )
        return self.read(sample, 0)

    def read(self, sample: int, epoch: int) -> dict[str, Any]:
        """Return a sample as it is in an epoch. Raises RecordError if it is damaged."""
        opened = self._open()
        columns = opened.read(np.array([sample], np.int64), epoch)
        return {name: columns[name][0] for name in opened.names}

    def _open(self) -> SplitSamples:
        # Grain does not tell a worker process how many there are: probably one per core.
        return self._samples.open(1 if multiprocessing.parent_process() is None else available_cores())


class _EpochDataset(grain.MapDataset[dict[str, Any]]):  # type: ignore[misc]  # Grain ships no types
    """A source's samples. Index `epoch * len + sample` is the sample in that epoch, as `repeat` and `shuffle` count."""

    def __init__(self, source: GrainSource) -> None:
        super().__init__()
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        epoch, sample = divmod(operator.index(index), len(self))
        return self._source.read(sample, epoch)

    def __repr__(self) -> str:
        return f"{self._source!r}.to_map_dataset()"

    __str__ = __repr__
