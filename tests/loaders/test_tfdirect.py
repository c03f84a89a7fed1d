"""tf_dataset(direct=True): TensorFlow reads the shards; what comes out is what the other loaders give."""

import gc
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tpufeed
from tpufeed import cache
from tpufeed.dataset.order import EpochOrder
from tpufeed.dataset.partition import Share, World
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import ObjectChangedError, OptionError
from tpufeed.images.ops import HorizontalFlip, RandomCrop
from tpufeed.loaders.tfrecords import plan_epoch
from tpufeed.storage.registry import open_store

COLUMNS = ["image", "label", "sample"]

EXIT_WITHIN_AN_ITERATION = """
import os, signal, sys
import tensorflow  # only imported: its runtime starts in each child
import tpufeed

for _ in range(2):
    child = os.fork()
    if not child:
        signal.alarm(30)  # ends a process that hangs
        dataset = tpufeed.tf_dataset(sys.argv[1], direct=True, batch_size=1, prefetch=1, threads=1).repeat().batch(16)
        iterator = iter(dataset.prefetch(64))
        next(iterator)
        sys.exit()
    print(os.waitpid(child, 0)[1])
"""

ONE_THREAD_OF_TENSORFLOW = """
import sys
import tensorflow as tf
import tpufeed

tf.config.threading.set_inter_op_parallelism_threads(1)
train, val = (tpufeed.tf_dataset(sys.argv[1], split, direct=True, batch_size=5) for split in ("train", "val"))
for epoch in range(2):
    for batches in tf.data.Dataset.zip((train, val.repeat())).map(lambda *both: both, num_parallel_calls=4):
        pass
print("done")
"""


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


def direct_threads():
    return [t for t in threading.enumerate() if t.name.startswith(("tpufeed-direct", "tpufeed-decode"))]


