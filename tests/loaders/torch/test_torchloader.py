"""torch_loader: DataLoader's conventions over the batches of numpy_loader."""

import copy
import itertools
import pickle
import threading

import numpy as np
import pytest
import torch

import tpufeed
from tpufeed.errors import LoaderError, OptionError, RecordError
from tpufeed.loaders.torch import loader as torchloader

SAMPLES = 70


def make(url, split="train", **options):
    return tpufeed.torch_loader(url, split, **{"batch_size": 10, "processes": 0, "columns": ["sample"]} | options)


def ids(batches):
    return [batch.tolist() for batch in batches]


@pytest.fixture(scope="module")
def epochs(cache_url):
    """The sample ids of epochs 0 to 3, in batches of 10."""
    with tpufeed.numpy_loader(cache_url, batch_size=10, processes=0, columns=["sample"]) as loader:
        return [ids(loader) for _ in range(4)]


# Batches


def test_batches_are_those_of_numpy_loader(dataset_url, ops):
    options = {"batch_size": 16, "ops": ops, "seed": 3, "processes": 0}
    with tpufeed.torch_loader(dataset_url, **options) as loader, tpufeed.numpy_loader(dataset_url, **options) as host:
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


def test_columns_have_the_forms_of_numpy_loader(cache_url, flat_url, stored):
    with make(cache_url, "val", columns=["image", "filename"], shuffle=False) as loader:
        (images, names), _ = loader
        assert images.dtype == torch.uint8
        assert names.tolist() == stored(cache_url, "val").texts("image/filename")[:10]
    with tpufeed.torch_loader(flat_url, batch_size=20, processes=0) as loader:
        (images,) = loader
        assert (type(images), images.shape) == (torch.Tensor, (20, 64, 64, 3))


def test_evaluation_sees_each_sample_once(cache_url):
    with make(cache_url, "val", shuffle=False, remainder="pad") as loader:
        batches = list(loader)
    assert [mask.dtype for _, mask in batches] == [torch.bool] * 3
    assert torch.cat([samples[mask] for samples, mask in batches]).tolist() == list(range(26))


def test_dataset_is_map_style(cache_url, stored):
    loader = make(cache_url, "val", columns=["image", "label"])
    assert len(loader.dataset) == 26
    assert loader.dataset.classes == ("astronaut", "cat", "coffee")
    assert loader.dataset[5][0].numpy().tobytes() == stored(cache_url, "val").pixels[5].tobytes()


# Epochs


def test_epochs_follow_one_another(cache_url, epochs):
    with make(cache_url) as loader:
        assert [ids(loader) for _ in range(4)] == epochs
    assert sorted(itertools.chain(*epochs[0])) == list(range(SAMPLES))
    assert epochs[0] != epochs[1]


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


def test_repeat_carries_epochs_inside_one_iteration(cache_url, epochs):
    with make(cache_url, repeat=True) as loader:
        assert ids(itertools.islice(loader, 20)) == [*epochs[0], *epochs[1], *epochs[2][:6]]
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (2, 60)


# States


def test_a_state_counts_what_the_loop_was_handed(cache_url, epochs):
    with make(cache_url) as loader, make(cache_url) as other:
        loader.set_epoch(1)
        for done, _ in enumerate(loader, 1):
            state = loader.state_dict()
            assert (state["epoch"], state["samples"]) == (1, 10 * done)
            other.load_state_dict(state)
            assert other.state_dict()["samples"] == (10 * done if done < 7 else 0)
            assert ids(other) == (epochs[1][done:] or epochs[2])
        assert ids(other) == epochs[3]


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 36, "world": (1, 2)}, "a batch_size of at most 35, or remainder='pad'"),
        ({"lanes": 6, "world": (0, 4)}, "6 lanes cannot be dealt to 4 ranks; give lanes=16"),
    ],
)
def test_what_does_not_fit_the_world_is_an_error_before_the_first_step(cache_url, options, message):
    with make(cache_url, **options) as loader, pytest.raises(OptionError, match=message):
        next(iter(loader))


def test_what_does_not_fit_the_dataset_is_an_error_at_once(dataset_url):
    with pytest.raises(OptionError, match=r"resiz|size"):
        tpufeed.torch_loader(dataset_url)
    with pytest.raises(OptionError, match="no column 'depth'; this dataset has image, sample, label"):
        make(dataset_url, columns=["depth"])


def test_states_of_others_are_refused(cache_url, dataset_url, ops, epochs):
    with make(cache_url) as loader, make(dataset_url, ops=ops) as other:
        list(itertools.islice(loader, 2))
        for state, message in (
            (other.state_dict(), "the state's content_digest is"),
            (loader.state_dict() | {"version": 99}, "the state's version is 99"),
            ({}, "the state's version is None"),
        ):
            with pytest.raises(OptionError, match=message):
                loader.load_state_dict(state)
        assert loader.state_dict()["samples"] == 20


def test_damage_is_raised_in_the_loop(cache_url, damage):
    damaged = damage(cache_url, 33)
    with make(damaged.url, columns=["image"], shuffle=False) as loader:
        iterator = iter(loader)
        assert len(list(itertools.islice(iterator, 3))) == 3
        with pytest.raises(RecordError, match=f"record {damaged.record}, byte {damaged.byte}"):
            next(iterator)


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
