"""Live ops: recorded in the cache, applied by every loader without being told, fresh in every epoch."""

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.builds.run import preview
from tpufeed.cache import warmup
from tpufeed.cache.options import CacheOptions
from tpufeed.cache.recipe import CacheRecipe
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetExistsError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Custom,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
    VerticalFlip,
)
from tpufeed.images.description import from_dict, parse_op, to_dict
from tpufeed.images.ops import OPS
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import evaluation_of

TFRecordImages = lazy("tpufeed.adapters.torch.host:TFRecordImages")

SIDE, LARGE = 24, 32
LIVE = [RandomCrop(SIDE), HorizontalFlip()]


@pytest.fixture(scope="module")
def cached(source, tmp_path_factory):
    """Two variants of 32 pixels, for crops of 24."""
    url = tmp_path_factory.mktemp("final") / "cache"
    return warmup(source, url, ops=[RandomResizedCrop(LARGE)], live=LIVE, variants=2, workers=1)


def pixels_of(url, variant, split="train"):
    dataset = open_dataset(url)
    shape = dataset.manifest.tensor_shape
    found = [example["image/tensor"].values[0] for example in dataset.iter_examples(split, variant)]
    return [np.frombuffer(data, np.uint8).reshape(shape) for data in found]


def numpy_epochs(url, count):
    with tpufeed.Loader(url, columns=["image", "sample"], shuffle=False, batch_size=5, remainder="pad") as loader:
        for _ in range(count):
            yield {int(i): image.copy() for images, ids, _ in loader for i, image in zip(ids, images, strict=True)}


def tf_epochs(url, count):
    loader = tpufeed.Loader(url, columns=["image", "sample"], shuffle=False, batch_size=5, remainder="pad").to_tf()
    for _ in range(count):
        yield {int(i): image for batch in loader for i, image in zip(batch[1].numpy(), batch[0].numpy(), strict=True)}


def torch_epochs(url, count):
    images = TFRecordImages(url)
    for epoch in range(count):
        images.set_epoch(epoch)
        yield {i: images[i][0].numpy() for i in range(len(images))}


LOADERS = {"Loader": numpy_epochs, "to_tf": tf_epochs, "TFRecordImages": torch_epochs}


def test_the_manifest_records_them(cached, source):
    info = open_dataset(cached.url).manifest.cache
    assert [from_dict(op) for op in info.live] == LIVE
    assert info.shape == (LARGE, LARGE, 3)
    assert [op["op"] for op in open_dataset(cached.url).manifest.options["live"]] == ["RandomCrop", "HorizontalFlip"]


@pytest.mark.all
@pytest.mark.uses("tensorflow", "torch")
@pytest.mark.parametrize("loader", LOADERS)
def test_loaders_apply_them_afresh_in_every_epoch(loader, cached):
    stored = [pixels_of(cached.url, variant) for variant in range(2)]
    draws_seed = cached.manifest.draws_seed(0)
    seen = []
    for epoch, images in enumerate(LOADERS[loader](cached.url, 4)):
        pipeline = Pipeline(LIVE, draws_seed)
        for sample, image in images.items():
            assert image.shape == (SIDE, SIDE, 3)
            draws = [op[0] for op in pipeline.draw(epoch, np.array([sample]))]
            assert np.array_equal(image, pipeline.run(stored[epoch % 2][sample], draws)), (epoch, sample)
        assert sorted(images) == list(range(len(stored[0])))
        seen.append(images)
    for one, other in ((0, 1), (0, 2), (1, 3)):  # epochs 0 and 2 read the same variant
        same = [np.array_equal(seen[one][sample], seen[other][sample]) for sample in seen[one]]
        assert sum(same) < len(same) / 10


def test_ops_that_a_loader_is_given_take_their_place(cached):
    with tpufeed.Loader(cached.url, "val", ops=[CenterCrop(SIDE)], shuffle=False, batch_size=1) as loader:
        for (image, _), whole in zip(loader, pixels_of(cached.url, 0, "val"), strict=True):
            assert np.array_equal(image[0], whole[4:28, 4:28])


@pytest.mark.parametrize("encode", ["jpeg", "png"])
def test_they_apply_to_encoded_images_too(encode, source, tmp_path):
    done = warmup(source, tmp_path / "c", ops=[Resize((LARGE, LARGE))], live=LIVE, encode=encode, workers=1)
    for images in numpy_epochs(done.url, 2):
        assert {image.shape for image in images.values()} == {(SIDE, SIDE, 3)}


def test_a_final_flip_does_not_undo_the_one_in_the_cache(source, tmp_path):
    """With the same seed and place among its ops it would draw the same number, and turn every image back."""
    ops = [HorizontalFlip(), CenterCrop((40, 50))]
    done = warmup(source, tmp_path / "c", ops=ops, live=[HorizontalFlip()], workers=1)
    plain = pixels_of(warmup(source, tmp_path / "plain", ops=ops[1:], workers=1).url, 0)
    (images,) = numpy_epochs(done.url, 1)
    same = [np.abs(images[sample].astype(int) - plain[sample]).mean() < 1 for sample in images]
    assert len(same) * 0.2 < sum(same) < len(same) * 0.8
    # Nor does a cache of a cache.
    again = warmup(done.url, tmp_path / "again", ops=[HorizontalFlip()], workers=1, allow_augmented=True)
    same = [np.abs(one.astype(int) - two).mean() < 1 for one, two in zip(pixels_of(again.url, 0), plain, strict=True)]
    assert len(same) * 0.2 < sum(same) < len(same) * 0.8


