"""torch_xla: batches on XLA devices ahead of need, after all ranks have compared their epochs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tpufeed.adapters.xla import runtime
from tpufeed.adapters.xla.runtime import Shardings
from tpufeed.errors import LoaderError, OptionError

# After `runtime`: without torch the error is to name the extra "xla".
# isort: split
from tpufeed.adapters.device import DeviceFeed, Exchange, Transfer
from tpufeed.adapters.feed import Feed
from tpufeed.adapters.foreign import ForeignStream
from tpufeed.adapters.torch import arrays
from tpufeed.adapters.torch.loader import Undivided, like, map_leaves, map_tensors, to_torch
from tpufeed.images.device import product_of_parts
from tpufeed.stream.columns import DEVICE_NUMBERS, IMAGE
from tpufeed.stream.host import HostStream
from tpufeed.stream.rank_check import EpochSpec

# A TPU rounds the numbers that it multiplies to bfloat16, and torch_xla cannot forbid that for some products only.
ARRAYS = replace(arrays.ARRAYS, exact_product=partial(product_of_parts, arrays.ARRAYS.product, runtime.upper))


class XlaFeed(Undivided, DeviceFeed, Feed, runtime.MpDeviceLoader):
    """Feed on an XLA device, see `Loader.to_xla`: an `MpDeviceLoader`, so that Lightning leaves it as it is."""

    stream: HostStream | ForeignStream
    _is_accelerate_prepared = True  # else Accelerate would take it apart
    thread_name = "tpufeed-xla"

    def __init__(
        self, stream: HostStream | ForeignStream, device: Any, sharding: Any, device_prefetch: int, check_ranks: bool
    ) -> None:
        source = stream if isinstance(stream, HostStream) else stream.wrapped
        again = isinstance(source, HostStream | Iterable) and not isinstance(source, Iterator | runtime.MpDeviceLoader)
        if not again:
            raise OptionError(
                "device_loader takes a loader on the host that can be iterated again and again, such as a torch "
                f"DataLoader, not {type(source).__name__}"
            )
        DeviceFeed.__init__(self, stream, device_prefetch)
        runtime.MpDeviceLoader.__init__(self, source, device)
        self.shardings = None if sharding is None else Shardings(sharding)
        self._checks = check_ranks
        if isinstance(stream, HostStream):
            stream.find_world_by(runtime.xla_world)

    @property
    def device(self) -> Any:
        """Device that batches go to."""
        return runtime.default_device() if self._device is None else self._device

    @property
    def dataset(self) -> Any:
        """Dataset of the loader. None if it has none, as with a mixture: trainers ask every loader for it."""
        stream = self.stream
        if not isinstance(stream, HostStream):
            return getattr(stream.wrapped, "dataset", None)
        return None if len(stream.sources) > 1 else stream.dataset

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {**state, "_loader": getattr(state["stream"], "wrapped", state["stream"])}  # as torch_xla calls it

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if (host := self.host) is not None:
            host.find_world_by(runtime.xla_world)

    def find_exchange(self) -> tuple[Exchange, int] | None:
        """Return how ranks exchange specs, and this rank's number. None if it is alone or does not compare."""
        world, host = runtime.xla_world(), self.host
        if world.size == 1 or not self._checks or (host is not None and host.options.world is not None):
            return None
        return lambda spec: runtime.exchange(spec, world), world.rank

    def open_transfer(self) -> Transfer:
        """Open the loader's next epoch. Raises OptionError if its world or sharding does not fit torch_xla's."""
        host, device = self.host, self.device
        world, devices = runtime.xla_world(), runtime.spmd_devices()
        if host is not None:
            host.check_world(runtime.xla_world, "torch_xla")
        if self.shardings is not None:
            if devices is None:
                raise OptionError(
                    "sharding is for SPMD; call torch_xla.runtime.use_spmd() before anything is on a device"
                )
            names = [] if host is None else [name for name in host.form.names if host.column(name).dtype != "O"]
            self.shardings.check(names, self.batch_size, devices, 1 if host is None else world.size)
        elif devices is not None and host is not None and world.size > 1:
            raise OptionError(
                f"under SPMD, {world.size} processes read samples of their own; give sharding with minibatch=True, "
                "or XLA takes their batches for copies of one"
            )
        if host is not None:
            ours = host.iterate(ahead=True, as_dict=True, on_device=True)
            return _XlaTransfer(ours, device, self.shardings, (), host.epoch_spec(), ours.close, host)
        assert isinstance(self.stream, ForeignStream), "there are two kinds"
        source, together = self.stream.wrapped, self.find_exchange() is not None
        batches = iter(source)
        count = _length(batches, source)
        if together and count is None:
            raise OptionError(
                f"the ranks cannot know whether they take the same steps: a {type(source).__name__} has no length; "
                "give it a __len__, or check_ranks=False"
            )
        # A loader with states may resume in the middle of an epoch, and then has fewer batches.
        expected = count if together and not hasattr(source, "load_state_dict") else None
        named = () if self.shardings is None else self.shardings.names
        spec = EpochSpec(world.rank, count or 0, self.batch_size)
        return _XlaTransfer(_checked(batches, expected), device, self.shardings, named, spec)


