"""The table of ops in docs/moving.md: each cell against the installed library, by its options and on one image."""

from typing import Any

import numpy as np
import pytest

from tests.frameworks import lazy
from tests.repo.docs.pages import text_of
from tpufeed import images
from tpufeed.images.pipeline import Pipeline

albumentations, keras, tf = lazy("albumentations"), lazy("keras"), lazy("tensorflow")

SECTION = text_of("moving.md").partition("## Ops by their names elsewhere")[2].partition("\n## ")[0]
ROWS = [[cell.strip("` ") for cell in line.split("|")[1:-1]] for line in SECTION.splitlines() if "(" in line]
HEIGHT, WIDTH = 48, 40
WHOLE = ("Resize", "CenterCrop")  # no random numbers: the pixels are the same
KEPT = ("p", "scale", "ratio", "brightness", "contrast", "saturation", "hue")


@pytest.fixture(scope="module")
def image() -> Any:
    """A smooth one: libraries differ in how they round."""
    across, down = np.meshgrid(np.linspace(0, 3, WIDTH), np.linspace(0, 4, HEIGHT))
    waves = np.stack([np.sin(across + down), np.cos(across), np.sin(2 * down)], 2)
    return np.rint(127 * waves + 128).astype(np.uint8)


def ours(op: Any, image: Any) -> Any:
    pipeline = Pipeline([op], 0)
    return pipeline.run(image, [drawn[0] for drawn in pipeline.draw(0, np.array([0]))])


def made(cell: str, module: Any) -> Any:
    """The op that a cell makes, or the function that it names."""
    name = cell.partition("(")[0]
    return eval(cell, {name: getattr(module, name)})


def check(op: Any, other: Any, image: Any) -> None:
    """Compare what the other library makes of the image with what ours does."""
    expected, found = ours(op, image), np.asarray(other, np.float64)
    assert found.shape == expected.shape
    if type(op).__name__ in WHOLE:
        assert np.abs(found - expected).mean() < 0.5
    if isinstance(op, images.RandomCrop):
        windows = (image[y : y + 32, x : x + 32] for y in range(HEIGHT - 31) for x in range(WIDTH - 31))
        assert any((found == window).all() for window in windows)
    if isinstance(op, (images.HorizontalFlip, images.VerticalFlip)):
        flipped = image[:, ::-1] if isinstance(op, images.HorizontalFlip) else image[::-1]
        assert any((found == each).all() for each in (image, flipped))


def test_the_table_has_most_ops() -> None:
    others = {"Choose", "Custom", "CutMix", "MixUp"}
    named = {row[0].partition("(")[0] for row in ROWS}
    assert named == {name for name in images.__all__ if isinstance(getattr(images, name), type)} - others


@pytest.mark.parametrize("row", [row for row in ROWS if row[2]], ids=lambda row: row[0])
def test_albumentations(row: list[str], image: Any) -> None:
    op, other = made(row[0], images), made(row[2], albumentations)
    check(op, other(image=image)["image"], image)
    for name in KEPT:
        if hasattr(op, name):
            assert np.allclose(getattr(other, name), getattr(op, name)), name


@pytest.mark.uses("keras")
@pytest.mark.parametrize("row", [row for row in ROWS if "(" in row[3]], ids=lambda row: row[0])
def test_keras(row: list[str], image: Any) -> None:
    layer = made(row[3], keras.layers)
    check(made(row[0], images), layer(image[None].astype(np.float32), training=True)[0], image)


@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("row", [row for row in ROWS if row[3] and "(" not in row[3]], ids=lambda row: row[0])
def test_tensorflow(row: list[str], image: Any) -> None:
    check(made(row[0], images), made(row[3], tf.image)(image), image)


@pytest.mark.uses("keras")
def test_smaller_images_are_enlarged_here_and_by_keras(image: Any) -> None:
    small = image[:20, :20]
    assert ours(images.CenterCrop(32), small).shape == (32, 32, 3)
    assert keras.layers.CenterCrop(32, 32)(small[None].astype(np.float32)).shape[1:] == (32, 32, 3)
