import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest

from tpufeed.profiling.clock import StepClock


class FakeTime:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds


class Loader:
    """Takes `waits[i]` seconds for batch i and `end` seconds to find that there is no more."""

    def __init__(self, time: FakeTime, waits: list[float], end: float = 0.0) -> None:
        self.time, self.waits, self.end = time, waits, end
        self.closed = 0

    def __iter__(self) -> Iterator[int]:
        try:
            for number, wait in enumerate(self.waits):
                self.time.pass_(wait)
                yield number
            self.time.pass_(self.end)
        finally:
            self.closed += 1


@pytest.fixture
def fake() -> FakeTime:
    return FakeTime()


@pytest.fixture
def clock(fake: FakeTime) -> StepClock:
    return StepClock(now=fake.now)


def train(clock: StepClock, loader: Loader, compute: float) -> list[int]:
    seen = []
    for batch in clock(loader):
        seen.append(batch)
        loader.time.pass_(compute)
    return seen


def test_the_first_step_is_kept_apart_from_the_steady_state(clock: StepClock, fake: FakeTime) -> None:
    assert train(clock, Loader(fake, [5.0, 1.0, 1.0, 2.0]), compute=3.0) == [0, 1, 2, 3]
    report = clock.report(batch_size=10)
    assert report.steps == 4
    assert report.first_wait_seconds == pytest.approx(5)
    assert report.wall_seconds == pytest.approx(4 + 9)
    assert report.idle_percent == pytest.approx(100 * 4 / 13)
    assert report.images_per_second == pytest.approx(30 / 13)
    assert report.step_ms == pytest.approx(4000)
    assert report.wait_ms_p50 == pytest.approx(1000)
    assert report.wait_ms_p95 == pytest.approx(1900)
    assert report.wait_ms_p99 == pytest.approx(1980)


def test_epochs_add_up_and_what_happens_between_them_does_not_count(clock: StepClock, fake: FakeTime) -> None:
    train(clock, Loader(fake, [5.0, 1.0]), compute=1.0)
    fake.pass_(1000)
    train(clock, Loader(fake, [3.0, 1.0]), compute=1.0)
    report = clock.report(batch_size=1)
    assert report.steps == 4
    assert report.wall_seconds == pytest.approx(2 + 4 + 2)
    assert report.idle_percent == pytest.approx(100 * 5 / 8)


def test_what_it_gives_can_be_iterated_again_and_again(clock: StepClock, fake: FakeTime) -> None:
    """As training frameworks do, which take a loader once for all epochs."""
    timed = clock(Loader(fake, [5.0, 1.0]))
    for epoch in range(3):
        assert list(timed) == [0, 1]
        assert clock.report(batch_size=1).steps == 2 * (epoch + 1)
    assert clock.report(batch_size=1).wall_seconds == pytest.approx(1 + 6 + 6)


def test_it_is_otherwise_like_its_loader(clock: StepClock) -> None:
    class Stateful(list[int]):
        batch_size = 8

        def state_dict(self) -> dict[str, int]:
            return {"batches": len(self)}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self[:] = [0] * state["batches"]

    class WithoutLength:
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2, 3])

    @runtime_checkable
    class Keeps(Protocol):  # as Lightning asks; from Python 3.12 on a `__getattr__` is not asked for it
        def state_dict(self) -> Any: ...
        def load_state_dict(self, state: Any) -> None: ...

    loader = Stateful([1, 2, 3])
    timed = clock(loader)
    assert (len(timed), timed.batch_size) == (3, 8)
    assert isinstance(timed, Keeps)
    assert "state_dict" in vars(type(timed))
    timed.load_state_dict({"batches": 5})
    assert (list(timed), timed.state_dict()) == ([0] * 5, {"batches": 5})
    bare = clock(WithoutLength())
    assert list(bare) == [1, 2, 3]
    assert not isinstance(bare, Keeps)
    assert getattr(bare, "sampler", None) is None
    with pytest.raises(TypeError, match="has no len"):
        len(bare)


