"""Our shards read by TensorFlow code of others, and theirs, once adopted, by our loaders."""

from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import CenterCrop, Resize

tf = lazy("tensorflow")

AUTO = -1  # tf.data.AUTOTUNE
FLOWERS = ("daisy", "dandelion", "rose")
SYNSETS = ("n01440764", "n01443537", "n01484850")


def read_as_kaggle_s_guide_does(pattern, parse):
    """Files by a glob, all at once, in whatever order they come."""
    files = tf.io.gfile.glob(pattern)
    ignore_order = tf.data.Options()
    try:
        ignore_order.experimental_deterministic = False
    except AttributeError:
        ignore_order.deterministic = False
    dataset = tf.data.TFRecordDataset(files, num_parallel_reads=AUTO).with_options(ignore_order)
    return [tf.nest.map_structure(lambda x: x.numpy(), each) for each in dataset.map(parse, num_parallel_calls=AUTO)]


def decode(data):
    """As a loader does, see docs/pixels.md: TensorFlow's own defaults are another transform and smooth colours."""
    return tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE", fancy_upscaling=False)


def parse_jpeg(record):
    """The guide's `read_tfrecord`, with our keys for its `image` and `class`."""
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/filename": tf.io.FixedLenFeature([], tf.string),
    }
    example = tf.io.parse_single_example(record, features)
    return decode(example["image/encoded"]), example["image/class/label"], example["image/filename"]


def parse_raw(record):
    """A raw cache's: its pixels need no decoding; the shape is the manifest's."""
    features = {
        "image/tensor": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/filename": tf.io.FixedLenFeature([], tf.string),
    }
    example = tf.io.parse_single_example(record, features)
    image = tf.reshape(tf.io.decode_raw(example["image/tensor"], tf.uint8), (64, 64, 3))
    return image, example["image/class/label"], example["image/filename"]


def by_name(samples):
    found = {name.decode(): (image, label) for image, label, name in samples}
    assert len(found) == len(samples)
    return found


# Our shards, their code


@pytest.mark.parametrize(("split", "count"), [("train", 70), ("val", 26)])
def test_a_kaggle_style_reader_has_the_samples_of_our_loaders(dataset_url, photo_folder, split, count):
    theirs = by_name(read_as_kaggle_s_guide_does(f"{dataset_url}/{split}-*.tfrec*", parse_jpeg))
    assert len(theirs) == count
    classes = tpufeed.open_dataset(dataset_url).manifest.class_names
    for name, (image, label) in theirs.items():
        np.testing.assert_array_equal(image, decode((photo_folder / name).read_bytes()))
        assert classes[label] == Path(name).parent.name
    columns = ["image", "label", "filename"]
    given = {"batch_size": count, "ops": [CenterCrop(64)], "columns": columns}
    for images, labels, names in (
        next(iter(tpufeed.Loader(dataset_url, split, **given).to_tf().as_numpy_iterator())),
        next(iter(tpufeed.Loader(dataset_url, split, **given))),
    ):
        ours = [name if isinstance(name, str) else name.decode() for name in names]
        assert set(ours) == set(theirs)
        for name, image, label in zip(ours, images, labels, strict=True):
            whole, expected = theirs[name]
            top, left = (side - 64 >> 1 for side in whole.shape[:2])
            np.testing.assert_array_equal(image, whole[top : top + 64, left : left + 64])
            assert label == expected


def test_plain_tensorflow_reads_a_raw_cache(cache_url, stored):
    for variant in (0, 1):
        expected = stored(cache_url, "train", variant)
        theirs = by_name(read_as_kaggle_s_guide_does(f"{cache_url}/train-v{variant}-*.tfrec*", parse_raw))
        assert len(theirs) == 70
        for name, pixels, label in zip(expected.texts("image/filename"), expected.pixels, expected.labels, strict=True):
            np.testing.assert_array_equal(theirs[name][0], pixels)
            assert theirs[name][1] == label


def test_which_globs_are_right(dataset_url, cache_url):
    """Splits, and variants of a cache, are in one folder."""

    def count(pattern):
        return sum(1 for _ in tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(pattern))))

    assert count(f"{dataset_url}/train-*.tfrecord") == 70
    assert count(f"{dataset_url}/val-*.tfrec*") == 26
    assert count(f"{dataset_url}/*.tfrec*") == 96  # train and val
    assert count(f"{cache_url}/train-v0-*.tfrecord") == 70
    assert count(f"{cache_url}/train-*.tfrecord") == 140  # each sample twice
    assert count(f"{cache_url}/*.tfrec*") == 192


