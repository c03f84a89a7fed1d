"""What a report says besides the waits: images, bytes, short epochs, the blame, and its file."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpufeed.errors import OptionError
from tpufeed.profiling.clock import StepClock, load_of
from tpufeed.profiling.steps import StepReport, load_steps


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


def test_shapes_that_change_all_the_time_are_counted_too() -> None:
    rows = [5, 1, 5, 2, 2, 5, 1]
    report = run(Ticking([images(row) for row in rows])).report()
    assert report.images == 21
    assert report.images_per_second == pytest.approx(16 / 24)
    assert report.bytes_per_second == pytest.approx(16 * 48 / 24)


def test_a_batch_size_that_is_given_counts_instead() -> None:
    report = run(Ticking([images(8)] * 3)).report(100)
    assert (report.images, report.images_per_second) == (300, pytest.approx(200 / 8))


def test_what_has_no_shape_is_not_counted_and_the_report_says_how_to() -> None:
    report = run(Ticking(["a", "b", "c"])).report()
    assert (report.images, report.images_per_second, report.bytes_per_second) == (None, None, None)
    assert report.idle_percent == 25
    assert any("report(batch_size=...)" in note for note in report.notes)


def test_a_batch_that_cannot_be_measured_does_not_end_the_training() -> None:
    class Odd:
        shape = 7  # no shape

    report = run(Ticking([Odd(), Odd(), images(2)])).report()
    assert (report.steps, report.images) == (3, None)


def test_bytes_are_those_of_all_arrays_without_strings() -> None:
    batch = {"image": images(2), "label": np.zeros(2, np.int64), "name": np.array(["a", "b"], object)}
    assert load_of(batch).nbytes == 2 * 48 + 16
    assert load_of((np.array(["a"], object),)).nbytes == 0
    assert load_of("a").nbytes is None


def test_bytes_of_arrays_of_the_frameworks() -> None:
    class Tensor:  # as TensorFlow's: no nbytes
        shape, dtype = (2, 3), SimpleNamespace(size=4, name="float32")

    class Global:  # as JAX's: other processes hold the rest
        shape, dtype, nbytes = (8, 2), np.dtype("int8"), 16
        addressable_shards = (SimpleNamespace(data=np.zeros((2, 2), np.int8)),) * 2

    assert load_of(Tensor()).nbytes == 24
    assert (load_of(Global()).images, load_of(Global()).nbytes) == (8, 8)


def test_an_epoch_shorter_than_the_loaders_length_is_told() -> None:
    report = run(Ticking([images(1)] * 37, length=100)).report()
    assert report.short_epochs == ((1, 37, 100),)
    assert any("gave 37 batches, len() says 100" in note for note in report.notes)


@pytest.mark.parametrize(("length", "leave_after"), [(5, None), (100, 5), (3, None), (None, None)])
def test_whole_epochs_and_those_that_the_loop_left_are_not_short(length: int | None, leave_after: int | None) -> None:
    assert run(Ticking([images(1)] * 5, length=length), leave_after=leave_after).report().short_epochs == ()


def test_an_epoch_of_a_loader_that_may_go_on_in_mid_epoch_is_not_short() -> None:
    class Resuming(Ticking):
        def load_state_dict(self, state: Any) -> None:
            raise AssertionError("never called here")

    assert run(Resuming([images(1)] * 5, length=9)).report().short_epochs == ()


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


def test_an_iter_that_raises_passes_through_and_the_clock_goes_on() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise OSError("no such bucket")

    clock = StepClock()
    with pytest.raises(OSError, match="no such bucket"):
        list(clock(Broken()))
    assert list(clock([1, 2, 3])) == [1, 2, 3]
    assert clock.report(1).steps == 3


@pytest.mark.parametrize(("batches", "words"), [(0, "no step was measured"), (1, "one step was measured")])
def test_too_few_steps_are_said_plainly(batches: int, words: str) -> None:
    report = run(Ticking([images(2)] * batches)).report()
    assert report.idle_percent is None
    assert report.blame is None
    assert words in report.notes[0]
    assert "at least 2" in report.notes[0]
    assert "n/a" in report.summary()
    assert "no verdict" in report.verdict


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


def test_the_timeline_is_plain_and_from_the_first_step() -> None:
    times = run(Ticking([images(1)] * 3)).timeline()
    assert times.wait_seconds == (1, 1, 1)
    assert times.compute_seconds == (3, 3, 3)
    assert times.sync_seconds == ()  # no loader of torch_xla's


def test_a_saved_report_is_read_as_it_was(tmp_path: Path) -> None:
    clock = run(Ticking([images(8)] * 5, length=7))
    report = clock.save(tmp_path / "run.json")
    assert load_steps(tmp_path / "run.json") == report == clock.report()
    assert report.short_epochs
    times = json.loads((tmp_path / "run.json").read_text())["times"]
    assert tuple(times["wait_seconds"]) == clock.timeline().wait_seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("{", "no file of steps"),
        ("[]", "no file of steps"),
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


def test_a_file_of_a_later_release_with_more_fields_is_read(tmp_path: Path) -> None:
    run(Ticking([images(8)] * 3)).save(tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    document["report"]["moon_phase"] = 0.5
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert load_steps(tmp_path / "run.json").steps == 3


@pytest.mark.parametrize("wait", [0.001, 0.01, 0.25, 3.0, 40.0])
def test_idle_is_that_of_the_delays(wait: float) -> None:
    report = run(Ticking([images(1)] * 6, wait=wait), compute=1.0).report()
    assert report.idle_percent == pytest.approx(100 * wait / (wait + 1))