def test_waiting_to_learn_that_an_epoch_is_over_is_idle_but_no_step(clock: StepClock, fake: FakeTime) -> None:
    train(clock, Loader(fake, [5.0, 1.0, 1.0], end=4.0), compute=1.0)
    report = clock.report(batch_size=1)
    assert report.steps == 3
    assert report.wait_ms_p99 == pytest.approx(1000)
    assert report.idle_percent == pytest.approx(100 * 6 / 8)


@pytest.mark.parametrize(
    ("waits", "compute", "first_wait"),
    [([], 1.0, None), ([5.0], 1.0, 5.0), ([0.0, 0.0, 0.0], 0.0, 0.0)],  # the last clock did not move
)
def test_without_a_steady_state_nothing_is_known_of_it(
    clock: StepClock, fake: FakeTime, waits: list[float], compute: float, first_wait: float | None
) -> None:
    train(clock, Loader(fake, waits), compute=compute)
    report = clock.report(batch_size=8)
    assert (report.steps, report.first_wait_seconds) == (len(waits), first_wait)
    unknown = (report.step_ms, report.wait_ms_p50, report.wait_ms_p95, report.wait_ms_p99)
    assert unknown == (None,) * 4
    assert (report.images_per_second, report.idle_percent, report.wall_seconds) == (None,) * 3


def test_leaving_early_closes_the_loader_and_keeps_the_last_compute(clock: StepClock, fake: FakeTime) -> None:
    loader = Loader(fake, [5.0, 1.0, 1.0, 1.0])
    for batch in clock(loader):
        fake.pass_(3)
        if batch == 2:
            break
    report = clock.report(batch_size=1)
    assert loader.closed == 1
    assert report.steps == 3
    assert report.wall_seconds == pytest.approx(2 + 6)


def test_an_exception_in_the_loop_closes_the_loader_and_keeps_the_last_compute(
    clock: StepClock, fake: FakeTime
) -> None:
    loader = Loader(fake, [5.0, 1.0, 1.0])

    def loop() -> None:
        for batch in clock(loader):
            fake.pass_(3)
            _ = 1 // (1 - batch)

    with pytest.raises(ZeroDivisionError):
        loop()
    report = clock.report(batch_size=1)
    assert loader.closed == 1
    assert report.steps == 2
    assert report.wall_seconds == pytest.approx(1 + 3)


def test_an_exception_of_the_loader_passes_through(clock: StepClock, fake: FakeTime) -> None:
    def failing() -> Iterator[int]:
        yield 0
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(clock(failing()))
    assert clock.report(batch_size=1).steps == 2


def test_an_iterator_of_a_class_is_closed_too(clock: StepClock) -> None:
    class Closable:
        closed = False

        def __iter__(self) -> "Closable":
            return self

        def __next__(self) -> int:
            return 1

        def close(self) -> None:
            self.closed = True

    loader = Closable()
    for _ in clock(loader):
        break
    assert loader.closed


def test_the_clock_keeps_no_batch_alive_while_it_waits(clock: StepClock) -> None:
    alive = 0

    class Batch:
        def __init__(self) -> None:
            nonlocal alive
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def loader() -> Iterator[Batch]:
        for _ in range(5):
            assert alive == 0
            yield Batch()

    for batch in clock(loader()):
        assert alive == 1
        del batch


def test_the_time_of_a_loop_within_a_loop_counts_once(clock: StepClock, fake: FakeTime) -> None:
    for _ in clock(Loader(fake, [5.0, 1.0, 1.0], end=1.0)):
        fake.pass_(2)
        train(clock, Loader(fake, [0.5, 0.5], end=0.5), compute=3)
        fake.pass_(4)
    times, report = clock.timeline(), clock.report(batch_size=1)
    assert times.wait_seconds == pytest.approx((0.5, 0.5, 5.0, 0.5, 0.5, 1.0, 0.5, 0.5, 1.0))
    assert times.compute_seconds == pytest.approx((3, 3, 6, 3, 3, 6, 3, 3, 6))
    took = fake.seconds - 100
    assert report.wall_seconds == pytest.approx(took - 3.5)  # less the first step that ended
    assert report.idle_percent == pytest.approx(100 * (5 + 2 + 1 + 6 * 0.5 + 3 * 0.5 - 0.5) / (took - 3.5))


