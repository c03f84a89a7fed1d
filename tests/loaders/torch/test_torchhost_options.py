"""TFRecordImages: columns, refusals before the first step, and what a pickle holds."""

import logging
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import tpufeed
from tpufeed.dataset.manifest import encode_manifest
from tpufeed.errors import OptionError
from tpufeed.images import CenterCrop, HorizontalFlip, RandomCrop, RandomResizedCrop
from tpufeed.storage.store import open_store

# Columns


def test_columns_are_those_of_the_loader(dataset_url, ops):
    """int64, strings and ids, in the order in which they are asked for."""
    options = {"columns": ["sample", "image", "label", "filename", "height"], "ops": ops}
    dataset = tpufeed.TFRecordImages(dataset_url, **options)
    with tpufeed.Loader(dataset_url, batch_size=16, **options) as loader:
        for batch in loader:
            mine = zip(*dataset.__getitems__(batch[0].tolist()), strict=True)
            for ours, theirs in zip(mine, batch, strict=True):
                np.testing.assert_array_equal(np.stack(ours) if torch.is_tensor(ours[0]) else ours, theirs)
    (samples, images, labels, names, _), *_ = DataLoader(dataset, batch_size=4)
    assert (samples.dtype, images.shape, labels.dtype) == (torch.int64, (4, 64, 64, 3), torch.int64)
    assert list(names) == [dataset[i][3] for i in range(4)]


def test_no_columns_named_is_a_dict(cache_url, stored):
    dataset = tpufeed.TFRecordImages(cache_url, columns=None)
    assert list(dataset[3]) == ["image", "label", "sample"]
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    assert batch["sample"].tolist() == [0, 1, 2, 3]
    assert batch["label"].tolist() == stored(cache_url).labels[:4].tolist()


def test_one_column_comes_alone(cache_url, stored):
    labels = tpufeed.TFRecordImages(cache_url, columns=["label"], transform=lambda _: pytest.fail("no image"))
    assert list(labels) == stored(cache_url).labels.tolist()


def test_a_column_that_is_not_there(cache_url, flat_url):
    with pytest.raises(OptionError, match="no column 'colour'; this dataset has image, sample, label"):
        tpufeed.TFRecordImages(cache_url, columns=["image", "colour"])
    with pytest.raises(OptionError, match="no column 'label'; this dataset has image, sample"):
        tpufeed.TFRecordImages(flat_url, columns=["image", "label"])


# Images of unequal size


def test_images_without_a_size_are_refused_in_batches(dataset_url):
    """At once, not at the first odd image: other ranks would wait for this one."""
    dataset = tpufeed.TFRecordImages(dataset_url)
    with pytest.raises(OptionError, match=r"no op fixes the size of the images.*ops=\[Resize\(256\), CenterCrop"):
        next(iter(DataLoader(dataset, batch_size=2)))
    with pytest.raises(OptionError, match=r"transform=torch\.from_numpy"):
        next(worker := iter(DataLoader(dataset, batch_size=2, num_workers=1)))
    worker._shutdown_workers()  # or the traceback keeps it


def test_images_without_a_size_come_one_at_a_time_or_as_the_user_will(dataset_url):
    dataset = tpufeed.TFRecordImages(dataset_url, "val")
    assert {image.shape[:2] for image, _ in DataLoader(dataset, batch_size=None)} == {(120, 160), (160, 120)}
    assert next(iter(DataLoader(dataset, batch_size=1)))[0].shape[0] == 1
    own = tpufeed.TFRecordImages(dataset_url, "val", transform=torch.from_numpy)
    batch = next(iter(DataLoader(own, batch_size=26, collate_fn=list)))
    assert {image.shape[:2] for image, _ in batch} == {(120, 160), (160, 120)}
    resized = tpufeed.TFRecordImages(dataset_url, "val", transform=lambda image: image[:100, :100].copy())
    assert next(iter(DataLoader(resized, batch_size=26)))[0].shape == (26, 100, 100, 3)
    assert tpufeed.TFRecordImages(dataset_url, columns=["label"]).__getitems__([0, 1])


# Epochs that nobody counts


def read_epochs(dataset, epochs, *before_each, **options):
    for epoch in range(epochs):
        for call in before_each:
            call(epoch)
        assert len(list(DataLoader(dataset, 10, **options))) == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_variants_that_do_not_move_are_named(cache_url, workers, tmp_path):
    """Training from one variant of several is no error that one sees."""
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("tpufeed").addHandler(handler)
    try:
        read_epochs(tpufeed.TFRecordImages(cache_url), 3, num_workers=workers)
    finally:
        logging.getLogger("tpufeed").removeHandler(handler)
    (said,) = set((tmp_path / "log").read_text().splitlines())  # two workers may say it at the same moment
    assert "variant 0 of 2" in said
    assert "set_epoch(epoch)" in said


def test_epochs_that_move_or_need_not_are_fine(dataset_url, cache_url, ops, caplog):
    moving = tpufeed.TFRecordImages(cache_url)
    read_epochs(moving, 4, moving.set_epoch)
    sampler = tpufeed.LaneSampler(moving)
    read_epochs(moving, 4, sampler.set_epoch, sampler=sampler)
    read_epochs(tpufeed.TFRecordImages(dataset_url, ops=ops), 4)  # each with crops of its own
    read_epochs(tpufeed.TFRecordImages(dataset_url, ops=[CenterCrop(64)]), 4)  # evaluation
    assert caplog.records == []


