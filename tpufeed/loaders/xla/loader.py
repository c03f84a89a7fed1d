"""torch_xla: batches on XLA devices, sent ahead of need, with the ranks compared before each epoch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpufeed.dataset.partition import Remainder
from tpufeed.errors import LoaderError, OptionError
from tpufeed.images.protocols import Op
from tpufeed.loaders.options import LabelFormat, LoaderOptions, Numa, take_options
from tpufeed.loaders.world import WorldLike
from tpufeed.loaders.xla import runtime
from tpufeed.loaders.xla.runtime import Shardings
from tpufeed.options import checked

# Not before: without torch it is the extra "xla" that is missing.
# isort: split
from tpufeed.loaders.device import Exchange, StatefulDeviceLoader, Transfer
from tpufeed.loaders.loader import DatasetLike, NumpyLoader, open_feed
from tpufeed.loaders.rank_check import EpochSpec
from tpufeed.loaders.torch.loader import EpochSampler, TorchLoader, Undivided, like, map_leaves, plain_tensor


@checked()
def xla_loader(  # noqa: PLR0913  # each option is a parameter that editors show
    source: Any,
    split: str = "train",
    *,
    device: Any = None,
    sharding: Any = None,
    device_prefetch: int = 2,
    check_ranks: bool = True,
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
) -> "XlaLoader":
    """Batches on an XLA device, the next few already there while a step runs.

    `for image, label in loader` is one epoch: image uint8 (batch, height, width, 3), label int64 (batch,), on the
    device; see `to_device_float` for what a model needs. Tensors and arrays of numbers are sent, also within tuples,
    lists and dicts; strings and all else stay as they are, on the host. What fails in the source or on the way is
    raised in the loop, after the batches before it.

    Inside `torch_xla.launch` each rank reads its own samples. Before the first batch of an epoch all ranks compare what
    they are about to iterate: where they differ, or one cannot begin, all raise the same LoaderError. A `world` given
    by hand is not compared.

    Args:
        source: a dataset, at a path or a URL; or a host loader to be wrapped, as a torch DataLoader, which then deals
            samples to ranks itself and takes none of the options of reading.
        split: which part of a dataset.
        device: device of the batches; by default `torch_xla.device()` of the thread that iterates.
        sharding: under SPMD, a `ShardingSpec` for each column by name, None for one that every device holds whole; or
            one spec for all, fitted to the rank of each tensor. Columns of a loader whose batches are tuples and that
            is not tpufeed's own take the names in their order.
        device_prefetch: batches on the device ahead of the one in use; each takes device memory.
        check_ranks: False for a loader that only some of the ranks iterate. `numpy_loader` explains all other options;
            the world is torch_xla's by default.

    Raises:
        MissingExtraError: torch_xla is not installed.
        UsageError: tensorflow was imported before torch_xla.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read. Where there are several ranks, this
            and any other failure to open it is raised by all when they iterate.
        OptionError: options that do not fit it.
    """
    given = locals()
    try:
        options = take_options(given)
        if isinstance(source, DatasetLike):
            source = NumpyLoader(open_feed(source), split, options, runtime.xla_world)
        elif options != LoaderOptions() or split != "train":
            named = ", ".join(name for name in LoaderOptions.__slots__ if given[name] != getattr(LoaderOptions(), name))
            raise OptionError(f"{named or 'split'}: options of reading a dataset; the loader given has its own")
    except Exception as error:
        if not isinstance(source, DatasetLike) or runtime.xla_world().size == 1:
            raise
        source = _Unopened(error)  # the other ranks would wait for this one
    return XlaLoader(source, device, sharding, device_prefetch, check_ranks)


class XlaLoader(Undivided, StatefulDeviceLoader, runtime.MpDeviceLoader):
    """Loader of batches on an XLA device, see `xla_loader`: an `MpDeviceLoader`, so that Lightning leaves it as it is.

    Pickles and copies are loaders at the same place, without what is prefetched.
    """

    _is_accelerate_prepared = True  # or Accelerate would take it apart
    thread_name = "tpufeed-xla"

    def __init__(self, source: Any, device: Any, sharding: Any, device_prefetch: int, check_ranks: bool) -> None:
        source = source.source if isinstance(source, TorchLoader) else source
        if isinstance(source, Iterator | runtime.MpDeviceLoader) or not isinstance(source, Iterable):
            raise OptionError(
                f"source is the URL of a dataset, or a loader on the host that can be iterated again and again, as a "
                f"torch DataLoader, not {type(source).__name__}"
            )
        StatefulDeviceLoader.__init__(self, source, device_prefetch)
        runtime.MpDeviceLoader.__init__(self, source, device)
        self.shardings = None if sharding is None else Shardings(sharding)
        self._checks = check_ranks

    @property
    def device(self) -> Any:
        """Device that batches go to."""
        return runtime.default_device() if self._device is None else self._device

    @property
    def dataset(self) -> Any:
        """The source's; None if it has none, as a mixture has not: trainers ask every loader for it."""
        return None if self.host is not None and len(self.host.sources) > 1 else getattr(self.source, "dataset", None)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None if the source has no such number."""
        size = getattr(self.source, "batch_size", None)
        return size if isinstance(size, int) else None

    @property
    def sampler(self) -> EpochSampler:
        """Takes `set_epoch`, as a DistributedSampler does; so does `batch_sampler.sampler`."""
        return EpochSampler(self)

    batch_sampler = sampler

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {**state, "_loader": state["source"]}  # as torch_xla calls it

    def find_exchange(self) -> tuple[Exchange, int] | None:
        """Return how ranks compare their epochs; None for a single rank, and where they are not to."""
        world, host = runtime.xla_world(), self.host
        if world.size == 1 or not self._checks or (host is not None and host.options.world is not None):
            return None
        return lambda spec: runtime.exchange(spec, world), world.rank

    def open_transfer(self) -> Transfer:
        """Open the source's next epoch. Raises OptionError where its world or sharding does not fit torch_xla's."""
        source, host, world, devices = self.source, self.host, runtime.xla_world(), runtime.spmd_devices()
        if host is not None and host.options.world is None and host.world != world:
            raise OptionError(
                f"the loader given is rank {host.world.rank} of {host.world.size}, torch_xla's is {world.rank} of "
                f"{world.size}; give xla_loader the URL, or the loader world=({world.rank}, {world.size})"
            )
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
        together, device = self.find_exchange() is not None, self.device
        batches: Any = iter(source)
        if host is not None:
            return _XlaTransfer(batches, device, self.shardings, host.form.names, batches.close, host.epoch_spec())
        count = _length(batches, source)
        if together and count is None:
            raise OptionError(
                f"the ranks cannot know whether they take the same steps: a {type(source).__name__} has no length; "
                "give it a __len__, or check_ranks=False"
            )
        # A source with states may go on in mid-epoch, and has fewer batches then.
        expected = count if together and not hasattr(source, "load_state_dict") else None
        named = () if self.shardings is None else self.shardings.names
        spec = EpochSpec(world.rank, count or 0, self.batch_size)
        return _XlaTransfer(_checked(batches, expected), device, self.shardings, named, None, spec)


class _Unopened:
    """Placeholder of a source that could not be made, until the ranks meet."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __iter__(self) -> Iterator[Any]:
        raise self._error

    def __len__(self) -> int:
        raise self._error

    @property
    def class_names(self) -> tuple[str, ...]:
        raise self._error


