"""Records that TensorFlow wrote become datasets that everything works with, byte for byte as they were."""

import itertools
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tpufeed.dataset import schema
from tpufeed.images import CenterCrop, Resize
from tpufeed.images.decoding import decode
from tpufeed.storage.memory import MemoryStore

OPS = [Resize(64), CenterCrop(48)]


def kaggle_flowers(folder, photos, write):
    """tpu-getting-started: class ids, ids of images, and a test split without classes."""
    for split, shards, labelled in (("train", 2, True), ("val", 1, True), ("test", 1, False)):
        for shard in range(shards):
            records = [
                {
                    "image": data,
                    "id": f"{split}{shard}{number:02d}".encode(),
                    **({"class": number % 3} if labelled else {}),
                }
                for number, data in enumerate(photos.values())
            ]
            write(folder / f"tfrecords-jpeg-224x224/{split}/{shard:02d}-224x224-{len(records)}.tfrec", records)
    return folder / "tfrecords-jpeg-224x224"


def imagenet(folder, photos, write):
    """As build_imagenet_data.py writes it: labels from 1, names without extension, boxes that may be none."""
    for split, shard in (("train", 0), ("train", 1), ("validation", 0)):
        records = [
            {
                "image/encoded": data,
                "image/height": decode(data).shape[0],
                "image/width": decode(data).shape[1],
                "image/channels": 3,
                "image/colorspace": b"RGB",
                "image/format": b"JPEG",
                "image/filename": f"n0{number}_{shard}.JPEG".encode(),
                "image/class/label": 1 + number % 3,
                "image/class/synset": f"n0000000{number % 3}".encode(),
                "image/class/text": [b"tench", b"crane", "Käfer".encode()][number % 3],
                **{f"image/object/bbox/{side}min": [0.25, 0.5] if number % 2 else [] for side in "xy"},
                **{f"image/object/bbox/{side}max": [0.5, 0.75] if number % 2 else [] for side in "xy"},
                "image/object/bbox/label": [1 + number % 3] * 2 if number % 2 else [],
            }
            for number, data in enumerate(photos.values())
        ]
        write(folder / f"imagenet/{split}-{shard:05d}-of-{2 if split == 'train' else 1:05d}", records)
    return folder / "imagenet"


def tfds(folder, photos, write):
    for split, shard in (("train", 0), ("train", 1), ("test", 0)):
        records = [
            {"image": data, "label": number % 3, "file_name": f"{split}/{shard}/{name}".encode()}
            for number, (name, data) in enumerate(photos.items())
        ]
        total = 2 if split == "train" else 1
        write(folder / f"flowers/1.0.0/flowers-{split}.tfrecord-{shard:05d}-of-{total:05d}", records)
    (folder / "flowers/1.0.0/features.json").write_text("{}")
    (folder / "flowers/1.0.0/dataset_info.json").write_text("{}")
    return folder / "flowers/1.0.0"


LAYOUTS = {"kaggle": kaggle_flowers, "imagenet": imagenet, "tfds": tfds}
EXPECTED = {
    "kaggle": (
        ("train", "val"),
        {schema.ENCODED: "image", schema.LABEL: "class", schema.FILENAME: "id"},
        ("0", "1", "2"),
    ),
    "imagenet": (("train", "validation"), {"boxes": "image/object/bbox/*"}, ("0", "tench", "crane", "Käfer")),
    "tfds": (
        ("train", "test"),
        {schema.ENCODED: "image", schema.LABEL: "label", schema.FILENAME: "file_name"},
        ("0", "1", "2"),
    ),
}


@pytest.fixture(scope="session")
def sources(tmp_path_factory, photos, write_tfrecords):
    """A folder of each layout; not to be changed."""
    folder = tmp_path_factory.mktemp("foreign")
    return {name: make(folder, photos, write_tfrecords) for name, make in LAYOUTS.items()}


@pytest.fixture(
    scope="module", params=[("kaggle", "elsewhere"), ("imagenet", "memory"), ("tfds", "beside")], ids="-".join
)
def adoption(request, sources, tmp_path_factory):
    """A layout adopted from a read-only folder, in a store without local files, or in place: (layout, result)."""
    layout, where = request.param
    splits, url, dst = EXPECTED[layout][0], sources[layout], None
    if where == "elsewhere":
        dst = tmp_path_factory.mktemp("to") / "adopted"
    elif where == "beside":
        url = shutil.copytree(url, tmp_path_factory.mktemp("beside") / "copy")
    else:
        store = MemoryStore(f"memory:/{tmp_path_factory.mktemp('memory')}")
        for name, data in contents(url).items():
            store.put(name, data)
        url = store.url
    before = contents(sources[layout])
    result = tpufeed.adopt(url, dst, only=splits)
    assert contents(sources[layout]) == before
    return layout, result


