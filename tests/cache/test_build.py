"""`tpufeed.cache.warmup` from one end to the other."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.frameworks import lazy
from tpufeed.cache import warmup
from tpufeed.cache.options import CacheOptions
from tpufeed.cache.origin import OriginSample
from tpufeed.cache.worker import Augmenter
from tpufeed.dataset.reader import open_dataset
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize
from tpufeed.images.decoding import decode
from tpufeed.images.pipeline import Pipeline, run_views
from tpufeed.storage.memory import MemoryStore

tf = lazy("tensorflow")

SIDE = 32
FEATURES = {  # types by their names
    "image/height": "int64",
    "image/width": "int64",
    "image/channels": "int64",
    "image/format": "string",
    "image/filename": "string",
}
LABELS = {"image/class/label": "int64", "image/class/text": "string"}


def by_tensorflow(folder, split="train", variant=0, image="image/tensor", labels=LABELS):
    """What TensorFlow finds in one variant of a split, in order, pixels decoded."""
    shards = sorted(map(str, Path(folder).glob(f"{split}-v{variant}-*.tfrecord")))
    wanted = {image: "string", **FEATURES, **labels}
    wanted = {name: tf.io.FixedLenFeature([], kind) for name, kind in wanted.items()}
    samples = []
    for record in tf.data.TFRecordDataset(shards):
        sample = {key: value.numpy() for key, value in tf.io.parse_single_example(record, wanted).items()}
        shape = sample["image/height"], sample["image/width"], sample["image/channels"]
        if image == "image/tensor":
            sample["pixels"] = tf.io.decode_raw(sample[image], tf.uint8).numpy().reshape(shape)
        else:
            sample["pixels"] = decode(sample[image])
        samples.append(sample)
    return samples


every_encoding = pytest.mark.parametrize("built", ["raw", "jpeg", "png", "webp", "dct"], indirect=True)


def names_of(samples):
    return [sample["image/filename"].decode() for sample in samples]


def source_names(url, split="train"):
    return [bytes(features["image/filename"].values[0]).decode() for features in open_dataset(url).iter_examples(split)]


@pytest.fixture(scope="module")
def raw(source, tmp_path_factory):
    url = tmp_path_factory.mktemp("raw") / "cache"
    return warmup(source, url, size=SIDE, variants=3, shard_bytes="40KB", workers=1)


@pytest.fixture(scope="module")
def built(request, raw, jpeg, source, tmp_path_factory):
    """A cache of an encoding, by name."""
    if request.param in ("raw", "jpeg"):
        return raw if request.param == "raw" else jpeg
    url = tmp_path_factory.mktemp(request.param) / "cache"
    return warmup(source, url, size=SIDE, variants=2, encode=request.param, shard_bytes="15KB", workers=1)


@pytest.fixture(scope="module")
def jpeg(source, tmp_path_factory):
    url = tmp_path_factory.mktemp("jpeg") / "cache"
    return warmup(source, url, size=SIDE, variants=2, encode="jpeg", shard_bytes="15KB", workers=1)


@pytest.mark.all
@pytest.mark.uses("tensorflow")
@every_encoding
def test_sample_i_is_record_i_in_every_variant(source, built):
    encode = built.manifest.cache.encode
    image = "image/tensor" if encode == "raw" else "image/encoded"
    classes = open_dataset(source).manifest.class_names
    for split, entry in built.manifest.splits.items():
        variants = [by_tensorflow(built.url, split, v, image) for v in range(len(entry.variants))]
        for samples in variants:
            assert names_of(samples) == source_names(source, split)
            for sample in samples:
                text = sample["image/filename"].decode().split("/")[0]
                assert sample["image/class/text"].decode() == text
                assert sample["image/class/label"] == classes.index(text)
                assert sample["image/format"].decode() == encode
                assert sample["pixels"].shape == (SIDE, SIDE, 3)
        pairs = zip(variants[0], variants[1], strict=True)
        equal = [np.array_equal(one["pixels"], other["pixels"]) for one, other in pairs]
        assert all(equal) if split == "val" else not any(equal)
        assert len({tuple(shard.records for shard in variant.shards) for variant in entry.variants}) == 1
    assert len(built.manifest.splits["train"].variants[0].shards) > 1
    assert tpufeed.verify(built.url, decode="all").records == built.images


def test_the_manifest_says_what_it_is_a_cache_of(source, raw, jpeg):
    info = raw.manifest.cache
    assert info.source_digest == open_dataset(source).content_digest
    assert (info.encode, info.shape, info.dtype, info.variants, info.live) == ("raw", (SIDE, SIDE, 3), "uint8", 3, ())
    assert [op["op"] for op in info.ops] == ["RandomResizedCrop", "HorizontalFlip"]
    assert raw.manifest.tensor_shape == (SIDE, SIDE, 3)
    assert jpeg.manifest.tensor_shape is None
    assert raw.images == 3 * 60
    assert raw.manifest.images == {"raw, augmented": 60}
    for built in (raw, jpeg):
        for name, split in open_dataset(source).manifest.splits.items():
            assert built.manifest.splits[name].records == split.records
            assert built.manifest.splits[name].class_counts == split.class_counts
        variants = built.manifest.cache.variants
        assert tpufeed.verify(built.url).records == variants * 60


@pytest.mark.first_cases(2)
@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("built", ["jpeg", "png", "webp", "dct"], indirect=True)
def test_encoded_pixels_are_the_raw_ones(built, raw):
    """PNG to the pixel; the others within what their quality loses."""
    pairs = zip(by_tensorflow(raw.url), by_tensorflow(built.url, image="image/encoded"), strict=True)
    # A variant's pixels depend a little on the others, whose windows say how small an image is decoded.
    off = np.array([np.abs(one["pixels"].astype(int) - other["pixels"]).mean() for one, other in pairs])
    assert off.mean() < (2 if built.manifest.cache.encode == "png" else 8), off


@pytest.mark.uses("tensorflow")
def test_raw_pixels_stand_at_one_offset_in_every_record(raw):
    """Loaders copy from there without parsing; that TensorFlow finds the same bytes makes it a sound record."""
    offsets = set()
    for split, entry in raw.manifest.splits.items():
        for number, variant in enumerate(entry.variants):
            samples = iter(by_tensorflow(raw.url, split, number))
            index = np.load(Path(raw.url, variant.index.name))
            for shard in variant.shards:
                data = Path(raw.url, shard.name).read_bytes()
                starts, index = index[: shard.records], index[shard.records + 1 :]
                for start in map(int, starts):
                    pixels = next(samples)["image/tensor"]
                    assert len(pixels) == SIDE * SIDE * 3
                    offset = data.find(pixels, start) - start
                    offsets.add(offset)
                    assert data[start + offset : start + offset + len(pixels)] == pixels
            assert next(samples, None) is None
            assert len(index) == 0
    assert len(offsets) == 1


@pytest.mark.uses("tensorflow")
def test_pixels_are_those_of_the_photographs(source, photo_folder, tmp_path):
    """The middle of an image is cut to the pixel, whatever its format."""
    built = warmup(source, tmp_path / "c", ops=[CenterCrop((40, 50))], workers=1)
    samples = [sample for split in ("train", "val") for sample in by_tensorflow(built.url, split)]
    assert any(name.endswith(".png") for name in names_of(samples))
    for sample in samples:
        whole = np.asarray(Image.open(photo_folder / sample["image/filename"].decode()))
        top, left = (whole.shape[0] - 40) // 2, (whole.shape[1] - 50) // 2
        assert np.array_equal(sample["pixels"], whole[top : top + 40, left : left + 50])


@pytest.mark.uses("tensorflow")
def test_each_sample_has_the_draws_of_its_own_number(source, tmp_path):
    ops = [CenterCrop(SIDE), HorizontalFlip(0.5)]
    built = warmup(source, tmp_path / "c", ops=ops, variants=2, seed=4, shard_bytes="30KB", workers=1)
    pipeline = Pipeline(ops, 4)
    for variant in range(2):
        examples = open_dataset(source).iter_examples("train")
        found = by_tensorflow(built.url, "train", variant)
        for number, (example, sample) in enumerate(zip(examples, found, strict=True)):
            draws = [op[0] for op in pipeline.draw(variant, np.array([number]))]
            expected = pipeline.run_stored(example["image/encoded"].values[0], None, draws)
            assert np.array_equal(sample["pixels"], expected)


def test_draws_that_come_in_blocks_are_those_of_each_sample(source):
    ops = (RandomResizedCrop(SIDE), HorizontalFlip(0.5))
    options, pipeline = CacheOptions(ops=ops, variants=2, seed=4), Pipeline(ops, 4)
    augment = Augmenter(options, open_dataset(source).manifest, "train", mends=False)
    image = bytes(next(open_dataset(source).iter_examples("train"))["image/encoded"].values[0])
    for number in (0, 1, 127, 128, 129, 1000, 255, 256, 5):
        for variant, pixels in enumerate(augment(OriginSample(number, "it", image, None, b""))[1]):
            draws = [op[0] for op in pipeline.draw(variant, np.array([number]))]
            alone = run_views(
                [pipeline] * 2,
                memoryview(image),
                [[op[0] for op in pipeline.draw(v, np.array([number]))] for v in range(2)],
                [None] * 2,
            )
            assert np.array_equal(pixels, alone[variant]), draws


@pytest.mark.all
@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("encode", ["raw", "jpeg"])
def test_any_number_of_workers_and_any_cuts_make_the_same_samples(encode, source, raw, jpeg, bytes_of, tmp_path):
    built, size = (raw, "40KB") if encode == "raw" else (jpeg, "15KB")
    options = {"size": SIDE, "variants": built.manifest.cache.variants, "encode": encode}
    workers = 3 if encode == "raw" else 1
    again = warmup(source, tmp_path / "3", shard_bytes=size, workers=workers, **options)
    assert bytes_of(again.url) == bytes_of(built.url)
    assert again.manifest.content_digest == built.manifest.content_digest
    whole = warmup(source, tmp_path / "whole", workers=1, **options)
    image = "image/tensor" if encode == "raw" else "image/encoded"
    assert len(whole.manifest.splits["train"].variants[0].shards) == 1
    for variant in range(2):
        samples = zip(*(by_tensorflow(url, "train", variant, image) for url in (built.url, whole.url)), strict=True)
        assert all(one[image] == other[image] for one, other in samples)


def test_another_seed_makes_other_pixels(source, raw, tmp_path):
    other = warmup(source, tmp_path / "c", size=SIDE, variants=3, shard_bytes="40KB", seed=1, workers=1)
    assert other.manifest.content_digest != raw.manifest.content_digest
    assert other.manifest.cache.fingerprint != raw.manifest.cache.fingerprint


@pytest.mark.uses("tensorflow")
def test_an_image_that_does_not_decode_is_rejected_in_all_variants(damaged_source, tmp_path):
    name, url = damaged_source
    seen = []
    built = warmup(url, tmp_path / "c", size=SIDE, variants=2, workers=1, listener=seen.append)
    (line,) = Path(built.url, "rejects.jsonl").read_text().splitlines()
    assert (json.loads(line)["path"], json.loads(line)["reason"]) == (name, "unreadable")
    assert (built.manifest.rejects, built.rejects) == ({"unreadable": 1}, 1)
    expected = [other for other in source_names(url) if other != name]
    assert len(expected) == 59
    for variant in range(2):
        assert names_of(by_tensorflow(built.url, "train", variant)) == expected
    split, before = built.manifest.splits["train"], open_dataset(url).manifest.splits["train"]
    missing = np.array(before.class_counts) - split.class_counts
    assert (split.records, missing.sum()) == (59, 1)
    assert built.manifest.class_names[int(missing.argmax())] == name.split("/")[0]
    assert tpufeed.verify(built.url).records == 2 * 59
    assert (seen[-1].images, seen[-1].rejects, seen[-1].total_images) == (2 * 59, 2, 2 * 60)


@pytest.mark.uses("tensorflow")
def test_a_cache_of_a_cache(raw, jpeg, tmp_path):
    ops = [Resize((16, 16)), HorizontalFlip(0.0)]
    for number, built in enumerate((raw, jpeg)):
        again = warmup(built.url, tmp_path / f"{number}", ops=ops, workers=1, allow_augmented=True)
        samples = by_tensorflow(again.url)
        image = "image/tensor" if built is raw else "image/encoded"
        for sample, before in zip(samples, by_tensorflow(built.url, "train", 0, image), strict=True):
            assert sample["image/filename"] == before["image/filename"]
            assert sample["pixels"].shape == (16, 16, 3)
            blocks = before["pixels"].reshape(16, 2, 16, 2, 3).mean((1, 3))
            difference = np.abs(sample["pixels"] - blocks)
            assert difference.max() <= 0.5 if built is raw else difference.mean() <= 6, difference.mean()
        assert again.manifest.cache.source_digest == built.manifest.content_digest


@pytest.mark.uses("tensorflow")
def test_an_unlabelled_source(flat_source, tmp_path):
    built = warmup(flat_source, tmp_path / "c", size=SIDE, variants=2, workers=1)
    assert (built.manifest.labelled, built.manifest.splits["train"].class_counts) == (False, ())
    for variant in range(2):
        assert names_of(by_tensorflow(built.url, "train", variant, labels={})) == source_names(flat_source)
    assert tpufeed.verify(built.url).records == 18


def test_a_cache_in_memory(source, raw, bytes_of, tmp_path):
    built = warmup(source, f"memory://{tmp_path}", size=SIDE, variants=3, shard_bytes="40KB")
    store = MemoryStore(built.url)
    assert {name: store.read(name) for name in bytes_of(raw.url)} == bytes_of(raw.url)