def wait_for(condition):
    """The deadline only keeps a failing test from hanging."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


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


@pytest.mark.parametrize("jpeg", [False, True], ids=["cache", "dataset"])
def test_epochs_hold_each_sample_once_with_the_pixels_of_numpy_loader(cache_url, dataset_url, ops, jpeg):
    url, given = (dataset_url, {"ops": ops}) if jpeg else (cache_url, {})
    given |= {"batch_size": 9, "columns": COLUMNS, "seed": 3, "remainder": "pad"}
    dataset = tpufeed.tf_dataset(url, direct=True, **given)
    assert dataset.element_spec == tpufeed.tf_dataset(url, **given).element_spec
    assert len(dataset) == 8
    orders = set()
    with tpufeed.numpy_loader(url, **given) as loader:
        for _ in range(3):
            batches = list(dataset.as_numpy_iterator())
            assert by_sample(batches) == by_sample(loader)
            assert [mask.tolist() for *_, mask in batches] == [[True] * 9] * 7 + [[True] * 7 + [False] * 2]
            orders.add(tuple(np.concatenate([samples for _, _, samples, _ in batches])))
    assert len(orders) == 3


def test_final_ops_of_a_cache(dataset_url, tmp_path):
    url = str(tmp_path / "cache")
    cache.warmup(dataset_url, url, size=72, final=[RandomCrop(64), HorizontalFlip()], variants=2, workers=1)
    given = {"batch_size": 10, "columns": COLUMNS}
    dataset = tpufeed.tf_dataset(url, direct=True, **given)
    with tpufeed.numpy_loader(url, **given) as loader:
        for _ in range(3):
            assert by_sample(dataset) == by_sample(loader)


@pytest.mark.parametrize("remainder", ["drop", "pad", "repeat"])
def test_two_ranks_share_an_epoch(cache_url, remainder):
    given = {"batch_size": 8, "columns": ["sample"], "remainder": remainder, "direct": True}
    ranks = [tpufeed.tf_dataset(cache_url, world=(rank, 2), **given) for rank in range(2)]
    for _ in range(2):
        elements = [list(dataset.as_numpy_iterator()) for dataset in ranks]
        assert [len(batches) for batches in elements] == [4 if remainder == "drop" else 5] * 2
        if remainder == "pad":
            elements = [[samples[mask] for samples, mask in batches] for batches in elements]
        one, other = (np.concatenate(batches).tolist() for batches in elements)
        assert not set(one) & set(other)
        if remainder == "drop":
            assert (len(set(one)), len(set(other))) == (32, 32)
        else:
            assert set(one) | set(other) == set(range(70))
        if remainder == "pad":
            assert len(one) + len(other) == 70


def test_without_shuffle_the_order_is_that_of_numpy_loader(cache_url):
    given = {"shuffle": False, "columns": ["sample"], "batch_size": 7}
    dataset = tpufeed.tf_dataset(cache_url, direct=True, **given)
    assert samples_of(dataset) == samples_of(dataset) == list(range(70))
    dataset = tpufeed.tf_dataset(cache_url, direct=True, lanes=4, **given)
    first = samples_of(dataset)
    assert first == samples_of(dataset)
    assert sorted(first) == list(range(70))


def test_other_columns(cache_url, stored):
    names = ["filename", "height", "sample"]
    for files, heights, samples in tpufeed.tf_dataset(cache_url, direct=True, columns=names, batch_size=10):
        texts = stored(cache_url).texts("image/filename")
        assert files.numpy().tolist() == [texts[sample].encode() for sample in samples]
        assert set(heights.numpy()) == {64}


def test_an_adopted_dataset_whose_manifest_is_elsewhere(dataset_url, ops, tmp_path):
    foreign, manifest = tmp_path / "foreign", str(tmp_path / "manifest")
    foreign.mkdir()
    for shard in Path(dataset_url).glob("train-*.tfrecord"):
        shutil.copy(shard, foreign)
    tpufeed.adopt(foreign, manifest)
    given = {"ops": ops, "batch_size": 7, "columns": COLUMNS}
    with tpufeed.numpy_loader(manifest, **given) as loader:
        assert by_sample(tpufeed.tf_dataset(manifest, direct=True, **given)) == by_sample(loader)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 8, 100])
@pytest.mark.parametrize("records", [[5], [1, 0, 2], [40, 40, 3]])
def test_a_plan_fills_all_batches(records, batch_size, size):
    for rank in range(size):
        share = Share(sum(records), batch_size, World(rank, size), "pad")
        order = EpochOrder(records, 1, 2, 6)
        plan = plan_epoch(order, share)
        assert sum(part.stop - part.first for part in plan.parts) == len(share) * batch_size
        mine = [(part.shard, record) for part in plan.parts[: plan.real] for record in range(part.first, part.stop)]
        places = order.places(rank, order.records, size)
        assert sorted(mine) == sorted(zip(places.shard.tolist(), places.record.tolist(), strict=True))
        assert all(0 <= p.first < p.stop <= records[p.shard] for p in plan.parts)


# Damage


@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("lanes", [2, 16])
def test_a_shard_that_is_cut_between_records(copied, lanes, remainder):
    url, path, shard = copied
    offsets = offsets_of(url, shard)
    path.write_bytes(path.read_bytes()[: offsets[-2]])
    # 70 = 69 + 1: the cut record may be one that is dropped, and is missed none the less.
    dataset = tpufeed.tf_dataset(url, direct=True, batch_size=69, lanes=lanes, remainder=remainder)
    with pytest.raises(tf.errors.OpError, match="ShardError") as caught:
        list(dataset)
    assert f"{path} ends after {shard.records - 1} records; the manifest says {shard.records}" in str(caught.value)
    list(dataset)  # the second variant is sound


def test_a_shard_with_a_record_too_many(copied):
    url, path, shard = copied
    data, offsets = path.read_bytes(), offsets_of(url, shard)
    path.write_bytes(data + data[: offsets[1]])
    with pytest.raises(tf.errors.OpError, match="ShardError") as caught:
        list(tpufeed.tf_dataset(url, direct=True, batch_size=10))
    assert f"{path} has more than {shard.records} records; the manifest says {shard.records}" in str(caught.value)


@pytest.mark.parametrize("lanes", [2, 16])
def test_a_damaged_record_is_named(cache_url, damage, lanes):
    damaged = damage(cache_url, 33)
    with pytest.raises(tf.errors.OpError, match="RecordError") as caught:
        list(tpufeed.tf_dataset(damaged.url, direct=True, batch_size=5, lanes=lanes))
    assert f"{damaged.shard}, record {damaged.record}, byte {damaged.byte}: TensorFlow finds" in str(caught.value)


def test_a_record_that_is_cut_and_a_shard_that_is_gone_are_named(copied):
    url, path, shard = copied
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(tf.errors.OpError, match=f"RecordError: {path}, record {shard.records - 1}, byte "):
        list(tpufeed.tf_dataset(url, direct=True, batch_size=5))
    path.unlink()
    with pytest.raises(tf.errors.OpError, match=f"ShardError: {path}; No such file"):
        list(tpufeed.tf_dataset(url, direct=True, batch_size=5))


def test_a_dataset_that_was_built_anew_is_not_read(copied, dataset_url):
    url, path, _ = copied
    dataset = tpufeed.tf_dataset(url, direct=True, batch_size=5)
    manifest = path.parent / "manifest.json"
    manifest.unlink()
    with pytest.raises(tf.errors.OpError, match=ObjectChangedError.__name__):
        list(dataset)


def test_options_that_do_not_fit(cache_url):
    open_store("memory://direct").put("manifest.json", (Path(cache_url) / "manifest.json").read_bytes())
    with pytest.raises(
        OptionError, match=r"memory://direct: TensorFlow itself opens file://, gs://.*leave direct=True"
    ):
        tpufeed.tf_dataset("memory://direct", direct=True)
    with pytest.raises(OptionError, match="direct=True stages nothing"):
        tpufeed.tf_dataset(cache_url, direct=True, stage_bytes="1GB")
    with pytest.raises(OptionError, match="70 samples"):
        tpufeed.tf_dataset(cache_url, direct=True, batch_size=71)


# Leaving, threads


def test_after_a_break_the_next_epoch_comes_and_what_is_dropped_stops_its_threads(cache_url):
    gc.collect()
    assert wait_for(lambda: not direct_threads())
    dataset = tpufeed.tf_dataset(cache_url, direct=True, batch_size=7, columns=["sample"])
    for _ids in dataset:
        break
    assert sorted(samples_of(dataset)) == list(range(70))
    next(iter(dataset))
    assert direct_threads()
    del dataset
    gc.collect()
    assert wait_for(lambda: not direct_threads())


@pytest.mark.parametrize(
    ("program", "printed"), [(EXIT_WITHIN_AN_ITERATION, ["0"] * 2), (ONE_THREAD_OF_TENSORFLOW, ["done"])]
)
def test_a_process_neither_hangs_nor_leaves_threads(cache_url, program, printed):
    command = [sys.executable, "-c", program, cache_url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout.split() == printed
