"""Emulate an accelerator: it takes a batch, is busy for as long as a real one would be, and waits for the next.

Everything is reckoned from nominal times. A host too busy to wake the emulator in time makes its sleeps longer; where
measured sleeps count as computing, as in MLPerf Storage's emulator, a starved host looks like a well fed one. Images
are counted and looked at: in that emulator a loader that drops samples, or repeats them, is a fast one.
"""

import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from queue import Queue
from typing import Any, NamedTuple

import numpy as np

from tpufeed.errors import LoaderError, OptionError
from tpufeed.profiling.clock import length_of
from tpufeed.profiling.fingerprints import Expected, Findings, Ledger, first_member
from tpufeed.profiling.steps import idle_band
from tpufeed.profiling.tpu import AcceleratorProfile

AU_FLOOR_PERCENT = 90.0  # MLPerf Storage's, for ResNet-50
FEWEST_STEPS = 20  # after the first one; figures of fewer say little
_MOST_OVERSLEEP_PERCENT = 2.0
_QUEUE_BATCHES = 2


@dataclass(frozen=True, slots=True)
class AcceleratorReport:
    """Figures of an emulated accelerator. None stands for unknown, as most are after fewer than two steps.

    `steps` and `images` count everything; the other figures leave out the first step, in which the loader warms up.
    All but `oversleep_percent` are nominal: `wall_seconds` is waits + steps, `idle_percent` waits / wall, `au_percent`
    (MLPerf's accelerator utilisation) steps / wall. `oversleep_percent` says how late the emulator itself was woken
    while its queue was full, in all / wall: by so much it may have held up the loader, and above 2 % there is no
    verdict. Woken late with room in the queue it holds up nobody.
    `first_batch_seconds` is from asking for the first batch until it was there.

    `waits` has an entry a step, the first one's being `first_batch_seconds`; `ready` the batches that stood in the
    device's queue when the step asked for one. `findings` is what the pixels of the images say. `problems` are
    sentences that say why the figures are not to be trusted; where there are any, `verdict` is empty.
    """

    name: str
    batch_size: int
    step_ms: float
    steps: int
    images: int
    findings: Findings
    images_per_second: float | None = None
    wait_ms_p50: float | None = None
    wait_ms_p95: float | None = None
    wait_ms_p99: float | None = None
    idle_percent: float | None = None
    au_percent: float | None = None
    oversleep_percent: float | None = None
    wall_seconds: float | None = None
    first_batch_seconds: float | None = None
    waits: tuple[float, ...] = ()
    ready: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    verdict: str = ""


class Limits(NamedTuple):
    """When a measurement ends: after so many steps, or so many seconds.

    A loader that gives too few steps for a verdict in `seconds` is measured for up to `patience_seconds` longer.
    """

    steps: int | None = None
    seconds: float | None = None
    patience_seconds: float = 0.0

    def reached(self, steps: int, seconds: float) -> bool:
        """Return whether it is over, so many steps and seconds after the first batch came."""
        if steps == self.steps:
            return True
        enough = steps > FEWEST_STEPS  # the first one counts for nothing
        return self.seconds is not None and seconds >= self.seconds + (0 if enough else self.patience_seconds)