# Samples that come again in an epoch


def draws_of(dataset, indices, **options):
    """(sample, image) of each draw."""
    found = []
    for images, samples in DataLoader(dataset, sampler=indices, **{"batch_size": 5} | options):
        found += zip(samples.tolist(), map(bytes, images.numpy()), strict=True)
    return found


def test_each_draw_of_a_sample_has_random_numbers_of_its_own(dataset_url):
    """As samplers draw that repeat samples: WeightedRandomSampler, timm's repeated augmentation."""
    given = {"columns": ["image", "sample"], "ops": [RandomResizedCrop(32), HorizontalFlip()], "seed": 3}
    dataset = tpufeed.TFRecordImages(dataset_url, **given)
    weights = [40.0 if sample < 2 else 1.0 for sample in range(len(dataset))]
    indices = list(WeightedRandomSampler(weights, 120, generator=torch.Generator().manual_seed(0)))
    assert max(map(indices.count, indices)) > 10
    drawn = draws_of(dataset, indices)
    assert [sample for sample, _ in drawn] == indices
    assert len(set(drawn)) == len(drawn)
    # The first draw is that of all loaders, and the others depend on the epoch and on their number alone.
    with tpufeed.Loader(dataset_url, batch_size=70, shuffle=False, processes=0, **given) as loader:
        first = {int(sample): bytes(image) for image, sample in zip(*next(iter(loader)), strict=True)}
    assert all(dict(reversed(drawn))[sample] == first[sample] for sample in indices)
    dataset.set_epoch(0)
    assert draws_of(dataset, indices, batch_size=40) == drawn
    dataset.set_epoch(1)
    assert not set(draws_of(dataset, indices)) & set(drawn)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_draws_of_a_sample_by_several_workers_differ(dataset_url, method):
    ops = [RandomResizedCrop(32), HorizontalFlip()]
    dataset = tpufeed.TFRecordImages(dataset_url, columns=["image", "sample"], ops=ops)
    (once,) = draws_of(dataset, [60])
    # Each worker has sample 60 in all of its batches, except the second worker in its first one.
    indices = [number if number % 5 or number == 5 else 60 for number in range(60)]
    given = {"num_workers": 2, "multiprocessing_context": method, "persistent_workers": True}
    loader = DataLoader(dataset, 5, sampler=indices, **given)
    epochs = []
    for epoch in (0, 0, 1):
        dataset.set_epoch(epoch)
        found = [
            (int(sample), bytes(image))
            for images, samples in loader
            for image, sample in zip(images.numpy(), samples, strict=True)
        ]
        assert len(set(found)) == 60
        epochs.append(set(found))
    assert once in epochs[0] & epochs[1]
    assert not epochs[0] & epochs[2]
    dataset.set_epoch(0)
    loader = DataLoader(dataset, 5, sampler=indices, num_workers=2, multiprocessing_context=method)
    again = [
        {bytes(image) for images, _ in loader for image in images.numpy()} for _ in range(2)
    ]  # no set_epoch between
    assert not again[0] & again[1]


def test_without_random_numbers_nothing_is_counted(dataset_url):
    """The counts take 2 bytes a sample, in memory that processes share."""
    assert tpufeed.TFRecordImages(dataset_url, ops=[CenterCrop(64)])._drawn is None
    assert tpufeed.TFRecordImages(dataset_url, columns=["label"], ops=[HorizontalFlip()])._drawn is None
    assert tpufeed.TFRecordImages(dataset_url, ops=[HorizontalFlip()])._drawn.nbytes == 2 * 70


# Pickles


def test_a_pickle_holds_neither_manifest_nor_index(cache_url):
    """Nor does it grow with them: 20,000 shards here."""
    dataset = tpufeed.TFRecordImages(cache_url, "val")
    manifest = dataset.dataset.manifest
    split = manifest.splits["val"]
    shard, index = split.variants[0].shards[0], split.variants[0].index
    many = tuple(type(shard)(f"{i}.tfrecord", shard.bytes, i, 100) for i in range(20_000))
    index = type(index)(index.name, 128 + 8 * 101 * 20_000, 0)
    split = type(split)(100 * 20_000, (), (type(split.variants[0])(many, index),))
    open_store("memory://many/shards").put(
        "manifest.json", encode_manifest(type(manifest)(**fields_of(manifest) | {"splits": {"val": split}}))
    )
    large = tpufeed.TFRecordImages("memory://many/shards", "val")
    assert len(pickle.loads(pickle.dumps(large))) == len(large) == 2_000_000
    assert len(pickle.dumps(large)) < 1500
    assert abs(len(pickle.dumps(large)) - len(pickle.dumps(dataset))) < 100
    assert len(pickle.dumps(pickle.loads(pickle.dumps(large)))) == len(pickle.dumps(large))
    counting = tpufeed.TFRecordImages("memory://many/shards", "val", ops=[RandomCrop(32)])
    assert len(pickle.dumps(counting)) < 2500
    assert len(pickle.loads(pickle.dumps(counting))._drawn) == 2_000_000


def fields_of(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
