import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tpufeed.errors import LoaderError, OptionError
from tpufeed.profiling.accelerator import EmulatedAccelerator, say_verdict
from tpufeed.profiling.tpu import AcceleratorProfile

THREAD = "tpufeed-emulated-accelerator"
FAST = AcceleratorProfile("fast", 4000.0)  # 1 ms for a batch of 4


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == THREAD] == []


def batch(images: int = 4) -> tuple[Any, Any]:
    return np.zeros((images, 2, 2, 3), np.uint8), np.zeros(images, np.int64)


class FakeTime:
    """The time that the feeding thread sees: it moves when a test's loader says so. The device never really sleeps."""

    def __init__(self) -> None:
        self.seconds = 50.0
        self.feeder = threading.current_thread()

    def now(self) -> float:
        # The device's thread always finds itself in time; when it runs is the machine's business.
        return self.seconds if threading.current_thread() is self.feeder else float("-inf")

    def sleep(self, seconds: float) -> None:
        pass


def feed(arrivals: list[float], step_seconds: float, **limits: Any) -> Any:
    """The report of a device that gets its batches of 4 at these times."""
    time = FakeTime()

    def loader() -> Iterator[Any]:
        for arrival in arrivals:
            time.seconds = 50.0 + arrival
            yield batch()

    device = EmulatedAccelerator(AcceleratorProfile("test", 4 / step_seconds), 4, now=time.now, sleep=time.sleep)
    return device.run(loader(), **limits)


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


def test_a_device_that_never_waits_is_idle_for_none_of_the_time() -> None:
    report = feed([0] * 6, step_seconds=0.25)
    assert (report.idle_percent, report.au_percent) == (0, 100)
    assert report.images_per_second == pytest.approx(4 / 0.25)


def test_one_step_is_warm_up_and_leaves_the_rates_unknown() -> None:
    report = feed([3], step_seconds=1.0)
    assert (report.steps, report.images) == (1, 4)
    assert (report.images_per_second, report.idle_percent, report.au_percent) == (None, None, None)
    assert (report.wait_ms_p50, report.oversleep_percent, report.wall_seconds) == (None, None, None)


class Lockstep:
    """A clock that the device's sleeps alone move, each once its queue is full or the loader has nothing more."""

    def __init__(self, batches: int, late: dict[int, float]) -> None:
        self.seconds, self.sleeps, self.asked = 0.0, 0, 0
        self.batches, self.late = batches, late  # by number of the sleep, from 1
        self.changed = threading.Condition()

    def now(self) -> float:
        return self.seconds

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.batches):
            self._ask()
            yield batch()
        self._ask()

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        step = self.sleeps
        with self.changed:  # asked for the third after this step's batch, the loader has seen two of them queued
            assert self.changed.wait_for(lambda: self.asked >= min(step + 3, self.batches + 1), timeout=30)
            self.seconds += seconds + self.late.get(step, 0.0)

    def _ask(self) -> None:
        with self.changed:
            self.asked += 1
            self.changed.notify_all()


def run_lockstep(batches: int, late: dict[int, float]) -> Any:
    time = Lockstep(batches, late)
    return EmulatedAccelerator(AcceleratorProfile("slow", 4.0), 4, now=time.now, sleep=time.sleep).run(time)


def test_a_sleeper_that_wakes_late_is_reported_and_does_not_count_as_computing() -> None:
    report = run_lockstep(30, dict.fromkeys(range(1, 31), 0.1))
    # The first step is left out; behind the last one, and maybe the one before, the queue is not full.
    assert report.oversleep_percent == pytest.approx(100 * 27.5 * 0.1 / 29, abs=0.2)
    assert report.wall_seconds == pytest.approx(29)
    assert (report.au_percent, report.idle_percent) == (100, 0)


def test_late_wakes_above_two_percent_withhold_the_verdict_and_say_what_to_do() -> None:
    good, bad = (run_lockstep(30, dict.fromkeys(range(1, 31), late)) for late in (0.02, 0.03))
    assert good.oversleep_percent < 2 < bad.oversleep_percent
    assert good.problems == ()
    assert good.verdict == "idle 0.0 %: not input-bound; AU 100.0 % passes MLPerf Storage's floor of 90 %"
    assert bad.verdict == ""
    (problem,) = bad.problems
    assert re.search(r"woke the emulator late, by 2\.[89] % of the time, more than 2 %", problem)
    assert "a free core" in problem


def test_a_thread_that_fell_behind_once_lost_that_time_once() -> None:
    assert run_lockstep(30, {2: 2.5}).oversleep_percent == pytest.approx(100 * 2.5 / 29)


