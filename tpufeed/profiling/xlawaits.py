"""Tells waiting for a batch from torch_xla's tracing and syncing, which its loaders do inside `next()` as well."""

import sys
from collections.abc import Callable
from typing import Any, Protocol


class Splitter(Protocol):
    """Knows what a loader's consumer waited for a batch, and leaves out what `next()` does besides."""

    def wait_of(self, elapsed: float) -> float:
        """Of the `elapsed` seconds since the step before ended, in which the next batch came; called once for each."""

    def close(self) -> None:
        """The iteration is over."""


def split_waits(loader: Any, iterator: Any, opening: float, now: Callable[[], float]) -> Splitter | None:
    """For an iteration over a loader of torch_xla's; None for all others, and where torch_xla is not loaded.

    Before it looks into its queue, `PerDeviceLoader.next` calls `torch_xla.sync()`, which traces and compiles the step
    before. To sync first and to time that apart would make the loader's own sync a second one, which costs 0.18 ms
    where 600 tensors are alive (a training ResNet-50 has as many), and would have to know `batches_per_execution` and
    `StepTrace`. So the look into the queue is timed, inside.

    Args:
        loader: that the loop was given.
        iterator: of it.
        opening: seconds that `iter(loader)` took; a part of the wait for the first batch.
        now: the clock.
    """
    module: Any = sys.modules.get("torch_xla.distributed.parallel_loader")
    if module is None:
        return None
    if isinstance(iterator, module.PerDeviceLoader):
        return _QueueSplitter(iterator._loader, opening, now)  # torch_xla ends with 2.9, so this name will not change
    crossing = getattr(loader, "crossing", None)
    if isinstance(loader, module.MpDeviceLoader) and hasattr(crossing, "wait_seconds"):
        return _CountSplitter(crossing)
    return None


class _QueueSplitter:
    """Times `next_item` of a ParallelLoader."""

    def __init__(self, parallel_loader: Any, opening: float, now: Callable[[], float]) -> None:
        self._wait = opening
        self._parallel_loader = parallel_loader
        look = parallel_loader.next_item

        def next_item(device: Any) -> Any:
            begin = now()
            item = look(device)
            self._wait += now() - begin
            return item

        parallel_loader.next_item = next_item

    def wait_of(self, elapsed: float) -> float:
        wait, self._wait = self._wait, 0.0
        return min(wait, elapsed)

    def close(self) -> None:
        self._parallel_loader.__dict__.pop("next_item", None)


class _CountSplitter:
    """Takes what an `XlaLoader` counts. Its first `next()` also opens the source: all of it is wait."""

    def __init__(self, crossing: Any) -> None:
        self._crossing = crossing
        self._first = True
        self._before = 0.0

    def wait_of(self, elapsed: float) -> float:
        before, self._before = self._before, self._crossing.wait_seconds
        if self._first:
            self._first = False
            return elapsed
        return min(self._before - before, elapsed)

    def close(self) -> None:
        pass
