"""Time how long a training loop waits for its input, step by step, and report it."""

import math
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np

from tpufeed.display.summary import Summary
from tpufeed.errors import OptionError
from tpufeed.measure.compiling import CompileWatch, WaitSplitter, compile_advice, split_waits, wait_for_xla, xla_counts
from tpufeed.text import format_figure, format_percent

# Idle time in percent: the bands of xprof, TensorBoard's profiler, for input-bound programs.
MODERATE_PERCENT = 5.0
HIGH_PERCENT = 20.0

Batch = TypeVar("Batch")
Blame = Literal["data", "tracing", "accelerator"]
_UNSEEN: Any = object()
_USUALLY_AHEAD = 3  # steps that a framework launches before the device has done the first of them


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of each step, from the first one on.

    Attributes:
        wait_seconds: time that the step waited for its batch.
        sync_seconds: time to trace, compile and launch the step, which torch_xla's loaders do in the `next()` after it.
            A sync before an epoch's first step counts for that step, too. Empty with other loaders.
        compute_seconds: time of the step itself, or the nominal time if the accelerator is emulated.
        ready: batches queued for an emulated accelerator when the step asked for one. Empty for real devices.
    """

    wait_seconds: tuple[float, ...] = ()
    sync_seconds: tuple[float, ...] = ()
    compute_seconds: tuple[float, ...] = ()
    ready: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepReport(Summary):
    """Figures of a `StepClock`. None means unknown: with fewer than two steps there is no steady state.

    The steady state is every step but the first, which waits for the pipeline to fill and computes while it compiles.
    All figures cover the steady state, except `steps`, `images`, `compile_seconds` and those that begin with `first_`.

    Attributes:
        steps: number of all steps.
        images: number of all images, or None if batches have no shape and no batch size was given.
        images_per_second: images per second of `wall_seconds`.
        bytes_per_second: bytes of the batches' arrays, which go to the device.
        step_ms: median of wait + sync + compute.
        wait_ms_p50: median of the waits for a batch.
        wait_ms_p95: 95th percentile of the waits.
        wait_ms_p99: 99th percentile of the waits.
        idle_percent: waits / wall.
        sync_percent: syncs / wall. torch_xla's loaders sync before they hand out the next batch: they trace, compile
            and launch the step, and wait for the device to take it. None with other loaders.
        tracing_percent: share of the time in which the host traced and compiled: the syncs without their waits for the
            device, or the compile time, whichever is longer. None if the framework does not count it.
        wall_seconds: time inside the loop, without evaluation between two epochs.
        first_wait_seconds: time from asking for the first batch until it arrived, `iter(loader)` included.
        first_compute_seconds: time of the first step, with the syncs around it.
        compile_seconds: compile time within `first_compute_seconds`, as torch_xla and JAX report it.
        recompilations: number of compilations after the first step.
        host_syncs: number of times the host waited for a value from the device, as torch_xla counts them.
        short_epochs: (epoch from 1, batches given, batches by `len()`) of each epoch in which the loader ended early.
        notes: further findings, as sentences.
    """

    steps: int
    images: int | None = None
    images_per_second: float | None = None
    bytes_per_second: float | None = None
    step_ms: float | None = None
    wait_ms_p50: float | None = None
    wait_ms_p95: float | None = None
    wait_ms_p99: float | None = None
    idle_percent: float | None = None
    sync_percent: float | None = None
    tracing_percent: float | None = None
    wall_seconds: float | None = None
    first_wait_seconds: float | None = None
    first_compute_seconds: float | None = None
    compile_seconds: float | None = None
    recompilations: int | None = None
    host_syncs: int | None = None
    short_epochs: tuple[tuple[int, int, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def blame(self) -> Blame | None:
        """The main cause of waiting: "accelerator" if neither data nor tracing takes 5 % of the time."""
        if self.idle_percent is None:
            return None
        tracing = self.tracing_percent or 0.0
        if max(self.idle_percent, tracing) < MODERATE_PERCENT:
            return "accelerator"
        return "data" if self.idle_percent >= tracing else "tracing"

    @property
    def verdict(self) -> str:
        """`blame` as a sentence."""
        if self.idle_percent is None:
            return "no verdict: there is no steady state to judge"
        idle = f"{self.idle_percent:.1f} %"
        if self.blame == "accelerator":
            return f"fed: {idle} of the time is waiting for data; the rest is the step itself"
        if self.blame == "tracing":
            return (
                f"your step waits on tracing and compiling ({self.tracing_percent:.1f} % of the time), "
                f"not on data ({idle})"
            )
        return f"{idle_band(self.idle_percent)}: {idle} of the time the step waits for its batch"

    def _details(self) -> dict[str, Any]:
        return {"verdict": self.verdict}

    def summary(self) -> str:
        """Return the figures as text. n/a means unknown."""
        megabytes = format_figure(None if self.bytes_per_second is None else self.bytes_per_second / 1e6, "MB", 1)
        times = (self.wall_seconds, self.first_wait_seconds, self.first_compute_seconds, self.compile_seconds)
        seconds = [format_figure(time, "s", 2) for time in times]
        milliseconds = (self.step_ms, self.wait_ms_p50, self.wait_ms_p95, self.wait_ms_p99)
        waits = [format_figure(time, "ms", 1) for time in milliseconds]
        lines = [
            f"{self.steps} steps: idle {format_percent(self.idle_percent)} of {seconds[0]}, "
            f"{format_figure(self.images_per_second)} images a second, {megabytes} a second to the device",
            f"a step takes {waits[0]}; waits for a batch: p50 {waits[1]}, p95 {waits[2]}, p99 {waits[3]}",
            f"first step, not counted above: {seconds[1]} for its batch, {seconds[2]} in the step, of which compiling "
            f"{seconds[3]}",
        ]
        if self.sync_percent is not None or self.tracing_percent is not None:
            lines.append(
                f"sync {format_percent(self.sync_percent)} of the time, tracing and compiling "
                f"{format_percent(self.tracing_percent)}; recompilations after step 1: "
                f"{format_figure(self.recompilations)}"
            )
        return "\n".join([*lines, self.verdict, *self.notes])


class StepClock:
    """Time each step of `for batch in clock(loader): ...`: the wait inside `next()`, and the compute until the next.

    The steps of all epochs add up, whether the clock is called for each epoch or its result is iterated again. The wait
    for an epoch's first batch includes `iter(loader)`. The clock costs less than 2 us and 40 bytes per step. It is not
    thread-safe.

    With torch_xla's loaders, `next()` also traces, compiles and launches the previous step. That is `sync`, not wait.

    torch_xla and JAX compute asynchronously, so the step has to end with something that waits for the device:
    `xm.wait_device_ops()` after `torch_xla.sync()`, whose wait=True may return early, or `float(loss)`. Otherwise
    the device's time shows up as a wait of a later step. At the end of an epoch the clock itself waits for torch_xla's
    devices, as a part of the last step, so that images per second are those of the device.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        # Arrays of plain numbers: lists would hold an object for each figure, as long as the training lasts.
        self._waits, self._syncs, self._computes = array("d"), array("d"), array("d")
        self._images, self._nbytes = array("q"), array("q")  # -1 means unknown
        self._end_wait = 0.0  # waiting to learn that an epoch is over counts as wait, but belongs to no step
        self._left = 0.0  # time in which torch_xla's devices still computed when an epoch was over
        self._splits = False  # waits and syncs were told apart for some loader
        self._compiling = CompileWatch()
        self._shape, self._size = _UNSEEN, (-1, -1)  # shape and (images, bytes) of the last batch
        self._epochs = 0
        self._short: list[tuple[int, int, int]] = []
        # The running step: (begin, wait, sync, images, bytes). There is at most one, so that time counts once. The
        # clock has to hold it, not the iterator: leaving a loop must free the iterator, which ends the step.
        self._step: tuple[float, float, float, int, int] | None = None
        self._dropped = 0

    def __call__(self, loader: Iterable[Batch]) -> "TimedLoader[Batch]":
        """Return the loader with its steps timed. It can be iterated as often as the loader, as Lightning's `fit` does.

        Leaving a loop early ends the last step there and closes the loader's iterator. If you keep the iterator
        (`batches = iter(clock(loader))`), the clock cannot see when the loop is left. Then the last step is not
        counted, unless `batches.close()` ends it. An exception in the loop or in the loader passes through. `len`,
        state and attributes are the loader's.

        In nested loops of one clock, time counts once: a step of the outer loop ends when the inner loop begins.
        """
        kind = StatefulTimedLoader if hasattr(loader, "state_dict") else TimedLoader
        return kind(loader, self)

    def report(self, batch_size: int | None = None) -> StepReport:
        """Report on the steps that have ended so far.

        `batch_size` is the number of images per step. Default: the first axis of each batch's first array.
        """
        steps, compiled = len(self._waits), self._compiling.result()
        first, later = compiled or (None, None)

        def total(counts: "array[int]") -> int | None:
            return sum(counts) if counts and min(counts) >= 0 else None

        images = total(self._images) if batch_size is None else steps * batch_size
        notes = []
        if steps < 2:
            seen = "no step" if steps == 0 else "one step"
            notes.append(f"{seen} was measured, and the first does not count: run at least 2 steps, better 100")
        elif images is None:
            notes.append("the batches are not arrays, so images were not counted: give report(batch_size=...)")
        if self._dropped:
            notes.append(
                f"{self._dropped} {'step was' if self._dropped == 1 else 'steps were'} not counted, because their loop "
                "was left and its iterator kept: close() the iterator where the loop ends"
            )
        if steps > 1 and self._left > _USUALLY_AHEAD * self._epochs * float(sum(self._computes)) / steps:
            notes.append(
                f"the device still computed for {self._left:.1f} s at the end of epochs: the steps do not wait for it, "
                "so their times, and idle, are not the device's. End each with torch_xla.sync() and "
                "xm.wait_device_ops()"
            )
        if self._short:
            epoch, batches, expected = self._short[0]
            more = f"; {len(self._short)} short epochs in all" if len(self._short) > 1 else ""
            notes.append(
                f"the loader ended early: epoch {epoch} gave {batches} batches, len() says {expected}{more}. Look for "
                "errors in its threads or workers; torch_xla's ParallelLoader takes an exception in its source for the "
                "end"
            )
        # The steady state: all steps except the first, and the ends of epochs.
        waits, syncs, computes = (np.array(part[1:]) for part in (self._waits, self._syncs, self._computes))
        wait, sync = float(waits.sum()) + self._end_wait, float(syncs.sum())
        wall = wait + sync + float(computes.sum())
        steady = dict[str, Any]()
        if steps > 1 and wall > 0:
            images_then = total(self._images[1:]) if batch_size is None else (steps - 1) * batch_size
            sent = total(self._nbytes[1:])
            steady = {
                "images_per_second": None if images_then is None else images_then / wall,
                "bytes_per_second": None if sent is None else sent / wall,
                "step_ms": float(np.median(waits + syncs + computes)) * 1e3,
                **wait_percentiles(waits),
                "idle_percent": 100 * wait / wall,
                "sync_percent": 100 * sync / wall if self._splits else None,
                "wall_seconds": wall,
            }
            if later is not None or self._splits:
                counts = later or Counter[str]()
                # Several threads may compile, and syncs in the loop's body wait for the device, too.
                tracing = max(sync - counts["device_wait_ns"] / 1e9, counts["compile_ns"] / 1e9, 0.0)
                steady["tracing_percent"] = 100 * min(wall, tracing) / wall
            if later is not None:
                steady["recompilations"] = later["compilations"]
                steady["host_syncs"] = None if xla_counts() is None else later["host_syncs"]
                notes += compile_advice(later, steps - 1)
        return StepReport(
            steps=steps,
            images=images,
            first_wait_seconds=self._waits[0] if steps else None,
            first_compute_seconds=self._computes[0] + self._syncs[0] if steps else None,
            compile_seconds=None if first is None else first["compile_ns"] / 1e9,
            short_epochs=tuple(self._short),
            notes=tuple(notes),
            **steady,
        )

    def timeline(self) -> StepTimes:
        """Return the seconds of each step so far, from the first."""
        syncs = tuple(self._syncs) if self._splits else ()
        return StepTimes(wait_seconds=tuple(self._waits), sync_seconds=syncs, compute_seconds=tuple(self._computes))

    def save(self, path: str | Path, batch_size: int | None = None) -> StepReport:
        """Write report and timeline as JSON, for `load_steps` and `tpufeed doctor --clock`. Return the report."""
        report = self.report(batch_size)
        Path(path).write_bytes(msgspec.json.encode(SavedSteps("tpufeed-steps", 1, report, self.timeline())) + b"\n")
        return report

    def _finish(self, now: float) -> int | None:
        """End the running step. Return its number, from 0, or None if no step is running."""
        if self._step is None:
            return None
        begin, wait, sync, images, nbytes = self._step
        self._step = None
        self._waits.append(wait)
        self._syncs.append(sync)
        self._computes.append(now - begin)
        self._images.append(images)
        self._nbytes.append(nbytes)
        return len(self._waits) - 1


