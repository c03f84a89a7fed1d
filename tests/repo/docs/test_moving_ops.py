"""The table of ops in docs/moving.md: each cell against the installed library, by its options and on one image."""

from typing import Any

import numpy as np
import pytest

from tests.frameworks import lazy
from tests.repo.docs.pages import text_of
from tpufeed import images
from tpufeed.images.pipeline import Pipeline

albumentations, keras, tf = lazy("albumentations"), lazy("keras"), lazy("tensorflow")
torch, v2 = lazy("torch"), lazy("torchvision.transforms.v2")

SECTION = text_of("moving.md").partition("## Ops by their names elsewhere")[2].partition("\n## ")[0]
ROWS = [[cell.strip("` ") for cell in line.split("|")[1:-1]] for line in SECTION.splitlines() if "(" in line]
HEIGHT, WIDTH = 48, 40
WHOLE = ("Resize", "CenterCrop")  # no random numbers: the pixels are the same
KEPT = ("p", "scale", "ratio", "brightness", "contrast", "saturation", "hue", "sigma", "num_ops", "magnitude", "value")
OF_BATCHES = ("MixUp", "CutMix")


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
    if isinstance(op, images.RandomErasing) and (erased := (found != image).any(2)).any():
        rows, columns = (np.flatnonzero(erased.any(axis)) for axis in (1, 0))
        box = found[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert box.size < image.size / 2
        assert not box.any()
    if isinstance(op, images.Grayscale) and (found != image).any():
        assert np.ptp(found, axis=2).max() < 0.01
    if type(op).__name__ in WHOLE:
        assert np.abs(found - expected).mean() < 0.5
    if isinstance(op, images.RandomCrop):
        windows = (image[y : y + 32, x : x + 32] for y in range(HEIGHT - 31) for x in range(WIDTH - 31))
        assert any((found == window).all() for window in windows)
    if isinstance(op, (images.HorizontalFlip, images.VerticalFlip)):
        flipped = image[:, ::-1] if isinstance(op, images.HorizontalFlip) else image[::-1]
        assert any((found == each).all() for each in (image, flipped))


def test_the_table_has_most_ops() -> None:
    others = {"Choose", "Custom"}
    named = {row[0].partition("(")[0] for row in ROWS}
    assert named == {name for name in images.__all__ if isinstance(getattr(images, name), type)} - others


def transformed(transform: Any, image: Any) -> Any:
    """The image after a transform of torchvision."""
    return transform(torch.from_numpy(image.transpose(2, 0, 1).copy())).numpy().transpose(1, 2, 0)


def check_parameters(op: Any, other: Any) -> None:
    """Compare the parameters that both have by name."""
    for name in KEPT:
        if hasattr(op, name) and hasattr(other, name):
            assert np.allclose(getattr(other, name), getattr(op, name)), name


@pytest.mark.uses("torchvision")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_torchvision(row: list[str], image: Any) -> None:
    op, transform = made(row[0], images), made(row[0] if row[1] == "the same" else row[1], v2)
    check_parameters(op, transform)
    if type(op).__name__ in OF_BATCHES:
        assert transform._dist.concentration0.item() == pytest.approx(op.alpha)
        return
    check(op, transformed(transform, image), image)


@pytest.mark.parametrize("row", [row for row in ROWS if row[2]], ids=lambda row: row[0])
def test_albumentations(row: list[str], image: Any) -> None:
    op, other = made(row[0], images), made(row[2], albumentations)
    check_parameters(op, other)
    check(op, other(image=image)["image"], image)


@pytest.mark.uses("keras")
@pytest.mark.parametrize("row", [row for row in ROWS if "(" in row[3]], ids=lambda row: row[0])
def test_keras(row: list[str], image: Any) -> None:
    op, layer = made(row[0], images), made(row[3], keras.layers)
    match op:
        case images.MixUp():
            assert layer.alpha == op.alpha
        case images.CutMix():
            assert layer.factor == (op.alpha, op.alpha)
        case images.RandomErasing():
            assert layer.factor == (op.p, op.p)
            assert not hasattr(layer, "ratio")
        case images.Grayscale():
            assert layer.factor == op.p
        case images.Rotate():
            assert np.allclose(np.array(layer.factor) * 360, op.degrees)
    if type(op).__name__ in OF_BATCHES:
        return
    check(op, layer(image[None].astype(np.float32), training=True)[0], image)


@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("row", [row for row in ROWS if row[3] and "(" not in row[3]], ids=lambda row: row[0])
def test_tensorflow(row: list[str], image: Any) -> None:
    check(made(row[0], images), made(row[3], tf.image)(image), image)


# The column "differs".


@pytest.mark.uses("keras")
def test_one_number_is_drawn_up_to_it_by_keras() -> None:
    assert keras.layers.CutMix(1.0).factor == keras.layers.RandomErasing(1.0).factor == (0, 1)


@pytest.mark.uses("keras", "torchvision")
def test_smaller_images_are_enlarged_here_and_by_keras(image: Any) -> None:
    small = image[:20, :20]
    enlarged = ours(images.CenterCrop(32), small)
    assert (enlarged.shape, keras.layers.CenterCrop(32, 32)(small[None]).shape[1:]) == (((32, 32, 3),) * 2)
    assert enlarged[0].any()
    assert not transformed(v2.CenterCrop(32), small)[:6].any()  # padded
    with pytest.raises(Exception, match="exceeds image dimensions"):
        albumentations.CenterCrop(32, 32)(image=small)


@pytest.mark.uses("keras", "torchvision")
def test_only_tpufeed_and_torchvision_average_when_they_shrink() -> None:
    checked = np.indices((96, 96)).sum(0) % 2 * 255
    image = np.repeat(checked[:, :, None].astype(np.uint8), 3, axis=2)
    size = (16, 16)
    averaged = [ours(images.Resize(size), image), transformed(v2.Resize(size), image)]
    assert max(np.ptp(pixels.astype(int)) for pixels in averaged) < 10
    sampled = [albumentations.SmallestMaxSize(19)(image=image)["image"], keras.layers.Resizing(19, 19)(image[None])[0]]
    assert min(np.ptp(np.asarray(pixels, float)) for pixels in sampled) > 40


@pytest.mark.uses("torchvision")
def test_torchvision_rotates_to_the_nearest_pixel(image: Any) -> None:
    levels = np.where(image[:, :, :1] > 127, 255, 0).astype(np.uint8).repeat(3, axis=2)
    assert {*np.unique(transformed(v2.RandomRotation((15, 15)), levels))} == {0, 255}
    assert len(np.unique(ours(images.Rotate((15, 15)), levels))) > 10


@pytest.mark.uses("torchvision")
def test_rand_augment_is_black_beyond_the_image_in_torchvision() -> None:
    bright = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    moved = [name for name in v2.RandAugment()._AUGMENTATION_SPACE if "Translate" in name]
    assert len(moved) == 2
    transform = v2.RandAugment(1, 30)
    transform._AUGMENTATION_SPACE = {name: transform._AUGMENTATION_SPACE[name] for name in moved}
    assert {*np.unique(transformed(transform, bright))} == {0, 255}
    assert images.RandAugment().fill == 128


@pytest.mark.uses("torchvision")
def test_torchvision_draws_one_share_per_batch() -> None:
    batch = torch.arange(8.0)[:, None, None, None].expand(8, 3, 4, 4)
    mixed = v2.MixUp(alpha=1.0, num_classes=8)(batch, torch.arange(8))[1]
    assert len(np.unique(np.round(mixed.numpy().max(1), 5))) == 1
    op, size = images.MixUp(1.0), (4, 4)
    assert len(np.unique(op.numbers(size, np.random.default_rng(0).random((8, 2))))) == 8
