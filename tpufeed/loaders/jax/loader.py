"""JAX: global arrays over the devices of all processes, ahead of need."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tpufeed.dataset.partition import Remainder, World
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.protocols import Op
from tpufeed.loaders.device import DeviceIterator, Exchange, StatefulDeviceLoader, Transfer
from tpufeed.loaders.jax.sharding import Placement, enable_x64, find_exchange
from tpufeed.loaders.loader import DatasetLike, NumpyLoader, open_feed
from tpufeed.loaders.options import LabelFormat, Numa, take_options
from tpufeed.loaders.world import WorldLike
from tpufeed.options import checked, shown

try:
    import jax
except ImportError as error:
    raise MissingExtraError("JAX", "jax") from error


@checked()
def jax_loader(  # noqa: PLR0913  # each option is a parameter that editors show
    url: DatasetLike,
    split: str = "train",
    *,
    sharding: Any = None,
    device_prefetch: int = 2,
    batch_size: int = 128,
    ops: Sequence[Op] | None = None,
    columns: Sequence[str] | None = "default",
    shuffle: bool = True,
    seed: int = 0,
    remainder: Remainder = "drop",
    world: WorldLike | None = None,
    lanes: int | None = None,
    processes: int | None = None,
    threads: int | None = None,
    prefetch: int | None = None,
    repeat: bool = False,
    max_bad_records: int = 0,
    timeout_seconds: float = 600.0,
    numa: Numa = "auto",
    stage_dir: str | Path | None = None,
    stage_bytes: str | int | None = None,
    pad: Mapping[str, int] | None = None,
    truncate: bool | Sequence[str] = False,
    fill: Mapping[str, float | str] | None = None,
    label_format: LabelFormat = "ids",
    min_visibility: float = 0.0,
    views: Sequence[Any] | None = None,
) -> "JaxLoader":
    """Batches of a dataset or cache as global `jax.Array`s, the next few already on the devices while a step runs.

    `for image, label in loader` is one epoch: image uint8 (rows, height, width, 3), label int32 (rows,), or int64 where
    JAX is told to have that; strings stay numpy arrays of this process' rows. `rows` is `batch_size` times the ranks.
    The next `for` is the next epoch. See `to_device_float` for what a model needs.

    Each process reads the rows that its devices hold; processes that hold the same ones, as those along a model axis,
    are one rank and read the same samples. Before an iteration's first batch the processes compare what they will
    iterate, and all raise the same LoaderError where they differ. A `world` given by hand is not compared, and says
    which samples are read: the shape of an array still follows from the sharding.

    Args:
        url: a dataset, at a path or a URL.
        split: which part of it.
        sharding: of the images: a `NamedSharding`, of which labels take the part that they have axes for; or a `Mesh`,
            over whose first axis rows are split. By default the mesh that `jax.set_mesh` has set when an iteration
            begins, else all devices of all processes in a mesh of one axis, "data".
        device_prefetch: batches on the devices ahead of the one in use; each takes device memory. `numpy_loader`
            explains all other options.

    Raises:
        MissingExtraError: JAX is not installed.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it; a sharding that does not fit the batch says so with the first one.
    """
    options, placement = take_options(locals()), Placement(sharding)
    return JaxLoader(NumpyLoader(open_feed(url), split, options, placement.world), placement, device_prefetch)


class JaxLoader(StatefulDeviceLoader):
    """Loader of global `jax.Array`s, see `jax_loader`. One thread at a time iterates; closing is safe from any.

    Pickles and copies are loaders at the same place, without what is prefetched; where a sharding was given JAX refuses
    to make them, as devices belong to their process.
    """

    source: NumpyLoader  # of this process' rows
    thread_name = "tpufeed-jax"

    def __init__(self, source: NumpyLoader, placement: Placement, device_prefetch: int) -> None:
        super().__init__(source, device_prefetch)
        self.placement = placement
        self.batch_size = source.batch_size

    @property
    def dataset(self) -> Dataset:
        """Dataset that is read. Raises OptionError for a mixture."""
        return self.source.dataset

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """Sharding of the images; a jitted step's parameters need the same mesh."""
        return self.placement.sharding

    @property
    def world(self) -> World:
        """World and rank of this process, found out when they are first asked for."""
        return self.source.world

    def __iter__(self) -> "JaxIterator":
        """The next epoch, and with `repeat` all that follow. With its first batch it begins and an earlier one ends."""
        return JaxIterator(self)

    def open_transfer(self) -> Transfer:
        """Open the next epoch of this process' rows. Raises OptionError for a sharding that does not fit them."""
        source = self.source
        columns = [source.column(name) for name in source.form.names]
        shapes = {column.name: column.shape for column in columns if column.dtype != "O"}
        self.placement.check(self.batch_size, shapes)
        return _JaxTransfer(source, self.placement)

    def find_exchange(self) -> tuple[Exchange, int] | None:
        """Return how processes compare their epochs; None for one alone, and for a world given by hand."""
        self._follow_mesh()
        options = self.source.options
        if options.world is not None:
            return None
        exchange = find_exchange(list(self.placement.held), options.timeout_seconds)
        return None if exchange is None else (exchange, jax.process_index())

    def _follow_mesh(self) -> None:
        """Place the iteration that begins over the mesh that is set, if no sharding was given."""
        placement, source = self.placement.over_mesh_now(), self.source
        if placement is self.placement:
            return
        if source.options.world is None and source.world != (world := placement.world()):
            raise OptionError(
                f"this process is rank {world.rank} of {world.size} over the mesh that is set now, and was rank "
                f"{source.world.rank} of {source.world.size} when the loader was first asked: set the mesh before, or "
                "give the loader sharding=mesh"
            )
        self.placement = placement