class _TimedEpoch(Iterator[Batch]):
    """The batches of one epoch."""

    def __init__(self, loader: Iterable[Batch], clock: StepClock) -> None:
        self._loader, self._clock = loader, clock
        self._iterator: Iterator[Batch] | None = None
        self._splitter: WaitSplitter | None = None
        self._step: Any = None  # this epoch's last step, still running if the clock holds it, too
        self._number = self._batches = 0
        self._promised: int | None = None  # batches of the epoch, by `len`
        self._kept = self._closed = False

    def __iter__(self) -> "_TimedEpoch[Batch]":
        """Return the iterator itself: its caller keeps it and begins a loop over it."""
        self._kept = True
        self._drop()
        return self

    def __next__(self) -> Batch:
        """Return the next batch, which ends the previous step."""
        clock = self._clock
        asked = clock._now()
        # In nested loops the step that ends here may be the inner loop's. Then it contains no sync of this loader.
        is_mine = clock._step is self._step
        ended = clock._finish(asked)
        before = ended if is_mine else None
        if self._closed:
            raise StopIteration
        try:
            if self._iterator is None:
                self._open(asked)
            batch = next(self._iterator)  # type: ignore[arg-type]  # it is open
        except BaseException as error:
            if isinstance(error, StopIteration) and self._iterator is not None:
                elapsed = clock._now() - asked
                wait = elapsed if self._splitter is None else self._splitter.wait_of(elapsed)
                clock._end_wait += wait
                if before is not None:
                    clock._syncs[before] += elapsed - wait
                    begun = clock._now()
                    wait_for_xla()
                    left = clock._now() - begun
                    clock._left += left
                    clock._computes[before] += left
                if self._promised is not None and self._batches < self._promised:
                    clock._short.append((self._number, self._batches, self._promised))
            self.close()
            raise
        now = clock._now()
        wait, sync = now - asked, 0.0
        if self._splitter is not None:
            wait = self._splitter.wait_of(now - asked)
            sync = now - asked - wait
            if before is not None:  # the sync before an epoch's first step belongs to no other step
                clock._syncs[before] += sync
                sync = 0.0
        if clock._waits:  # the first step and the sync after it are over
            clock._compiling.settle()
        shape = first_shape(batch)
        if shape != clock._shape:  # batches of the same shape have the same size
            clock._shape, clock._size = shape, size_of(batch)
        self._batches += 1
        self._step = clock._step = (now, wait, sync, *clock._size)
        return batch

    def close(self) -> None:
        """End the last step here, and close the loader's iterator."""
        clock = self._clock
        if self._step is not None and clock._step is self._step:
            clock._finish(clock._now())
        if self._closed:
            return
        self._closed = True
        if self._iterator is not None:
            if clock._waits:
                clock._compiling.settle()
            clock._compiling.end()
        if self._splitter is not None:
            self._splitter.close()
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()

    def __del__(self) -> None:
        if self._kept:  # the loop was left some time ago
            self._drop()
        self.close()

    def _drop(self) -> None:
        """Do not count the running step: its loop was left at an unknown time."""
        if self._step is not None and self._clock._step is self._step:
            self._clock._step = None
            self._clock._dropped += 1

    def _open(self, asked: float) -> None:
        clock, loader = self._clock, self._loader
        iterator = iter(loader)
        clock._epochs += 1
        self._number = clock._epochs
        clock._compiling.begin()
        self._iterator = iterator
        self._splitter = split_waits(loader, iterator, clock._now() - asked, clock._now)
        clock._splits |= self._splitter is not None
        # A loader with a state may continue in mid-epoch. Then only its iterator knows the length.
        self._promised = None if iterator is loader else length_of(iterator)
        source = getattr(getattr(loader, "stream", None), "wrapped", loader)  # a feed may read a loader of the user's
        if self._promised is None and not hasattr(source, "load_state_dict"):
            self._promised = length_of(loader)


