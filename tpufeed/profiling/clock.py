"""How long a training loop waits for its input, step by step."""

import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from tpufeed.profiling.batches import Epoch, Epochs, Loads, first_shape
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
        self._iterations = 0
        self._running: list[_Step] = []  # in the order in which they got their batches
        self._since = 0.0
        self._asking = False  # inside `next()` or `iter()` of a loader
        self._dropped = 0

    def __call__(self, loader: Iterable[Batch]) -> "TimedLoader[Batch]":
        """The loader with its steps timed; to be iterated as often as the loader itself, as Lightning's `fit` does.

        Leaving a loop early ends the last step there and closes the loader's iterator. Where the iterator was kept
        (`batches = iter(clock(loader))`) nothing tells when its loop was left: then the last step is left out, unless
        `batches.close()` ends it. An exception in the loop or in the loader passes through. `len`, states and all
        else that the loader has is there as well.

        Loops of one clock can be within one another: the time is of the innermost step, and counts once. A loader that
        takes its batches from a loader that is timed by the same clock counts alone.
        """
        kind = StatefulTimedLoader if hasattr(loader, "state_dict") else TimedLoader
        return kind(loader, self)

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
            notes=(*_notes(steps, images, self._dropped), *self._epochs.notes()),
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

    def _begin(self) -> None:
        """One more iteration is under way: another one may be, around it or beside it."""
        if self._iterations == 0:
            self._compiling.begin()
        self._iterations += 1

    def _stamp(self) -> float:
        """The time. What went by since the last stamp was of the step that runs, the one that began last."""
        now = self._now()
        if self._running:
            self._running[-1].compute += now - self._since
        self._since = now
        return now

    def _finish(self, step: "_Step") -> None:
        if step.shape is not self._loads.shape:  # other loops had batches meanwhile, of another shape
            self._loads.note(step, len(self._waits))
        self._running.remove(step)
        self._waits.append(step.wait)
        self._syncs.append(step.sync)
        self._computes.append(step.compute)

    def _drop(self, step: "_Step") -> None:
        self._running.remove(step)
        self._dropped += 1

    def _settle(self, sync: float, a_steps: bool) -> None:
        """The first step is over, and what came of it in the sync after it too."""
        self._first_sync = sync
        self._first_sync_is_a_steps = a_steps
        self._compiling.settle()

    def _end(self, wait: float, sync: float) -> None:
        """A loader has said that there is no more."""
        self._end_wait += wait
        if self._first_sync is None and self._waits:
            self._settle(sync, a_steps=False)
        else:
            self._end_sync += sync

    def _leave(self) -> None:
        if self._first_sync is None and self._waits:
            self._settle(0.0, a_steps=False)
        self._iterations -= 1
        if self._iterations == 0:
            self._compiling.end()

    def _sent(self, steps: int) -> float | None:
        """Bytes that crossed for all steps but the first: what the loader counts, or else what batches are."""
        a_step = self._epochs.bytes_a_step
        return self._loads.total(1, steps).nbytes if a_step is None else a_step * (steps - 1)

    def _steady(self) -> Steady:
        syncs = np.array(self._syncs[1:])
        if self._first_sync_is_a_steps and len(syncs):
            syncs[0] = 0.0  # the second step begins with the sync of the first
        return Steady(np.array(self._waits[1:]), syncs, np.array(self._computes[1:]), self._end_wait, self._end_sync)


@dataclass(slots=True, eq=False)
class _Step:
    """The step of an iteration that has its batch and has not ended."""

    wait: float = 0.0
    sync: float = 0.0
    compute: float = 0.0
    shape: Any = None


