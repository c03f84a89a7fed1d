import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tpufeed.errors import LoaderError, OptionError
from tpufeed.profiling.accelerator import AcceleratorProfile, EmulatedAccelerator, next_step, profile

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


@pytest.mark.parametrize(
    ("free", "arrival", "wait", "then_free"),
    [
        (10.0, 7.0, 0.0, 10.5),  # there before the device was free
        (10.0, 10.0, 0.0, 10.5),
        (10.0, 12.0, 2.0, 12.5),  # the device waited for it
    ],
)
def test_a_step_starts_when_device_and_batch_are_there(
    free: float, arrival: float, wait: float, then_free: float
) -> None:
    assert next_step(free, arrival, 0.5) == (wait, then_free)


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


def test_a_sleeper_that_wakes_late_is_reported_and_does_not_count_as_computing() -> None:
    clock = {"now": 0.0}

    def oversleep(seconds: float) -> None:
        clock["now"] += seconds + 0.1

    device = EmulatedAccelerator(AcceleratorProfile("slow", 4.0), 4, now=lambda: clock["now"], sleep=oversleep)
    report = device.run([batch()] * 5, steps=5)
    assert report.oversleep_percent == pytest.approx(10, abs=0.5)
    assert report.wall_seconds is not None
    assert report.au_percent is not None
    assert report.au_percent * report.wall_seconds / 100 == pytest.approx(4.0)


def test_a_thread_that_fell_behind_once_lost_that_time_once() -> None:
    clock = {"now": 0.0}
    stalls = iter([0.0, 2.5])

    def sleep(seconds: float) -> None:
        clock["now"] += seconds + next(stalls, 0.0)

    device = EmulatedAccelerator(AcceleratorProfile("slow", 4.0), 4, now=lambda: clock["now"], sleep=sleep)
    batches = iter([batch()] * 3)
    report = device.run(batches)
    assert report.oversleep_percent == pytest.approx(100 * 2.5 / 2, abs=1)


def test_the_loader_is_iterated_again_until_the_steps_are_done() -> None:
    report = EmulatedAccelerator(FAST, 4).run([batch()] * 3, steps=8)
    assert (report.steps, report.images) == (8, 32)


def test_one_epoch_where_no_end_is_given() -> None:
    assert EmulatedAccelerator(FAST, 4).run([batch()] * 3).steps == 3


def test_the_end_can_be_a_time() -> None:
    report = feed([0, 1, 2, 3, 4, 5, 6, 7], step_seconds=1.0, seconds=4.5)
    assert report.steps == 6


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


def test_profiles() -> None:
    assert profile("tpu-v3-8-high").images_per_second == 7500
    assert profile("tpu-v3-8-low").images_per_second == 4100
    assert profile("tpu-v3-8") == AcceleratorProfile("tpu-v3-8", 7500)
    for name in ("tpu-v2-8", "tpu-v3-8", "tpu-v4-8", "tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8", "tpu-v7x-4"):
        assert profile(f"{name}-low").images_per_second < profile(f"{name}-high").images_per_second
    assert EmulatedAccelerator(profile("mlperf-h100"), 400).step_seconds == pytest.approx(0.224, rel=1e-3)
    assert EmulatedAccelerator(profile("mlperf-a100"), 400).step_seconds == pytest.approx(0.435, rel=1e-3)


def test_an_unknown_profile_names_the_nearest_and_all() -> None:
    with pytest.raises(OptionError, match=r"did you mean tpu-v3-8\?.*tpu-v6e-8-low.*") as raised:
        profile("tpu-v3_8")
    assert "mlperf-h100" in str(raised.value)