class TimedLoader(Generic[Batch]):
    """A loader whose iterations a `StepClock` times. See `StepClock.__call__`."""

    def __init__(self, loader: Iterable[Batch], clock: StepClock) -> None:
        self._loader: Any = loader
        self._clock = clock

    def __bool__(self) -> bool:
        return True  # also if the loader has no length

    def __len__(self) -> int:
        """Return the number of batches per epoch. Raises TypeError if the loader has no length."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, timed."""
        return _TimedEpoch(self._loader, self._clock)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the loader."""
        if name == "_loader":  # an unfinished copy has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)


class StatefulTimedLoader(TimedLoader[Batch]):
    """A `TimedLoader` of a loader with a state: frameworks look for these methods in the class."""

    def state_dict(self) -> Any:
        """Return the loader's state."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Let the loader continue from `state`. Raises what the loader raises."""
        self._loader.load_state_dict(state)


class SavedSteps(msgspec.Struct):
    """The file that `StepClock.save` writes, as JSON."""

    format: Literal["tpufeed-steps"]
    version: Literal[1]
    report: StepReport
    times: StepTimes


_SAVED = msgspec.json.Decoder(SavedSteps)


def load_steps(path: str | Path) -> StepReport:
    """Read the file that `StepClock.save` wrote. Fields that this release does not know are ignored.

    Raises:
        OptionError: the file cannot be read, or is not such a file.
    """
    try:
        return _SAVED.decode(Path(path).read_bytes()).report
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}; clock.save(path) writes such a file") from error
    except msgspec.DecodeError as error:
        raise OptionError(
            f"{path} is not a file of steps that this tpufeed can read ({error}); clock.save(path) writes such a file"
        ) from error


