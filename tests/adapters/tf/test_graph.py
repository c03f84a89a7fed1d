"""to_tf(direct=True): TensorFlow reads the shards. test_contract.py has the pixels of a cache, ranks and leaving."""

import json
import math
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.adapters.tf.feeds import tf_feed
from tests.frameworks import lazy
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import OptionError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Custom,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from tpufeed.images.rng import uniforms
from tpufeed.storage.store import open_store

find_window = lazy("tpufeed.adapters.tf.graph:find_window")
run_ops = lazy("tpufeed.adapters.tf.graph:run_ops")

tf = lazy("tensorflow")

COLUMNS = ["image", "label", "sample"]
DRAWS = 1500


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
    """The offsets of a shard's records, and of its end."""
    variant = open_dataset(url).split("train").variants[0]
    offsets = np.load(Path(url) / variant.index.name)
    for entry in variant.shards:
        if entry.name == shard.name:
            return offsets[: entry.records + 1].astype(int)
        offsets = offsets[entry.records + 1 :]
    raise AssertionError(shard)


# What comes out


@pytest.mark.parametrize("ops", [[Resize(70), CenterCrop(60)], [Resize((20, 26))]], ids=str)
def test_jpegs_have_the_pixels_of_the_loader_where_nothing_is_random(dataset_url, ops):
    given = {"ops": ops, "batch_size": 9, "columns": COLUMNS, "remainder": "pad"}
    found = by_sample(tpufeed.Loader(dataset_url, **given).to_tf(direct=True))
    with tpufeed.Loader(dataset_url, **given) as loader:
        expected = by_sample(loader)
    assert found.keys() == expected.keys()
    for sample, (pixels, label) in found.items():
        assert label == expected[sample][1]
        assert difference(pixels, expected[sample][0]) < 6  # two decoders and two ways to resize


def test_draws_depend_on_seed_epoch_and_sample_alone(dataset_url, ops):
    """Neither on the number of threads, nor on ranks, order, batch size or the run."""

    def epochs(count=1, **options):
        given = {"direct": True, "ops": ops, "columns": COLUMNS, "remainder": "pad", "batch_size": 9, "seed": 3}
        dataset = tf_feed(dataset_url, **given | options)
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
    """And changes images."""
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


@pytest.mark.parametrize(("shuffle", "remainder"), [(True, "pad"), (False, "repeat")])
def test_more_ranks_than_samples_have_equal_numbers_of_batches(cache_url, shuffle, remainder):
    """70 samples for 80 ranks: those of the first rank fill the batches of the last."""
    given = {"direct": True, "columns": ["sample"], "remainder": remainder, "batch_size": 1, "shuffle": shuffle}
    found = []
    for rank in (2, 79):
        batches = list(tf_feed(cache_url, world=(rank, 80), lanes=80, **given).as_numpy_iterator())
        assert len(batches) == 1
        found += (
            [sample for samples, mask in batches for sample in samples[mask]]
            if remainder == "pad"
            else batches[0].tolist()
        )
    assert len(found) == (1 if remainder == "pad" else 2)
    assert set(found) <= set(range(70))


def test_records_in_the_middle_of_shards_are_found_by_a_coarse_index(cache_url, monkeypatch):
    """As of datasets that are too large for a mark a record, and for any."""
    for marks, indexed in ((8, 1 << 23), (1 << 16, 1)):
        monkeypatch.setattr("tpufeed.adapters.tf.graph._MOST_MARKS", marks)
        monkeypatch.setattr("tpufeed.adapters.tf.graph._MOST_INDEXED", indexed)
        given = {"batch_size": 7, "columns": COLUMNS, "lanes": 16}
        with tpufeed.Loader(cache_url, **given) as loader:
            assert by_sample(tpufeed.Loader(cache_url, **given).to_tf(direct=True)) == by_sample(loader)


# Damage


