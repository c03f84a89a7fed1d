"""How far pixels are from those of a full-precision reference: decoded in full, resized in float64 (docs/pixels.md)."""

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.images.float_resizing import antialiased, bilinear, bilinear_reduced
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize
from tpufeed.images.decoding import decode
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Window
from tpufeed.images.windows import reduction, resize

WINDOWS = [
    Window(0, 0, 427, 640, 256, 384),
    Window(7, 11, 300, 224, 224, 224),
    Window(100, 3, 90, 130, 224, 224),
    Window(0, 0, 400, 500, 224, 224),
    Window(5, 6, 33, 400, 50, 20),
]


def error(found, reference):
    return float(np.abs(found.astype(np.float64) - reference).mean())


@pytest.fixture(scope="module")
def jpegs(photos, encoded, tmp_path_factory):
    """The colour photographs as JPEGs of quality 94 with halved chroma, which shows shortcuts best."""
    folder = tmp_path_factory.mktemp("accuracy")
    for name, data in photos.items():
        if name != "camera.png":
            image = Image.fromarray(decode(data))
            (folder / f"{name[:-4]}.jpg").write_bytes(encoded(image, "JPEG", quality=94, subsampling=2))
    return sorted(folder.glob("*.jpg"))


@pytest.fixture(scope="module")
def dataset(jpegs):
    tpufeed.shard(jpegs[0].parent, jpegs[0].parent / "dataset", workers=1)
    return jpegs[0].parent / "dataset"


@pytest.fixture(scope="module")
def by_sample(dataset, jpegs):
    """The pixels of each sample, decoded without shortcuts."""
    examples = tpufeed.open_dataset(dataset).iter_examples("train")
    names = [bytes(example["image/filename"].values[0]).decode() for example in examples]
    return [decode((jpegs[0].parent / name).read_bytes()) for name in names]


def loaded(dataset, ops, epoch):
    """What a loader gives in an epoch: images by sample, and the random numbers of the first op."""
    with tpufeed.Loader(dataset, ops=ops, columns=["image", "sample"], batch_size=6, seed=5) as loader:
        loader.set_epoch(epoch)
        ((images, samples),) = loader
        draws = Pipeline(ops, loader.dataset.manifest.draws_seed(5)).draw(epoch, samples)[0]
    return {int(sample): (image.copy(), drawn) for image, sample, drawn in zip(images, samples, draws, strict=True)}


@pytest.mark.uses("torch")
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_references_are_torch_s(photos, window):
    """In float64, so that nothing but the arithmetic is compared."""
    import torch

    image = decode(photos["china.jpg"])
    cut = image[window.top : window.top + window.height, window.left : window.left + window.width]
    tensor = torch.from_numpy(cut.astype(np.float64)).permute(2, 0, 1)[None]
    for reference, smooth in ((bilinear, False), (antialiased, True)):
        expected = torch.nn.functional.interpolate(
            tensor, (window.out_height, window.out_width), mode="bilinear", align_corners=False, antialias=smooth
        )
        assert np.allclose(reference(image, window), expected[0].permute(1, 2, 0).numpy(), atol=1e-6)


@pytest.mark.parametrize("window", [window for window in WINDOWS if window.height < 2 * window.out_height], ids=str)
def test_resizing_rounds_and_does_no_more(photos, window):
    for name in ("china.jpg", "flower.jpg"):
        image = decode(photos[name])
        cut = image[window.top : window.top + window.height, window.left : window.left + window.width]
        found = resize(cut, window.out_height, window.out_width)
        assert error(found, bilinear(image, window)) < 0.3  # rounding alone is 0.25 off


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("epoch", range(4))
def test_training_images_are_less_than_a_level_off(dataset, by_sample, epoch):
    op = RandomResizedCrop(224)
    errors, others = [], []
    for sample, (image, drawn) in loaded(dataset, [op], epoch).items():
        whole = by_sample[sample]
        window = op.window(*whole.shape[:2], drawn)
        if reduction(window.height, window.width, 224, 224) == 1:
            errors.append(error(image, bilinear(whole, window)))
            others.append(error(image[:, ::-1], bilinear(whole, window)))
    assert len(errors) == 6
    assert np.mean(errors) < 1.0
    assert max(errors) < 2.5
    assert min(others) > 2 * max(errors)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("size", [50, 64, 100])
def test_images_from_reduced_decodings_are_less_than_a_level_off(jpegs, size):
    """The reference averages 2, 4 or 8 pixels per side as the decoder does, and takes the window of that."""
    op = RandomResizedCrop(size, scale=(0.4, 1.0))
    pipeline, errors = Pipeline([op], 0, fast=True), []
    for number, path in enumerate(jpegs):
        data, whole = path.read_bytes(), decode(path.read_bytes())
        for draws in pipeline.draw(0, np.arange(number * 4, number * 4 + 4))[0]:
            window = op.window(*whole.shape[:2], draws)
            factor = reduction(window.height, window.width, size, size)
            if factor > 1:
                errors.append(error(pipeline.run_stored(data, None, [draws]), bilinear_reduced(whole, factor, window)))
    assert len(errors) > 10
    assert np.mean(errors) < 1.0
    assert max(errors) < 2.0


def test_evaluation_images_are_less_than_a_level_off(dataset, by_sample):
    errors = []
    for sample, (image, _) in loaded(dataset, [Resize(256), CenterCrop(224), HorizontalFlip(0.0)], 0).items():
        whole = by_sample[sample]
        window = Resize(256).window(*whole.shape[:2], ())
        cut = CenterCrop(224).window(window.out_height, window.out_width, ())
        reference = bilinear(whole, window)[cut.top : cut.top + 224, cut.left : cut.left + 224]
        errors.append(error(image, reference))
    assert len(errors) == 6
    assert np.mean(errors) < 1.0
    assert max(errors) < 2.0