class _XlaTransfer(Transfer):
    """Sends each tensor of a batch, and has torch_xla run the step before when the next batch is asked for."""

    def __init__(
        self,
        batches: Iterator[Any],
        device: Any,
        shardings: Shardings | None,
        names: Sequence[str],
        close: Callable[[], None] | None,
        spec: EpochSpec,
    ) -> None:
        self.batches, self.close, self.spec = batches, close, spec
        self._device, self._shardings, self._names = device, shardings, names

    def before_step(self) -> None:
        runtime.end_step()

    def send(self, batch: Any) -> tuple[Any, int]:
        size = 0

        def send(name: str, part: Any) -> Any:
            def send_leaf(leaf: Any) -> Any:
                nonlocal size
                tensor = plain_tensor(leaf)
                if tensor is None:
                    return leaf
                size += tensor.nbytes
                return runtime.send(tensor, self._device, self._shardings and self._shardings.fit(name, tensor))

            return map_leaves(part, send_leaf)

        if isinstance(batch, Mapping):
            return {key: send(str(key), part) for key, part in batch.items()}, size
        if isinstance(batch, tuple | list):
            names = (*self._names, *map(str, range(len(self._names), len(batch))))
            return like(batch, [send(name, part) for name, part in zip(names, batch, strict=False)]), size
        return send(self._names[0] if self._names else "0", batch), size


def _checked(batches: Iterator[Any], expected: int | None) -> Iterator[Any]:
    """Give batches of a user's loader. Raises LoaderError for None, and where they are not as many as expected."""
    count = 0
    for batch in batches:
        if count == expected:
            raise LoaderError(f"the source has more batches than the {expected} that are its length")
        if batch is None:
            raise LoaderError(f"batch {count} of the source is None; does its collate_fn return one?")
        yield batch
        count += 1
    if expected is not None and count < expected:
        raise LoaderError(
            f"the source ended after {count} batches, but its length is {expected}: the other ranks would wait for the "
            "rest for ever"
        )


def _length(batches: Iterator[Any], source: Iterable[Any]) -> int | None:
    """Return how many batches are to come; None where that is not known."""
    for sized in (batches, source):
        try:
            return len(sized)  # type: ignore[arg-type]  # may have none
        except (TypeError, NotImplementedError):  # as torch's samplers without a length raise
            continue
    return None
