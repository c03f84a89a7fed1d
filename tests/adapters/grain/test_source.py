"""grain_source under Grain's own datasets and loaders."""

import contextlib
import json
import multiprocessing
import shutil
import threading

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import CenterCrop

grain, flags = lazy("grain"), lazy("absl.flags")

SAMPLES = 70
FIXED = [CenterCrop(64)]


@pytest.mark.parametrize(
    "batched",
    [
        lambda samples: samples.repeat(2).batch(14),  # one batch holds samples of two epochs
        lambda samples: samples.batch(7, drop_remainder=True).repeat(2),
        lambda samples: samples.repeat(2).to_iter_dataset().batch(7),
    ],
    ids=["repeat, batch", "batch, repeat", "batches of an iterator"],
)
def test_samples_of_each_epoch_are_those_of_the_loader(dataset_url, ops, batched):
    """Hosts may take slices, shuffle and repeat."""
    options = {"ops": ops, "seed": 5, "columns": ["image", "label", "sample"]}
    expected = {}
    with tpufeed.Loader(dataset_url, batch_size=10, processes=0, **options) as loader:
        for epoch in range(2):
            for images, labels, samples in loader:
                expected |= {
                    (epoch, n): (image, label) for image, label, n in zip(images, labels, samples, strict=True)
                }
    samples = tpufeed.grain_source(dataset_url, **options).to_map_dataset()
    assert len(samples) == SAMPLES
    for host in range(2):
        batches = list(batched(samples[host::2].seed(1).shuffle()))
        assert (batches[0]["image"].shape[1:], batches[0]["image"].dtype) == ((64, 64, 3), np.uint8)
        numbers = np.concatenate([batch["sample"] for batch in batches])
        assert sorted(numbers[:35]) == sorted(numbers[35:]) == list(range(host, SAMPLES, 2))
        assert numbers[:35].tolist() != numbers[35:].tolist()
        images, labels = (np.concatenate([batch[name] for batch in batches]) for name in ("image", "label"))
        for place, (image, label, number) in enumerate(zip(images, labels, numbers, strict=True)):
            np.testing.assert_array_equal(image, expected[place // 35, number][0])
            assert label == expected[place // 35, number][1]


@pytest.mark.parametrize("cached", [True, False], ids=["variants", "random ops"])
def test_a_source_without_epochs_refuses_what_changes_with_them(cache_url, dataset_url, ops, cached):
    """Grain counts epochs outside of a source, and would train with the same crops again and again."""
    source = tpufeed.grain_source(cache_url) if cached else tpufeed.grain_source(dataset_url, ops=ops)
    with pytest.raises(OptionError, match="to_map_dataset"):
        grain.MapDataset.source(source)[0]
    assert source.to_map_dataset()[0]["image"].shape == (64, 64, 3)


def make_loader(url, **options):
    source = tpufeed.grain_source(url, ops=FIXED, columns=["image", "sample"])
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, num_epochs=1, seed=3)
    operations = [grain.transforms.Batch(10, drop_remainder=True)]
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, **options)


def test_a_data_loader_goes_on_from_a_checkpoint_with_the_same_samples_only(dataset_url, cache_url, tmp_path):
    """Wherever they lie: a copy of the dataset is the same one."""
    iterator = iter(make_loader(dataset_url))
    next(iterator)
    state = iterator.get_state()
    rest = [batch["sample"].tolist() for batch in iterator]
    assert len(rest) == 6
    assert json.loads(state)["data_source"] == repr(tpufeed.grain_source(dataset_url))
    shutil.copytree(dataset_url, tmp_path / "copy")
    again = iter(make_loader(tmp_path / "copy"))
    again.set_state(state)
    assert [batch["sample"].tolist() for batch in again] == rest
    with pytest.raises(ValueError, match="DataSource"):
        iter(make_loader(cache_url)).set_state(state)


def test_worker_processes_give_the_same_batches(dataset_url, ops):
    source = tpufeed.grain_source(dataset_url, ops=ops, columns=["image", "sample"])
    pipeline = source.to_map_dataset().seed(7).shuffle().repeat(2).batch(20).to_iter_dataset()
    here = list(pipeline)
    flags.FLAGS.mark_as_parsed()  # Grain 0.2.18 asks for a flag of its own
    workers = grain.multiprocessing.MultiprocessingOptions(num_workers=1)
    with contextlib.closing(iter(pipeline.mp_prefetch(workers))) as iterator:
        first = next(iterator)
        state = iterator.get_state()
        there = [first, *iterator]
        iterator.set_state(state)
        np.testing.assert_array_equal(next(iterator)["image"], here[1]["image"])
    assert len(here) == len(there) == 7
    for one, other in zip(here, there, strict=True):
        for name in ("image", "sample"):
            np.testing.assert_array_equal(one[name], other[name])


def test_forked_workers_open_the_dataset_themselves(dataset_url, ops):
    """Threads of the parent may read while it forks."""
    samples = tpufeed.grain_source(dataset_url, ops=ops).to_map_dataset()
    expected = [samples[index]["image"] for index in range(SAMPLES)]
    stop = threading.Event()

    def keep_reading():
        while not stop.is_set():
            samples[3]

    readers = [threading.Thread(target=keep_reading) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            found = pool.map_async(samples.__getitem__, range(SAMPLES)).get(timeout=200)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one["image"], other)


def test_what_is_wrong_is_named(dataset_url, cache_url, damage, ops):
    source = tpufeed.grain_source(dataset_url, ops=FIXED)
    for index in (-1, SAMPLES):
        with pytest.raises(IndexError, match=f"sample {index} .*70"):
            source[index]
    assert source.class_names == ("astronaut", "cat", "coffee")
    with pytest.raises(OptionError, match="'batch_size'"):
        tpufeed.grain_source(dataset_url, batch_size=8)
    with pytest.raises(OptionError, match="mixture"):
        tpufeed.grain_source(tpufeed.Mixture({cache_url: 1}))
    damaged = damage(dataset_url, 33)
    pipeline = tpufeed.grain_source(damaged.url, ops=ops).to_map_dataset().batch(10).to_iter_dataset()
    with pytest.raises(RecordError, match=f"{damaged.shard}, record {damaged.record}"):
        list(pipeline)