def idle_band(idle_percent: float) -> str:
    """Return xprof's name for this share of idle time."""
    if idle_percent >= HIGH_PERCENT:
        return "highly input-bound"
    return "moderately input-bound" if idle_percent >= MODERATE_PERCENT else "not input-bound"


def wait_percentiles(waits: "np.typing.NDArray[np.float64]") -> dict[str, Any]:
    """Return the fields `wait_ms_p50`, `_p95` and `_p99` of a report for waits in seconds."""
    percentiles = np.percentile(waits, (50, 95, 99)) * 1e3
    return dict(zip(("wait_ms_p50", "wait_ms_p95", "wait_ms_p99"), map(float, percentiles), strict=True))


def length_of(sized: Any) -> int | None:
    """Return the number of batches that a loader promises, or None."""
    try:
        return len(sized)
    except Exception:  # noqa: BLE001  # TypeError if there is no length, but loaders raise anything
        return None


def first_shape(batch: Any) -> Any:
    """Return the shape of a batch's first array, as its framework gives it, or None without an array."""
    while True:
        if isinstance(batch, tuple | list):
            batch = batch[0] if batch else None
        elif (shape := getattr(batch, "shape", None)) is not None or not isinstance(batch, Mapping):
            return shape
        else:
            batch = next(iter(batch.values()), None)