def test_a_late_wake_with_room_in_the_queue_holds_up_nobody() -> None:
    clock, slept = {"now": 0.0}, threading.Semaphore(0)

    def sleep(seconds: float) -> None:
        clock["now"] += seconds + 0.5
        slept.release()

    def loader() -> Iterator[Any]:
        for _ in range(25):
            yield batch()
            assert slept.acquire(timeout=30)  # one batch at a time: the queue is never full
            clock["now"] += 1.0

    device = EmulatedAccelerator(AcceleratorProfile("slow", 4.0), 4, now=lambda: clock["now"], sleep=sleep)
    report = device.run(loader())
    assert report.oversleep_percent == 0
    assert report.idle_percent == pytest.approx(60, abs=0.1)


def test_few_steps_have_figures_and_no_verdict() -> None:
    report = feed([0] * 20, step_seconds=0.25)
    assert report.au_percent == 100
    assert report.problems == ("19 steps were measured after the first one, 20 are the fewest that say anything",)
    assert report.verdict == ""
    assert feed([0] * 21, step_seconds=0.25).verdict


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        (4.9, "not input-bound; AU 95.1 % passes"),
        (5.0, "moderately input-bound; AU 95.0 % passes"),
        (10.1, "moderately input-bound; AU 89.9 % is below"),
        (20.0, "highly input-bound; AU 80.0 % is below"),
    ],
)
def test_the_verdict_names_xprof_s_bands_and_mlperf_s_floor(idle: float, said: str) -> None:
    assert said in say_verdict(idle)


def test_each_step_is_recorded_for_the_timeline() -> None:
    report = feed([3, 3, 3, 9], step_seconds=1.0)
    assert report.first_batch_seconds == pytest.approx(3)
    assert report.waits == pytest.approx((3, 0, 0, 3))  # the device is free at 6 when the last one comes
    assert len(report.ready) == 4
    assert set(report.ready) <= {0, 1, 2}
    assert report.wait_ms_p95 == pytest.approx(2700)


def test_the_loader_is_iterated_again_until_the_steps_are_done() -> None:
    report = EmulatedAccelerator(FAST, 4).run([batch()] * 3, steps=8)
    assert (report.steps, report.images) == (8, 32)


def test_one_epoch_where_no_end_is_given() -> None:
    assert EmulatedAccelerator(FAST, 4).run([batch()] * 3).steps == 3


def test_the_end_can_be_a_time() -> None:
    report = feed([0, 1, 2, 3, 4, 5, 6, 7], step_seconds=1.0, seconds=4.5)
    assert report.steps == 6


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


def test_images_of_torch_tensors_are_counted() -> None:
    torch = pytest.importorskip("torch")
    assert EmulatedAccelerator(FAST, 4).run([(torch.zeros(4, 3), torch.zeros(4))], steps=2).images == 8


def test_a_batch_that_does_not_fit_the_device_is_an_error() -> None:
    with pytest.raises(OptionError, match="5 images, for an accelerator that takes 4"):
        EmulatedAccelerator(FAST, 4).run([batch(5)])


def test_an_exception_of_the_loader_surfaces() -> None:
    def failing() -> Iterator[Any]:
        for _ in range(5):
            yield batch()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        EmulatedAccelerator(FAST, 4).run(failing(), steps=100)


def test_an_interrupt_ends_the_run_without_working_off_the_queue() -> None:
    slow = AcceleratorProfile("slow", 4 / 0.2)

    def interrupted() -> Iterator[Any]:
        yield batch()
        yield batch()
        yield batch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EmulatedAccelerator(slow, 4).run(interrupted(), steps=100)


def test_a_failure_of_the_device_surfaces_and_does_not_block_the_feeder() -> None:
    def sleep(seconds: float) -> None:
        raise RuntimeError("no clock")

    with pytest.raises(RuntimeError, match="no clock"):
        EmulatedAccelerator(FAST, 4, sleep=sleep).run([batch()] * 50)


def test_the_loaders_iterator_is_closed_when_the_steps_are_done() -> None:
    closed = []

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            try:
                while True:
                    yield batch()
            finally:
                closed.append(True)

    EmulatedAccelerator(FAST, 4).run(Loader(), steps=3)
    assert closed == [True]


@pytest.mark.parametrize(("loader", "epoch"), [([], 1), (iter([batch()]), 2)])
def test_an_epoch_without_a_batch_is_an_error_and_no_endless_loop(loader: Any, epoch: int) -> None:
    with pytest.raises(LoaderError, match=f"no batch in epoch {epoch}"):
        EmulatedAccelerator(FAST, 4).run(loader, steps=5)


@pytest.mark.parametrize("limits", [{"steps": 0}, {"seconds": 0.0}, {"steps": -1}])
def test_limits_are_positive(limits: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        EmulatedAccelerator(FAST, 4).run([batch()], **limits)
