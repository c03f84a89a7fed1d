"""A loader that drops, repeats or ends early is faster for it; its figures get no verdict."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.profiling.accelerator import AcceleratorReport, EmulatedAccelerator
from tpufeed.profiling.fingerprints import Expected, Findings, fingerprint, host_view
from tpufeed.profiling.tpu import AcceleratorProfile

SAMPLES, BATCH = 103, 4
FAST = AcceleratorProfile("fast", 400_000.0)
PHOTOS = np.random.default_rng(5).integers(0, 256, (4, SAMPLES, 8, 8, 3), np.uint8)  # of four variants


class Loader:
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


def run(loader: Any, variants: int | None = 1, steps: int = 75, **expected: Any) -> AcceleratorReport:
    return EmulatedAccelerator(FAST, BATCH).run(
        loader, steps=steps, expected=Expected(SAMPLES, BATCH, variants, **expected)
    )


def honest(report: AcceleratorReport) -> tuple[str, ...]:
    """Its problems but that this machine is slow."""
    return tuple(problem for problem in report.problems if "late" not in problem)


def test_an_honest_loader_repeats_nothing_and_misses_nothing() -> None:
    report = run(Loader())
    assert (report.findings.repeated, report.findings.missing, report.findings.images) == (0, 0, 300)
    assert honest(report) == ()


def test_small_batches_keep_a_device_busy_and_get_no_verdict() -> None:
    class Small(Loader):
        def __iter__(self) -> Iterator[Any]:
            for images, labels in super().__iter__():
                for part in (slice(0, 1), slice(1, BATCH)):
                    yield images[part], labels[part]

    report = run(Small())
    assert honest(report)[0].startswith("75 of 75 batches had fewer images than the 4 that the accelerator takes")
    assert report.verdict == ""


def test_the_last_batch_of_an_epoch_may_be_small() -> None:
    class Whole(Loader):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()
            yield self.images(self.pick[-3:]), np.zeros(3)

    report = EmulatedAccelerator(FAST, BATCH).run(Whole(), steps=75)
    assert report.images == 25 * BATCH + 3 + 25 * BATCH + 3 + 23 * BATCH
    assert honest(report) == ()


def test_a_cache_repeats_itself_after_its_variants() -> None:
    assert run(Loader(variants=2), variants=2, steps=100).findings.repeated == 0
    frozen = run(Loader(variants=1), variants=2, steps=100)
    assert frozen.findings.repeated is not None
    assert frozen.findings.repeated > 150
    assert "came again with the very same pixels" in honest(frozen)[0]
    assert frozen.verdict == ""


def test_pixels_that_are_augmented_anew_never_come_again() -> None:
    assert honest(run(Loader(variants=4), variants=None, steps=100)) == ()
    assert honest(run(Loader(variants=1), variants=None, steps=100))


def test_a_loader_that_repeats_half_of_the_samples_is_found_out_in_its_first_epoch() -> None:
    report = run(Loader([*range(52), *range(51)]), steps=24)
    assert report.findings.repeated is not None
    assert report.findings.repeated >= 40
    assert honest(report)
    assert report.verdict == ""


def test_a_loader_that_drops_samples_is_found_out() -> None:
    report = run(Loader(range(60)), steps=40)
    assert report.findings.missing == 2 * (100 - 60)
    assert any("80 images of the epochs that ended never came" in problem for problem in honest(report))
    assert any("epoch 1 had 15 batches of 25, and 1 more epochs" in problem for problem in honest(report))


def test_a_loader_that_ends_early_is_found_out_by_its_own_length() -> None:
    report = EmulatedAccelerator(FAST, BATCH).run(Loader(batches=24), steps=49)
    assert honest(report) == ("the loader ended early: epoch 1 had 24 batches of 25, and 1 more epochs did",)
    assert report.findings.repeated is None  # nobody said what to expect


def test_without_an_epoch_s_end_nothing_is_known_of_missing_images() -> None:
    assert run(Loader(), steps=24).findings.missing is None


def test_epochs_within_one_iteration_are_told_apart_by_their_length() -> None:
    class Endless(Loader):
        def __len__(self) -> int:
            raise TypeError("endless")

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from super().__iter__()

    report = run(Endless(), endless=True)
    assert (report.findings.repeated, report.findings.missing) == (0, 0)
    half = run(Endless(range(50)), endless=True)
    assert half.findings.repeated is not None
    assert half.findings.repeated > 100


def test_a_few_true_duplicates_are_counted_and_let_pass() -> None:
    class Twins(Loader):
        def images(self, samples: Sequence[int]) -> Any:
            return PHOTOS[0][np.where(np.asarray(samples) == 7, 8, samples)]

    report = run(Twins())
    assert report.findings.repeated in (1, 2, 3)  # one an epoch that had both
    assert honest(report) == ()


def test_pixels_that_cannot_be_looked_at_leave_no_verdict() -> None:
    class Elsewhere:
        shape = (BATCH, 8, 8, 3)

    report = run([(Elsewhere(), None)] * 25)
    assert (report.findings.repeated, report.findings.missing) == (None, None)
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


@given(st.integers(0, 223), st.integers(0, 223))
def test_two_crops_of_a_photograph_have_two_fingerprints(down: int, right: int) -> None:
    wall = np.random.default_rng(2).integers(0, 256, (448, 448, 3), np.uint8)
    crops = np.stack([wall[:224, :224], wall[down : down + 224, right : right + 224]])
    same = bool((crops[0] == crops[1]).all())
    assert (len(set(fingerprint(crops).tolist())) == 1) == same


def test_images_that_are_not_contiguous_are_not_copied() -> None:
    images = np.random.default_rng(3).integers(0, 256, (6, 3, 32, 32), np.uint8).transpose(0, 2, 3, 1)
    assert not images.flags.c_contiguous
    found = fingerprint(images)
    assert len(set(found.tolist())) == 6
    assert (fingerprint(images[[2, 0]]) == found[[2, 0]]).all()


def test_an_empty_batch_has_no_fingerprint() -> None:
    assert len(fingerprint(np.zeros((0, 4, 4, 3), np.uint8))) == 0


def test_tensors_of_torch_are_seen_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4 * 6 * 6 * 3, dtype=torch.uint8).reshape(4, 6, 6, 3)
    seen = host_view(tensor)
    assert seen is not None
    tensor[0, 0, 0, 0] = 99
    assert seen[0, 0, 0, 0] == 99


def test_a_share_of_repeats_is_let_pass_and_no_more() -> None:
    assert Findings(1000, repeated=10).problems() == ()
    assert Findings(1000, repeated=11).problems()
    assert Findings(50, repeated=2).problems() == ()
    assert Findings(50, repeated=3).problems()
