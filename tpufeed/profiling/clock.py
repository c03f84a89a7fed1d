"""How long a training loop waits for its input, step by step."""

import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from tpufeed.profiling.batches import Epochs, Loads, first_shape
from tpufeed.profiling.compiling import CompileWatch, Splitter, Steady, split_waits
from tpufeed.profiling.steps import StepReport, StepTimes, save_steps

Batch = TypeVar("Batch")


class StepClock:
    """Times each step of `for batch in clock(loader): ...`: the wait inside `next()`, and the compute until the next.

    The steps of all epochs add up, whether the clock is called for each or what it gives is iterated again. The wait
    for an epoch's first batch includes `iter(loader)`.
    Costs less than 2 us and 24 bytes a step. For one thread.

    With loaders of torch_xla's, `next()` also traces, compiles and launches the step before; that is `sync`, not wait.

    Where computing is asynchronous (torch_xla, JAX) the step has to end with something that waits for the device, or
    the device's time shows up as a wait of a later step.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._waits, self._syncs, self._computes = array("d"), array("d"), array("d")
        self._end_wait = self._end_sync = 0.0  # to learn that an epoch is over is a wait too, of no step
        self._first_sync: float | None = None
        self._first_sync_is_a_steps = False
        self._splits = False
        self._compiling = CompileWatch()
        self._loads = Loads()
        self._epochs = Epochs()

    def __call__(self, loader: Iterable[Batch]) -> "TimedLoader[Batch]":
        """The loader with its steps timed; to be iterated as often as the loader itself, as Lightning's `fit` does.

        Leaving a loop early ends the last step there and closes the loader's iterator. An exception in the loop or in
        the loader passes through. `len`, states and all else that the loader has is there as well.
        """
        kind = StatefulTimedLoader if hasattr(loader, "state_dict") else TimedLoader
        return kind(loader, self._time)

    def _time(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of one epoch."""
        now, waits, syncs, computes, loads = self._now, self._waits, self._syncs, self._computes, self._loads
        epoch = self._epochs.begin(loader)
        self._compiling.begin()
        asked = now()
        iterator = self._open(loader)
        splitter = split_waits(loader, iterator, now() - asked, now)
        self._splits |= splitter is not None
        epoch.opened(iterator)
        try:
            for batch in iterator:
                got = now()
                elapsed = got - asked
                wait = elapsed if splitter is None else splitter.wait_of(elapsed)
                if first_shape(batch) != loads.shape:
                    loads.note(batch, len(waits))
                if self._first_sync is None and waits:
                    self._settle(elapsed - wait, a_steps=True)
                epoch.batches += 1
                try:
                    yield batch
                finally:
                    del batch  # a loader that reuses a batch's memory waits for the last reference
                    free = now()
                    waits.append(wait)
                    syncs.append(elapsed - wait)
                    computes.append(free - got)
                    asked = free
            elapsed = now() - asked
            self._end(elapsed, elapsed if splitter is None else splitter.wait_of(elapsed))
            epoch.ended()
        finally:
            self._leave(splitter, iterator)

    def report(self, batch_size: int | None = None) -> StepReport:
        """The steps that have ended so far.

        Args:
            batch_size: images of each step; by default they are counted, as the first axis of a batch's first array.
        """
        steps, (first, later) = len(self._waits), self._compiling.told()
        steady = self._steady()
        load = self._loads.total(0, steps)
        images = load.images if batch_size is None else steps * batch_size
        report = StepReport(
            steps=steps,
            images=images,
            first_wait_seconds=self._waits[0] if steps else None,
            first_compute_seconds=self._computes[0] + (self._first_sync or 0.0) if steps else None,
            compile_seconds=None if first is None else first.compile_seconds,
            short_epochs=tuple(self._epochs.short),
            notes=(*_notes(steps, images), *self._epochs.notes()),
        )
        if steps < 2 or steady.wall <= 0:
            return report
        in_steady = self._loads.total(1, steps).images if batch_size is None else (steps - 1) * batch_size
        sent = self._sent(steps)
        return replace(
            report,
            images_per_second=None if in_steady is None else in_steady / steady.wall,
            bytes_per_second=None if sent is None else sent / steady.wall,
            recompilations=None if later is None else later.compilations,
            recompile_seconds=None if later is None else later.compile_seconds,
            host_syncs=None if later is None or later.xla is None else later.xla.host_syncs,
            notes=(*report.notes, *(() if later is None else later.advice(steps - 1))),
            **steady.figures(later, self._splits),
        )

    def timeline(self) -> StepTimes:
        """Of each step so far, from the first."""
        syncs = tuple(self._syncs) if self._splits else ()
        return StepTimes(wait_seconds=tuple(self._waits), sync_seconds=syncs, compute_seconds=tuple(self._computes))

    def save(self, path: str | Path, batch_size: int | None = None) -> StepReport:
        """Write report and timeline to a JSON file, for `load_steps` and `tpufeed doctor --clock`; the report."""
        report = self.report(batch_size)
        save_steps(path, report, self.timeline())
        return report

    def _open(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        try:
            return iter(loader)
        except BaseException:
            self._compiling.end()
            raise

    def _settle(self, sync: float, a_steps: bool) -> None:
        """The first step is over, and what came of it in the sync after it too."""
        self._first_sync = sync
        self._first_sync_is_a_steps = a_steps
        self._compiling.settle()

    def _end(self, elapsed: float, wait: float) -> None:
        """The loader has said that there is no more, after `elapsed` seconds, `wait` of which were no sync."""
        self._end_wait += wait
        if self._first_sync is None and self._waits:
            self._settle(elapsed - wait, a_steps=False)
        else:
            self._end_sync += elapsed - wait

    def _leave(self, splitter: Splitter | None, iterator: Any) -> None:
        if self._first_sync is None and self._waits:
            self._settle(0.0, a_steps=False)
        self._compiling.end()
        if splitter is not None:
            splitter.close()
        close = getattr(iterator, "close", None)
        if close is not None:
            close()

    def _sent(self, steps: int) -> float | None:
        """Bytes that crossed for all steps but the first: what the loader counts, or else what batches are."""
        a_step = self._epochs.bytes_a_step
        return self._loads.total(1, steps).nbytes if a_step is None else a_step * (steps - 1)

    def _steady(self) -> Steady:
        syncs = np.array(self._syncs[1:])
        if self._first_sync_is_a_steps and len(syncs):
            syncs[0] = 0.0  # the second step begins with the sync of the first
        return Steady(np.array(self._waits[1:]), syncs, np.array(self._computes[1:]), self._end_wait, self._end_sync)


class TimedLoader(Generic[Batch]):
    """A loader each of whose iterations a `StepClock` times; see `StepClock.__call__`."""

    def __init__(self, loader: Iterable[Batch], time_epoch: Callable[[Iterable[Batch]], Iterator[Batch]]) -> None:
        self._loader: Any = loader
        self._time_epoch = time_epoch

    def __bool__(self) -> bool:
        return True  # also where the loader has no length

    def __len__(self) -> int:
        """Batches of an epoch. Raises TypeError where the loader has no length."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, timed."""
        return self._time_epoch(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the loader has."""
        if name == "_loader":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)


class StatefulTimedLoader(TimedLoader[Batch]):
    """A `TimedLoader` of a loader that has a state: frameworks look for the methods in the class."""

    def state_dict(self) -> Any:
        """The loader's."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on where `state` says; raises what the loader raises."""
        self._loader.load_state_dict(state)


def _notes(steps: int, images: int | None) -> tuple[str, ...]:
    if steps < 2:
        seen = "no step" if steps == 0 else "one step"
        return (f"{seen} was measured, and the first is left out: let the loop take at least 2, better 100",)
    if images is None:
        return ("the batches are no arrays, so that images were not counted: give report(batch_size=...)",)
    return ()
