"""Iterations of a `JaxLoader`: a thread sends batches to the devices while the training loop computes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.parameters import shown
from tpufeed.loaders.device import Crossing
from tpufeed.loaders.epoch import Endless, EpochIterator
from tpufeed.loaders.jax.sharding import Placement, enable_x64
from tpufeed.loaders.prefetch import PrefetchIterator, Producer
from tpufeed.loaders.stream import NumpyLoader

try:
    import jax
except ImportError as error:
    raise MissingExtraError("JAX", "jax") from error

if TYPE_CHECKING:
    from tpufeed.loaders.jax.array import JaxLoader


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
        """As JSON."""
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
        self._batches: EpochIterator | Endless | None = None
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
