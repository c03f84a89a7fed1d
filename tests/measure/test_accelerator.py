"""The emulated accelerator: its nominal times, its honesty, and what it says of loaders that end early."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tpufeed.errors import LoaderError, OptionError
from tpufeed.measure.accelerator import EmulatedAccelerator
from tpufeed.measure.tpu import AcceleratorProfile

FAST = AcceleratorProfile("fast", 4000.0)  # 1 ms for a batch of 4


def batch(images: int = 4) -> tuple[Any, Any]:
    return np.zeros((images, 2, 2, 3), np.uint8), np.zeros(images, np.int64)


def feed(arrivals: list[float], step_seconds: float, **limits: Any) -> Any:
    """The report of a device that gets its batches of 4 at these times."""
    seconds = 50.0

    def loader() -> Iterator[Any]:
        nonlocal seconds
        for arrival in arrivals:
            seconds = 50.0 + arrival
            yield batch()

    profile = AcceleratorProfile("test", 4 / step_seconds)
    return EmulatedAccelerator(profile, 4, now=lambda: seconds, sleep=lambda _: None).run(loader(), **limits)


def run_late(batches: int, late: dict[int, float], step_seconds: float = 1.0, stall: float = 0.0) -> Any:
    """The report of a device whose sleeps, numbered from 1, end so late.

    Its loader takes no time, but for the last batch, which takes `stall` seconds.
    """
    seconds, sleeps = 0.0, 0

    def sleep(pause: float) -> None:
        nonlocal seconds, sleeps
        sleeps += 1
        seconds += pause + late.get(sleeps, 0.0)

    def loader() -> Iterator[Any]:
        nonlocal seconds
        for number in range(batches):
            seconds += stall if number == batches - 1 else 0.0
            yield batch()

    profile = AcceleratorProfile("slow", 4 / step_seconds)
    return EmulatedAccelerator(profile, 4, now=lambda: seconds, sleep=sleep).run(loader())


def test_idle_is_reckoned_from_nominal_times_without_the_first_step() -> None:
    # The first batch comes after 100 s and is the warm-up; the device is free at 101, 103, 104, 105, 109.
    report = feed([100, 102, 102, 102, 108], step_seconds=1.0)
    assert report.steps == 5
    assert report.images == 20
    assert report.wall_seconds == pytest.approx(8)
    assert report.idle_percent == pytest.approx(100 * 4 / 8)
    assert report.au_percent == pytest.approx(50)
    assert report.images_per_second == pytest.approx(16 / 8)
    assert report.step_ms == pytest.approx(1000)
    assert report.wait_ms_p50 == pytest.approx(500)
    assert report.wait_ms_p99 == pytest.approx(2940)


def test_one_step_is_warm_up_and_leaves_the_rates_unknown() -> None:
    report = feed([3], step_seconds=1.0)
    assert (report.steps, report.images) == (1, 4)
    assert (report.images_per_second, report.idle_percent, report.au_percent) == (None, None, None)
    assert (report.wait_ms_p50, report.oversleep_percent, report.wall_seconds) == (None, None, None)


def test_a_sleeper_that_wakes_late_is_reported_and_does_not_count_as_computing() -> None:
    report = run_late(30, dict.fromkeys(range(1, 31), 0.1))
    # The first step is left out, and the first two batches find room in the queue.
    assert report.oversleep_percent == pytest.approx(100 * 27 * 0.1 / 29)
    assert report.wall_seconds == pytest.approx(29)
    assert (report.au_percent, report.idle_percent) == (100, 0)


def test_the_loader_is_asked_when_the_queue_has_room() -> None:
    seconds, asked = 0.0, []

    def sleep(pause: float) -> None:
        nonlocal seconds
        seconds += pause

    def loader() -> Iterator[Any]:
        for _ in range(7):
            asked.append(seconds)
            yield batch()

    EmulatedAccelerator(AcceleratorProfile("slow", 4.0), 4, now=lambda: seconds, sleep=sleep).run(loader())
    assert asked == [0, 0, 0, 0, 1, 2, 3]  # a batch computes, two are queued, one is in the loader's hands


def test_a_thread_that_fell_behind_once_lost_that_time_once() -> None:
    assert run_late(30, {2: 2.5}).oversleep_percent == pytest.approx(100 * 2.5 / 29)


@pytest.mark.parametrize(("patience", "steps", "verdict"), [(0.0, 6, False), (8.0, 14, False), (60.0, 21, True)])
def test_a_slow_loader_is_fed_from_for_longer_until_there_are_steps_for_a_verdict(
    patience: float, steps: int, verdict: bool
) -> None:
    report = feed([float(second) for second in range(40)], step_seconds=1.0, seconds=4.5, patience_seconds=patience)
    assert (report.steps, bool(report.verdict)) == (steps, verdict)


@pytest.mark.parametrize(
    "batches",
    [
        [batch(3)],
        [list(batch(3))],
        [(*batch(3), np.ones(3, bool))],
        [batch(3)[0]],
        [{"image": batch(3)[0], "label": batch(3)[1]}],
    ],
)
def test_images_are_counted_from_whatever_a_batch_is(batches: list[Any]) -> None:
    assert EmulatedAccelerator(FAST, 4).run(batches, steps=2).images == 6


def test_an_exception_of_the_loader_surfaces() -> None:
    def failing() -> Iterator[Any]:
        for _ in range(5):
            yield batch()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        EmulatedAccelerator(FAST, 4).run(failing(), steps=100)


@pytest.mark.parametrize(("loader", "epoch"), [([], 1), (iter([batch()]), 2)])
def test_an_epoch_without_a_batch_is_an_error_and_no_endless_loop(loader: Any, epoch: int) -> None:
    with pytest.raises(LoaderError, match=f"no batch in epoch {epoch}"):
        EmulatedAccelerator(FAST, 4).run(loader, steps=5)


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        (0.0, "idle 0.0 %: not input-bound; AU 100.0 % passes MLPerf Storage's floor of 90 %"),
        (4.9, "idle 4.9 %: not input-bound; AU 95.1 % passes"),
        (5.1, "moderately input-bound; AU 94.9 % passes"),
        (10.1, "moderately input-bound; AU 89.9 % is below"),
        (20.1, "highly input-bound; AU 79.9 % is below"),
    ],
)
def test_the_verdict_names_xprof_s_bands_and_mlperf_s_floor(idle: float, said: str) -> None:
    apart = 1 / (1 - idle / 100)
    report = feed([3 + apart * number for number in range(21)], step_seconds=1.0)
    assert said in report.verdict
    few = feed([apart * number for number in range(20)], step_seconds=1.0)
    assert few.idle_percent == pytest.approx(idle)
    assert few.problems == ("only 19 steps were measured after the first; at least 20 are needed to judge",)
    assert few.verdict == ""


def test_late_wakes_above_two_percent_withhold_the_verdict_and_say_what_to_do() -> None:
    good, bad = (run_late(30, dict.fromkeys(range(1, 31), late), stall=6.0) for late in (0.02, 0.04))
    assert 5 < good.idle_percent < bad.idle_percent
    assert good.oversleep_percent < 2 < bad.oversleep_percent
    assert (good.problems, bad.verdict) == ((), "")
    assert good.verdict
    (problem,) = bad.problems
    assert re.search(r"woke the emulator late: [23]\.\d % of the time", problem)


def test_a_device_that_is_fed_although_it_woke_late_is_fed() -> None:
    report = run_late(30, dict.fromkeys(range(1, 31), 0.1))
    assert report.oversleep_percent > 5
    assert (report.idle_percent, report.problems) == (0, ())
    assert report.verdict.startswith("idle 0.0 %: not input-bound")


def test_each_step_is_recorded_for_the_timeline() -> None:
    report = feed([3, 3, 3, 9], step_seconds=1.0)
    assert report.first_batch_seconds == pytest.approx(3)
    assert report.timeline.wait_seconds == pytest.approx(
        (3, 0, 0, 3)
    )  # the device is free at 6 when the last one comes
    assert report.timeline.ready == (0, 2, 1, 0)
    assert feed([3, 3, 3, 3, 3], step_seconds=1.0).timeline.ready == (0, 2, 2, 2, 1)


def test_the_loader_is_iterated_again_until_the_end_and_closed() -> None:
    closed = []

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            try:
                yield from [batch()] * 3
            finally:
                closed.append(True)

    device = EmulatedAccelerator(FAST, 4)
    report = device.run(Loader(), steps=8)
    assert (report.steps, report.images, len(closed)) == (8, 32, 3)
    assert device.run(Loader()).steps == 3  # one epoch where no end is given
    assert feed([0, 1, 2, 3, 4, 5, 6, 7], step_seconds=1.0, seconds=4.5).steps == 6


def test_what_the_device_refuses() -> None:
    device = EmulatedAccelerator(FAST, 4)
    with pytest.raises(OptionError, match=r"5 images, .* 4"):
        device.run([batch(5)])
    with pytest.raises(OptionError, match="batch_size is"):
        EmulatedAccelerator(FAST, 0)
    for limits in ({"steps": 0}, {"seconds": 0.0}, {"steps": -1}):
        with pytest.raises(OptionError, match=r"(steps|seconds) is"):
            device.run([batch()], **limits)  # type: ignore[arg-type]


def other_problems(report: Any) -> tuple[str, ...]:
    """Its problems but that this machine is slow."""
    return tuple(problem for problem in report.problems if "late" not in problem)


class Epochs:
    """Epochs of `sizes` images each, in batches, and the length that it promises."""

    def __init__(self, *sizes: int, promised: int) -> None:
        self.sizes, self.promised = sizes, promised

    def __len__(self) -> int:
        return self.promised

    def __iter__(self) -> Iterator[Any]:
        yield from map(batch, self.sizes)


def test_small_batches_keep_a_device_busy_and_get_no_verdict() -> None:
    report = EmulatedAccelerator(FAST, 4).run(Epochs(*[1, 3] * 25, promised=50), steps=75)
    assert other_problems(report)[0].startswith(
        "75 of 75 batches had fewer images than the 4 that the accelerator takes"
    )
    assert report.verdict == ""


def test_the_last_batch_of_an_epoch_may_be_small() -> None:
    report = EmulatedAccelerator(FAST, 4).run(Epochs(*[4] * 25, 3, promised=26), steps=75)
    assert report.images == 25 * 4 + 3 + 25 * 4 + 3 + 23 * 4
    assert other_problems(report) == ()


@pytest.mark.parametrize("sizes", [(1,), (4, 0), (4, 1)])
def test_epochs_of_short_or_empty_batches_are_no_full_device(sizes: tuple[int, ...]) -> None:
    report = EmulatedAccelerator(FAST, 4).run(Epochs(*sizes, promised=len(sizes)), steps=60)
    assert other_problems(report)[0].endswith("% fewer in all: give it full batches")
    assert report.au_percent == pytest.approx(100 * report.images_per_second / 4000)
    assert report.au_percent < 70


def test_a_loader_that_ends_early_is_found_out_by_its_own_length() -> None:
    report = EmulatedAccelerator(FAST, 4).run(Epochs(*[4] * 24, promised=25), steps=49)
    assert other_problems(report) == ("the loader ended early: epoch 1 had 24 batches of 25; 2 short epochs in all",)
