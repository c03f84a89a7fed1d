"""The ledger of the benchmarks: it finds loaders out that drop or repeat samples."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ledger import Ledger, fingerprint

SAMPLES, BATCH = 103, 4
PHOTOS = np.random.default_rng(5).integers(0, 256, (SAMPLES, 8, 8, 3), np.uint8)


class Photos:
    """Epoch after epoch of the samples that `pick` names, in another order each time."""

    def __init__(self, pick: Sequence[int] = range(SAMPLES)) -> None:
        self.pick, self.epoch = np.array(pick), 0

    def __len__(self) -> int:
        return len(self.pick) // BATCH

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        order = np.random.default_rng(self.epoch).permutation(self.pick)
        for number in range(len(self)):
            yield PHOTOS[order[number * BATCH : (number + 1) * BATCH]], np.zeros(BATCH)


def problems_of(loader: Any, epochs: int = 2) -> tuple[str, ...]:
    ledger = Ledger(loader, SAMPLES, BATCH)
    for _ in range(epochs):
        assert len(list(ledger)) == len(ledger)
    return ledger.problems()


def test_an_honest_loader_repeats_nothing_and_misses_nothing() -> None:
    assert problems_of(Photos()) == ()


def test_a_loader_that_repeats_half_of_the_samples_is_found_out_in_its_first_epoch() -> None:
    (problem,) = problems_of(Photos([*range(52), *range(51)]), epochs=1)
    assert "came again within an epoch" in problem


def test_a_loader_that_drops_samples_is_found_out() -> None:
    (problem,) = problems_of(Photos(range(60)))
    assert problem.startswith("80 images of the epochs that ended never came")


def test_a_few_true_duplicates_are_let_pass() -> None:
    assert problems_of(Photos([*range(102), 0])) == ()


def test_an_epoch_that_has_not_ended_misses_nothing() -> None:
    ledger = Ledger(Photos(), SAMPLES, BATCH)
    next(iter(ledger))
    assert ledger.problems() == ()


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