def size_of(batch: Any) -> tuple[int, int]:
    """Return the images of a batch (the first axis of its first array) and the bytes of its arrays, -1 if unknown."""
    try:
        shape, sizes = first_shape(batch), list(_iter_nbytes(batch))
        return (int(shape[0]) if shape is not None and len(shape) else -1), (sum(sizes) if sizes else -1)
    except Exception:  # noqa: BLE001  # a batch can be anything, and must not stop the training
        return -1, -1


def _iter_nbytes(batch: Any) -> Iterator[int]:
    """Yield the bytes of each array of a batch, and 0 for strings, which stay on the host."""
    if isinstance(batch, tuple | list | Mapping):
        for member in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _iter_nbytes(member)
    elif hasattr(batch, "shape") and hasattr(batch, "dtype"):
        dtype = batch.dtype
        shards = getattr(batch, "addressable_shards", None)  # JAX: the part on the devices of this process
        if getattr(dtype, "kind", "") in ("O", "S", "U") or getattr(dtype, "name", "") == "string":
            yield 0
        elif shards is not None:
            yield sum(int(shard.data.nbytes) for shard in shards)
        elif getattr(batch, "nbytes", None) is not None:
            yield int(batch.nbytes)
        else:  # TensorFlow
            yield math.prod(int(axis) for axis in batch.shape) * int(dtype.size)
