"""Ranks of torch.distributed tell one another what they are about to iterate."""

import time
from collections.abc import Callable
from typing import Any

from tpufeed.errors import LoaderError, MissingExtraError
from tpufeed.loaders.rank_check import EpochSpec

try:
    from torch import distributed
    from torch.distributed import distributed_c10d
except ImportError as error:
    raise MissingExtraError("torch", "torch") from error

_LONGEST_PAUSE_SECONDS = 0.1


def find_exchange() -> Callable[[EpochSpec], list[EpochSpec]] | None:
    """Return what ranks exchange specs by; None where there is one rank, or torch.distributed is not initialised."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    return _exchange


def _exchange(spec: EpochSpec) -> list[EpochSpec]:
    """The specs of all ranks, in their order.

    Through the store at which the ranks met, not by a collective: that could cross the training loop's own, wants a
    device under NCCL, and waits without a word for a rank that never comes.
    """
    rank, size = distributed.get_rank(), distributed.get_world_size()
    store: Any = distributed_c10d._get_default_store()
    number = store.add(f"tpufeed/exchanges/{rank}", 1)
    meeting = f"tpufeed/exchange/{number}"
    if number > 2:  # whoever began the last one was through with the one before it, and all have begun the last
        store.delete_key(f"tpufeed/exchange/{number - 2}/{rank}")
    keys = [f"{meeting}/{other}" for other in range(size)]
    store.set(keys[rank], spec.packed())
    store.add(meeting, 1)
    _wait(store, meeting, keys)
    values = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    return [EpochSpec.unpacked(value) for value in values]


def _wait(store: Any, meeting: str, keys: list[str]) -> None:
    """Until all ranks have come. Looks again and again: the store's own waiting cannot be interrupted."""
    seconds = store.timeout.total_seconds()
    deadline, pause = time.monotonic() + seconds, 0.001
    while store.add(meeting, 0) < len(keys):
        if time.monotonic() > deadline:
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            raise LoaderError(
                f"rank {', '.join(missing)} of {len(keys)} has begun no epoch within {seconds:.0f} s of this rank. All "
                "ranks iterate a loader; one that a single rank is to iterate alone wants world=(0, 1)"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
