"""to_tf(direct=True): TensorFlow reads the shards; what comes out is what the other loaders give."""

import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tpufeed
from tests.loaders.tf.feeds import tf_feed
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import OptionError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Custom,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from tpufeed.storage.store import open_store

COLUMNS = ["image", "label", "sample"]


def by_sample(batches):
    """Image and label of each sample; none may come twice."""
    found = {}
    for images, labels, samples, *mask in batches:
        real = np.asarray(mask[0]) if mask else np.ones(len(samples), bool)
        for row in np.flatnonzero(real):
            assert int(samples[row]) not in found
            found[int(samples[row])] = np.asarray(images[row]).tobytes(), int(labels[row])
    return found


def samples_of(dataset):
    return np.concatenate([ids.numpy() for ids in dataset]).tolist()


@pytest.fixture
def copied(cache_url, tmp_path):
    """A copy of the cache to damage: `(url, path of the shard that sample 40 is in, that shard's entry)`."""
    copy = tmp_path / "copy"
    shutil.copytree(cache_url, copy)
    shards, left = open_dataset(copy).split("train").variants[0].shards, 40
    while left >= shards[0].records:
        left, shards = left - shards[0].records, shards[1:]
    return str(copy), copy / shards[0].name, shards[0]


def offsets_of(url, shard):
    """Where the records of a shard start, and where it ends."""
    variant = open_dataset(url).split("train").variants[0]
    offsets = np.load(Path(url) / variant.index.name)
    for entry in variant.shards:
        if entry.name == shard.name:
            return offsets[: entry.records + 1].astype(int)
        offsets = offsets[entry.records + 1 :]
    raise AssertionError(shard)


# What comes out


def test_epochs_of_a_raw_cache_hold_the_pixels_of_the_loader(cache_url):
    given = {"batch_size": 9, "columns": COLUMNS, "seed": 3, "remainder": "pad"}
    dataset = tpufeed.Loader(cache_url, **given).to_tf(direct=True)
    assert dataset.element_spec == tpufeed.Loader(cache_url, **given).to_tf().element_spec
    assert len(dataset) == 8
    orders = set()
    with tpufeed.Loader(cache_url, **given) as loader:
        for _ in range(3):
            batches = list(dataset.as_numpy_iterator())
            assert by_sample(batches) == by_sample(loader)
            masks = sorted(mask.tolist() for *_, mask in batches)  # the last batch may come earlier
            assert masks == [[True] * 7 + [False] * 2] + [[True] * 9] * 7
            orders.add(tuple(np.concatenate([samples for _, _, samples, _ in batches])))
    assert len(orders) == 3


@pytest.mark.parametrize("ops", [[CenterCrop(60)], [Resize(70), CenterCrop(60)], [Resize((20, 26))]], ids=str)
def test_jpegs_have_the_pixels_of_the_loader_where_nothing_is_random(dataset_url, ops):
    given = {"ops": ops, "batch_size": 9, "columns": COLUMNS, "remainder": "pad"}
    found = by_sample(tpufeed.Loader(dataset_url, **given).to_tf(direct=True))
    with tpufeed.Loader(dataset_url, **given) as loader:
        expected = by_sample(loader)
    assert found.keys() == expected.keys()
    for sample, (pixels, label) in found.items():
        assert label == expected[sample][1]
        assert difference(pixels, expected[sample][0]) < 6  # two decoders and two ways to resize


@pytest.mark.parametrize("source", ["dataset_url", "cache_url"])
def test_draws_depend_on_seed_epoch_and_sample_alone(source, ops, request):
    """Neither on the number of threads, nor on ranks, order, batch size or the run."""
    url = request.getfixturevalue(source)
    ops = ops if source == "dataset_url" else [RandomCrop(56), HorizontalFlip()]

    def epochs(count=1, **options):
        given = {"direct": True, "ops": ops, "columns": COLUMNS, "remainder": "pad", "batch_size": 9, "seed": 3}
        dataset = tf_feed(url, **given | options)
        return [by_sample(dataset) for _ in range(count)]

    one, other = epochs(2)
    assert len(one) == len(other) == 70
    assert epochs(shuffle=False, batch_size=20, lanes=4, threads=1) == [one]
    (rank,) = epochs(world=(1, 2), threads=5)
    assert len(rank) == 35
    assert rank.items() <= one.items()
    for changed in (other, epochs(seed=4)[0]):
        assert np.mean([changed[sample][0] == one[sample][0] for sample in one]) < 0.1


