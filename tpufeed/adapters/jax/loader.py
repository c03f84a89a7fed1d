"""JAX: global arrays over the devices of all processes, ahead of need."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tpufeed.adapters.device import DeviceFeed, DeviceIterator, Exchange, Transfer
from tpufeed.adapters.feed import Feed
from tpufeed.adapters.jax.sharding import Placement, enable_x64, find_exchange
from tpufeed.errors import OptionError
from tpufeed.stream.host import HostStream
from tpufeed.text import format_value

_WHOSE = "the current mesh or sharding", "set the mesh before, or give to_jax(sharding=mesh); else "


class JaxFeed(DeviceFeed, Feed):
    """Feed of global `jax.Array`s, see `Loader.to_jax`. With a given sharding it cannot be pickled: JAX's cannot."""

    stream: HostStream  # reads this process's rows
    thread_name = "tpufeed-jax"

    def __init__(self, stream: HostStream, sharding: Any, device_prefetch: int) -> None:
        super().__init__(stream, device_prefetch)
        self.placement = Placement(sharding)
        if stream.device_ops is not None and self.placement.splits_images:
            raise OptionError(
                f"device_ops need whole images on each device, and the sharding {sharding.spec} splits images: give "
                f"one that splits rows alone, like PartitionSpec({sharding.spec[0]!r}), or put the ops into ops"
            )
        stream.find_world_by(self.placement.world)

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """Sharding of the images. The parameters of a jitted step need the same mesh."""
        return self.placement.sharding

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.stream.find_world_by(self.placement.world)

    def __iter__(self) -> "JaxIterator":
        """Return the next epoch, and with `repeat` all later ones. Its first batch ends other iterations."""
        return JaxIterator(self)

    def open_transfer(self) -> Transfer:
        """Open the next epoch of this process's rows. Raises OptionError if the sharding does not fit them."""
        stream = self.stream
        stream.check_world(self.placement.world, *_WHOSE)
        columns = [stream.column(name) for name in stream.form.names]
        shapes = {column.name: column.shape for column in columns if column.dtype != "O"}
        self.placement.check(stream.batch_size, shapes)
        rows = stream.batch_size // len(self.placement.own)
        if rows % 2 and stream.device_ops is not None and stream.device_ops.mixing is not None:
            raise OptionError(
                f"MixUp and CutMix mix pairs of rows within a device, and each device has {rows}: give a batch_size "
                f"that {2 * len(self.placement.own)} divides"
            )
        return _JaxTransfer(stream, self.placement)

    def find_exchange(self) -> tuple[Exchange, int] | None:
        """Return how processes exchange specs, and this one's index. None if it is alone, or its world given by hand.

        If no sharding was given, this also moves the feed to the mesh that is set now.
        """
        placement, stream = self.placement.over_mesh_now(), self.stream
        if placement is not self.placement:
            stream.check_world(placement.world, *_WHOSE)
            self.placement = placement
        if stream.options.world is not None:
            return None
        exchange = find_exchange(list(placement.held), stream.options.timeout_seconds)
        return None if exchange is None else (exchange, jax.process_index())


class JaxIterator(DeviceIterator):
    """An epoch of a `JaxFeed`, and with `repeat` all later ones.

    It has `get_state`, `set_state` and `start_prefetch`, so it works with Grain's training loops and checkpoint
    handlers.
    """

    _feed: JaxFeed

    def start_prefetch(self) -> None:
        """Prepare the first batches on the host. Grain's checkpoints call this after `set_state`.

        This does not wait for other ranks, and does not begin the epoch. It does nothing once the iteration has begun,
        or while another iteration of the loader is open, whose thread prepares the next epoch itself.
        """
        stream = self._feed.stream
        if not (self._closed or stream.is_led):
            stream.start_prefetch(on_device=True)

    def get_state(self) -> "IteratorState":
        """Return the loader's `state_dict()`, with a `decode` method, because handlers expect bytes."""
        return IteratorState(self._feed.state_dict())

    def set_state(self, state: Mapping[str, Any] | bytes | str) -> None:
        """Continue where `state` says, as a dict or as its JSON.

        A state at the end of an epoch continues with the next one. Raises OptionError if it does not fit.
        """
        if isinstance(state, bytes | str):
            try:
                state = json.loads(state)
            except ValueError as error:
                raise OptionError(
                    f"a state is what get_state() returns, or its JSON, not {format_value(state)}"
                ) from error
        self._feed.load_state_dict(state)  # type: ignore[arg-type]  # which checks that it is a mapping
        self.close()
        self._restart()


class IteratorState(dict[str, Any]):
    """A state as plain data. Grain's handlers save what `decode` returns, unless an iterator is Grain's own."""

    def decode(self) -> str:
        """Return the state as JSON."""
        return json.dumps(self)


class _JaxTransfer(Transfer):
    """Makes global arrays from the rows of this process."""

    def __init__(self, stream: HostStream, placement: Placement) -> None:
        self._form, self._placement, self._ops = stream.form, placement, stream.device_ops
        self._x64 = jax.dtypes.canonicalize_dtype(np.int64) == np.int64  # in the caller's thread, see `enable_x64`
        self.batches: Any = stream.iterate(ahead=True, as_dict=True, on_device=True)
        self.close = self.batches.close
        spec = stream.epoch_spec()
        self.spec = replace(spec, rank=jax.process_index(), order=f"{spec.order}, sharding {placement}")

    def send(self, batch: dict[str, Any]) -> tuple[Any, int]:
        sent, size = dict(batch), 0
        with enable_x64(self._x64):
            if self._ops is not None:
                sent |= self._placement.run(self._ops, batch)
            for name in self._form.names:
                if batch[name].dtype.kind == "O":
                    continue
                size += batch[name].nbytes
                if sent[name] is batch[name]:
                    sent[name] = self._placement.put(name, batch[name])
            # Wait for the transfer here. Inside the step it would not be counted as input time.
            wait: Any = jax.block_until_ready
            wait(sent)
        return self._form.package(sent), size
