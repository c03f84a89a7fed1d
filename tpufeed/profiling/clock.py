"""Time how long a training loop waits for its input, step by step."""

import math
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from tpufeed.profiling.compiling import CompileCounts, CompileWatch, WaitSplitter, split_waits, xla_counts
from tpufeed.profiling.steps import StepReport, StepTimes, save_steps

Batch = TypeVar("Batch")
_NO_SHAPE = object()


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
        self._end_wait = 0.0  # to learn that an epoch is over is a wait too, of no step
        self._splits = False  # a loader told waits from syncs
        self._compiling = CompileWatch()
        self._is_first_over = False
        self._shape: Any = _NO_SHAPE  # of the batch before
        self._load = self._first_load = Load(None, None)
        self._loads: dict[Any, Load] = {}  # by shape, so that batches of one shape are looked into once
        self._epochs = 0
        self._short: list[tuple[int, int, int]] = []  # (epoch from 1, batches it gave, batches that len() says)
        self._iterations = 0  # under way, within one another or side by side
        self._running: list[_Step] = []  # in the order in which they got their batches
        self._since = 0.0
        self._asking = False  # inside `next()` or `iter()` of a loader
        self._dropped = 0

    def __call__(self, loader: Iterable[Batch]) -> "TimedLoader[Batch]":
        """Return the loader with its steps timed. It can be iterated as often as the loader, as Lightning's `fit` does.

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
        """Report on the steps that have ended so far.

        Args:
            batch_size: images of each step; by default they are counted, as the first axis of a batch's first array.
        """
        steps, told = len(self._waits), self._compiling.told()
        first, later = (None, None) if told is None else told
        images = self._count("images") if batch_size is None else steps * batch_size
        report = StepReport(
            steps=steps,
            images=images,
            first_wait_seconds=self._waits[0] if steps else None,
            first_compute_seconds=self._computes[0] + self._syncs[0] if steps else None,
            compile_seconds=None if first is None else first.compile_seconds,
            short_epochs=tuple(self._short),
            notes=self._notes(steps, images),
        )
        # The steady state: all steps but the first, and the ends of epochs.
        waits, syncs, computes = (np.array(part[1:]) for part in (self._waits, self._syncs, self._computes))
        wait, sync = float(waits.sum()) + self._end_wait, float(syncs.sum())
        wall = wait + sync + float(computes.sum())
        if steps < 2 or wall <= 0:
            return report
        tracing = None
        if later is not None or self._splits:
            compiled = later or CompileCounts()
            # Compiling can be of several threads, and syncs in the loop's body wait for the device as well.
            tracing = min(wall, max(sync - compiled.device_wait_seconds, compiled.compile_seconds, 0.0))
        p50, p95, p99 = (float(value) for value in np.percentile(waits, (50, 95, 99)) * 1e3)
        steady_images = self._count("images", 1) if batch_size is None else (steps - 1) * batch_size
        sent = self._count("nbytes", 1)
        return replace(
            report,
            images_per_second=None if steady_images is None else steady_images / wall,
            bytes_per_second=None if sent is None else sent / wall,
            step_ms=float(np.median(waits + syncs + computes)) * 1e3,
            wait_ms_p50=p50,
            wait_ms_p95=p95,
            wait_ms_p99=p99,
            idle_percent=100 * wait / wall,
            sync_ms_p50=float(np.median(syncs)) * 1e3 if self._splits else None,
            sync_percent=100 * sync / wall if self._splits else None,
            tracing_percent=None if tracing is None else 100 * tracing / wall,
            wall_seconds=wall,
            recompilations=None if later is None else later.compilations,
            recompile_seconds=None if later is None else later.compile_seconds,
            host_syncs=None if later is None or xla_counts() is None else later.host_syncs,
            notes=(*report.notes, *(() if later is None else later.advice(steps - 1))),
        )

    def timeline(self) -> StepTimes:
        """Return the seconds of each step so far, from the first."""
        syncs = tuple(self._syncs) if self._splits else ()
        return StepTimes(wait_seconds=tuple(self._waits), sync_seconds=syncs, compute_seconds=tuple(self._computes))

    def save(self, path: str | Path, batch_size: int | None = None) -> StepReport:
        """Write report and timeline as JSON, for `load_steps` and `tpufeed doctor --clock`; return the report."""
        report = self.report(batch_size)
        save_steps(path, report, self.timeline())
        return report

    def _count(self, what: str, skip: int = 0) -> int | None:
        """Return the images or bytes of all steps, or of all but the first; None where a batch does not tell."""
        loads = [(getattr(load, what), load.steps - skip * (load is self._first_load)) for load in self._loads.values()]
        parts = [None if value is None else value * steps for value, steps in loads if steps]
        return sum(part for part in parts if part is not None) if parts and None not in parts else None

    def _notes(self, steps: int, images: int | None) -> tuple[str, ...]:
        notes = []
        if steps < 2:
            seen = "no step" if steps == 0 else "one step"
            notes.append(f"{seen} was measured, and the first is left out: let the loop take at least 2, better 100")
        elif images is None:
            notes.append("the batches are no arrays, so that images were not counted: give report(batch_size=...)")
        if self._dropped:
            notes.append(
                f"{self._dropped} {'step is' if self._dropped == 1 else 'steps are'} left out, as a loop was left "
                "there whose iterator was kept: close() the iterator where its loop ends, and the step counts"
            )
        if self._short:
            epoch, batches, expected = self._short[0]
            more = f", and {len(self._short) - 1} more epochs were short" if len(self._short) > 1 else ""
            notes.append(
                f"the loader ended early: epoch {epoch} gave {batches} batches, len() says {expected}{more}. Look for "
                "errors in its threads or workers; torch_xla's ParallelLoader takes an exception of its source for the "
                "end"
            )
        return tuple(notes)

    # What follows is for the iterations below.

    def _stamp(self) -> float:
        """Return the time. What went by since the last stamp was of the step that runs, the one that began last."""
        now = self._now()
        if self._running:
            self._running[-1].compute += now - self._since
        self._since = now
        return now

    def _look(self, batch: Any, shape: Any) -> None:
        """Look into a batch of another shape than the one before it had."""
        self._shape = shape
        try:
            key = None if shape is None else tuple(shape)
            self._load = self._loads.get(key) or self._loads.setdefault(key, load_of(batch))
        except Exception:  # noqa: BLE001  # batches can be anything, and a step is worth more than a count
            self._load = self._loads.setdefault(_NO_SHAPE, Load(None, None))

    def _finish(self, step: "_Step") -> int:
        """End a step. Return its number, from 0."""
        self._running.remove(step)
        if not self._waits:
            self._first_load = step.load
        step.load.steps += 1
        self._waits.append(step.wait)
        self._syncs.append(step.sync)
        self._computes.append(step.compute)
        return len(self._waits) - 1

    def _drop(self, step: "_Step") -> None:
        self._running.remove(step)
        self._dropped += 1

    def _settle(self) -> None:
        """Note that the first step is over, with the sync after it."""
        self._is_first_over = True
        self._compiling.settle()


@dataclass(slots=True, eq=False)
class Load:
    """Batches of one shape: images (rows of the first array), bytes of all arrays, None without arrays; their steps."""

    images: int | None
    nbytes: int | None
    steps: int = 0


@dataclass(slots=True, eq=False)
class _Step:
    """The step of an iteration that has its batch and has not ended."""

    wait: float = 0.0
    sync: float = 0.0
    compute: float = 0.0
    load: Any = None


class _TimedEpoch(Iterator[Batch]):
    """The batches of one epoch. The clock holds the step, not this, so that leaving a loop closes it."""

    def __init__(self, loader: Iterable[Batch], clock: StepClock) -> None:
        self._loader, self._clock = loader, clock
        self._iterator: Iterator[Batch] | None = None
        self._splitter: WaitSplitter | None = None
        self._step = _Step()
        self._number = self._batches = 0
        self._left: int | None = None  # batches that the iterator promised when it was opened
        self._is_open = self._under_way = self._is_kept = self._is_closed = False

    def __iter__(self) -> "_TimedEpoch[Batch]":
        """Return itself: a loop begins over an iterator that its caller keeps.

        A loop before it was left at a time that nothing told, so that its last step is left out.
        """
        self._is_kept = True
        if self._under_way:
            self._clock._drop(self._step)
            self._under_way = False
        return self

    def __next__(self) -> Batch:
        """Return the next batch, which ends the step before."""
        clock, step = self._clock, self._step
        if clock._asking:  # a loader that is timed takes its batches from here: they are waited for there
            if self._iterator is None:
                self._iterator = iter(self._loader)
            return next(self._iterator)
        asked = clock._stamp()
        before = clock._finish(step) if self._under_way else None
        self._under_way = False
        if self._is_closed:
            raise StopIteration
        clock._asking = True
        try:
            if not self._is_open:
                self._open(asked)
            batch = next(self._iterator)  # type: ignore[arg-type]  # it is open
        except BaseException as error:
            if isinstance(error, StopIteration) and self._is_open:
                elapsed = clock._now() - asked
                wait = elapsed if self._splitter is None else self._splitter.wait_of(elapsed)
                clock._end_wait += wait
                if before is not None:
                    clock._syncs[before] += elapsed - wait
                self._judge_length()
            self.close()
            raise
        finally:
            clock._asking = False
            clock._since = clock._now()
        elapsed = clock._since - asked
        step.wait = elapsed if self._splitter is None else self._splitter.wait_of(elapsed)
        step.sync = step.compute = 0.0
        if before is None:  # the sync before an epoch's first step is of no other one
            step.sync = elapsed - step.wait
        elif self._splitter is not None:
            clock._syncs[before] += elapsed - step.wait
        if not clock._is_first_over and clock._waits:
            clock._settle()
        shape = first_shape(batch)
        if shape != clock._shape:
            clock._look(batch, shape)
        step.load = clock._load
        clock._running.append(step)
        self._batches += 1
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
        if self._is_open:
            if not self._clock._is_first_over and self._clock._waits:
                self._clock._settle()
            self._clock._iterations -= 1
            if self._clock._iterations == 0:
                self._clock._compiling.end()
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

    def _open(self, asked: float) -> None:
        clock = self._clock
        self._is_open = True
        clock._epochs += 1
        self._number = clock._epochs
        if clock._iterations == 0:
            clock._compiling.begin()
        clock._iterations += 1
        if self._iterator is None:
            self._iterator = iter(self._loader)
        self._splitter = split_waits(self._loader, self._iterator, clock._now() - asked, clock._now)
        clock._splits |= self._splitter is not None
        self._left = None if self._iterator is self._loader else length_of(self._iterator)

    def _judge_length(self) -> None:
        """Note an epoch that ended by itself, not by a `break` or an exception, before its length."""
        expected = self._left
        # An epoch of a loader with a state may be the rest of one, of which `len` of the loader knows nothing.
        if expected is None and not hasattr(getattr(self._loader, "source", self._loader), "load_state_dict"):
            expected = length_of(self._loader)
        if expected is not None and self._batches < expected:
            self._clock._short.append((self._number, self._batches, expected))


class TimedLoader(Generic[Batch]):
    """A loader each of whose iterations a `StepClock` times; see `StepClock.__call__`."""

    def __init__(self, loader: Iterable[Batch], clock: StepClock) -> None:
        self._loader: Any = loader
        self._clock = clock

    def __bool__(self) -> bool:
        return True  # also where the loader has no length

    def __len__(self) -> int:
        """Return the batches of an epoch. Raises TypeError where the loader has no length."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, timed."""
        return _TimedEpoch(self._loader, self._clock)

    def __getattr__(self, name: str) -> Any:
        """Return whatever else the loader has."""
        if name == "_loader":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)


