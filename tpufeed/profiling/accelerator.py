"""An accelerator to feed where there is none: it takes a batch, is busy for as long as a real one would be, and waits.

Everything is reckoned from nominal times. A host too busy to wake the emulator in time makes its sleeps longer; where
measured sleeps count as computing, as in MLPerf Storage's emulator, a starved host looks like a well fed one.
"""

import difflib
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

import numpy as np

from tpufeed.errors import LoaderError, OptionError

QUEUE_BATCHES = 2

# Images a second of ResNet-50 training, (low, high), for all chips of one host. They scale two published runs on v3
# (1.05 M img/s on 1024 chips; 480 k img/s on 256 chips) by peak FLOP/s.
_TPUS = {
    "tpu-v2-8": (1500.0, 2744.0),
    "tpu-v3-8": (4100.0, 7500.0),
    "tpu-v4-8": (9167.0, 16768.0),
    "tpu-v5e-8": (13133.0, 24024.0),
    "tpu-v5p-8": (15300.0, 27988.0),
    "tpu-v6e-8": (61200.0, 111951.0),
    "tpu-v7x-4": (76900.0, 140671.0),
}
# MLPerf Storage's ResNet-50: a batch of 400 in 0.224 s and in 0.435 s.
_GPUS = {"mlperf-h100": 1786.0, "mlperf-a100": 920.0}


@dataclass(frozen=True, slots=True)
class AcceleratorProfile:
    """How many images a second an accelerator trains on when it never waits."""

    name: str
    images_per_second: float


@dataclass(frozen=True, slots=True)
class AcceleratorReport:
    """What an emulated accelerator did. None is what cannot be known from fewer than two steps.

    `steps` and `images` count everything; the other figures leave out the first step, in which the loader warms up.
    All but `oversleep_percent` are nominal: `wall_seconds` is waits + steps, `idle_percent` waits / wall, `au_percent`
    (MLPerf's accelerator utilisation) steps / wall. `oversleep_percent` says how late the emulator itself was woken,
    per nominal time: above a few percent the host was too busy for the figures to be good.
    """

    name: str
    batch_size: int
    steps: int
    images: int
    images_per_second: float | None
    step_ms: float
    wait_ms_p50: float | None
    wait_ms_p99: float | None
    idle_percent: float | None
    au_percent: float | None
    oversleep_percent: float | None
    wall_seconds: float | None


def profile(name: str) -> AcceleratorProfile:
    """The profile of that name. A TPU's ends in `-low` or `-high`; without either it is the high one, harder to feed.

    Raises:
        OptionError: no such profile.
    """
    rates = dict(_GPUS)
    for tpu, (low, high) in _TPUS.items():
        rates |= {tpu: high, f"{tpu}-low": low, f"{tpu}-high": high}
    if name not in rates:
        near = difflib.get_close_matches(name, rates, n=1, cutoff=0.0)[0]
        raise OptionError(f"there is no accelerator profile {name!r}; did you mean {near}? All: {', '.join(rates)}")
    return AcceleratorProfile(name, rates[name])