def parse_as_the_model_garden_does(record):
    """`_parse_example_proto` of its ResNet, which takes records with and without boxes."""
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
        "image/class/text": tf.io.FixedLenFeature([], tf.string, default_value=""),
        **{f"image/object/bbox/{side}": tf.io.VarLenFeature(tf.float32) for side in ("xmin", "ymin", "xmax", "ymax")},
    }
    example = tf.io.parse_single_example(record, features)
    sides = [example[f"image/object/bbox/{side}"].values for side in ("ymin", "xmin", "ymax", "xmax")]
    boxes = tf.transpose(tf.expand_dims(tf.stack(sides), 0), [0, 2, 1])
    start, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(example["image/encoded"]), boxes, use_image_if_no_bounding_boxes=True
    )
    window = tf.concat([start[:2], size[:2]], 0)
    image = tf.image.decode_and_crop_jpeg(example["image/encoded"], window, channels=3)
    return tf.image.resize(image, (32, 32)), example["image/class/label"], example["image/class/text"], boxes


def test_a_model_garden_parse_reads_our_shards(dataset_url, stored):
    samples = read_as_kaggle_s_guide_does(f"{dataset_url}/train-*-of-*", parse_as_the_model_garden_does)
    expected = stored(dataset_url)
    assert sorted((label, text.decode()) for _, label, text, _ in samples) == sorted(
        zip(expected.labels, expected.texts("image/class/text"), strict=True)
    )
    assert min(expected.labels) == 0  # theirs begin with 1
    assert all(
        image.shape == (32, 32, 3) and image.max() > 0 and boxes.shape == (1, 0, 4) for image, *_, boxes in samples
    )


# Their shards, our loaders