class EmulatedAccelerator:
    """A device that trains on batches of `batch_size` images at a profile's rate, with two batches queued before it."""

    def __init__(
        self,
        profile: AcceleratorProfile,
        batch_size: int,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if batch_size < 1:
            raise OptionError(f"a batch has at least one image, not {batch_size}")
        self.profile = profile
        self.batch_size = batch_size
        self.step_seconds = batch_size / profile.images_per_second
        self._now = now
        self._sleep = sleep

    def run(
        self,
        loader: Iterable[Any],
        steps: int | None = None,
        seconds: float | None = None,
        expected: Expected | None = None,
        patience_seconds: float = 0.0,
    ) -> AcceleratorReport:
        """Feed the device from `loader`, which is iterated in the calling thread, epoch after epoch.

        Args:
            loader: gives batches: an array, or a tuple or dict whose first member is one; its first axis counts.
            steps: end after so many.
            seconds: end so long after the first batch. Without `steps` and `seconds`: after one epoch.
            expected: what an honest loader gives; without it repeated and missing images are not looked for.
            patience_seconds: so much longer than `seconds` where that is less than the steps that a verdict takes.

        Raises:
            OptionError: a batch of more images than the device's, or `steps` or `seconds` that are not positive.
            LoaderError: an epoch without a batch.
            Exception: whatever the loader raises. In every case the device's thread has ended.
        """
        if (steps is not None and steps < 1) or (seconds is not None and seconds <= 0):
            raise OptionError(f"steps and seconds are positive, not {steps} and {seconds}")
        limits = Limits(steps, seconds, patience_seconds)
        device = _Device(self.step_seconds, self._now, self._sleep)
        epochs = RepeatedEpochs(loader, steps is not None or seconds is not None)
        asked = first = self._now()
        device.thread.start()
        try:
            with closing(epochs.batches()) as batches:
                for given, batch in enumerate(batches, 1):
                    arrival = self._now()
                    first = arrival if given == 1 else first
                    images = int(first_member(batch).shape[0])
                    if images > self.batch_size:
                        raise OptionError(
                            f"a batch of {images} images, for an accelerator that takes {self.batch_size} a step"
                        )
                    device.queue.put((arrival, images, epochs.number, batch))
                    if limits.reached(given, self._now() - first):
                        break
        except BaseException:
            device.aborted = True
            raise
        finally:
            device.queue.put(None)
            device.thread.join()
        if device.failure is not None:
            raise device.failure
        return self._report(device, epochs, expected, first - asked)

    def _report(
        self, device: "_Device", epochs: "RepeatedEpochs", expected: Expected | None, first_batch_seconds: float
    ) -> AcceleratorReport:
        findings = device.ledger.findings(expected, epochs.ended)
        report = AcceleratorReport(
            name=self.profile.name,
            batch_size=self.batch_size,
            step_ms=self.step_seconds * 1e3,
            steps=len(device.waits),
            images=sum(device.images),
            findings=findings,
            first_batch_seconds=first_batch_seconds,
            waits=(first_batch_seconds, *device.waits[1:]),
            ready=tuple(device.ready),
        )
        problems = list(few_steps(report.steps - 1))
        if report.steps > 1:
            waits = np.array(device.waits[1:])
            wait, computed = float(waits.sum()), len(waits) * self.step_seconds
            wall = wait + computed
            p50, p95, p99 = (float(value) for value in np.percentile(waits, (50, 95, 99)) * 1e3)
            oversleep = 100 * device.oversleep_seconds / wall
            report = replace(
                report,
                images_per_second=sum(device.images[1:]) / wall,
                wait_ms_p50=p50,
                wait_ms_p95=p95,
                wait_ms_p99=p99,
                idle_percent=100 * wait / wall,
                au_percent=100 * computed / wall,
                oversleep_percent=oversleep,
                wall_seconds=wall,
            )
            if oversleep > _MOST_OVERSLEEP_PERCENT:
                problems.append(
                    f"this host woke the emulator late, by {oversleep:.1f} % of the time, more than "
                    f"{_MOST_OVERSLEEP_PERCENT:g} %: leave it a free core (fewer threads or processes for the loader, "
                    "nothing else at work), or make its steps longer (a larger batch)"
                )
        small = sum(count < self.batch_size for count in device.images)
        if small > epochs.number + 1:  # the last batch of an epoch may be small; with more the device only seems busy
            problems.append(
                f"{small} of {len(device.images)} batches had fewer images than the {self.batch_size} that the "
                "accelerator takes a step: give it full ones"
            )
        problems += (*epochs.problems(), *findings.problems())
        if expected is not None and findings.repeated is None:
            problems.append("the pixels are not in this host's memory, so that drops and repeats would not show")
        verdict = "" if problems or report.idle_percent is None else say_verdict(report.idle_percent)
        return replace(report, problems=tuple(problems), verdict=verdict)


@dataclass
class RepeatedEpochs:
    """The batches of one epoch after the other, or of one epoch.

    Attributes:
        number: of the epoch that is under way, from 0.
        ended: how many came to their end.
        short: of each epoch that ended early, (number, batches it gave, batches it has by `len`).
    """

    loader: Iterable[Any]
    endless: bool
    number: int = 0
    ended: int = 0
    short: list[tuple[int, int, int]] = field(default_factory=list)

    def batches(self) -> Generator[Any]:
        """Raises LoaderError for an epoch without any."""
        while self.ended == 0 or self.endless:
            self.number, given = self.ended, 0
            iterator = iter(self.loader)
            try:
                for batch in iterator:
                    given += 1
                    yield batch
                    del batch
            finally:
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
            if not given:
                raise LoaderError(
                    f"the loader gave no batch in epoch {self.ended + 1}. Is the split smaller than a batch, or is "
                    "this a generator or iterator, which can be gone through once only?"
                )
            promised = length_of(self.loader)
            if promised is not None and given < promised:
                self.short.append((self.number, given, promised))
            self.ended += 1

    def problems(self) -> tuple[str, ...]:
        """Return what an early end means for the figures, as sentences."""
        if not self.short:
            return ()
        number, given, promised = self.short[0]
        again = f", and {len(self.short) - 1} more epochs did" if len(self.short) > 1 else ""
        return (f"the loader ended early: epoch {number + 1} had {given} batches of {promised}{again}",)


def few_steps(steps: int) -> tuple[str, ...]:
    """Return why figures of so few steps after the first one say little, as sentences."""
    if steps >= FEWEST_STEPS:
        return ()
    were = "step was" if steps == 1 else "steps were"
    return (f"{steps} {were} measured after the first one, {FEWEST_STEPS} are the fewest that say anything",)


def say_verdict(idle_percent: float) -> str:
    """Return a sentence on an emulated accelerator: of nominal times, AU is what idle time leaves."""
    utilisation = 100 - idle_percent
    passes = "passes" if utilisation >= AU_FLOOR_PERCENT else "is below"
    return (
        f"idle {idle_percent:.1f} %: {idle_band(idle_percent)}; AU {utilisation:.1f} % {passes} MLPerf Storage's floor "
        f"of {AU_FLOOR_PERCENT:.0f} %"
    )


@dataclass
class _Device:
    """The device's thread, its queue of (arrival, images, epoch, batch), and what it has recorded."""

    step_seconds: float
    now: Callable[[], float]
    sleep: Callable[[float], None]
    queue: Queue[tuple[float, int, int, Any] | None] = field(default_factory=lambda: Queue(_QUEUE_BATCHES))
    waits: "array[float]" = field(default_factory=lambda: array("d"))
    ready: "array[int]" = field(default_factory=lambda: array("b"))
    images: list[int] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    oversleep_seconds: float = 0.0
    aborted: bool = False
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="tpufeed-emulated-accelerator", daemon=True)

    def _run(self) -> None:
        try:
            self._compute()
        except BaseException as error:  # noqa: BLE001  # run() raises it, in the caller's thread
            self.failure = error
            while self.queue.get() is not None:  # or the loader would stand before a full queue for good
                pass

    def _compute(self) -> None:
        free, late = None, 0.0
        while True:
            ready = self.queue.qsize()
            item = self.queue.get()
            if item is None:
                return
            if self.aborted:
                continue
            arrival, images, epoch, batch = item
            # A step begins when device and batch are both there, and takes its nominal time.
            wait = 0.0 if free is None else max(0.0, arrival - free)
            free = (arrival if free is None else free) + wait + self.step_seconds
            self.waits.append(wait)
            self.ready.append(ready)
            self.images.append(images)
            self.ledger.enter(epoch, batch)  # the device is busy meanwhile
            before, pause = late, free - self.now()
            if pause > 0:
                self.sleep(pause)
                before = 0.0
            late = max(0.0, self.now() - free)
            if len(self.waits) > 1 and self.queue.full():  # else the loader was not held up
                # A thread that is late already stays late for several steps: what it had lost before is counted.
                self.oversleep_seconds += max(0.0, late - before)
            del item, batch  # a device gives a batch's memory back at the end of its step