@pytest.fixture
def layout(adoption):
    return adoption[0]


@pytest.fixture
def adopted(adoption):
    return adoption[1]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_the_manifest_and_the_records(adopted, layout, sources, photos):
    splits, keys, class_names = EXPECTED[layout]
    dataset = tpufeed.open_dataset(adopted.url)
    manifest = dataset.manifest
    assert manifest == adopted.manifest
    assert (tuple(manifest.splits), manifest.class_names) == (splits, class_names)
    assert {spec.name: spec.key for spec in manifest.features if spec.key != spec.name} == keys
    assert [spec.name for spec in manifest.features[:2]] == [schema.ENCODED, schema.LABEL]
    assert manifest.options["command"] == "adopt"
    assert manifest.images == {"jpeg": 3 * 3, "png": 4 * 3}
    train = manifest.splits["train"]
    assert (train.records, sum(train.class_counts)) == (14, 14)
    stored = contents(sources[layout])
    for split in manifest.splits.values():
        for shard in split.variants[0].shards:
            assert dataset.shards.read(shard.name) == stored[shard.name]
    assert sum(adopted.listed.ignored_files.values()) == (2 if layout == "tfds" else 0)
    image = manifest.features[0].key
    for split in manifest.splits:
        examples = list(dataset.iter_examples(split))
        assert len(examples) == dataset.split(split).records
        for example, data in zip(examples, itertools.cycle(photos.values()), strict=False):
            assert bytes(example[image].values[0]) == data
    found = tpufeed.verify(adopted.url)
    assert (found.shards, found.records) == (3, 21)


def test_the_loader_reads_it(adopted, layout, photos):
    columns = ["image", "label", "filename"]
    loader = tpufeed.Loader(adopted.url, "train", batch_size=7, ops=OPS, shuffle=False, columns=columns, threads=2)
    with loader:
        batches = list(loader)
    filenames = [name for _, _, names in batches for name in names]
    examples = list(tpufeed.open_dataset(adopted.url).iter_examples("train"))
    key = EXPECTED[layout][1].get(schema.FILENAME, schema.FILENAME)
    assert filenames == [str(example[key].values[0], "utf-8") for example in examples]
    first = 1 if layout == "imagenet" else 0
    assert np.concatenate([labels for _, labels, _ in batches]).tolist() == [first + n % 3 for n in range(7)] * 2
    assert all(images.shape == (7, 48, 48, 3) and images.std() > 20 for images, _, _ in batches)


@pytest.mark.uses("tensorflow", "torch")
@pytest.mark.first_cases(2)
def test_tensorflow_and_torch_read_it(adopted):
    dataset = tpufeed.Loader(adopted.url, batch_size=7, ops=OPS, shuffle=False, columns=["image", "label"]).to_tf()
    images, labels = next(iter(dataset))
    samples = tpufeed.TFRecordImages(adopted.url, "train", ops=OPS)
    assert [int(label) for label in labels] == [samples[n][1] for n in range(7)]
    np.testing.assert_array_equal(images.numpy(), np.stack([samples[n][0].numpy() for n in range(7)]))
    assert len(samples) == 14


def test_a_view_of_its_classes_has_them_whatever_feature_is_called_label(photos, write_tfrecords, tmp_path):
    """Five flowers have the names of classes there."""
    records = [
        {"image": photo, "class": number % 3, "label": [b"daisy", b"rose", b"tulip"][number % 3]}
        for number, photo in enumerate(photos.values())
    ]
    write_tfrecords(tmp_path / "train.tfrecord", records)
    tpufeed.adopt(tmp_path, text_key="none")
    view = tpufeed.open_dataset(tmp_path).select(classes=["2"], keep_ids=True)
    assert view.class_counts("train") == (0, 0, 2)
    with tpufeed.Loader(view, ops=OPS, batch_size=2, columns=["label"]) as loader:
        assert [labels.tolist() for labels in loader] == [[2, 2]]


@pytest.mark.all
def test_a_cache_of_it(sources, tmp_path):
    """Made by other processes of shards that lie elsewhere."""
    adopted = tpufeed.adopt(sources["imagenet"], tmp_path / "adopted")
    result = tpufeed.cache.warmup(adopted.url, tmp_path / "cache", size=32, variants=2, shard_bytes="20KB", workers=2)
    assert result.images == 42
    assert result.manifest.class_names == adopted.manifest.class_names
    assert result.manifest.splits["train"].class_counts == adopted.manifest.splits["train"].class_counts
    with tpufeed.Loader(
        result.url, batch_size=14, shuffle=False, columns=["image", "label", "filename"], threads=1
    ) as loader:
        images, labels, filenames = next(iter(loader))
    assert images.shape == (14, 32, 32, 3)
    with tpufeed.Loader(
        adopted.url, batch_size=14, shuffle=False, columns=["image", "label", "filename"], ops=OPS, threads=1
    ) as loader:
        _, expected, names = next(iter(loader))
    assert (labels.tolist(), list(filenames)) == (expected.tolist(), list(names))
    tpufeed.verify(result.url)


