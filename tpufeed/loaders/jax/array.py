"""JAX: global arrays over the devices of all processes, ahead of need."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from tpufeed.dataset.partition import World
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.loaders.columns import IMAGE
from tpufeed.loaders.device import DeviceStats, StatefulDeviceLoader
from tpufeed.loaders.jax.epoch import DeviceBatch, JaxIterator, Sender
from tpufeed.loaders.jax.ranks import find_exchange
from tpufeed.loaders.jax.sharding import Placement
from tpufeed.loaders.options import OPTION_NAMES, LoaderKeywords, make_options
from tpufeed.loaders.rank_check import EpochSpec, begin_together
from tpufeed.loaders.stream import NumpyLoader

try:
    import jax
except ImportError as error:
    raise MissingExtraError("JAX", "jax") from error


def jax_loader(
    url: str | Path,
    split: str = "train",
    *,
    sharding: Any = None,
    device_prefetch: int = 2,
    **options: Unpack[LoaderKeywords],
) -> "JaxLoader":
    """Batches of a dataset or cache as global `jax.Array`s, the next few already on the devices while a step runs.

    `for image, label in loader` is one epoch: image uint8 (rows, height, width, 3), label int32 (rows,), or int64 where
    JAX is told to have that; strings stay numpy arrays of this process' rows. `rows` is `batch_size` times the ranks.
    The next `for` is the next epoch. See `to_device_float` for what a model wants.

    Each process reads the rows that its devices hold; processes that hold the same ones, as those along a model axis,
    are one rank and read the same samples. Before an iteration's first batch the processes compare what they will
    iterate, and all raise the same LoaderError where they would part ways. A `world` given by hand is taken at its
    word, and says which samples are read: the shape of an array still follows from the sharding.

    Args:
        url: a dataset, at a path or a URL.
        split: which part of it.
        sharding: of the images: a `NamedSharding`, of which labels take the part that they have axes for; or a `Mesh`,
            over whose first axis rows are split. By default rows are split over all devices of all processes.
        device_prefetch: batches on the devices ahead of the one that is in use; each takes device memory.
        **options: see `LoaderOptions`.

    Raises:
        MissingExtraError: JAX is not installed.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it; a sharding that does not fit the batch says so with the first one.
    """
    placement = Placement(sharding)
    reading = make_options(options, (*OPTION_NAMES, "sharding", "device_prefetch"))
    source = NumpyLoader(open_dataset(url), split, reading, placement.world)
    return JaxLoader(source, placement, device_prefetch)


class JaxLoader(StatefulDeviceLoader):
    """See `jax_loader`. One thread at a time iterates; closing is safe from any.

    Pickles and copies are loaders at the same place, without what is prefetched; where a sharding was given JAX refuses
    to make them, as devices belong to their process.
    """

    source: NumpyLoader  # of this process' rows

    def __init__(self, source: NumpyLoader, placement: Placement, device_prefetch: int) -> None:
        if not isinstance(device_prefetch, int) or isinstance(device_prefetch, bool) or device_prefetch < 1:
            raise OptionError(f"device_prefetch is a whole number of batches, at least 1, not {device_prefetch!r}")
        super().__init__(source)
        self.placement = placement
        self.device_prefetch = device_prefetch
        self.batch_size = source.batch_size

    @property
    def dataset(self) -> Dataset:
        """What is read."""
        return self.source.dataset

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """Of the images; a jitted step's parameters want the same mesh."""
        return self.placement.sharding

    @property
    def world(self) -> World:
        """Which part of the samples this process reads, found out when it is first asked for."""
        return self.source.world

    def __len__(self) -> int:
        """Batches of an epoch, the same in every process."""
        return len(self.source)

    def __iter__(self) -> JaxIterator:
        """The next epoch, and with `repeat` all that follow. With its first batch it begins and an earlier one ends."""
        return JaxIterator(self)

    def stats(self) -> DeviceStats:
        """Return what the way to the devices has taken so far, and what the training loop waited for."""
        return DeviceStats(**asdict(self.crossing), host=self.source.stats())

    def first_batch(self, iterator: JaxIterator, sender: Sender) -> DeviceBatch | None:
        """Begin `iterator`: its first batch, once all processes have theirs."""
        self.begin(iterator)
        source, options, placement = self.source, self.source.options, self.placement

        def first() -> tuple[EpochSpec, DeviceBatch | None]:
            crossing = [name for name in source.form.names if source.column_dtype(name).kind != "O"]
            placement.check(self.batch_size, {name: source.image_shape if name == IMAGE else () for name in crossing})
            # The first batch as well: what keeps a process from decoding it shows in all before the first step.
            device_batch = sender.open()
            spec = source.epoch_spec()
            return replace(spec, rank=jax.process_index(), order=f"{spec.order}, sharding {placement}"), device_batch

        by_hand = options.world is not None
        exchange = None if by_hand else find_exchange(list(placement.held), options.timeout_seconds)
        return first()[1] if exchange is None else begin_together(exchange, jax.process_index(), first)