class _TimedEpoch(Iterator[Batch]):
    """The batches of one epoch. The clock holds the step, not this, so that leaving a loop closes it."""

    def __init__(self, loader: Iterable[Batch], clock: StepClock) -> None:
        self._loader, self._clock = loader, clock
        self._iterator: Iterator[Batch] | None = None
        self._epoch: Epoch | None = None
        self._splitter: Splitter | None = None
        self._step = _Step()
        self._under_way = self._is_kept = self._is_closed = False

    def __iter__(self) -> "_TimedEpoch[Batch]":
        """Itself: a loop begins over an iterator that its caller keeps.

        A loop before it was left at a time that nothing told, so that its last step is left out.
        """
        self._is_kept = True
        if self._under_way:
            self._clock._drop(self._step)
            self._under_way = False
        return self

    def __next__(self) -> Batch:
        """The next batch, which ends the step before."""
        clock, step = self._clock, self._step
        if clock._asking:  # a loader that is timed takes its batches from here: they are waited for there
            return self._next_untimed()
        asked = clock._stamp()
        if self._under_way:
            clock._finish(step)
            self._under_way = False
        if self._is_closed:
            raise StopIteration
        clock._asking = True
        try:
            epoch = self._epoch or self._open(asked)
            batch = next(self._iterator)  # type: ignore[arg-type]  # it is open
        except BaseException as error:
            elapsed = clock._now() - asked
            if isinstance(error, StopIteration) and self._epoch is not None:
                wait = elapsed if self._splitter is None else self._splitter.wait_of(elapsed)
                clock._end(wait, elapsed - wait)
                self._epoch.ended()
            self.close()
            raise
        finally:
            clock._asking = False
            clock._since = clock._now()
        elapsed = clock._since - asked
        step.wait = elapsed if self._splitter is None else self._splitter.wait_of(elapsed)
        step.sync, step.compute = elapsed - step.wait, 0.0
        if first_shape(batch) != clock._loads.shape:
            clock._loads.note(batch, len(clock._waits))
        step.shape = clock._loads.shape
        if clock._first_sync is None and clock._waits:
            clock._settle(step.sync, a_steps=True)
        epoch.batches += 1
        clock._running.append(step)
        self._under_way = True
        return batch

    def close(self) -> None:
        """End the last step here, and close the loader's iterator."""
        if self._under_way:
            self._clock._stamp()
            self._clock._finish(self._step)
            self._under_way = False
        if self._is_closed:
            return
        self._is_closed = True
        if self._epoch is not None:
            self._clock._leave()
        if self._splitter is not None:
            self._splitter.close()
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()

    def __del__(self) -> None:
        if self._under_way and self._is_kept:  # the loop was left some time ago
            self._clock._stamp()
            self._clock._drop(self._step)
            self._under_way = False
        self.close()

    def _open(self, asked: float) -> Epoch:
        clock = self._clock
        self._epoch = epoch = clock._epochs.begin(self._loader)
        clock._begin()
        if self._iterator is None:
            self._iterator = iter(self._loader)
        self._splitter = split_waits(self._loader, self._iterator, clock._now() - asked, clock._now)
        clock._splits |= self._splitter is not None
        epoch.opened(self._iterator)
        return epoch

    def _next_untimed(self) -> Batch:
        if self._iterator is None:
            self._iterator = iter(self._loader)
        return next(self._iterator)


class TimedLoader(Generic[Batch]):
    """A loader each of whose iterations a `StepClock` times; see `StepClock.__call__`."""

    def __init__(self, loader: Iterable[Batch], clock: StepClock) -> None:
        self._loader: Any = loader
        self._clock = clock

    def __bool__(self) -> bool:
        return True  # also where the loader has no length

    def __len__(self) -> int:
        """Batches of an epoch. Raises TypeError where the loader has no length."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, timed."""
        return _TimedEpoch(self._loader, self._clock)

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


def _notes(steps: int, images: int | None, dropped: int) -> tuple[str, ...]:
    notes = []
    if steps < 2:
        seen = "no step" if steps == 0 else "one step"
        notes.append(f"{seen} was measured, and the first is left out: let the loop take at least 2, better 100")
    elif images is None:
        notes.append("the batches are no arrays, so that images were not counted: give report(batch_size=...)")
    if dropped:
        notes.append(
            f"{dropped} {'step is' if dropped == 1 else 'steps are'} left out, as a loop was left there whose iterator "
            "was kept: close() the iterator where its loop ends, and the step counts"
        )
    return tuple(notes)