def test_an_unlabelled_split_is_adopted_apart(sources, tmp_path):
    result = tpufeed.adopt(sources["kaggle"], tmp_path / "test", only=["test"], label_key="none")
    assert not result.manifest.labelled
    assert result.manifest.class_names == result.manifest.splits["test"].class_counts == ()
    assert not tpufeed.adopt(sources["kaggle"], tmp_path / "again", only=["test"]).manifest.labelled
    with tpufeed.Loader(result.url, "test", batch_size=7, ops=OPS, columns=["image", "filename"]) as loader:
        _, names = next(iter(loader))
    assert sorted(names) == [f"test0{number:02d}" for number in range(7)]


@pytest.mark.all
def test_own_records_without_their_manifest_keep_their_content(dataset_url, tmp_path):
    original = tpufeed.open_dataset(dataset_url)
    copy = shutil.copytree(dataset_url, tmp_path / "copy")
    (copy / "manifest.json").unlink()
    result = tpufeed.adopt(copy)
    assert result.manifest.content_digest == original.content_digest
    assert contents(copy)["train.index.npy"] == contents(dataset_url)["train.index.npy"]
    assert result.listed.left_out == ()


def test_empty_shards_and_images_that_are_none(photos, write_tfrecords, tmp_path, caplog):
    (photo,) = itertools.islice(photos.values(), 1)
    write_tfrecords(tmp_path / "train-00000-of-00002.tfrecord", [])
    write_tfrecords(tmp_path / "train-00001-of-00002.tfrecord", [{"image": photo}, {"image": b"spoilt"}])
    with caplog.at_level(logging.WARNING):
        result = tpufeed.adopt(tmp_path)
    assert [shard.records for shard in result.manifest.splits["train"].variants[0].shards] == [0, 2]
    assert result.manifest.images == {"png": 1, "unknown": 1}
    assert "train-00001-of-00002.tfrecord, record 1, byte" in caplog.text
    assert tpufeed.verify(tmp_path).records == 2


def test_progress_ends_where_it_should(sources, tmp_path):
    seen = []
    result = tpufeed.adopt(sources["imagenet"], tmp_path / "a", listener=seen.append)
    assert (seen[0].records, seen[0].bytes) == (0, 0)
    assert (seen[-1].records, seen[-1].bytes) == (21, seen[0].total_bytes)
    assert [progress.records for progress in seen] == [0, 7, 14, 21]
    assert result.seconds > 0


def test_the_same_adoption_again_does_nothing(photos, tmp_path, write_tfrecords, monkeypatch):
    photo = photos["china.jpg"]
    write_tfrecords(tmp_path / "a/x.tfrecord", [{"image": photo, "label": 0}])
    first = tpufeed.adopt(tmp_path / "a", classes=["rose"], label_key="label")
    before = (tmp_path / "a/manifest.json").stat()
    # Where nothing is to be written nothing need be writable.
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda *_: False)
        again = tpufeed.adopt(tmp_path / "a", classes=["rose"], label_key="label")
    assert (again.manifest, again.url, again.seconds) == (first.manifest, first.url, 0.0)
    assert (first.listed.ignored_files, again.listed.ignored_files) == ({}, {})
    assert (tmp_path / "a/manifest.json").stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_of_classes_as_windows_writes_it(photos, tmp_path, write_tfrecords):
    write_tfrecords(tmp_path / "a/x.tfrecord", [{"image": photos["china.jpg"], "label": 0}])
    (tmp_path / "classes.txt").write_bytes("\ufeffrose\r\ncafe\u0301\r\n\r\n".encode())
    result = tpufeed.adopt(tmp_path / "a", classes=tmp_path / "classes.txt", label_key="label")
    assert result.manifest.class_names == ("rose", "cafe\u0301")


def test_files_without_a_record_are_told_of(photos, tmp_path, write_tfrecords, caplog):
    write_tfrecords(tmp_path / "a/x.tfrecord", [{"image": photos["china.jpg"]}])
    (tmp_path / "a/y.tfrecord").touch()
    assert tpufeed.adopt(tmp_path / "a").manifest.splits["train"].records == 1
    assert "split" not in caplog.text
    (tmp_path / "a/val.tfrecord").touch()
    splits = tpufeed.adopt(tmp_path / "a", tmp_path / "to", only="x, val").manifest.splits
    assert {name: split.records for name, split in splits.items()} == {"x": 1, "val": 0}
    assert "split val holds no record" in caplog.text
    assert "1 of 2 TFRecord files hold no record, like y.tfrecord" in caplog.text