class JaxIterator(DeviceIterator):
    """An epoch of a `JaxLoader`, or with `repeat` all that follow.

    Has `get_state`, `set_state` and `start_prefetch`, as Grain's iterators have, so that loops and checkpoint handlers
    written for those take it.
    """

    _loader: JaxLoader

    def start_prefetch(self) -> None:
        """Prepare the first batches on the host, as Grain's iterators do: its checkpoints call this after `set_state`.

        Neither are ranks waited for, nor does the epoch begin. Does nothing once the iteration has begun, nor while
        another one of the loader is open: the thread of that one prepares the next epoch itself.
        """
        if not (self._closed or self._loader.is_iterated):
            self._loader.source.start_prefetch()

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
        self._restart()


class IteratorState(dict[str, Any]):
    """Plain data. Grain's handlers save a `grain.DatasetIterator`'s state as JSON, and decode that of any other one."""

    def decode(self) -> str:
        """Return the state as JSON."""
        return json.dumps(self)


class _JaxTransfer(Transfer):
    """Makes global arrays of the rows of this process."""

    def __init__(self, source: NumpyLoader, placement: Placement) -> None:
        self._form, self._placement = source.form, placement
        self._x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64  # in the caller's thread, see `enable_x64`
        self.batches: Any = iter(source)
        self.close = self.batches.close
        spec = source.epoch_spec()
        self.spec = replace(spec, rank=jax.process_index(), order=f"{spec.order}, sharding {placement}")

    def next_batch(self) -> dict[str, Any]:
        arrays: dict[str, Any] = self.batches.next_arrays()
        return arrays

    def send(self, batch: dict[str, Any]) -> tuple[Any, int]:
        sent, size = dict(batch), 0
        with enable_x64(self._x64):
            for name in self._form.names:
                if batch[name].dtype.kind != "O":
                    sent[name] = self._placement.put(name, batch[name])
                    size += batch[name].nbytes
            # Handed out is what is there: else a step would wait inside, where nobody counts it as waiting for input.
            wait: Any = jax.block_until_ready
            wait(sent)
        return self._form.package(sent), size
