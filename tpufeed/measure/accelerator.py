"""Emulate an accelerator: it takes a batch, is busy for as long as a real one would be, and waits for the next.

All figures come from nominal step times. A busy host ends its sleeps too late. If measured sleeps counted as computing,
as in MLPerf Storage's emulator, a starved host would look like a well fed one.
"""

import itertools
import time
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Annotated, Any, NamedTuple

import numpy as np

from tpufeed.errors import LoaderError, OptionError
from tpufeed.measure.clock import MODERATE_PERCENT, StepTimes, first_shape, idle_band, length_of, wait_percentiles
from tpufeed.measure.results import BenchRun
from tpufeed.measure.tpu import AcceleratorProfile, mfu_percent
from tpufeed.options import Count, above, checked

_AU_FLOOR_PERCENT = 90.0  # MLPerf Storage's floor for ResNet-50
_FEWEST_STEPS = 20  # after the first step. Fewer say little
_MOST_OVERSLEEP_PERCENT = 2.0
_QUEUE_BATCHES = 2


class Limits(NamedTuple):
    """Limits at which a measurement ends, see `EmulatedAccelerator.run`."""

    steps: int | None = None
    seconds: float | None = None
    patience_seconds: float = 0.0

    def reached(self, steps: int, seconds: float) -> bool:
        """Return True if the measurement ends after `steps` steps, `seconds` after its first batch."""
        if steps == self.steps:
            return True
        patience = self.patience_seconds if steps <= _FEWEST_STEPS else 0.0  # the first step is not measured
        return self.seconds is not None and seconds >= self.seconds + patience


