"""Emulate an accelerator: it takes a batch, is busy for as long as a real one would be, and waits for the next.

All figures come from nominal times of steps. A host that is too busy to end a sleep in time makes it longer. Where
measured sleeps count as computing, as in MLPerf Storage's emulator, a starved host looks like a well fed one.

The images are counted, and their pixels tell whether each sample came once an epoch: a loader that drops or repeats
samples is a fast one in MLPerf Storage's emulator.
"""

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpufeed.errors import LoaderError, OptionError
from tpufeed.measure.clock import idle_band, length_of, wait_percentiles
from tpufeed.measure.tpu import AcceleratorProfile

_AU_FLOOR_PERCENT = 90.0  # MLPerf Storage's floor for ResNet-50
_FEWEST_STEPS = 20  # after the first step; figures of fewer say little
_MOST_OVERSLEEP_PERCENT = 2.0
_QUEUE_BATCHES = 2

# Datasets hold some images twice, and some look alike to a fingerprint. More repeats than this share are the loader's
# doing, or make the dataset unfit for an honest measurement. A loader that repeats gains no more than this either.
_MOST_REPEATS = 0.01
_FEW_REPEATS = 2

_WORDS = 8
_GOLDEN = 0.6180339887498949  # spreads the words over rows and columns alike
_WEIGHTS = np.random.default_rng(8).integers(0, 1 << 63, _WORDS * 16, np.uint64) * np.uint64(2) + np.uint64(1)


@dataclass(frozen=True, slots=True)
class AcceleratorReport:
    """Figures of an emulated accelerator. None means unknown, as most figures are after fewer than two steps.

    `steps` and `images` count everything; the other figures leave out the first step, in which the loader warms up.

    Attributes:
        images_per_second: images in a second of `wall_seconds`.
        idle_percent: waits / wall.
        au_percent: MLPerf's accelerator utilisation, steps / wall.
        oversleep_percent: time by which the emulator was woken late while its queue was full / wall. By so much it may
            have held up the loader; above 2 % there is no verdict.
        wall_seconds: waits + nominal times of the steps.
        first_batch_seconds: time from asking for the first batch until it was there.
        waits: seconds that each step waited; the first entry is `first_batch_seconds`.
        ready: batches in the device's queue when each step asked for one.
        repeated: images that came with the pixels of another image of the same epoch, or in more epochs than
            `Expected.variants` explains.
        missing: images of complete epochs that never came, beyond the remainder of a batch; None without such an epoch.
        problems: reasons why the figures are not to be trusted, as sentences. With any of them `verdict` is empty.
    """

    name: str
    batch_size: int
    step_ms: float
    steps: int
    images: int
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
    repeated: int | None = None
    missing: int | None = None
    problems: tuple[str, ...] = ()
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """The images that an honest loader gives.

    Attributes:
        samples: samples of the split.
        batch_size: `remainder="drop"` leaves less than one batch out of an epoch.
        variants: number of epochs after which the same pixels may come again: 1 where nothing is random, K of a cache
            of K random variants, None where each epoch is augmented afresh.
        endless: True if one iteration goes through epoch after epoch, each of whole batches.
    """

    samples: int
    batch_size: int
    variants: int | None = 1
    endless: bool = False

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return self.samples // self.batch_size


class Limits(NamedTuple):
    """The end of a measurement: after so many steps, or so many seconds.

    A loader that gives too few steps for a verdict in `seconds` is measured for up to `patience_seconds` longer.
    """

    steps: int | None = None
    seconds: float | None = None
    patience_seconds: float = 0.0

    def reached(self, steps: int, seconds: float) -> bool:
        """Return True at the end, so many steps and seconds after the first batch came."""
        if steps == self.steps:
            return True
        enough = steps > _FEWEST_STEPS  # the first one counts for nothing
        return self.seconds is not None and seconds >= self.seconds + (0 if enough else self.patience_seconds)


