"""Processes of JAX tell one another what they are about to iterate."""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from tpufeed.errors import LoaderError, MissingExtraError
from tpufeed.loaders.rank_check import EpochSpec

try:
    import jax
except ImportError as error:
    raise MissingExtraError("JAX", "jax") from error

_LOGGER = logging.getLogger(__name__)

_SLICE_SECONDS = 1.0  # the client's own waiting cannot be interrupted
_LATE = "DEADLINE_EXCEEDED"


def find_exchange(processes: Sequence[int], patience_seconds: float) -> Callable[[EpochSpec], list[EpochSpec]] | None:
    """Return what these processes exchange specs by; None for one alone, or where jax.distributed is not there."""
    if len(processes) == 1:
        return None
    from jax._src import distributed  # there is no public way; Orbax takes it from here as well

    client = distributed.global_state.client
    if client is None:
        _LOGGER.warning("jax.distributed is not initialised: that all processes take the same steps is not proved")
        return None
    return _Exchange(client, processes, patience_seconds)


class _Exchange:
    """Through the store at which the processes met, not by a collective.

    That would take devices, cross the training loop's own where the order differs, and wait without a word for a
    process that never comes.
    """

    def __init__(self, client: Any, processes: Sequence[int], patience_seconds: float) -> None:
        self._client = client
        self._processes = processes
        self._patience_seconds = patience_seconds
        group = hashlib.blake2b(str(list(processes)).encode(), digest_size=8).hexdigest()
        self._folder = f"tpufeed/{group}"

    def __call__(self, spec: EpochSpec) -> list[EpochSpec]:
        """The specs of all processes, in their order; each has to call this, and as often as the others."""
        me, client = jax.process_index(), self._client
        count = f"{self._folder}/count/{me}"
        number = 1 + sum(int(value) for _, value in client.key_value_dir_get(f"{count}/"))
        client.key_value_set(f"{count}/number", str(number), allow_overwrite=True)
        if number > 2:  # whoever began the last one was through with the one before it, and all have begun the last
            client.key_value_delete(self._key(number - 2, me))
        client.key_value_set(self._key(number, me), spec.packed().decode())
        deadline = time.monotonic() + self._patience_seconds
        return [EpochSpec.unpacked(self._get(number, process, deadline)) for process in self._processes]

    def _key(self, number: int, process: int) -> str:
        return f"{self._folder}/{number}/{process}"

    def _get(self, number: int, process: int, deadline: float) -> str:
        """What a process says, waited for in slices."""
        while True:
            left = max(0.01, min(_SLICE_SECONDS, deadline - time.monotonic()))
            try:
                return str(self._client.blocking_key_value_get(self._key(number, process), int(left * 1000)))
            except RuntimeError as error:  # whose class is another in every version of JAX
                if _LATE not in str(error):
                    raise LoaderError(f"the processes cannot meet to begin an epoch: {error}") from error
            if time.monotonic() > deadline:
                raise LoaderError(
                    f"process {process} of {list(self._processes)} has begun no epoch within "
                    f"{self._patience_seconds:g} s of this process, {jax.process_index()}. All processes of a mesh "
                    "iterate a loader; one for a single process wants a mesh of its own devices"
                )