def difference(one, other):
    return np.abs(np.frombuffer(one, np.uint8).astype(int) - np.frombuffer(other, np.uint8)).mean()


def test_every_op_runs_in_the_graph_of_a_dataset(dataset_url):
    """And changes images as often as test_graph.py says of each."""
    plain = [Resize(70), CenterCrop(60)]
    ops = [*plain, VerticalFlip(), RandomCrop(60, padding=4), RandomResizedCrop(60), HorizontalFlip()]
    given = {"direct": True, "split": "val", "batch_size": 8, "seed": 3, "columns": COLUMNS, "remainder": "pad"}
    first, unchanged = (by_sample(tf_feed(dataset_url, ops=each, **given)) for each in (ops, plain))
    assert first.keys() == unchanged.keys()
    assert sum(first[sample] != unchanged[sample] for sample in first) > 0.9 * len(first)


def test_a_seed_for_all_of_tensorflow_changes_nothing(cache_url):
    options = {"direct": True, "batch_size": 7, "columns": ["sample"]}
    expected = samples_of(tf_feed(cache_url, **options))
    try:
        tf.random.set_seed(0)  # as keras.utils.set_random_seed does; 0 was an error
        found = samples_of(tf_feed(cache_url, **options))
    finally:
        tf.random.set_seed(None)
    assert sorted(found) == sorted(expected)


def test_an_adopted_dataset_whose_manifest_is_elsewhere(dataset_url, tmp_path):
    foreign, manifest = tmp_path / "foreign", str(tmp_path / "manifest")
    foreign.mkdir()
    for shard in Path(dataset_url).glob("train-*.tfrecord"):
        shutil.copy(shard, foreign)
    tpufeed.adopt(foreign, manifest)
    given = {"ops": [CenterCrop(60)], "batch_size": 7, "columns": COLUMNS}
    found = by_sample(tpufeed.Loader(manifest, **given).to_tf(direct=True))
    with tpufeed.Loader(manifest, **given) as loader:
        expected = by_sample(loader)
    assert found.keys() == expected.keys()
    assert all(found[sample][1] == expected[sample][1] for sample in found)
    assert all(difference(found[sample][0], expected[sample][0]) < 6 for sample in found)