def to_feature(data):
    values = np.atleast_1d(data)
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if values.dtype.kind == "i":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            features = tf.train.Features(feature={key: to_feature(value) for key, value in record.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


@pytest.fixture(scope="module")
def photos(photo_folder):
    """`(name, class, bytes)` of 24 photographs."""
    files = sorted(photo_folder.glob("*/*.jpg"))[::4]
    classes = sorted({file.parent.name for file in files})
    assert len(files) == 24
    return [(file.name, classes.index(file.parent.name), file.read_bytes()) for file in files]


def check_feeds(url, photos, split, name_column, shift=0):
    """Both loaders give each photograph with its label and pixels once; whole images, cut to 64 in the middle."""
    expected = {name: (label + shift, decode(data).numpy()) for name, label, data in photos}
    given = {"batch_size": len(photos), "ops": [CenterCrop(64)], "columns": ["image", "label", name_column]}
    for images, labels, names in (
        next(iter(tpufeed.Loader(url, split, **given).to_tf().as_numpy_iterator())),
        next(iter(tpufeed.Loader(url, split, **given))),
    ):
        found = [name if isinstance(name, str) else name.decode() for name in names]
        assert sorted(found) == sorted(expected)
        for name, label, image in zip(found, labels, images, strict=True):
            whole = expected[name][1]
            top, left = (side - 64 >> 1 for side in whole.shape[:2])
            np.testing.assert_array_equal(image, whole[top : top + 64, left : left + 64])
            assert label == expected[name][0]


def flower(name, label, data):
    return {"image": data, "class": label, "id": name.encode(), "one_hot_class": [float(label == n) for n in range(3)]}


def test_shards_of_kaggle_s_flowers(photos, tmp_path):
    """As on Kaggle: a folder a split, `00-224x224-798.tfrec`."""
    write(tmp_path / "train/00-160x120-10.tfrec", [flower(*photo) for photo in photos[:10]])
    write(tmp_path / "train/01-160x120-8.tfrec", [flower(*photo) for photo in photos[10:18]])
    write(tmp_path / "val/00-160x120-6.tfrec", [flower(*photo) for photo in photos[18:]])
    manifest = tpufeed.adopt(tmp_path, classes=FLOWERS).manifest
    assert manifest.class_names == FLOWERS
    assert {spec.name: spec.key for spec in manifest.features} == {
        "image/encoded": "image",
        "image/class/label": "class",
        "image/filename": "id",
        "one_hot_class": "one_hot_class",
    }
    check_feeds(tmp_path, photos[:18], "train", "filename")
    check_feeds(tmp_path, photos[18:], "val", "filename")
    assert list(tpufeed.open_dataset(tmp_path).class_weights("train")) == [0, 1, 2]


def test_shards_of_the_flowers_tutorial(photos, tmp_path):
    """Its `label` is the class's name, `class` the number, `size` two numbers: which is which is found by kind."""
    records = [flower(*photo) | {"label": FLOWERS[photo[1]].encode(), "size": [120, 160]} for photo in photos]
    write(tmp_path / "flowers00-8.tfrec", records)
    manifest = tpufeed.adopt(tmp_path, text_key="label").manifest
    assert manifest.options["keys"] == {"image": "image", "label": "class", "text": "label", "filename": "id"}
    assert manifest.class_names == FLOWERS
    check_feeds(tmp_path, photos, "train", "filename")


def test_tfds_imagenet(photos, tmp_path):
    def record(name, label, data):
        return {"image": data, "label": label, "file_name": name.encode()}

    folder = tmp_path / "imagenet2012/5.1.0"
    write(folder / "imagenet2012-train.tfrecord-00000-of-00002", [record(*photo) for photo in photos[:9]])
    write(folder / "imagenet2012-train.tfrecord-00001-of-00002", [record(*photo) for photo in photos[9:18]])
    write(folder / "imagenet2012-validation.tfrecord-00000-of-00001", [record(*photo) for photo in photos[18:]])
    (folder / "features.json").write_text("{}")
    (folder / "label.labels.txt").write_text("\n".join(SYNSETS) + "\n")
    result = tpufeed.adopt(folder, classes=folder / "label.labels.txt")
    assert result.manifest.class_names == SYNSETS
    assert sum(result.listed.ignored_files.values()) == 2
    check_feeds(folder, photos[:18], "train", "filename")
    check_feeds(folder, photos[18:], "validation", "filename")


def test_tfds_test_split_has_labels_that_are_none(photos, tmp_path):
    """-1 for every image: it is adopted apart from the others, without labels."""
    records = [{"image": data, "label": -1, "file_name": name.encode()} for name, _, data in photos]
    write(tmp_path / "imagenet2012-test.tfrecord-00000-of-00001", records)
    with pytest.raises(
        RecordError,
        match=r"record 0.*'label' is -1",
    ):
        tpufeed.adopt(tmp_path, tmp_path / "test")
    tpufeed.adopt(tmp_path, tmp_path / "test", label_key="none")
    with tpufeed.Loader(tmp_path / "test", "test", batch_size=24, ops=[CenterCrop(64)]) as loader:
        assert next(iter(loader)).shape == (24, 64, 64, 3)
    with pytest.raises(OptionError, match="labels"):
        tpufeed.open_dataset(tmp_path / "test").class_weights("test")


def garden(name, label, data, boxes):
    """As `imagenet_to_gcs.py` writes them: labels from 1 on, any number of boxes."""
    sides = {f"image/object/bbox/{side}": np.full(boxes, 0.25) for side in ("xmin", "ymin", "xmax", "ymax")}
    return {
        "image/encoded": data,
        "image/format": b"JPEG",
        "image/colorspace": b"RGB",
        "image/channels": 3,
        "image/height": 120,
        "image/width": 160,
        "image/filename": name.encode(),
        "image/class/label": label + 1,
        "image/class/synset": SYNSETS[label].encode(),
        "image/class/text": FLOWERS[label].encode(),
        "image/object/bbox/label": np.full(boxes, label + 1),
        **sides,
    }


def test_model_garden_imagenet(photos, tmp_path):
    """Its labels begin with 1, so class 0 is there and empty."""
    records = [garden(*photo, boxes=number % 3) for number, photo in enumerate(photos)]
    write(tmp_path / "train-00000-of-00002", records[:12])
    write(tmp_path / "train-00001-of-00002", records[12:])
    theirs = read_as_kaggle_s_guide_does(f"{tmp_path}/train-*", parse_as_the_model_garden_does)
    assert sorted(boxes.shape[1] for *_, boxes in theirs) == [0] * 8 + [1] * 8 + [2] * 8
    manifest = tpufeed.adopt(tmp_path).manifest
    assert manifest.class_names == ("0", *FLOWERS)
    assert manifest.splits["train"].class_counts[0] == 0
    specs = {spec.name: (spec.dtype, spec.shape) for spec in manifest.features}
    assert specs["boxes"] == ("float32", None)
    assert specs["image/object/bbox/label"] == ("int64", None)
    assert specs["image/class/synset"] == ("string", ())
    check_feeds(tmp_path, photos, "train", "filename", shift=1)
    weights = tpufeed.open_dataset(tmp_path).class_weights("train")
    assert weights[0] == 1.0
    assert sum(weights[label + 1] for _, label, _ in photos) == pytest.approx(24)
    names = ["height", "image/class/synset", "boxes", "image/object/bbox/label"]
    batch = next(iter(tpufeed.Loader(tmp_path, batch_size=8, ops=[Resize((60, 80))], columns=names).to_tf()))
    height, _, boxes, count, labels = batch
    assert [tuple(each.shape) for each in (height, boxes, count, labels)] == [(8,), (8, 2, 4), (8,), (8, 2)]
    assert set(count.numpy()) <= {0, 1, 2}