def test_loops_side_by_side_count_once(clock: StepClock, fake: FakeTime) -> None:
    for _ in zip(clock(Loader(fake, [5.0, 1.0, 1.0])), clock(Loader(fake, [2.0, 2.0, 2.0])), strict=False):
        fake.pass_(3)
    times = clock.timeline()
    assert sum(times.wait_seconds) == pytest.approx(5 + 1 + 1 + 2 + 2 + 2)
    assert sum(times.compute_seconds) == pytest.approx(3 * 3)
    assert len(times.wait_seconds) == 6


@pytest.mark.parametrize("between", [lambda timed: timed, lambda timed: (batch for batch in timed)])
def test_a_loader_that_is_timed_twice_counts_once(
    clock: StepClock, fake: FakeTime, between: Callable[[Any], Any]
) -> None:
    loader = Loader(fake, [5.0, 1.0, 1.0], end=1.0)
    for _ in clock(between(clock(loader))):
        fake.pass_(3)
    report = clock.report(batch_size=10)
    assert (report.steps, report.images) == (3, 30)
    assert report.wall_seconds == pytest.approx(1 + 1 + 1 + 2 * 3)
    assert loader.closed == 1


def test_images_of_loops_within_one_another_are_told_apart(clock: StepClock) -> None:
    rows = [np.zeros((8, 2)), np.zeros((8, 2))]
    for _ in clock(rows):
        list(clock([np.zeros((3, 2)), np.zeros((3, 2))]))
    assert clock.report().images == 2 * 8 + 4 * 3


def test_what_passes_after_a_kept_iterators_loop_is_of_no_step(clock: StepClock, fake: FakeTime) -> None:
    loader = Loader(fake, [5.0] + [1.0] * 9, end=1.0)
    batches = iter(clock(loader))
    for _ in islice(batches, 4):
        fake.pass_(2)
    fake.pass_(1000)  # an evaluation
    for _ in islice(batches, 4):
        fake.pass_(2)
    fake.pass_(1000)
    del batches
    report = clock.report(batch_size=1)
    assert loader.closed == 1
    assert report.steps == 6
    assert report.wall_seconds == pytest.approx(5 * 3)
    assert any("2 steps are left out" in note and "close()" in note for note in report.notes)


def test_closing_a_kept_iterator_ends_the_last_step(clock: StepClock, fake: FakeTime) -> None:
    batches: Any = iter(clock(Loader(fake, [5.0, 1.0, 1.0, 1.0])))
    for batch in batches:
        fake.pass_(2)
        if batch == 2:
            break
    batches.close()
    fake.pass_(1000)
    assert list(batches) == []
    report = clock.report(batch_size=1)
    assert (report.steps, report.notes) == (3, ())
    assert report.wall_seconds == pytest.approx(2 * 3)


def test_a_kept_iterator_does_not_hold_up_the_next_loops(clock: StepClock, fake: FakeTime) -> None:
    batches = iter(clock(Loader(fake, [5.0, 1.0])))
    next(batches)
    fake.pass_(1)
    train(clock, Loader(fake, [1.0, 1.0]), compute=1)
    report = clock.report(batch_size=1)
    assert (report.steps, report.wall_seconds) == (2, pytest.approx(2))
    batches.close()  # type: ignore[attr-defined]


def test_a_report_in_the_middle_of_the_loop_covers_the_steps_that_ended(clock: StepClock, fake: FakeTime) -> None:
    steps = []
    for _ in clock(Loader(fake, [1.0, 1.0, 1.0])):
        fake.pass_(1)
        steps.append(clock.report(batch_size=1).steps)
    assert steps == [0, 1, 2]


def test_the_default_clock_is_one_of_seconds() -> None:
    clock = StepClock()
    for _ in clock(range(3)):
        time.sleep(0.01)
    report = clock.report(batch_size=1)
    assert report.wall_seconds is not None
    assert report.wall_seconds >= 0.02
    assert report.idle_percent is not None
    assert 0 <= report.idle_percent <= 100
