"""TFRecordImages with torch's own DataLoader and DistributedSampler."""

import copy
import logging
import pickle

import numpy as np
import pytest
import simplejpeg

import tpufeed
from tests.frameworks import lazy
from tpufeed.dataset.manifest import encode_manifest
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import CenterCrop, HorizontalFlip, RandomCrop, RandomResizedCrop
from tpufeed.storage.store import open_store

torch = lazy("torch")
DataLoader = lazy("torch.utils.data:DataLoader")
WeightedRandomSampler = lazy("torch.utils.data:WeightedRandomSampler")
default_collate = lazy("torch.utils.data:default_collate")

SAMPLES = 70


def images_of(dataset):
    return np.stack([dataset[i][0].numpy() for i in range(len(dataset))])


# Samples


def test_sample_i_is_record_i(cache_url, stored):
    dataset = tpufeed.TFRecordImages(cache_url)
    assert len(dataset) == SAMPLES
    assert dataset.class_names == ("astronaut", "cat", "coffee")
    assert dataset.dataset.url == cache_url
    for i in range(SAMPLES):
        image, label = dataset[i]
        assert image.dtype == torch.uint8
        np.testing.assert_array_equal(image.numpy(), stored(cache_url).pixels[i])
        assert type(label) is int
        assert label == stored(cache_url).labels[i]


def test_indices_are_those_of_a_sequence(cache_url):
    dataset = tpufeed.TFRecordImages(cache_url, "val")
    assert torch.equal(dataset[-1][0], dataset[25][0])
    assert torch.equal(dataset[-26][0], dataset[0][0])
    assert torch.equal(dataset[np.int64(3)][0], dataset[torch.tensor(3)][0])
    for index in (26, -27, 1000):
        with pytest.raises(IndexError, match=f"sample {index} .*26"):
            dataset[index]
    assert len(list(dataset)) == 26  # Python's own protocol of sequences


def test_getitems_gives_what_getitem_gives(dataset_url, ops):
    dataset = tpufeed.TFRecordImages(dataset_url, ops=ops)
    indices = [3, 69, 3, 0, -1]
    many = dataset.__getitems__(indices)
    dataset.set_epoch(0)  # or each read would have other random numbers
    for (image, label), (single, own) in zip(many, map(dataset.__getitem__, indices), strict=True):
        assert torch.equal(image, single)
        assert label == own
    assert dataset.__getitems__([]) == []


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "dataset"])
def test_writing_into_a_sample_damages_nothing(cache_url, dataset_url, cached):
    url = cache_url if cached else dataset_url
    dataset = tpufeed.TFRecordImages(url, "val", ops=None if cached else [CenterCrop(64)])
    before = images_of(dataset)
    kept = [dataset[i][0] for i in range(26)]
    for image in kept:
        image.add_(1)
    np.testing.assert_array_equal(images_of(dataset), before)
    np.testing.assert_array_equal(np.stack([image.numpy() for image in kept]), before + np.uint8(1))
    assert tpufeed.verify(url)


def brightness(image):
    return int(image.sum())


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork")])
def test_a_transform_takes_the_place_of_the_tensor_and_can_be_set_later(cache_url, stored, workers, method):
    """As timm and torchvision's own datasets have it: before samples are read and between two epochs."""
    dataset = tpufeed.TFRecordImages(cache_url, "val", transform=lambda image: (image.dtype, image.flags.writeable))
    assert dataset[4] == ((np.uint8, True), stored(cache_url, "val").labels[4])
    dataset = tpufeed.TFRecordImages(cache_url, "val", transform=pytest.fail)
    expected = stored(cache_url, "val").pixels.sum((1, 2, 3), dtype=np.int64).tolist()
    for transform in (brightness, None):
        dataset.transform = transform
        assert dataset.transform is transform
        (images, _), *_ = DataLoader(dataset, 26, num_workers=workers, multiprocessing_context=method)
        assert (images.sum((1, 2, 3)) if transform is None else images).tolist() == expected


def test_damage_is_named(cache_url, damage):
    damaged = damage(cache_url, 33)
    dataset = tpufeed.TFRecordImages(damaged.url)
    with pytest.raises(RecordError, match=f"{damaged.shard}, record {damaged.record}"):
        dataset[33]
    assert len(dataset.__getitems__([32, 34])) == 2
    with pytest.raises(RecordError, match=damaged.shard):
        list(DataLoader(dataset, batch_size=10))


# DataLoader