@pytest.mark.parametrize(
    ("world", "lanes", "shuffle", "remainder"),
    [
        (2, 12, True, "drop"),
        (3, 12, False, "pad"),
        (2, 12, True, "repeat"),
        (80, 80, True, "pad"),
        (80, 80, False, "repeat"),
    ],
)
def test_ranks_have_equal_numbers_of_batches_and_each_sample_once(cache_url, world, lanes, shuffle, remainder):
    batch = 1 if world > 3 else 4
    given = {"direct": True, "columns": ["sample"], "remainder": remainder, "batch_size": batch, "shuffle": shuffle}
    found, counts = [], set()
    for rank in (2, world - 1) if world > 3 else range(world):
        batches = list(tf_feed(cache_url, world=(rank, world), lanes=lanes, **given).as_numpy_iterator())
        counts.add(len(batches))
        if remainder == "pad":
            batches = [samples[mask] for samples, mask in batches]
        found.append(np.concatenate(batches).tolist())
    assert counts == {70 // (batch * world) if remainder == "drop" else -(-70 // (batch * world))}
    if remainder == "repeat":
        found = [list(set(samples)) for samples in found] if world < 70 else []
    ids = list(chain.from_iterable(found))
    assert len(ids) == len(set(ids))
    assert set(ids) <= set(range(70))
    if world <= 3 and remainder != "drop":
        assert set(ids) == set(range(70))


def test_records_in_the_middle_of_shards_are_found_by_a_coarse_index(cache_url, monkeypatch):
    """As of datasets that are too large for a mark a record, and for any."""
    for marks, indexed in ((8, 1 << 23), (1 << 16, 1)):
        monkeypatch.setattr("tpufeed.loaders.tf.graph._MOST_MARKS", marks)
        monkeypatch.setattr("tpufeed.loaders.tf.graph._MOST_INDEXED", indexed)
        given = {"batch_size": 7, "columns": COLUMNS, "lanes": 16}
        with tpufeed.Loader(cache_url, **given) as loader:
            assert by_sample(tpufeed.Loader(cache_url, **given).to_tf(direct=True)) == by_sample(loader)


# Damage


def test_a_shard_of_another_size_and_one_that_is_gone_are_named(copied):
    url, path, _ = copied
    data = path.read_bytes()
    for changed in (data[:-100], data + data[:100]):
        path.write_bytes(changed)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{path}.*has body length"):
            list(tpufeed.Loader(url, batch_size=5).to_tf(direct=True))
    path.unlink()
    dataset = tpufeed.Loader(url, batch_size=5).to_tf(direct=True)
    with pytest.raises(tf.errors.NotFoundError, match=f"{path}; No such file"):
        list(dataset)
    assert len(list(dataset)) == 14  # the second variant is sound


@pytest.mark.parametrize(("batch_size", "shuffle"), [(3, True), (8, False)])
def test_a_damaged_record_among_images_is_named(dataset_url, damage, ops, shuffle, batch_size):
    damaged = damage(dataset_url, 33)
    with pytest.raises(tf.errors.OpError, match=f"{damaged.shard}, record {damaged.record}: it cannot be read"):
        list(tpufeed.Loader(damaged.url, ops=ops, batch_size=batch_size, shuffle=shuffle).to_tf(direct=True))


@pytest.mark.parametrize(("lanes", "shuffle"), [(2, False), (16, True)])
def test_a_damaged_record_is_named(cache_url, damage, lanes, shuffle):
    damaged = damage(cache_url, 33)
    with pytest.raises(tf.errors.OpError, match=f"{damaged.shard}, record {damaged.record}: it cannot be read"):
        list(tpufeed.Loader(damaged.url, batch_size=5, lanes=lanes, shuffle=shuffle).to_tf(direct=True))


def test_an_image_that_does_not_decode_is_named(tmp_path):
    """Sound records by their CRCs; the images, all of one length, are none."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    good, other = tf.io.encode_jpeg(noise).numpy(), tf.io.encode_png(noise).numpy()

    def write(bad):
        with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
            for image in (good, good, bad, good, other, good):
                feature = {"image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))}
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    write(other[:200])
    tpufeed.adopt(tmp_path)
    for shuffle in (True, False):
        dataset = tpufeed.Loader(tmp_path, ops=[CenterCrop(32)], batch_size=3, shuffle=shuffle).to_tf(direct=True)
        for bad in (other[:200], b"no image at all".ljust(200), good[:200], bytes(200)):
            write(bad)
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"a.tfrecord, record 2: its image cannot be deco"):
                list(dataset)


def test_a_thin_image_that_would_be_enlarged_to_gigabytes_is_named(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number, width in enumerate((9, 60_000, 9, 9)):
        Image.new("RGB", (width, 1), (1, 2, 3)).save(folder / f"{number}.png")
    url = str(tmp_path / "dataset")
    tpufeed.shard(folder, url)
    with pytest.raises(tf.errors.OpError, match=r", record \d: its image"):
        list(tpufeed.Loader(url, ops=[Resize(256), CenterCrop(224)], batch_size=4).to_tf(direct=True))


def test_a_dataset_that_was_built_anew_is_not_read(copied, dataset_url):
    url, path, _ = copied
    for repeat in (False, True):
        dataset = tpufeed.Loader(url, batch_size=5, repeat=repeat).to_tf(direct=True)
        iterator = iter(dataset)
        next(iterator)
        manifest = path.parent / "manifest.json"
        data = manifest.read_bytes()
        manifest.write_bytes(data.replace(b'"run_id": "', b'"run_id": "x'))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{url} was built anew while it was read"):
            list(iterator if repeat else dataset)
        manifest.unlink()
        with pytest.raises(tf.errors.NotFoundError, match=f"{manifest}"):
            list(dataset)
        manifest.write_bytes(data)


def test_options_that_do_not_fit(cache_url):
    open_store("memory://direct").put("manifest.json", (Path(cache_url) / "manifest.json").read_bytes())
    with pytest.raises(
        OptionError, match=r"memory://direct: TensorFlow itself opens file://, gs://.*leave direct=True"
    ):
        tpufeed.Loader("memory://direct", batch_size=5).to_tf(direct=True)
    for name, value in {"stage_bytes": "1GB", "max_bad_records": 1, "processes": 2, "timeout_seconds": 5.0}.items():
        with pytest.raises(OptionError, match=f"direct=True reads and decodes in TensorFlow, which has no {name}"):
            tpufeed.Loader(cache_url, batch_size=5, **{name: value}).to_tf(direct=True)
    with pytest.raises(OptionError, match="70 samples"):
        tpufeed.Loader(cache_url, batch_size=71).to_tf(direct=True)
    with pytest.raises(OptionError, match="'Label'"):
        tpufeed.Loader(cache_url, columns=["Label"]).to_tf(direct=True)
    for op in (Custom("math:sqrt"), ColorJitter(0.4)):
        name = type(op).__name__
        with pytest.raises(
            OptionError, match=rf"{name}\(.*has no TensorFlow graph; direct=True has CenterCrop, .*leave"
        ):
            tpufeed.Loader(cache_url, batch_size=5, ops=[op]).to_tf(direct=True)
    with pytest.raises(OptionError, match="deterministic=True is the order of the loader"):
        tpufeed.Loader(cache_url).to_tf(direct=True, deterministic=True)
    moved = tpufeed.Loader(cache_url)
    moved.set_epoch(1)
    with pytest.raises(OptionError, match=r"tf.train.Checkpoint"):
        moved.to_tf(direct=True)


def test_batches_without_images_decode_none(dataset_url, damage):
    """As the other loaders: no op is needed, labels are right, and damage is named all the same."""
    given = {"batch_size": 7, "columns": ["label", "sample"]}
    with tpufeed.Loader(dataset_url, **given) as loader:
        expected = dict(pair for labels, samples in loader for pair in zip(samples, labels, strict=True))
    dataset = tpufeed.Loader(dataset_url, **given).to_tf(direct=True)
    assert {
        sample: label for labels, ids in dataset.as_numpy_iterator() for sample, label in zip(ids, labels, strict=True)
    } == expected
    damaged = damage(dataset_url, 33)
    with pytest.raises(tf.errors.OpError, match=f"{damaged.shard}, record {damaged.record}: it cannot be read"):
        list(tpufeed.Loader(damaged.url, **given).to_tf(direct=True))


# States, leaving


def test_a_checkpoint_of_an_iterator_goes_on_where_it_was(cache_url, tmp_path):
    given = {"direct": True, "repeat": True, "batch_size": 7, "columns": ["sample"]}
    iterator = iter(tf_feed(cache_url, **given))
    seen = [next(iterator).numpy().tolist() for _ in range(4)]
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "state")
    again = iter(tf_feed(cache_url, **given))
    tf.train.Checkpoint(iterator=again).restore(path)
    seen += [next(again).numpy().tolist() for _ in range(6)]
    assert sorted(chain.from_iterable(seen)) == list(range(70))
    following = [next(again).numpy().tolist() for _ in range(10)]
    assert sorted(chain.from_iterable(following)) == list(range(70))


def test_epochs_after_a_restored_one_follow_it(cache_url, tmp_path):
    given = {"direct": True, "batch_size": 7, "columns": COLUMNS}
    dataset = tf_feed(cache_url, **given)
    assert len(list(dataset)) == 10
    iterator = iter(dataset)
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "state")
    again = tf_feed(cache_url, **given)
    iterator = iter(again)
    tf.train.Checkpoint(iterator=iterator).restore(path)
    assert len(list(iterator)) == 9
    with tpufeed.Loader(cache_url, batch_size=7, columns=COLUMNS) as loader:
        loader.set_epoch(2)
        assert by_sample(again) == by_sample(loader)