@dataclass(eq=False)
class _XlaTransfer(Transfer):
    """Sends each tensor of a batch, and has torch_xla run the last step when the next batch is asked for."""

    batches: Iterator[Any]
    device: Any
    shardings: Shardings | None
    names: Sequence[str]
    spec: EpochSpec
    close: Callable[[], None] | None = None
    ours: HostStream | None = None

    def before_step(self) -> None:
        runtime.end_step()

    def send(self, batch: Any) -> tuple[Any, int]:
        batch, size = to_torch(batch), 0
        ops = None if self.ours is None else self.ours.device_ops
        coded = ops is not None and ops.ops.coefficients is not None

        def send(name: str, part: Any) -> Any:
            if coded and name == IMAGE:
                name = DEVICE_NUMBERS  # split over the same rows: the axes of a `ShardingSpec` are those of pixels

            def send_tensor(tensor: Any) -> Any:
                nonlocal size
                size += tensor.nbytes
                return runtime.send(tensor, self.device, self.shardings and self.shardings.fit(name, tensor))

            return map_tensors(part, send_tensor)

        if isinstance(batch, Mapping):
            return {key: send(str(key), part) for key, part in batch.items()}, size
        if isinstance(batch, tuple | list):
            names = (*self.names, *map(str, range(len(self.names), len(batch))))
            return like(batch, [send(name, part) for name, part in zip(names, batch, strict=False)]), size
        return send(self.names[0] if self.names else "0", batch), size

    def receive(self, sent: Any) -> Any:
        """Return the batch for the training loop. Device ops are traced here, to be compiled with the step."""
        sent = map_leaves(sent, lambda leaf: leaf.tensor() if isinstance(leaf, runtime.Unsigned) else leaf)
        if self.ours is None:
            return sent
        columns = self.ours.run_device_ops(sent, ARRAYS)
        if columns is not sent and self.shardings is not None:
            spec = self.shardings.fit(IMAGE, columns[IMAGE])
            if spec is not None:
                spec.apply(columns[IMAGE])
        return self.ours.form.package(columns)


def _checked(batches: Iterator[Any], expected: int | None) -> Iterator[Any]:
    """Yield the batches of a user's loader. Raises LoaderError for None, and if their number is not as expected."""
    count = 0
    for batch in batches:
        if count == expected:
            raise LoaderError(f"the loader gives more batches than its length, {expected}")
        if batch is None:
            raise LoaderError(f"batch {count} of the loader is None; does its collate_fn return a batch?")
        yield batch
        count += 1
    if expected is not None and count < expected:
        raise LoaderError(
            f"the loader ended after {count} batches, but its length is {expected}: the other ranks would wait forever "
            "for the rest"
        )


def _length(batches: Iterator[Any], source: Iterable[Any]) -> int | None:
    """Return the number of batches to come. None if it is not known."""
    for sized in (batches, source):
        try:
            return len(sized)  # type: ignore[arg-type]  # may have none
        except (TypeError, NotImplementedError):  # as torch's samplers without a length raise
            continue
    return None
