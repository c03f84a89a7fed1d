"""to_torch: DataLoader's conventions over the batches of Loader."""

import copy
import itertools
import pickle
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import tpufeed
from tpufeed.errors import LoaderError, OptionError
from tpufeed.loaders.torch import loader as torchloader

SAMPLES = 70


def make(url, split="train", **options):
    return tpufeed.Loader(url, split, **{"batch_size": 10, "processes": 0, "columns": ["sample"]} | options).to_torch()


def ids(batches):
    return [batch.tolist() for batch in batches]


@pytest.fixture(scope="module")
def epochs(cache_url):
    """The sample ids of epochs 0 to 3, in batches of 10."""
    with tpufeed.Loader(cache_url, batch_size=10, processes=0, columns=["sample"]) as loader:
        return [ids(loader) for _ in range(4)]


# Batches


def test_batches_are_those_of_the_loader(dataset_url, ops):
    options = {"batch_size": 16, "ops": ops, "seed": 3, "processes": 0}
    with tpufeed.Loader(dataset_url, **options).to_torch() as loader, tpufeed.Loader(dataset_url, **options) as host:
        assert len(loader) == len(host) == 4
        assert loader.batch_size == 16
        for _ in range(2):
            batches = list(loader)
            for (images, labels), (pixels, numbers) in zip(batches, host, strict=True):
                assert (images.dtype, images.shape) == (torch.uint8, (16, 64, 64, 3))
                assert images.is_contiguous()
                assert labels.dtype == torch.int64
                np.testing.assert_array_equal(images.numpy(), pixels)
                np.testing.assert_array_equal(labels.numpy(), numbers)


def test_tensors_share_memory_with_the_batch_buffers(cache_url, monkeypatch):
    made = []

    def to_torch(batch):
        made.append(batch)
        return genuine(batch)

    genuine = torchloader.to_torch
    monkeypatch.setattr(torchloader, "to_torch", to_torch)
    with make(cache_url, columns=None, remainder="pad") as loader:
        for tensors in loader:
            assert list(tensors) == list(made[-1]) == ["image", "label", "sample", "mask"]
            for name, array in made[-1].items():
                assert tensors[name].data_ptr() == array.ctypes.data
    assert len(made) == 7


def test_a_tensor_keeps_its_memory_and_gives_it_back(cache_url, stored):
    with make(cache_url, columns=["image", "sample"], prefetch=1) as loader:
        kept = [batch for _ in range(4) for batch in loader]
        for number, (images, samples) in enumerate(kept):
            variant = number // 7 % 2
            np.testing.assert_array_equal(images.numpy(), stored(cache_url, "train", variant).pixels[samples.numpy()])
        assert len({images.data_ptr() for images, _ in kept}) == len(kept)
        used = {images.data_ptr() for images, _ in kept}
        del kept, images
        assert {images.data_ptr() for images, _ in loader} & used


def test_columns_have_the_forms_of_the_loader(cache_url, flat_url, stored):
    with make(cache_url, "val", columns=["image", "filename"], shuffle=False) as loader:
        (images, names), _ = loader
        assert images.dtype == torch.uint8
        assert names.tolist() == stored(cache_url, "val").texts("image/filename")[:10]
    with tpufeed.Loader(flat_url, batch_size=20, processes=0).to_torch() as loader:
        (images,) = loader
        assert (type(images), images.shape) == (torch.Tensor, (20, 64, 64, 3))


def test_dataset_is_map_style(cache_url, stored):
    loader = make(cache_url, "val", columns=["image", "label"])
    assert len(loader.dataset) == 26
    assert loader.dataset.classes == ("astronaut", "cat", "coffee")
    assert loader.dataset[5][0].numpy().tobytes() == stored(cache_url, "val").pixels[5].tobytes()


# Epochs


def test_iter_alone_does_nothing(cache_url, epochs):
    """Frameworks call it to see whether they can, and throw its result away."""
    threads = threading.active_count()
    with make(cache_url) as loader:
        iter(loader)
        first, second = iter(loader), iter(loader)
        assert threading.active_count() == threads
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (0, 0)
        assert ids(second) == epochs[0]
        assert ids(first) == epochs[1]  # it begins with its first batch


def test_an_epoch_that_is_left_is_over(cache_url, epochs):
    with make(cache_url) as loader:
        assert next(iter(loader)).tolist() == epochs[0][0]
        assert ids(loader) == epochs[1]


@pytest.mark.parametrize("name", ["loader", "sampler", "batch_sampler.sampler"])
def test_set_epoch_is_where_frameworks_look_for_it(cache_url, epochs, name):
    with make(cache_url) as loader:
        target = {"loader": loader, "sampler": loader.sampler, "batch_sampler.sampler": loader.batch_sampler.sampler}
        target[name].set_epoch(2)
        assert ids(loader) == epochs[2]
        iterator = iter(loader)
        target[name].set_epoch(1)  # as Lightning does before its first epoch
        assert ids(iterator) == epochs[1]
        assert ids(loader) == epochs[2]


@pytest.mark.parametrize("call", ["set_epoch", "load_state_dict"])
def test_moving_in_mid_epoch_is_an_error_on_going_on(cache_url, epochs, call):
    with make(cache_url) as loader:
        start = loader.state_dict()
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        loader.set_epoch(0) if call == "set_epoch" else loader.load_state_dict(start)
        with pytest.raises(LoaderError, match="set_epoch or load_state_dict was called in the mid"):
            next(iterator)
        assert ids(loader) == epochs[0]


# States


def test_set_epoch_after_a_state_keeps_the_rest_of_its_epoch(cache_url, epochs):
    """Training loops name each epoch before they iterate it, also the one that they go on with."""
    with make(cache_url) as loader:
        loader.set_epoch(1)
        list(itertools.islice(loader, 3))
        state = loader.state_dict()
    for epoch, expected in ((1, epochs[1][3:]), (2, epochs[2])):
        with make(cache_url) as loader:
            loader.load_state_dict(state)
            loader.set_epoch(epoch)
            assert ids(loader) == expected
            loader.set_epoch(1)  # now it is an epoch like any other
            assert ids(loader) == epochs[1]


def test_copies_are_loaders_at_the_same_place(cache_url, epochs):
    loader = make(cache_url)
    loader.set_epoch(2)
    fresh = pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)
    with loader:
        assert ids(loader) == epochs[2]
        for copied in (*fresh, copy.deepcopy(loader)):
            with copied:
                assert ids(copied) == epochs[2 if copied in fresh else 3]


# Bad input


def test_closing_stops_what_decodes(cache_url):
    before = set(threading.enumerate())
    with make(cache_url, columns=["image"]) as loader:
        iterator = iter(loader)
        next(iterator)
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before
    with pytest.raises(LoaderError, match="closed"):
        next(iterator)
    assert loader.stats().batches >= 1


# Bad input


@pytest.mark.parametrize("form", [lambda loader: loader, lambda loader: tpufeed.device_loader(loader, "cpu")])
def test_a_data_loader_around_it_is_refused_with_what_to_do(cache_url, form):
    """As the Hugging Face Trainer makes one of its `train_dataset`."""
    with (
        make(cache_url) as loader,
        pytest.raises(OptionError, match=r"iterate it as it is\. Where a dataset is wanted"),
    ):
        next(iter(DataLoader(form(loader), 8, shuffle=True)))