class StatefulTimedLoader(TimedLoader[Batch]):
    """A `TimedLoader` of a loader that has a state: frameworks look for the methods in the class."""

    def state_dict(self) -> Any:
        """Return the loader's state."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on where `state` says; raises what the loader raises."""
        self._loader.load_state_dict(state)


def length_of(sized: Any) -> int | None:
    """Return the batches that a loader promises; None where it does not."""
    try:
        return len(sized)
    except Exception:  # noqa: BLE001  # TypeError where there is none, but loaders raise what they like
        return None


def first_shape(batch: Any) -> Any:
    """Return the shape of the first array of a batch, as its framework gives it; None where there is none."""
    while True:
        if isinstance(batch, tuple | list):
            if not batch:
                return None
            batch = batch[0]
            continue
        shape = getattr(batch, "shape", None)
        if shape is not None or not isinstance(batch, Mapping):
            return shape
        batch = next(iter(batch.values()), None)


def load_of(batch: Any) -> Load:
    """Count one batch. Strings stay on the host and are no bytes."""
    shape = first_shape(batch)
    images = int(shape[0]) if shape is not None and len(shape) else None
    sizes = [_nbytes(leaf) for leaf in _leaves(batch)]
    return Load(images, sum(sizes) if sizes else None)


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, tuple | list | Mapping):
        for member in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _leaves(member)
    elif hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield batch


def _nbytes(array: Any) -> int:
    dtype = array.dtype
    if getattr(dtype, "kind", "") in ("O", "S", "U") or getattr(dtype, "name", "") == "string":
        return 0
    shards = getattr(array, "addressable_shards", None)  # of JAX: what lies on this process' devices
    if shards is not None:
        return sum(int(shard.data.nbytes) for shard in shards)
    nbytes = getattr(array, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    return math.prod(int(axis) for axis in array.shape) * int(dtype.size)  # of TensorFlow