def test_a_shard_of_another_size_and_one_that_is_gone_are_named(copied):
    url, path, _ = copied
    data = path.read_bytes()
    dataset = tpufeed.Loader(url, batch_size=5).to_tf(direct=True)
    for changed in (data[:-100], data + data[:100]):
        path.write_bytes(changed)
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(path)):
            list(dataset)
        assert len(list(dataset)) == 14  # the second variant is sound
    path.unlink()
    with pytest.raises(tf.errors.NotFoundError, match=str(path)):
        list(dataset)


def test_a_damaged_record_among_images_is_named(dataset_url, damage, ops):
    damaged = damage(dataset_url, 33)
    with pytest.raises(tf.errors.OpError, match=f"{damaged.shard}, record {damaged.record}"):
        list(tpufeed.Loader(damaged.url, ops=ops, batch_size=3).to_tf(direct=True))


def test_an_image_that_does_not_decode_is_named(tmp_path):
    """The records are sound by their CRCs, but hold no images; all have one length."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    good, other = tf.io.encode_jpeg(noise).numpy(), tf.io.encode_png(noise).numpy()

    def write(bad):
        with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
            for image in (good, good, bad, good, other, good):
                feature = {"image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))}
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    write(other[:200])
    tpufeed.adopt(tmp_path)
    dataset = tpufeed.Loader(tmp_path, ops=[CenterCrop(32)], batch_size=3).to_tf(direct=True)
    for bad in (other[:200], b"no image at all".ljust(200), good[:200], bytes(200)):
        write(bad)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"a.tfrecord, record 2"):
            list(dataset)


def test_a_thin_image_that_would_be_enlarged_to_gigabytes_is_named(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number, width in enumerate((9, 60_000, 9, 9)):
        Image.new("RGB", (width, 1), (1, 2, 3)).save(folder / f"{number}.png")
    url = str(tmp_path / "dataset")
    tpufeed.shard(folder, url, workers=1)
    with pytest.raises(tf.errors.OpError, match=r"record \d"):
        list(tpufeed.Loader(url, ops=[Resize(256), CenterCrop(224)], batch_size=4).to_tf(direct=True))


def test_a_dataset_that_was_built_anew_is_not_read(copied):
    url, path, _ = copied
    for repeat in (False, True):
        dataset = tpufeed.Loader(url, batch_size=5, repeat=repeat).to_tf(direct=True)
        iterator = iter(dataset)
        next(iterator)
        manifest = path.parent / "manifest.json"
        data = manifest.read_bytes()
        manifest.write_bytes(data.replace(b'"run_id": "', b'"run_id": "x'))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{url} .*rebuilt"):
            list(iterator if repeat else dataset)
        manifest.unlink()
        with pytest.raises(tf.errors.NotFoundError, match=str(manifest)):
            list(dataset)
        manifest.write_bytes(data)


def test_options_that_do_not_fit(cache_url):
    open_store("memory://direct").put("manifest.json", (Path(cache_url) / "manifest.json").read_bytes())
    with pytest.raises(OptionError, match="memory://direct"):
        tpufeed.Loader("memory://direct", batch_size=5).to_tf(direct=True)
    for name, value in {"local_bytes": "1GB", "max_bad_records": 1, "processes": 2, "timeout_seconds": 5.0}.items():
        with pytest.raises(OptionError, match=name):
            tpufeed.Loader(cache_url, batch_size=5, **{name: value}).to_tf(direct=True)
    with pytest.raises(OptionError, match="70"):
        tpufeed.Loader(cache_url, batch_size=71).to_tf(direct=True)
    with pytest.raises(OptionError, match="'Label'"):
        tpufeed.Loader(cache_url, columns=["Label"]).to_tf(direct=True)
    for op in (Custom("math:sqrt"), ColorJitter(0.4), RandAugment(transforms=["identity"])):
        name = type(op).__name__
        with pytest.raises(OptionError, match=rf"{name}\("):
            tpufeed.Loader(cache_url, batch_size=5, ops=[op]).to_tf(direct=True)
    with pytest.raises(OptionError, match="deterministic=True"):
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
    with pytest.raises(tf.errors.OpError, match=f"{damaged.shard}, record {damaged.record}"):
        list(tpufeed.Loader(damaged.url, **given).to_tf(direct=True))


def test_unlabelled_samples_have_their_label(tmp_path):
    for name in ("a/1", "b/2", "3"):
        path = tmp_path / f"src/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    tpufeed.shard(tmp_path / "src", tmp_path / "d", unlabelled="keep", workers=1)
    (labels,) = tpufeed.Loader(tmp_path / "d", batch_size=3, columns=["label"]).to_tf(direct=True)
    assert sorted(labels.numpy().tolist()) == [-1, 0, 1]


@pytest.mark.parametrize("images", [["image"], []], ids=["images", "none"])
def test_columns_of_each_type_are_those_of_the_loader(images, tmp_path):
    dtypes, rows = ["bool", "int32", "uint8", "uint16", "float16"], []
    for number in range(6):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        values = {f"x_{dtype}": number % 2 == 0 if dtype == "bool" else 48 + number for dtype in dtypes}
        rows.append(json.dumps({"path": f"{number}.png", **values}))
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    columns = {f"x_{dtype}": dtype for dtype in dtypes}
    tpufeed.shard(tmp_path / "t.jsonl", tmp_path / "d", columns=columns, label="none", workers=1)
    given = {"columns": ["sample", *columns, *images], "batch_size": 6, "ops": [CenterCrop(8)]}
    (found,) = tpufeed.Loader(tmp_path / "d", **given).to_tf(direct=True).as_numpy_iterator()
    with tpufeed.Loader(tmp_path / "d", **given, processes=0) as loader:
        (expected,) = loader
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one[np.argsort(found[0])], other[np.argsort(expected[0])])


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


# Windows and flips have the distributions of the host's ops


def each(function, draws):
    """What `function` gives for `DRAWS` seeded rows of draws, in one graph."""
    seeds = tf.data.Dataset.range(DRAWS)
    found = seeds.map(lambda seed: function(tf.random.stateless_uniform([draws], tf.stack([7, seed]))))
    return np.array(list(found.as_numpy_iterator()), np.float64)


@pytest.mark.parametrize(
    ("op", "height", "width"),
    [
        (RandomResizedCrop(64), 300, 400),
        (RandomResizedCrop(64, (0.9, 1.0), (0.1, 0.2)), 200, 300),  # most tries fail
        (RandomCrop(70, padding=13), 100, 90),
        (RandomCrop((30, 200)), 100, 150),  # too short a side
    ],
    ids=str,
)
def test_windows_have_the_mean_and_spread_of_the_host_s(op, height, width):
    windows = each(lambda draws: find_window(op, tf.constant([height, width]), draws)[0], op.draws)
    host = uniforms(3, 0, np.arange(DRAWS), 0, op.draws)
    expected = np.array([op.window(height, width, draws.tolist())[:4] for draws in host], np.float64)
    spread = expected.std(0) + 0.1
    assert np.all(np.abs(windows.mean(0) - expected.mean(0)) < 5 * spread / math.sqrt(DRAWS))
    assert np.all(np.abs(windows.std(0) - expected.std(0)) < 0.08 * spread + 0.05)


@pytest.mark.parametrize(
    ("op", "size", "expected"),
    [
        (CenterCrop(31), (70, 90), (19, 29, 31, 31, 31, 31)),
        (CenterCrop((224, 100)), (112, 80), (0, 15, 112, 50, 224, 100)),
        (Resize(50), (100, 200), (0, 0, 100, 200, 50, 100)),
        (Resize((30, 40)), (100, 200), (0, 0, 100, 200, 30, 40)),
    ],
    ids=str,
)
def test_windows_that_are_not_drawn(op, size, expected):
    window, out = find_window(op, tf.constant(size), tf.zeros([0]))
    assert (*window.numpy(), *out.numpy()) == expected == op.window(*size, ())


@pytest.mark.parametrize("op", [HorizontalFlip(0.3), VerticalFlip(0.7)], ids=str)
def test_what_happens_sometimes_happens_that_often(op):
    image = np.arange(1, 61, dtype=np.uint8).reshape(5, 4, 3)
    changed = each(lambda draws: tf.reduce_any(run_ops((op,), tf.constant(image), draws) != image), op.draws)
    assert abs(changed.mean() - op.p) < 0.05
