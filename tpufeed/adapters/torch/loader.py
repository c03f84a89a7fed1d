"""torch: batches on the host, with DataLoader's conventions. Tensors share memory with the batch buffers."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any, Self

import numpy as np
import torch
from torch import distributed
from torch.distributed import distributed_c10d
from torch.utils.data import SequentialSampler

from tpufeed.adapters.device import Exchange
from tpufeed.adapters.feed import Feed, stream_of
from tpufeed.adapters.torch.host import TFRecordImages
from tpufeed.errors import LoaderError, OptionError, UsageError
from tpufeed.stream.columns import Batch
from tpufeed.stream.host import EpochIterator, HostStream
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.rank_check import EpochSpec, begin_together

_FRAMES_TO_LIGHTNING = 3  # the property that asks, a generator, and the function
_LONGEST_PAUSE_SECONDS = 0.1  # between two checks for the other ranks


class Undivided:
    """A loader with the attributes that frameworks look for on a DataLoader, but which cannot be taken apart.

    Accelerate takes loaders apart in `skip_first_batches`, which the Hugging Face Trainer calls when it resumes.
    """

    @property
    def prefetch_factor(self) -> Any:
        """Raise OptionError: Accelerate asks for this when it takes a loader apart."""
        raise _undivided()

    dataloader = prefetch_factor  # Accelerate asks torch_xla's loaders for this one

    @property
    def sampler(self) -> "EpochSampler":
        """Takes `set_epoch`, as a DistributedSampler does. So does `batch_sampler.sampler`."""
        host = stream_of(self)
        if host is None or host.options.shuffle:
            if _overfits():
                raise UsageError(
                    "overfit_batches trains on the same batches in each epoch, and this loader shuffles: give "
                    "tpufeed.Loader shuffle=False for it"
                )
            return EpochSampler(self)
        return SequentialEpochSampler(self)

    batch_sampler = sampler


def _undivided() -> OptionError:
    return OptionError(
        "this loader cannot be taken apart into a dataset and a sampler for another DataLoader, as skip_first_batches "
        "of Accelerate and the Hugging Face Trainer's resume try: to resume in the middle of an epoch, call its "
        "load_state_dict with a state of its state_dict(), then iterate the loader itself; give the Trainer "
        "ignore_data_skip=True"
    )


@dataclass(frozen=True, slots=True)
class EpochSampler:
    """Object in which frameworks look for `set_epoch`: `loader.sampler` and `loader.batch_sampler.sampler`."""

    loader: Any

    def __iter__(self) -> Iterator[Any]:
        """Raise OptionError: the loader does not give the ids of batches."""
        raise _undivided()

    @property
    def sampler(self) -> Self:
        """The object itself."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader."""
        self.loader.set_epoch(epoch)


class SequentialEpochSampler(EpochSampler, SequentialSampler):
    """An `EpochSampler` by which Lightning sees that a loader does not shuffle."""


def _overfits() -> bool:
    """Return True if Lightning asks for the sampler because of its overfit_batches, to replace one that shuffles.

    It would then fail, as a feed is no DataLoader, with an error that says nothing of overfit_batches.
    """
    frame = sys._getframe()
    for _ in range(_FRAMES_TO_LIGHTNING):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return frame.f_code.co_name == "_resolve_overfit_batches"


class TorchFeed(Undivided, Feed):
    """Feed of torch tensors on the host, see `Loader.to_torch`."""

    stream: HostStream
    _is_accelerate_prepared = True  # else Accelerate would deal each rank's batches to all ranks once more

    @cached_property
    def dataset(self) -> TFRecordImages | None:
        """The samples of the split as a map-style dataset. None for a mixture, whose samples have no numbers."""
        stream = self.stream
        if len(stream.sources) > 1:  # trainers ask every loader for it
            return None
        names = signature(TFRecordImages).parameters.keys() & set(LoaderOptions.__slots__)
        options = {name: getattr(stream.options, name) for name in names}
        if stream.options.device_ops:  # a dataset's samples are on the host
            options["ops"] = stream.pipeline.ops
        return TFRecordImages(stream.dataset, stream.split, **options)

    def __iter__(self) -> Iterator[Any]:
        """Return the next epoch, which begins with its first batch: frameworks call `iter` to see whether they can."""
        return TorchIterator(self)

    def find_exchange(self) -> tuple[Exchange, int] | None:
        """Return how ranks exchange specs, and this rank's number. None if only one rank is known.

        Ranks do not compare if their world was given by hand.
        """
        if self.stream.options.world is not None or not (distributed.is_available() and distributed.is_initialized()):
            return None
        return None if distributed.get_world_size() == 1 else (_exchange, self.stream.world.rank)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("dataset", None)
        return state