def next_step(free: float, arrival: float, step_seconds: float) -> tuple[float, float]:
    """`(wait, free again)` of a device that is free at `free` and takes a batch that is there from `arrival` on."""
    wait = max(0.0, arrival - free)
    return wait, free + wait + step_seconds


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

    def run(self, loader: Iterable[Any], steps: int | None = None, seconds: float | None = None) -> AcceleratorReport:
        """Feed the device from `loader`, which is iterated in the calling thread, epoch after epoch.

        Args:
            loader: gives batches: an array, or a tuple or dict whose first member is one; its first axis counts.
            steps: end after so many.
            seconds: end so long after the first batch. Without `steps` and `seconds`: after one epoch.

        Raises:
            OptionError: a batch of more images than the device's, or `steps` or `seconds` that are not positive.
            LoaderError: an epoch without a batch.
            Exception: whatever the loader raises. In every case the device's thread has ended.
        """
        if (steps is not None and steps < 1) or (seconds is not None and seconds <= 0):
            raise OptionError(f"steps and seconds are positive, not {steps} and {seconds}")
        device = _Device(self.step_seconds, self._now, self._sleep)
        device.thread.start()
        try:
            self._feed(device, loader, steps, seconds)
        except BaseException:
            device.aborted = True
            raise
        finally:
            device.queue.put(None)
            device.thread.join()
        if device.failure is not None:
            raise device.failure
        return self._report(device)

    def _feed(self, device: "_Device", loader: Iterable[Any], steps: int | None, seconds: float | None) -> None:
        stop = float("inf")
        endless = steps is not None or seconds is not None
        with closing(_iter_epochs(loader, endless)) as batches:
            for given, batch in enumerate(batches, 1):
                arrival = self._now()
                if given == 1 and seconds is not None:
                    stop = arrival + seconds
                device.queue.put((arrival, self._count(batch), batch))
                if given == steps or self._now() >= stop:
                    return

    def _count(self, batch: Any) -> int:
        first = batch
        if isinstance(batch, Mapping):
            first = next(iter(batch.values()))
        elif isinstance(batch, Sequence):
            first = batch[0]
        images = int(first.shape[0])
        if images > self.batch_size:
            raise OptionError(f"a batch of {images} images, for an accelerator that takes {self.batch_size} a step")
        return images

    def _report(self, device: "_Device") -> AcceleratorReport:
        waits = np.array(device.waits[1:])
        computed = len(waits) * self.step_seconds
        known = len(waits) > 0
        wait = float(waits.sum())
        wall = wait + computed
        p50, p99 = np.percentile(waits, (50, 99)) * 1e3 if known else (0.0, 0.0)
        return AcceleratorReport(
            name=self.profile.name,
            batch_size=self.batch_size,
            steps=len(device.waits),
            images=sum(device.images),
            images_per_second=sum(device.images[1:]) / wall if known else None,
            step_ms=self.step_seconds * 1e3,
            wait_ms_p50=float(p50) if known else None,
            wait_ms_p99=float(p99) if known else None,
            idle_percent=100 * wait / wall if known else None,
            au_percent=100 * computed / wall if known else None,
            oversleep_percent=100 * device.oversleep_seconds / computed if known else None,
            wall_seconds=wall if known else None,
        )


def _iter_epochs(loader: Iterable[Any], endless: bool) -> Generator[Any]:
    """The batches of one epoch after the other, or of one. Raises LoaderError for an epoch without any."""
    epoch = 0
    while epoch == 0 or endless:
        epoch += 1
        empty = True
        iterator = iter(loader)
        try:
            for batch in iterator:
                empty = False
                yield batch
                del batch
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
        if empty:
            raise LoaderError(
                f"the loader gave no batch in epoch {epoch}. Is the split smaller than a batch, or is this a generator "
                "or iterator, which can be gone through once only?"
            )


@dataclass
class _Device:
    """The device's thread, its queue and what it has recorded."""

    step_seconds: float
    now: Callable[[], float]
    sleep: Callable[[float], None]
    queue: Queue[tuple[float, int, Any] | None] = field(default_factory=lambda: Queue(QUEUE_BATCHES))
    waits: "array[float]" = field(default_factory=lambda: array("d"))
    images: list[int] = field(default_factory=list)
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
            while self.queue.get() is not None:
                pass

    def _compute(self) -> None:
        free, late = None, 0.0
        while True:
            item = self.queue.get()
            if item is None:
                return
            if self.aborted:
                continue
            arrival, images, _ = item
            wait, free = next_step(arrival if free is None else free, arrival, self.step_seconds)
            self.waits.append(wait)
            self.images.append(images)
            before, pause = late, free - self.now()
            if pause > 0:
                self.sleep(pause)
                before = 0.0
            late = max(0.0, self.now() - free)
            if len(self.waits) > 1:
                # A thread that is late already stays late for several steps: only what it lost anew counts.
                self.oversleep_seconds += max(0.0, late - before)
            del item, _  # a device gives a batch's memory back at the end of its step