class EmulatedAccelerator:
    """A device that trains on batches of `batch_size` images at a profile's rate, with a queue of two batches.

    It needs no thread: when a step begins and ends follows from the times at which batches come. The caller sleeps
    where it would stand before a full queue.
    """

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
        """Feed the device from `loader`, epoch after epoch.

        Args:
            loader: gives batches: an array, or a tuple or dict whose first member is one; its first axis counts.
            steps: end after so many steps.
            seconds: end so long after the first batch. Without `steps` and `seconds` the run ends after one epoch.
            expected: images of an honest loader; without it repeated and missing images are not looked for.
            patience_seconds: extra time where `seconds` give fewer steps than a verdict takes.

        Raises:
            OptionError: a batch has more images than a step takes, or `steps` or `seconds` are not positive.
            LoaderError: an epoch has no batch.
            Exception: the loader's.
        """
        if (steps is not None and steps < 1) or (seconds is not None and seconds <= 0):
            raise OptionError(f"steps and seconds are positive, not {steps} and {seconds}")
        limits, ledger = Limits(steps, seconds, patience_seconds), Ledger()
        epochs = RepeatedEpochs(loader, steps is not None or seconds is not None)
        arrivals, begins, images = array("d"), array("d"), list[int]()
        free = float("-inf")  # when the device ends its last step
        oversleep = 0.0
        # The queue and the step that computes hold their batches: a loader with few buffers must feel that.
        held = deque[Any](maxlen=_QUEUE_BATCHES + 1)
        asked = self._now()
        with closing(epochs.batches()) as batches:
            for batch in batches:
                arrivals.append(self._now())
                images.append(int(_first_member(batch).shape[0]))
                if images[-1] > self.batch_size:
                    raise OptionError(
                        f"a batch of {images[-1]} images, for an accelerator that takes {self.batch_size} a step"
                    )
                # A step begins when device and batch are both there, and takes its nominal time.
                begins.append(max(free, arrivals[-1]))
                free = begins[-1] + self.step_seconds
                ledger.enter(epochs.number, batch)
                held.append(batch)
                del batch
                if limits.reached(len(begins), self._now() - arrivals[0]):
                    break
                if len(begins) > _QUEUE_BATCHES:
                    # There is room for this batch when the device takes the one two before it.
                    room = begins[-1 - _QUEUE_BATCHES]
                    pause = room - self._now()
                    if pause > 0:
                        self._sleep(pause)
                        oversleep += max(0.0, self._now() - room)
        # A step waits from the end of the one before it to its own beginning.
        begun = np.array(begins)
        ends = np.concatenate([[asked], begun[:-1] + self.step_seconds])
        queued = np.append(arrivals, float("inf"))
        ready = np.sum([queued[n : n + len(begun)] <= ends for n in range(_QUEUE_BATCHES)], axis=0)
        repeated, missing, dishonest = ledger.judge(expected, epochs.ended)
        problems = list[str]()
        small = sum(count < self.batch_size for count in images)
        if small > epochs.number + 1:  # the last batch of an epoch may be small; with more the device only seems busy
            problems.append(
                f"{small} of {len(images)} batches had fewer images than the {self.batch_size} that the "
                "accelerator takes a step: give it full ones"
            )
        problems += (*epochs.problems(), *dishonest)
        if expected is not None and repeated is None:
            problems.append("the pixels are not in this host's memory, so that drops and repeats would not show")
        report = AcceleratorReport(
            name=self.profile.name,
            batch_size=self.batch_size,
            step_ms=self.step_seconds * 1e3,
            steps=len(images),
            images=sum(images),
            first_batch_seconds=float(begun[0] - asked),
            waits=tuple((begun - ends).tolist()),
            ready=tuple(ready.tolist()),
            repeated=repeated,
            missing=missing,
            problems=(*few_steps(len(images) - 1), *problems),
        )
        return self._judge(report, sum(images[1:]), oversleep)

    def _judge(self, report: AcceleratorReport, images: int, oversleep_seconds: float) -> AcceleratorReport:
        """Return the report with the figures of the steady state, which gave so many images, and with a verdict."""
        if report.steps < 2:
            return report
        waits = np.array(report.waits[1:])
        wait, computed = float(waits.sum()), len(waits) * self.step_seconds
        wall = wait + computed
        idle, au, oversleep = (100 * part / wall for part in (wait, computed, oversleep_seconds))
        problems, verdict = list(report.problems), ""
        if oversleep > _MOST_OVERSLEEP_PERCENT:
            problems.append(
                f"this host woke the emulator late, by {oversleep:.1f} % of the time, more than "
                f"{_MOST_OVERSLEEP_PERCENT:g} %: leave it a free core (fewer threads or processes for the loader, "
                "nothing else at work), or make its steps longer (a larger batch)"
            )
        if not problems:
            passes = "passes" if au >= _AU_FLOOR_PERCENT else "is below"
            verdict = (
                f"idle {idle:.1f} %: {idle_band(idle)}; AU {au:.1f} % {passes} MLPerf Storage's floor of "
                f"{_AU_FLOOR_PERCENT:.0f} %"
            )
        return replace(
            report,
            images_per_second=images / wall,
            **wait_percentiles(waits),
            idle_percent=idle,
            au_percent=au,
            oversleep_percent=oversleep,
            wall_seconds=wall,
            problems=tuple(problems),
            verdict=verdict,
        )


def few_steps(steps: int) -> tuple[str, ...]:
    """Return a problem, as a sentence, where figures of so few steps after the first one say little."""
    if steps >= _FEWEST_STEPS:
        return ()
    were = "step was" if steps == 1 else "steps were"
    return (f"{steps} {were} measured after the first one, {_FEWEST_STEPS} are the fewest that say anything",)