class EmulatedAccelerator:
    """A device that trains on batches of `batch_size` images at a profile's rate, with a queue of two batches.

    It needs no thread: the times at which batches arrive give the times of the steps. When the queue is full, the
    caller sleeps.
    """

    @checked()
    def __init__(
        self,
        profile: AcceleratorProfile,
        batch_size: Count,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.profile = profile
        self.batch_size = batch_size
        self.step_seconds = batch_size / profile.images_per_second
        self._now = now
        self._sleep = sleep

    @checked()
    def run(
        self,
        loader: Iterable[Any],
        steps: Count | None = None,
        seconds: Annotated[float, above(0)] | None = None,
        patience_seconds: float = 0.0,
    ) -> BenchRun:
        """Feed the device from `loader`, epoch after epoch. With fewer than two steps most figures are unknown.

        Args:
            loader: gives batches: an array, or a tuple or dict whose first member is an array. The length of its first
                axis is the number of images.
            steps: end after this number of steps.
            seconds: end this long after the first batch. Without `steps` and `seconds` the run ends after one epoch.
            patience_seconds: most extra time to take if `seconds` give too few steps for a verdict.

        Raises:
            OptionError: a batch has more images than a step takes, or `steps` or `seconds` are not positive.
            LoaderError: an epoch has no batch.
            Exception: an error of the loader.
        """
        limits = Limits(steps, seconds, patience_seconds)
        short, endless = list[str](), steps is not None or seconds is not None
        arrivals, begins, images = array("d"), array("d"), list[int]()
        free = float("-inf")  # time when the device ends its last step
        oversleep = 0.0
        # The queue and the running step hold their batches, so that a loader with few buffers has to wait for them.
        held = deque[Any](maxlen=_QUEUE_BATCHES + 1)
        asked = self._now()
        with closing(repeat_epochs(loader, endless, short)) as batches:
            for epoch, batch in batches:
                arrivals.append(self._now())
                images.append(int(first_shape(batch)[0]))
                may_be_small = epoch + 1  # the last batch of each epoch. Others only make it seem busy
                if images[-1] > self.batch_size:
                    raise OptionError(
                        f"a batch has {images[-1]} images, but the accelerator takes {self.batch_size} per step"
                    )
                # A step begins when both device and batch are ready, and takes its nominal time.
                begins.append(max(free, arrivals[-1]))
                free = begins[-1] + self.step_seconds
                held.append(batch)
                del batch
                if limits.reached(len(begins), self._now() - arrivals[0]):
                    break
                if len(begins) > _QUEUE_BATCHES:
                    # The queue has room for this batch when the device takes the batch two before it.
                    room = begins[-1 - _QUEUE_BATCHES]
                    pause = room - self._now()
                    if pause > 0:
                        self._sleep(pause)
                        oversleep += max(0.0, self._now() - room)
        # A step waits from the end of the previous step until it begins.
        begun = np.array(begins)
        ends = np.concatenate([[asked], begun[:-1] + self.step_seconds])
        queued = np.append(arrivals, float("inf"))
        ready = np.sum([queued[n : n + len(begun)] <= ends for n in range(_QUEUE_BATCHES)], axis=0)
        problems = problems_of(len(images) - 1, short)
        small = sum(count < self.batch_size for count in images)
        lacks = 100 * (1 - sum(images) / (len(images) * self.batch_size))
        if small > may_be_small or lacks >= MODERATE_PERCENT:
            problems.append(
                f"{small} of {len(images)} batches had fewer images than the {self.batch_size} that the accelerator "
                f"takes per step, {lacks:.0f} % fewer in all: give it full batches"
            )
        waits = begun - ends
        steady = dict[str, Any]()  # figures of the steady state, after the loader has started
        if len(images) > 1:
            wait, computed = float(waits[1:].sum()), (len(images) - 1) * self.step_seconds
            wall, useful = wait + computed, sum(images[1:]) / self.profile.images_per_second
            idle, au, late = (100 * part / wall for part in (wait, useful, oversleep))
            # A late wake can only add idle time, so a device that is fed all the same is fed.
            if late > _MOST_OVERSLEEP_PERCENT and idle >= MODERATE_PERCENT:
                problems.append(
                    f"this host woke the emulator late: {late:.1f} % of the time, more than "
                    f"{_MOST_OVERSLEEP_PERCENT:g} %. Leave it a free core (fewer threads or processes for the loader, "
                    "no other work on the host), or make its steps longer (a larger batch)"
                )
            passes = "passes" if au >= _AU_FLOOR_PERCENT else "is below"
            floor = f"AU {au:.1f} % {passes} MLPerf Storage's floor of {_AU_FLOOR_PERCENT:.0f} %"
            rate = sum(images[1:]) / wall
            steady = {
                "images_per_second": rate,
                "idle_percent": idle,
                "au_percent": au,
                "mfu_percent": mfu_percent(rate, self.profile.flops_per_sample, self.profile.tpu),
                "oversleep_percent": late,
                "wall_seconds": wall,
                "verdict": f"idle {idle:.1f} %: {idle_band(idle)}; {floor}",
                **wait_percentiles(waits[1:]),
            }
        return BenchRun(
            label=self.profile.name,
            device=f"EMULATED {self.profile.name}",
            batch_size=self.batch_size,
            step_ms=self.step_seconds * 1e3,
            steps=len(images),
            images=sum(images),
            first_batch_seconds=float(waits[0]),
            problems=tuple(problems),
            timeline=StepTimes(
                wait_seconds=tuple(waits.tolist()),
                compute_seconds=(self.step_seconds,) * len(images),
                ready=tuple(ready.tolist()),
            ),
            **steady,
        )


def repeat_epochs(loader: Iterable[Any], endless: bool, short: list[str]) -> Generator[tuple[int, Any]]:
    """Yield (epoch from 0, batch) for one epoch, or for all epochs if `endless`. Close the loader's iterators.

    Each epoch that gives fewer batches than `len(loader)` promises adds a sentence to `short`.

    Raises:
        LoaderError: an epoch has no batch.
    """
    for epoch in itertools.count():
        given = 0
        iterator = iter(loader)
        try:
            for batch in iterator:
                given += 1
                yield epoch, batch
                # This variable would hold one more of the loader's buffers than the queue of a device does.
                del batch
        finally:
            getattr(iterator, "close", lambda: None)()
        if not given:
            raise LoaderError(
                f"the loader gave no batch in epoch {epoch + 1}. Is the split smaller than a batch, or is this a "
                "generator or an iterator, which can be used only once?"
            )
        promised = length_of(loader)
        if promised is not None and given < promised:
            short.append(f"the loader ended early: epoch {epoch + 1} had {given} batches of {promised}")
        if not endless:
            return


def problems_of(steps: int, short: Sequence[str]) -> list[str]:
    """Return, as sentences, if `steps` steps after the first are too few to judge, and which epochs were `short`."""
    problems = []
    if steps < _FEWEST_STEPS:
        were = "step was" if steps == 1 else "steps were"
        problems.append(f"only {steps} {were} measured after the first; at least {_FEWEST_STEPS} are needed to judge")
    if short:
        problems.append(short[0] + (f"; {len(short)} short epochs in all" if len(short) > 1 else ""))
    return problems
