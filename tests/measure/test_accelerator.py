"""The emulated accelerator: its nominal times, its honesty, and what it says of loaders that cheat."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.errors import LoaderError, OptionError
from tpufeed.measure.accelerator import AcceleratorReport, EmulatedAccelerator, Expected, fingerprint, host_view
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


def run_late(batches: int, late: dict[int, float], step_seconds: float = 1.0) -> Any:
    """The report of a device whose loader takes no time and whose sleeps, numbered from 1, end so late."""
    seconds, sleeps = 0.0, 0

    def sleep(pause: float) -> None:
        nonlocal seconds, sleeps
        sleeps += 1
        seconds += pause + late.get(sleeps, 0.0)

    profile = AcceleratorProfile("slow", 4 / step_seconds)
    return EmulatedAccelerator(profile, 4, now=lambda: seconds, sleep=sleep).run([batch()] * batches)


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
    assert few.problems == ("19 steps were measured after the first one, 20 are the fewest that say anything",)
    assert few.verdict == ""


def test_late_wakes_above_two_percent_withhold_the_verdict_and_say_what_to_do() -> None:
    good, bad = (run_late(30, dict.fromkeys(range(1, 31), late)) for late in (0.02, 0.03))
    assert good.oversleep_percent < 2 < bad.oversleep_percent
    assert (good.problems, bad.verdict) == ((), "")
    assert good.verdict
    (problem,) = bad.problems
    assert re.search(r"woke the emulator late, by 2\.[89] % of the time, more than 2 %: leave it a free core", problem)


def test_each_step_is_recorded_for_the_timeline() -> None:
    report = feed([3, 3, 3, 9], step_seconds=1.0)
    assert report.first_batch_seconds == pytest.approx(3)
    assert report.waits == pytest.approx((3, 0, 0, 3))  # the device is free at 6 when the last one comes
    assert report.ready == (0, 2, 1, 0)
    assert feed([3, 3, 3, 3, 3], step_seconds=1.0).ready == (0, 2, 2, 2, 1)


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
    with pytest.raises(OptionError, match="5 images, for an accelerator that takes 4"):
        device.run([batch(5)])
    with pytest.raises(OptionError, match="at least one image"):
        EmulatedAccelerator(FAST, 0)
    for limits in ({"steps": 0}, {"seconds": 0.0}, {"steps": -1}):
        with pytest.raises(OptionError, match="positive"):
            device.run([batch()], **limits)  # type: ignore[arg-type]


# A loader that drops, repeats or ends early is faster for it; its figures get no verdict.

SAMPLES, BATCH = 103, 4
FASTER = AcceleratorProfile("faster", 400_000.0)
PHOTOS = np.random.default_rng(5).integers(0, 256, (4, SAMPLES, 8, 8, 3), np.uint8)  # of four variants


class Photos:
    """Epoch after epoch of the samples that `pick` names, in another order each time."""

    def __init__(self, pick: Sequence[int] = range(SAMPLES), variants: int = 1, batches: int | None = None) -> None:
        self.pick, self.variants, self.batches = pick, variants, batches
        self.epoch = -1

    def __len__(self) -> int:
        return SAMPLES // BATCH

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        order = np.random.default_rng(self.epoch).permutation(np.array(self.pick))
        for number in range(len(order) // BATCH if self.batches is None else self.batches):
            yield self.images(order[number * BATCH : (number + 1) * BATCH]), np.zeros(BATCH)

    def images(self, samples: Sequence[int]) -> Any:
        return PHOTOS[self.epoch % self.variants][samples]


def run_photos(loader: Any, variants: int | None = 1, steps: int = 75, **expected: Any) -> AcceleratorReport:
    return EmulatedAccelerator(FASTER, BATCH).run(
        loader, steps=steps, expected=Expected(SAMPLES, BATCH, variants, **expected)
    )


def honest(report: AcceleratorReport) -> tuple[str, ...]:
    """Its problems but that this machine is slow."""
    return tuple(problem for problem in report.problems if "late" not in problem)


def test_an_honest_loader_repeats_nothing_and_misses_nothing() -> None:
    report = run_photos(Photos())
    assert (report.repeated, report.missing, report.images) == (0, 0, 300)
    assert honest(report) == ()
    assert run_photos(Photos(), steps=24).missing is None  # no epoch has ended
    assert honest(run_photos(Photos(variants=4), variants=None, steps=100)) == ()
    assert honest(run_photos(Photos(variants=1), variants=None, steps=100))  # augmented pixels never come again


def test_small_batches_keep_a_device_busy_and_get_no_verdict() -> None:
    class Small(Photos):
        def __iter__(self) -> Iterator[Any]:
            for images, labels in super().__iter__():
                for part in (slice(0, 1), slice(1, BATCH)):
                    yield images[part], labels[part]

    report = run_photos(Small())
    assert honest(report)[0].startswith("75 of 75 batches had fewer images than the 4 that the accelerator takes")
    assert report.verdict == ""


def test_the_last_batch_of_an_epoch_may_be_small() -> None:
    class Whole(Photos):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()
            yield self.images(self.pick[-3:]), np.zeros(3)

    report = EmulatedAccelerator(FASTER, BATCH).run(Whole(), steps=75)
    assert report.images == 25 * BATCH + 3 + 25 * BATCH + 3 + 23 * BATCH
    assert honest(report) == ()


def test_a_cache_repeats_itself_after_its_variants() -> None:
    assert run_photos(Photos(variants=2), variants=2, steps=100).repeated == 0
    frozen = run_photos(Photos(variants=1), variants=2, steps=100)
    assert frozen.repeated is not None
    assert frozen.repeated > 150
    assert "came again with the very same pixels" in honest(frozen)[0]
    assert frozen.verdict == ""


def test_a_loader_that_repeats_half_of_the_samples_is_found_out_in_its_first_epoch() -> None:
    report = run_photos(Photos([*range(52), *range(51)]), steps=24)
    assert report.repeated is not None
    assert report.repeated >= 40
    assert honest(report)
    assert report.verdict == ""


def test_a_loader_that_drops_samples_is_found_out() -> None:
    report = run_photos(Photos(range(60)), steps=40)
    assert report.missing == 2 * (100 - 60)
    assert any("80 images of the epochs that ended never came" in problem for problem in honest(report))
    assert any("epoch 1 had 15 batches of 25, and 1 more epochs" in problem for problem in honest(report))


def test_a_loader_that_ends_early_is_found_out_by_its_own_length() -> None:
    report = EmulatedAccelerator(FASTER, BATCH).run(Photos(batches=24), steps=49)
    assert honest(report) == ("the loader ended early: epoch 1 had 24 batches of 25, and 1 more epochs did",)
    assert report.repeated is None  # nobody said what to expect


def test_epochs_within_one_iteration_are_told_apart_by_their_length() -> None:
    class Endless(Photos):
        def __len__(self) -> int:
            raise TypeError("endless")

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from super().__iter__()

    report = run_photos(Endless(), endless=True)
    assert (report.repeated, report.missing) == (0, 0)
    half = run_photos(Endless(range(50)), endless=True)
    assert half.repeated is not None
    assert half.repeated > 100


def test_a_few_true_duplicates_are_counted_and_let_pass() -> None:
    class Twins(Photos):
        def images(self, samples: Sequence[int]) -> Any:
            return PHOTOS[0][np.where(np.asarray(samples) == 7, 8, samples)]

    report = run_photos(Twins())
    assert report.repeated in (1, 2, 3)  # one an epoch that had both
    assert honest(report) == ()


def test_pixels_that_cannot_be_looked_at_leave_no_verdict() -> None:
    class Elsewhere:
        shape = (BATCH, 8, 8, 3)

    report = run_photos([(Elsewhere(), None)] * 25)
    assert (report.repeated, report.missing) == (None, None)
    assert any("not in this host's memory" in problem for problem in honest(report))
    assert report.verdict == ""


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(224, 224, 3), (7, 5, 3), (2, 2, 3), (3,), ()])
def test_the_same_pixels_have_the_same_fingerprint_and_others_another(shape: tuple[int, ...], dtype: Any) -> None:
    images = np.random.default_rng(1).random((20, *shape))
    images = (images * 255).astype(dtype) if shape or dtype != np.uint8 else np.arange(20).astype(dtype)
    found = fingerprint(images)
    assert len(set(found.tolist())) == len({image.tobytes() for image in images})
    assert (fingerprint(images[::-1].copy()) == found[::-1]).all()
    assert (fingerprint(np.asfortranarray(images)) == found).all()
    assert len(fingerprint(images[:0])) == 0


@given(st.integers(0, 223), st.integers(0, 223))
def test_two_crops_of_a_photograph_have_two_fingerprints(down: int, right: int) -> None:
    wall = np.random.default_rng(2).integers(0, 256, (448, 448, 3), np.uint8)
    crops = np.stack([wall[:224, :224], wall[down : down + 224, right : right + 224]])
    same = bool((crops[0] == crops[1]).all())
    assert (len(set(fingerprint(crops).tolist())) == 1) == same


def test_tensors_of_torch_are_seen_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4 * 6 * 6 * 3, dtype=torch.uint8).reshape(4, 6, 6, 3)
    seen = host_view(tensor)
    assert seen is not None
    tensor[0, 0, 0, 0] = 99
    assert seen[0, 0, 0, 0] == 99