@dataclass
class RepeatedEpochs:
    """The batches of one epoch after the other, or of one epoch.

    Attributes:
        number: number of the epoch that is under way, from 0.
        ended: number of epochs that came to their end.
        short: (number, batches it gave, batches it has by `len`) of each epoch that ended early.
    """

    loader: Iterable[Any]
    endless: bool
    number: int = 0
    ended: int = 0
    short: list[tuple[int, int, int]] = field(default_factory=list)

    def batches(self) -> Generator[Any]:
        """Yield the batches. Raises LoaderError for an epoch without any."""
        while self.ended == 0 or self.endless:
            self.number, given = self.ended, 0
            iterator = iter(self.loader)
            try:
                for batch in iterator:
                    given += 1
                    yield batch
                    # A generator's variable would hold one more of the loader's buffers than a device's queue does.
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
        """Return a sentence where an epoch ended early."""
        if not self.short:
            return ()
        number, given, promised = self.short[0]
        again = f", and {len(self.short) - 1} more epochs did" if len(self.short) > 1 else ""
        return (f"the loader ended early: epoch {number + 1} had {given} batches of {promised}{again}",)


@dataclass
class Ledger:
    """The fingerprints of a run's images, epoch by epoch."""

    epochs: dict[int, list[NDArray[np.uint64]]] = field(default_factory=dict)
    unseen: bool = False  # there were images whose pixels cannot be read

    def enter(self, epoch: int, batch: Any) -> None:
        """Look at a batch, an array or a tuple or dict whose first member is one."""
        pixels = host_view(_first_member(batch))
        if pixels is None:
            self.unseen = True
        else:
            self.epochs.setdefault(epoch, []).append(fingerprint(pixels))

    def judge(self, expected: Expected | None, ended: int) -> tuple[int | None, int | None, tuple[str, ...]]:
        """Judge the epochs, the first `ended` of which came to their end.

        Returns:
            Repeated images, missing images (both None where they are unknown), and sentences that say why the figures
            of this loader are not to be trusted.
        """
        if self.unseen or not self.epochs or expected is None:
            return None, None, ()
        epochs = [np.concatenate(self.epochs[number]) for number in sorted(self.epochs)]
        images = sum(map(len, epochs))
        if expected.endless:
            size = max(1, expected.batches * expected.batch_size)
            given = np.concatenate(epochs)
            epochs, ended = [given[start : start + size] for start in range(0, images, size)], images // size
        distinct = [np.unique(epoch) for epoch in epochs]
        allowed = 1 if expected.variants is None else -(-len(epochs) // expected.variants)
        _, times = np.unique(np.concatenate(distinct), return_counts=True)
        repeated = images - sum(map(len, distinct)) + int(np.maximum(0, times - allowed).sum())
        whole = expected.samples - expected.samples % expected.batch_size
        missing = sum(max(0, whole - len(epoch)) for epoch in epochs[:ended]) if ended else None
        problems = []
        if repeated > max(_FEW_REPEATS, _MOST_REPEATS * images):
            problems.append(
                f"{repeated:,} of {images:,} images came again with the very same pixels, more often than the epochs "
                "explain: the loader repeats samples, or the dataset holds many of them twice"
            )
        if missing:
            problems.append(
                f"{missing:,} images of the epochs that ended never came, more than the remainder of a batch: the "
                "loader drops samples"
            )
        return repeated, missing, tuple(problems)


def host_view(images: Any) -> NDArray[Any] | None:
    """Return the images as numpy sees them, without a copy; None where they are not in the memory of this host."""
    if isinstance(images, np.ndarray):
        return images
    for view in (lambda: np.asarray(memoryview(images)), lambda: np.from_dlpack(images)):
        try:
            return view()
        except (TypeError, ValueError, RuntimeError, BufferError, AttributeError):
            continue
    return None


def fingerprint(images: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a fingerprint of each image: a weighted sum of eight 8-byte words, one from each eighth of the image.

    It takes 0.2 us for an image of 150 kB, 1 % of a core at 50,000 images a second, wherever the elements lie: making
    the images contiguous would copy all of them. Images that agree in all eight words have one fingerprint, as
    photographs before one flat colour may; so a share of repeats is let pass.
    """
    images = images[:, None] if images.ndim == 1 else images
    shape, numbers = images.shape[1:], np.arange(_WORDS)
    size = math.prod(shape)
    if not len(images) or not size:
        return np.zeros(len(images), np.uint64)
    # A word is eight elements that follow a place in each eighth, whatever the size of an element.
    places = ((numbers + (numbers + 1) * _GOLDEN % 1) * size / _WORDS).astype(np.intp)
    elements = np.minimum(places[:, None] + np.arange(8), size - 1).ravel()
    words = np.ascontiguousarray(images[(slice(None), *np.unravel_index(elements, shape))]).view(np.uint64)
    weighed: NDArray[np.uint64] = np.einsum("ij,j->i", words, _WEIGHTS[: words.shape[1]])  # modulo 2^64
    return weighed


def _first_member(batch: Any) -> Any:
    """Return the images of a batch."""
    if isinstance(batch, Mapping):
        return next(iter(batch.values()))
    return batch[0] if isinstance(batch, Sequence) else batch
