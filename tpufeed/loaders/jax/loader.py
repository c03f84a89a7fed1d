"""JAX: global arrays over the devices of all processes, ahead of need."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack

import numpy as np

from tpufeed.dataset.partition import World
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.validation import shown
from tpufeed.loaders.columns import IMAGE
from tpufeed.loaders.device import Crossing, DeviceStats, StatefulDeviceLoader
from tpufeed.loaders.jax.sharding import Placement, enable_x64, find_exchange
from tpufeed.loaders.loader import EpochIterator, NumpyLoader
from tpufeed.loaders.options import OPTION_NAMES, LoaderKeywords, make_options
from tpufeed.loaders.prefetch import PrefetchIterator, Producer
from tpufeed.loaders.rank_check import EpochSpec, begin_together

try:
    import jax
    import jax.numpy as jnp
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
    """Loader of global `jax.Array`s, see `jax_loader`. One thread at a time iterates; closing is safe from any.

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
        """Dataset that is read."""
        return self.source.dataset

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """Sharding of the images; a jitted step's parameters want the same mesh."""
        return self.placement.sharding

    @property
    def world(self) -> World:
        """World and rank of this process, found out when they are first asked for."""
        return self.source.world

    def __len__(self) -> int:
        """Batches of an epoch, the same in every process."""
        return len(self.source)

    def __iter__(self) -> "JaxIterator":
        """The next epoch, and with `repeat` all that follow. With its first batch it begins and an earlier one ends."""
        return JaxIterator(self)

    def stats(self) -> DeviceStats:
        """Return what the way to the devices has taken so far, and what the training loop waited for."""
        return DeviceStats(**asdict(self.crossing), host=self.source.stats())

    def first_batch(self, iterator: "JaxIterator", sender: "Sender") -> "DeviceBatch | None":
        """Begin `iterator`: its first batch, once all processes have theirs."""
        self.begin(iterator)
        source, options, placement = self.source, self.source.options, self.placement

        def first() -> "tuple[EpochSpec, DeviceBatch | None]":
            crossing = [name for name in source.form.names if source.column_dtype(name).kind != "O"]
            placement.check(self.batch_size, {name: source.image_shape if name == IMAGE else () for name in crossing})
            # The first batch as well: what keeps a process from decoding it shows in all before the first step.
            device_batch = sender.open()
            spec = source.epoch_spec()
            return replace(spec, rank=jax.process_index(), order=f"{spec.order}, sharding {placement}"), device_batch

        by_hand = options.world is not None
        exchange = None if by_hand else find_exchange(list(placement.held), options.timeout_seconds)
        return first()[1] if exchange is None else begin_together(exchange, jax.process_index(), first)


class JaxIterator(PrefetchIterator["DeviceBatch"]):
    """An epoch of a `JaxLoader`, or with `repeat` all that follow.

    Has `get_state`, `set_state` and `start_prefetch`, as Grain's iterators have, so that loops and checkpoint handlers
    written for those take it.
    """

    def __init__(self, loader: "JaxLoader") -> None:
        super().__init__(loader.device_prefetch, "tpufeed-jax")
        self._loader = loader
        self._asked = 0.0

    def start_prefetch(self) -> None:
        """Prepare the first batches on the host, as Grain's iterators do: its checkpoints call this after `set_state`.

        Neither are ranks waited for, nor does the epoch begin. Does nothing once the iteration has begun, nor while
        another one of the loader is open: the thread of that one prepares the next epoch itself.
        """
        if not (self._closed or self._loader.is_iterated):
            self._loader.source.start_prefetch()

    def __next__(self) -> Any:
        self._asked = perf_counter()
        return super().__next__()

    def get_state(self) -> "IteratorState":
        """The loader's `state_dict()`: a dict that is JSON, with the `decode` that handlers ask of Grain's bytes."""
        return IteratorState(self._loader.state_dict())

    def set_state(self, state: Mapping[str, Any] | bytes | str) -> None:
        """Go on where `state` says, as a dict or as its JSON.

        A state at the end of an epoch goes on with the next one. Raises OptionError where it does not fit.
        """
        if isinstance(state, bytes | str):
            try:
                state = json.loads(state)
            except ValueError as error:
                raise OptionError(f"a state is what get_state() gives, or that as JSON, not {shown(state)}") from error
        self._loader.load_state_dict(state)  # type: ignore[arg-type]  # which looks whether it is a mapping
        self.close()
        self._why, self._closed, self._executor = "", False, None

    def _begin(self) -> "DeviceBatch | None":
        loader = self._loader
        self._producer = sender = Sender(loader.source, loader.placement, loader.crossing)
        return loader.first_batch(self, sender)

    def _receive(self, device_batch: "DeviceBatch") -> Any:
        self._loader.handed(device_batch.state)
        self._loader.crossing.wait_seconds += perf_counter() - self._asked
        return device_batch.batch


class IteratorState(dict[str, Any]):
    """Plain data. Grain's handlers save a `grain.DatasetIterator`'s state as JSON, and decode that of any other one."""

    def decode(self) -> str:
        """Return the state as JSON."""
        return json.dumps(self)


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A batch on the devices, and the state of its source when that had given it."""

    batch: Any
    state: dict[str, Any]


class Sender(Producer[DeviceBatch]):
    """Sends batches of the source."""

    def __init__(self, source: NumpyLoader, placement: Placement, crossing: Crossing) -> None:
        super().__init__()
        self._source = source
        self._placement = placement
        self._crossing = crossing
        self._batches: EpochIterator | None = None
        self._x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64  # in the caller's thread, see `enable_x64`

    def open(self) -> DeviceBatch | None:
        """The first batch of the source's next epoch."""
        self._batches = iter(self._source)
        return self.pull()

    def _pull_next(self) -> DeviceBatch | None:
        assert self._batches is not None, "it was opened"
        try:
            arrays = self._batches.next_arrays()
        except StopIteration:
            return None
        return DeviceBatch(self._send(arrays), self._source.state_dict())

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()

    def _send(self, arrays: dict[str, Any]) -> Any:
        begin, sent, form = perf_counter(), dict(arrays), self._source.form
        with enable_x64(self._x64):
            for name in form.names:
                array = arrays[name]
                if array.dtype.kind != "O":
                    sent[name] = self._placement.put(name, array)
                    self._crossing.transfer_bytes += array.nbytes
            # Handed out is what is there: else a step would wait inside, where nobody counts it as waiting for input.
            wait: Any = jax.block_until_ready
            wait(sent)
        self._crossing.transfer_seconds += perf_counter() - begin
        return form.package(sent)


def scaled(images: jax.Array, scale: list[float], shift: list[float], dtype: Any, layout: str | None) -> jax.Array:
    """`images * scale + shift` by channel; see `to_device_float`."""
    result = images.astype(jnp.float32) * np.array(scale, np.float32) + np.array(shift, np.float32)
    result = result.astype(dtype or jnp.bfloat16)
    return result.transpose(0, 3, 1, 2) if layout == "NCHW" else result