@pytest.mark.parametrize(
    ("method", "copied"),
    [
        pytest.param("spawn", lambda dataset: dataset, marks=pytest.mark.long),  # two_ranks.py has one, too
        ("fork", copy.deepcopy),
        ("fork", lambda dataset: pickle.loads(pickle.dumps(dataset))),
    ],
    ids=["spawn", "fork, deepcopy", "fork, pickle"],
)
def test_set_epoch_reaches_workers_that_outlive_an_epoch(cache_url, stored, method, copied):
    """Also those of a copy, as frameworks make them."""
    dataset = copied(tpufeed.TFRecordImages(cache_url, "val"))
    loader = DataLoader(dataset, 13, num_workers=1, multiprocessing_context=method, persistent_workers=True)
    for epoch in (0, 1, 2, 5):
        dataset.set_epoch(epoch)
        images = np.concatenate([batch.numpy() for batch, _ in loader])
        np.testing.assert_array_equal(images, stored(cache_url, "val", epoch % 2).pixels)


def test_copies_are_independent_and_alike(dataset_url, ops):
    dataset = tpufeed.TFRecordImages(dataset_url, "val", ops=ops, seed=9)
    dataset.set_epoch(3)
    dataset[0]  # has opened a shard
    for copied in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        dataset.set_epoch(3)
        copied.set_epoch(3)
        np.testing.assert_array_equal(images_of(copied), images_of(dataset))
        copied.set_epoch(4)
        assert not torch.equal(copied[0][0], dataset[0][0])
        assert copied.class_names == dataset.class_names


def test_a_batch_outlives_its_dataset(cache_url, stored):
    dataset = tpufeed.TFRecordImages(cache_url)
    batch, _ = default_collate(dataset.__getitems__(range(5)))
    single = dataset[7][0]
    del dataset
    np.testing.assert_array_equal(batch.numpy(), stored(cache_url).pixels[:5])
    np.testing.assert_array_equal(single.numpy(), stored(cache_url).pixels[7])


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


def test_forms_of_a_sample(cache_url, flat_url, stored):
    """A dict without columns named, one column alone, and an image alone without labels."""
    (batch, *_) = DataLoader(tpufeed.TFRecordImages(cache_url, columns=None), batch_size=4)
    assert list(batch) == ["image", "label", "sample"]
    assert batch["sample"].tolist() == [0, 1, 2, 3]
    assert batch["label"].tolist() == stored(cache_url).labels[:4].tolist()
    labels = tpufeed.TFRecordImages(cache_url, columns=["label"], transform=lambda _: pytest.fail("no image"))
    assert list(labels) == stored(cache_url).labels.tolist()
    flat = tpufeed.TFRecordImages(flat_url)
    assert flat.class_names == ()
    (images,) = DataLoader(flat, batch_size=20)
    np.testing.assert_array_equal(images.numpy(), stored(flat_url).pixels)


# Images of unequal size


def test_images_without_a_size_are_refused_in_batches(dataset_url):
    """At once, not at the first odd image: other ranks would wait for this one."""
    dataset = tpufeed.TFRecordImages(dataset_url)
    with pytest.raises(OptionError, match=r"ops=\["):
        next(iter(DataLoader(dataset, batch_size=2)))
    with pytest.raises(OptionError, match="from_numpy"):
        next(worker := iter(DataLoader(dataset, batch_size=2, num_workers=1)))
    worker._shutdown_workers()  # or the traceback keeps it


def test_images_without_a_size_come_one_at_a_time_or_as_the_user_will(dataset_url, stored):
    dataset = tpufeed.TFRecordImages(dataset_url, "val")
    encoded = stored(dataset_url, "val").column("image/encoded")
    for (image, _), data in zip(DataLoader(dataset, batch_size=None), encoded, strict=True):
        np.testing.assert_array_equal(image.numpy(), simplejpeg.decode_jpeg(data, "RGB", fastupsample=True))
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


@pytest.mark.first_cases(1)
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


@pytest.mark.all
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
    again = pickle.loads(pickle.dumps(large))
    assert abs(len(pickle.dumps(again)) - len(pickle.dumps(large))) < 10  # torch writes addresses in it, as decimals
    counting = tpufeed.TFRecordImages("memory://many/shards", "val", ops=[RandomCrop(32)])
    assert len(pickle.dumps(counting)) < 2500
    assert len(pickle.loads(pickle.dumps(counting))._drawn) == 2_000_000


def fields_of(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