class TorchIterator(Iterator[Any]):
    """An epoch of a `TorchFeed` on the host, and with `repeat` all later ones."""

    def __init__(self, feed: TorchFeed) -> None:
        self._feed = feed
        self._batches: EpochIterator | None = None

    def __next__(self) -> Any:
        return to_torch(self._begin() if self._batches is None else next(self._batches))

    def _begin(self) -> Batch:
        """Return the first batch, once all ranks have theirs.

        Ranks meet only here, in the thread of the training loop. Later epochs of `repeat` may begin in a thread that
        prefetches, in any order among the epochs of several loaders. They are equally long on every rank.
        """
        stream, found = self._feed.stream, self._feed.find_exchange()

        def begin() -> tuple[EpochSpec, Batch]:
            self._batches = stream.iterate()
            # With the first batch: if a rank fails to decode it, all ranks learn of that before their first step.
            first = next(self._batches)
            return stream.epoch_spec(), first

        try:
            return begin()[1] if found is None else begin_together(*found, begin)
        except BaseException:
            self._batches = None  # the next call begins again
            raise


def _exchange(spec: EpochSpec) -> list[EpochSpec]:
    """Return the specs of all ranks, in their order.

    Specs go through the store at which the ranks met, not through a collective: a collective could mix with those of
    the training loop, needs a device under NCCL, and waits in silence for a rank that never comes.
    """
    rank, size = distributed.get_rank(), distributed.get_world_size()
    store: Any = distributed_c10d._get_default_store()
    number = store.add(f"tpufeed/exchanges/{rank}", 1)
    meeting = f"tpufeed/exchange/{number}"
    if number > 2:  # all ranks have begun the last exchange, so they are done with the one before it
        store.delete_key(f"tpufeed/exchange/{number - 2}/{rank}")
    keys = [f"{meeting}/{other}" for other in range(size)]
    store.set(keys[rank], spec.packed())
    # After the key is set: when all ranks are counted, all keys are there.
    store.add(meeting, 1)
    # Until all have come. Ctrl-C cannot interrupt the store's own waiting.
    seconds = store.timeout.total_seconds()
    deadline, pause = time.monotonic() + seconds, 0.001
    # Adding 0 reads the count without waiting for it, as `get` would.
    while store.add(meeting, 0) < size:
        if time.monotonic() > deadline:
            missing = [str(other) for other, key in enumerate(keys) if not store.check([key])]
            raise LoaderError(
                f"rank {', '.join(missing)} of {size} has begun no epoch within {seconds:.0f} s of this rank. Iterate "
                "the loader on all ranks, or give world=(0, 1) if a single rank is to iterate it alone"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    values = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    return [EpochSpec.unpacked(value) for value in values]


# Tensors in batches of any form


def to_torch(batch: Any) -> Any:
    """Return the batch with tensors that share the memory of its arrays. Strings stay numpy arrays.

    A tensor of a subclass becomes a plain tensor, as torch_xla moves no others.
    """

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return leaf if leaf.dtype.kind in "OUS" else torch.from_numpy(leaf)
        if isinstance(leaf, torch.Tensor) and type(leaf) is not torch.Tensor:
            return leaf.detach().as_subclass(torch.Tensor)
        return leaf

    return map_leaves(batch, convert)


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return the batch with its tensors changed, at any depth."""
    return map_leaves(batch, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` with every leaf changed. Any mapping becomes a dict."""
    if isinstance(value, Mapping):
        return {key: map_leaves(part, change) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return like(value, [map_leaves(part, change) for part in value])
    return change(value)


def like(value: Any, parts: list[Any]) -> Any:
    """Return parts as a list, tuple or namedtuple, like `value`."""
    if hasattr(value, "_fields"):
        return type(value)(*parts)
    return parts if isinstance(value, list) else tuple(parts)
