"""What to_torch alone can get wrong; test_contract.py has what all feeds share."""

import threading

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import OptionError

torchloader = lazy("tpufeed.adapters.torch.loader")

torch = lazy("torch")
DataLoader = lazy("torch.utils.data:DataLoader")

FORMS = [lambda feed: feed, lambda feed: tpufeed.device_loader(feed, "cpu")]


def make(url, split="train", **options):
    return tpufeed.Loader(url, split, **{"batch_size": 10, "processes": 0, "columns": ["sample"]} | options).to_torch()


def ids(batches):
    return [batch.tolist() for batch in batches]


@pytest.fixture(scope="module")
def epochs(cache_url):
    """The sample ids of three epochs, in batches of 10."""
    with tpufeed.Loader(cache_url, batch_size=10, processes=0, columns=["sample"]) as loader:
        return [ids(loader) for _ in range(3)]


def test_tensors_share_memory_with_the_batch_buffers(cache_url, monkeypatch):
    """Images are contiguous uint8, labels int64; strings stay numpy arrays."""
    made = []

    def to_torch(batch):
        made.append(batch)
        return genuine(batch)

    genuine = torchloader.to_torch
    monkeypatch.setattr(torchloader, "to_torch", to_torch)
    with make(cache_url, columns=["image", "label", "filename"], remainder="pad") as loader:
        for tensors in loader:
            image, label, filename, mask = tensors
            assert (image.dtype, label.dtype, mask.dtype) == (torch.uint8, torch.int64, torch.bool)
            assert (image.shape, image.is_contiguous()) == ((10, 64, 64, 3), True)
            assert filename is made[-1][2]
            for tensor, array in ((image, made[-1][0]), (label, made[-1][1]), (mask, made[-1][3])):
                assert tensor.data_ptr() == array.ctypes.data
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


def test_dataset_is_map_style(cache_url, flat_url, stored):
    loader = make(cache_url, "val", columns=["image", "label"])
    assert len(loader.dataset) == 26
    assert loader.dataset.class_names == ("astronaut", "cat", "coffee")
    assert loader.dataset[5][0].numpy().tobytes() == stored(cache_url, "val").pixels[5].tobytes()
    assert make(tpufeed.Mixture({cache_url: 1, flat_url: 1})).dataset is None  # trainers ask every loader for it


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["loader", "sampler", "batch_sampler.sampler"])
def test_set_epoch_is_where_frameworks_look_for_it(cache_url, epochs, name, form):
    with form(make(cache_url)) as loader:
        target = {"loader": loader, "sampler": loader.sampler, "batch_sampler.sampler": loader.batch_sampler.sampler}
        target[name].set_epoch(2)
        assert ids(loader) == epochs[2]
        iterator = iter(loader)
        target[name].set_epoch(1)  # as Lightning does before its first epoch
        assert ids(iterator) == epochs[1]
        assert ids(loader) == epochs[2]


@pytest.mark.parametrize("form", FORMS)
def test_a_data_loader_around_it_is_refused_with_what_to_do(cache_url, form):
    """As the Hugging Face Trainer makes one of its `train_dataset`."""
    with (
        make(cache_url) as loader,
        pytest.raises(OptionError, match="iterate"),
    ):
        next(iter(DataLoader(form(loader), 8, shuffle=True)))
