"""TFRecordImages with torch's own DataLoader and DistributedSampler."""

import copy
import pickle

import numpy as np
import pytest
import simplejpeg
import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.distributed import DistributedSampler

import tpufeed
from tpufeed.errors import DatasetNotFoundError, OptionError, RecordError
from tpufeed.images import CenterCrop

SAMPLES = 70


def images_of(dataset):
    return np.stack([dataset[i][0].numpy() for i in range(len(dataset))])


# Samples


def test_sample_i_is_record_i(cache_url, stored):
    dataset = tpufeed.TFRecordImages(cache_url)
    assert len(dataset) == SAMPLES
    assert dataset.classes == ("astronaut", "cat", "coffee")
    assert dataset.dataset.url == cache_url
    for i in range(SAMPLES):
        image, label = dataset[i]
        assert image.dtype == torch.uint8
        np.testing.assert_array_equal(image.numpy(), stored(cache_url).pixels[i])
        assert type(label) is int
        assert label == stored(cache_url).labels[i]


def test_set_epoch_moves_to_the_next_variant(cache_url, stored):
    dataset = tpufeed.TFRecordImages(cache_url, "val")
    for epoch in (1, 2, 5):
        dataset.set_epoch(epoch)
        np.testing.assert_array_equal(images_of(dataset), stored(cache_url, "val", epoch % 2).pixels)


def test_ops_are_those_of_the_loader(dataset_url, ops):
    """The same (seed, epoch, sample) gives the same pixels in every loader."""
    dataset = tpufeed.TFRecordImages(dataset_url, ops=ops, seed=5)
    with tpufeed.Loader(dataset_url, ops=ops, seed=5, columns=["image", "label", "sample"], batch_size=10) as loader:
        for epoch in range(2):
            dataset.set_epoch(epoch)
            for images, labels, samples in loader:
                mine = dataset.__getitems__(samples.tolist())
                np.testing.assert_array_equal(np.stack([image.numpy() for image, _ in mine]), images)
                assert [label for _, label in mine] == labels.tolist()


def test_without_ops_images_have_their_own_size(dataset_url, stored):
    dataset = tpufeed.TFRecordImages(dataset_url, "val")
    encoded = stored(dataset_url, "val").column("image/encoded")
    for (image, _), data in zip((dataset[i] for i in range(len(dataset))), encoded, strict=True):
        np.testing.assert_array_equal(image.numpy(), simplejpeg.decode_jpeg(data, "RGB", fastupsample=True))


def test_indices_are_those_of_a_sequence(cache_url):
    dataset = tpufeed.TFRecordImages(cache_url, "val")
    assert torch.equal(dataset[-1][0], dataset[25][0])
    assert torch.equal(dataset[-26][0], dataset[0][0])
    assert torch.equal(dataset[np.int64(3)][0], dataset[torch.tensor(3)][0])
    for index in (26, -27, 1000):
        with pytest.raises(IndexError, match=f"sample {index} of a split of 26"):
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


def test_unlabelled_samples_are_images_alone(flat_url, stored):
    dataset = tpufeed.TFRecordImages(flat_url)
    assert dataset.classes == ()
    assert isinstance(dataset[0], torch.Tensor)
    (batch,) = DataLoader(dataset, batch_size=20)
    np.testing.assert_array_equal(batch.numpy(), stored(flat_url).pixels)


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


def test_a_transform_takes_the_place_of_the_tensor(cache_url, stored):
    calls = []

    def transform(image):
        calls.append((type(image), image.dtype, image.shape, image.flags.writeable))
        return int(image.sum())

    dataset = tpufeed.TFRecordImages(cache_url, "val", transform=transform)
    assert dataset[4] == (stored(cache_url, "val").pixels[4].sum(), stored(cache_url, "val").labels[4])
    assert calls == [(np.ndarray, np.uint8, (64, 64, 3), True)]


def brightness(image):
    return int(image.sum())


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork")])
def test_a_transform_can_be_set_later(cache_url, stored, workers, method):
    """As timm and torchvision's own datasets have it: before samples are read and between two epochs."""
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
    with pytest.raises(RecordError, match=f"{damaged.shard}, record {damaged.record}, byte {damaged.byte}"):
        dataset[33]
    assert len(dataset.__getitems__([32, 34])) == 2
    with pytest.raises(RecordError, match=damaged.shard):
        list(DataLoader(dataset, batch_size=10))


def test_what_is_not_there_is_named(cache_url, tmp_path):
    with pytest.raises(DatasetNotFoundError, match="holds no dataset"):
        tpufeed.TFRecordImages(tmp_path)
    with pytest.raises(OptionError, match="no split 'test'; it has train, val"):
        tpufeed.TFRecordImages(cache_url, "test")
    with pytest.raises(OptionError, match="ops are"):
        tpufeed.TFRecordImages(cache_url, ops=["flip"])


# DataLoader


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork")])
def test_three_ranks_are_disjoint_and_complete(cache_url, stored, workers, method):
    """`drop_last=False` gives 24 to each of three; so two of 72 are repeated, by DistributedSampler's own rule."""
    dataset = tpufeed.TFRecordImages(cache_url)
    number = {bytes(image): i for i, image in enumerate(stored(cache_url, "train", 1).pixels)}
    assert len(number) == SAMPLES
    dataset.set_epoch(1)
    seen = []
    for rank in range(3):
        sampler = DistributedSampler(dataset, 3, rank, seed=4)
        sampler.set_epoch(1)
        loader = DataLoader(dataset, 7, sampler=sampler, num_workers=workers, multiprocessing_context=method)
        samples = [number[bytes(image.numpy())] for images, _ in loader for image in images]
        assert samples == list(iter(sampler))
        seen += samples
    assert len(seen) == 72
    assert set(seen) == set(range(SAMPLES))


def test_batches_are_collated_by_default(cache_url, stored):
    (images, labels), *rest = DataLoader(tpufeed.TFRecordImages(cache_url), batch_size=8)
    assert (images.shape, images.dtype) == ((8, 64, 64, 3), torch.uint8)
    assert labels.dtype == torch.int64
    assert labels.tolist() == stored(cache_url).labels[:8].tolist()
    assert len(rest) == 8


@pytest.mark.parametrize(
    ("method", "copied"),
    [
        pytest.param("spawn", lambda dataset: dataset, marks=pytest.mark.long),  # torch_two_ranks.py has one, too
        ("fork", lambda dataset: dataset),
        ("fork", copy.deepcopy),
        ("fork", lambda dataset: pickle.loads(pickle.dumps(dataset))),
    ],
    ids=["spawn", "fork", "fork, deepcopy", "fork, pickle"],
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
        assert copied.classes == dataset.classes


def test_a_batch_outlives_its_dataset(cache_url, stored):
    dataset = tpufeed.TFRecordImages(cache_url)
    batch, _ = default_collate(dataset.__getitems__(range(5)))
    single = dataset[7][0]
    del dataset
    np.testing.assert_array_equal(batch.numpy(), stored(cache_url).pixels[:5])
    np.testing.assert_array_equal(single.numpy(), stored(cache_url).pixels[7])
