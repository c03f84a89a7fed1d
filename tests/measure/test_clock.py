"""The step clock: what counts as waiting, as computing and as neither, and what its report says."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest

from tpufeed.errors import OptionError
from tpufeed.measure.clock import StepClock, StepReport, load_steps


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


def test_loops_side_by_side_count_once(clock: StepClock, fake: FakeTime) -> None:
    for _ in zip(clock(Loader(fake, [5.0, 1.0, 1.0])), clock(Loader(fake, [2.0, 2.0, 2.0])), strict=False):
        fake.pass_(3)
    times = clock.timeline()
    assert sum(times.wait_seconds) == pytest.approx(5 + 1 + 1 + 2 + 2 + 2)
    assert sum(times.compute_seconds) == pytest.approx(3 * 3)
    assert len(times.wait_seconds) == 6


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
    assert any("2 steps were not counted" in note and "close()" in note for note in report.notes)


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
    assert (report.steps, report.wall_seconds) == (3, pytest.approx(4))  # its step ended where the next loop began
    batches.close()  # type: ignore[attr-defined]


def test_epochs_add_up_and_what_happens_between_them_does_not_count(clock: StepClock, fake: FakeTime) -> None:
    train(clock, Loader(fake, [5.0, 1.0]), compute=1.0)
    fake.pass_(1000)
    timed = clock(Loader(fake, [3.0, 1.0]))
    for _ in range(2):  # as training frameworks do, which take a loader once for all epochs
        for _ in timed:
            fake.pass_(1)
    report = clock.report(batch_size=1)
    assert (report.steps, report.wall_seconds) == (6, pytest.approx(2 + 2 * 6))
    assert report.idle_percent == pytest.approx(100 * 9 / 14)


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
    assert (report.step_ms, report.wait_ms_p50, report.images_per_second, report.wall_seconds) == (None,) * 4
    assert (report.idle_percent, report.blame) == (None, None)
    assert "no verdict" in report.summary()
    if len(waits) < 2:
        assert "step was measured" in report.notes[0]


@pytest.mark.parametrize("how", ["break", "raise"])
def test_a_loop_that_is_left_closes_the_loader_and_keeps_the_last_compute(
    clock: StepClock, fake: FakeTime, how: str
) -> None:
    loader, steps = Loader(fake, [5.0, 1.0, 1.0, 1.0]), []

    def loop() -> None:
        for batch in clock(loader):
            fake.pass_(3)
            steps.append(clock.report(batch_size=1).steps)  # of the steps that have ended
            if batch == 2 and how == "break":
                break
            _ = 1 // (2 - batch)

    if how == "break":
        loop()
    else:
        with pytest.raises(ZeroDivisionError):
            loop()
    report = clock.report(batch_size=1)
    assert (loader.closed, steps) == (1, [0, 1, 2])
    assert (report.steps, report.wall_seconds) == (3, pytest.approx(2 + 6))


def test_an_exception_of_the_loader_passes_through_and_the_clock_goes_on(clock: StepClock) -> None:
    class Failing:
        closed = False
        batches = 0

        def __iter__(self) -> "Failing":
            return self

        def __next__(self) -> int:
            self.batches += 1
            if self.batches > 2:
                raise OSError("the disk is gone")
            return 1

        def close(self) -> None:
            self.closed = True

    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise OSError("no such bucket")

    loader = Failing()
    with pytest.raises(OSError, match="the disk is gone"):
        list(clock(loader))
    assert loader.closed
    with pytest.raises(OSError, match="no such bucket"):
        list(clock(Broken()))
    assert list(clock([1, 2, 3])) == [1, 2, 3]
    assert clock.report(batch_size=1).steps == 5


def test_in_nested_loops_time_and_images_count_once(clock: StepClock, fake: FakeTime) -> None:
    """A step of the outer loop ends where the inner loop begins."""
    for _ in clock(Loader(fake, [5.0, 1.0], end=1.0)):
        fake.pass_(2)
        train(clock, Loader(fake, [0.5, 0.5], end=0.5), compute=3)
        fake.pass_(4)
    times, report = clock.timeline(), clock.report(batch_size=1)
    assert times.wait_seconds == pytest.approx((5.0, 0.5, 0.5, 1.0, 0.5, 0.5))
    assert times.compute_seconds == pytest.approx((2, 3, 3, 2, 3, 3))
    assert report.wall_seconds == pytest.approx(fake.seconds - 100 - 7 - 2 * 4)  # less the first step
    nested = StepClock()
    for _ in nested([np.zeros((8, 2))] * 2):
        list(nested([np.zeros((3, 2))] * 2))
    assert nested.report().images == 2 * 8 + 4 * 3


class Ticking:
    """A clock that a loader moves by `wait` before each batch, and the loop by `compute`."""

    def __init__(self, batches: list[Any], wait: float = 1.0, length: int | None = None) -> None:
        self.seconds, self.batches, self.wait, self.length = 0.0, batches, wait, length

    def now(self) -> float:
        return self.seconds

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.seconds += self.wait
            yield batch

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("no length")
        return self.length


def run(loader: Ticking, compute: float = 3.0, leave_after: int | None = None) -> StepClock:
    clock = StepClock(now=loader.now)
    for number, _ in enumerate(clock(loader), 1):
        loader.seconds += compute
        if number == leave_after:
            break
    return clock


def images(rows: int) -> Any:
    return np.zeros((rows, 4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    "batch_of",
    [
        images,
        lambda rows: (images(rows), np.zeros(rows, np.int64)),
        lambda rows: [images(rows), np.zeros(rows, np.int64)],
        lambda rows: {"image": images(rows), "label": np.zeros(rows, np.int64)},
        lambda rows: ({"image": images(rows)}, np.zeros(rows)),
    ],
)
def test_images_are_counted_from_the_batches_and_a_smaller_last_one_too(batch_of: Any) -> None:
    report = run(Ticking([batch_of(8), batch_of(8), batch_of(8), batch_of(3)])).report()
    assert report.images == 27
    assert report.images_per_second == pytest.approx(19 / 12)
    given = run(Ticking([batch_of(8)] * 3)).report(100)
    assert (given.images, given.images_per_second) == (300, pytest.approx(200 / 8))


def test_an_iterator_knows_better_what_is_left_of_an_epoch() -> None:
    class Sized:
        def __init__(self) -> None:
            self.left = 5

        def __len__(self) -> int:
            return self.left

        def __iter__(self) -> "Sized":
            return self

        def __next__(self) -> int:
            self.left -= 1
            if self.left < 2:
                raise StopIteration
            return self.left

    class Loader:
        def __iter__(self) -> Sized:
            return Sized()

        def __len__(self) -> int:
            return 4

    clock = StepClock()
    assert len(list(clock(Loader()))) == 3
    assert clock.report().short_epochs == ((1, 3, 5),)


@pytest.mark.parametrize(
    ("idle", "tracing", "blame", "words"),
    [
        (4.9, 4.9, "accelerator", "fed"),
        (4.9, None, "accelerator", "fed"),
        (5.0, 0.0, "data", "moderately input-bound"),
        (19.9, 3.0, "data", "moderately"),
        (20.0, 8.0, "data", "highly input-bound: 20.0 %"),
        (2.0, 41.0, "tracing", "waits on tracing and compiling (41.0 % of the time), not on data (2.0 %)"),
        (None, None, None, "no verdict"),
    ],
)
def test_the_blame_and_its_bands(idle: float | None, tracing: float | None, blame: str | None, words: str) -> None:
    report = StepReport(steps=9, idle_percent=idle, tracing_percent=tracing)
    assert report.blame == blame
    assert words in report.verdict
    assert words in report.summary()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("{", "not a file of steps"),
        ("[]", "not a file of steps"),
        ('{"format": "tpufeed-steps", "version": 1}', "missing required field `report`"),
        ('{"format": "tpufeed-steps", "version": 2, "report": {}}', r"`\$.version`"),
        ('{"format": "tpufeed-steps", "version": 1, "report": {}}', "missing required field `steps`"),
    ],
)
def test_any_other_file_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(OptionError, match=words):
        load_steps(tmp_path / "run.json")


def test_bytes_are_those_of_all_arrays_without_strings() -> None:
    class Tensor:  # as TensorFlow's: no nbytes
        shape, dtype = (2, 3), SimpleNamespace(size=4, name="float32")

    class Global:  # as JAX's: other processes hold the rest
        shape, dtype, nbytes = (8, 2), np.dtype("int8"), 16
        addressable_shards = (SimpleNamespace(data=np.zeros((2, 2), np.int8)),) * 2

    batch = {"image": images(2), "label": np.zeros(2, np.int64), "name": np.array(["a", "b"], object)}
    for batches, sizes in (
        ([images(row) for row in (5, 1, 5, 2, 2, 5, 1)], [(row, 48 * row) for row in (5, 1, 5, 2, 2, 5, 1)]),
        ([batch, (np.array(["a"], object),), Tensor(), Global()], [(2, 2 * 48 + 16), (1, 0), (2, 24), (8, 8)]),
    ):
        report = run(Ticking(batches)).report()
        assert report.images == sum(count for count, _ in sizes)
        seconds = 4 * (len(sizes) - 1)
        assert report.images_per_second == pytest.approx(sum(count for count, _ in sizes[1:]) / seconds)
        assert report.bytes_per_second == pytest.approx(sum(nbytes for _, nbytes in sizes[1:]) / seconds)


def test_a_saved_report_is_read_as_it_was_also_with_fields_of_a_later_release(tmp_path: Path) -> None:
    clock = run(Ticking([images(8)] * 5, length=7))
    report = clock.save(tmp_path / "run.json")
    assert load_steps(tmp_path / "run.json") == report == clock.report()
    assert report.short_epochs
    document = json.loads((tmp_path / "run.json").read_text())
    times = clock.timeline()
    assert tuple(document["times"]["wait_seconds"]) == times.wait_seconds == (1,) * 5
    assert (times.compute_seconds, times.sync_seconds) == ((3,) * 5, ())  # no loader of torch_xla's
    document["report"]["moon_phase"] = 0.5
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert load_steps(tmp_path / "run.json") == report


def test_what_has_no_shape_is_not_counted_and_the_report_says_how_to() -> None:
    class Odd:
        shape = 7  # no shape

    for batches in (["a", "b", "c"], [Odd(), Odd(), images(2)]):  # neither ends the training
        report = run(Ticking(batches)).report()
        assert (report.steps, report.images, report.images_per_second) == (3, None, None)
        assert (report.idle_percent, report.bytes_per_second) == (25, None)
        assert any("report(batch_size=...)" in note for note in report.notes)


def test_an_epoch_shorter_than_the_loaders_length_is_told() -> None:
    class Resuming(Ticking):
        def load_state_dict(self, state: Any) -> None:
            raise AssertionError("never called here")

    report = run(Ticking([images(1)] * 37, length=100)).report()
    assert report.short_epochs == ((1, 37, 100),)
    assert any("gave 37 batches, len() says 100" in note for note in report.notes)
    # Whole epochs, those that the loop left, and the rest of an epoch are not short.
    for length, leave_after in ((5, None), (100, 5), (3, None), (None, None)):
        assert run(Ticking([images(1)] * 5, length=length), leave_after=leave_after).report().short_epochs == ()
    assert run(Resuming([images(1)] * 5, length=9)).report().short_epochs == ()