def test_variants_share_label_extras_and_place(cached):
    dataset = open_dataset(cached.url)
    for split in dataset.manifest.splits:
        first, second = (
            [
                {name: list(map(bytes, f.values)) if f.kind == "bytes" else list(f.values) for name, f in found.items()}
                for found in dataset.iter_examples(split, variant)
            ]
            for variant in range(2)
        )
        for one, other in zip(first, second, strict=True):
            assert (one.pop("image/tensor") == other.pop("image/tensor")) == (split == "val")
            assert one == other
            assert {"image/class/label", "image/class/text", "image/filename"} <= one.keys()


# Evaluation: val and test get no draws


def test_evaluation_is_kept_whole(source, tmp_path):
    ops = [RandomResizedCrop(LARGE), Rotate(9)]
    options = {"ops": ops, "live": LIVE, "variants": 2, "workers": 1}
    foretold = preview(CacheRecipe(source, CacheOptions(ops=ops, live=LIVE, variants=2)), tmp_path / "c")
    said = [*foretold.listed.iter_lines()]
    assert said == [
        "train: RandomResizedCrop(size=32), Rotate(degrees=(-9.0, 9.0)); "
        "loaders add RandomCrop(size=24), HorizontalFlip()",
        "val: for evaluation, Resize(size=37), CenterCrop(size=(32, 32)); loaders add CenterCrop(size=24)",
    ]
    done = warmup(source, tmp_path / "c", **options)
    assert [*done.listed.iter_lines()] == said
    plain = warmup(source, tmp_path / "plain", ops=[Resize(37), CenterCrop(LARGE)], workers=1)
    whole = pixels_of(plain.url, 0, "val")
    for variant in range(2):
        assert np.array_equal(pixels_of(done.url, variant, "val"), whole)
    for split, is_random in (("val", False), ("train", True)):
        with tpufeed.Loader(done.url, split, columns=["image"], shuffle=False, remainder="pad", batch_size=4) as loader:
            epochs = [np.concatenate([images for images, _ in loader]) for _ in range(2)]
        assert np.array_equal(*epochs) != is_random
        if not is_random:
            assert np.array_equal(epochs[0][: len(whole)], np.array(whole)[:, 4:28, 4:28])
    assert warmup(source, tmp_path / "c", **options).manifest == done.manifest, "the same command"
    with pytest.raises(DatasetExistsError, match="evaluation"):
        warmup(source, tmp_path / "c", **options, all_splits_random=True)
    old = warmup(source, tmp_path / "old", **options, all_splits_random=True)
    assert not np.array_equal(*(pixels_of(old.url, variant, "val") for variant in range(2)))
    assert np.array_equal(pixels_of(old.url, 1), pixels_of(done.url, 1)), "train is as ever"
    assert not [*old.listed.iter_lines()]


def test_functions_that_may_draw_are_left_out_and_named(source, tmp_path):
    kept = Custom("tests.cache.augmentations:counting", random=False)
    ops = [RandomCrop(SIDE), Custom("tests.cache.augmentations:heavy"), kept]
    (warning,) = preview(CacheRecipe(source, CacheOptions(ops=ops[:2])), tmp_path / "c").listed.warnings
    assert "augmentations:heavy" in warning
    assert "val" in warning
    assert CacheOptions(ops=ops).ops_of("val") == (CenterCrop(SIDE), kept)
    assert from_dict(to_dict(kept)) == kept == parse_op(repr(kept))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (RandomResizedCrop(224), (Resize(256), CenterCrop((224, 224)))),
        (RandomResizedCrop((32, 128), ratio=(2, 8)), (Resize(37), CenterCrop((32, 128)))),
        (RandomResizedCrop((20, 40)), (Resize(46), CenterCrop((40, 40)), Resize((20, 40)))),
        (RandomCrop(32, padding=4), (CenterCrop(32),)),
        (HorizontalFlip(), ()),
        (VerticalFlip(1.0), (VerticalFlip(1.0),)),
        (Grayscale(1.0), (Grayscale(1.0),)),
        (RandomErasing(1.0), ()),
        (Rotate(10), ()),
        (Rotate((90, 90)), (Rotate((90, 90)),)),
        (GaussianBlur(sigma=2.0), (GaussianBlur(sigma=2.0),)),
        (GaussianBlur(), ()),
        (ColorJitter(0.2), ()),
        (RandAugment(), ()),
        (Resize(8), (Resize(8),)),
    ],
)
def test_each_op_has_a_form_for_evaluation_or_is_left_out(op, expected):
    assert evaluation_of([op]) == expected
    assert not any(each.draws for each in expected if type(each) is not type(op))
    size = Pipeline([op], 0).output_size((300, 400))
    assert Pipeline(expected, 0).output_size((300, 400)) == size
    assert type(op).__name__ in OPS
