"""What Loader delivers: which samples, in which order, with which pixels."""

import collections
import itertools
from dataclasses import replace

import numpy as np
import pytest
import simplejpeg

import tpufeed
from tpufeed.dataset.reader import find_dataset
from tpufeed.errors import LoaderError, OptionError
from tpufeed.images import CenterCrop
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.store import open_store

SAMPLES = 70  # of the split train
ALL = set(range(SAMPLES))


def epoch_ids(url, **options):
    """The sample ids of the next epoch, without padding."""
    with tpufeed.Loader(url, columns=["sample"], **options) as loader:
        batches = list(loader)
    if options.get("remainder") != "pad":
        return np.concatenate(batches)
    return np.concatenate([ids[mask] for ids, mask in batches])


def pixels_by_sample(loader):
    """`{sample: pixels}` of the next epoch."""
    return {
        int(sample): image.copy() for images, samples in loader for image, sample in zip(images, samples, strict=True)
    }


def assert_same_pixels(left, right):
    assert left.keys() == right.keys()
    for sample, image in left.items():
        np.testing.assert_array_equal(image, right[sample], err_msg=f"sample {sample}")


def test_batches_take_half_of_the_memory_and_too_large_ones_are_refused(cache_url, monkeypatch):
    stats = tpufeed.Loader(cache_url, batch_size=5).stats()
    batch_bytes = stats.buffer_bytes // stats.prefetch
    monkeypatch.setattr("tpufeed.stream.host.memory_left", lambda: 8 * batch_bytes)
    with tpufeed.Loader(cache_url, batch_size=5) as loader:
        assert loader.stats().prefetch == 2
        assert len(list(loader)) == len(loader)
    monkeypatch.setattr("tpufeed.stream.host.free_swap", lambda: 0)
    with (
        tpufeed.Loader(cache_url, batch_size=5, prefetch=7) as loader,
        pytest.raises(LoaderError, match=r"9 batches .*, 7 of them ahead, .*batch_size="),
    ):
        next(iter(loader))
    monkeypatch.setattr("tpufeed.stream.host.free_swap", lambda: batch_bytes)
    assert len(list(tpufeed.Loader(cache_url, batch_size=5, prefetch=7))) == len(loader)


def test_the_ranks_of_a_host_share_its_memory(cache_url, monkeypatch):
    loader = tpufeed.Loader(cache_url)
    monkeypatch.setattr("tpufeed.stream.host.memory_left", lambda: 8 << 30)
    alone = loader.stream._most_ahead(1 << 20)
    loader.stream._workers = replace(loader.stream._workers, ranks=4)
    assert alone / 4.1 < loader.stream._most_ahead(1 << 20) < alone / 3.9


@pytest.mark.parametrize("lanes", [None, 12])
def test_the_global_sequence_is_the_same_for_every_world_that_divides_the_lanes(cache_url, lanes):
    def sequence(size):
        ranks = [
            epoch_ids(cache_url, world=(rank, size), lanes=lanes, batch_size=5, remainder="pad") for rank in range(size)
        ]
        dealt = itertools.chain.from_iterable(itertools.zip_longest(*map(np.ndarray.tolist, ranks)))
        return [sample for sample in dealt if sample is not None]

    alone = sequence(1)
    assert set(alone) == ALL
    assert len(alone) == SAMPLES
    for size in (2, 3, 4, 6) if lanes == 12 else (2, 4, 8):
        assert sequence(size) == alone


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    "how",
    [{"threads": 1}, {"threads": 5}, {"batch_size": 1}, {"batch_size": 35}, {"prefetch": 1}, {"prefetch": 9}],
    ids=str,
)
def test_pixels_do_not_depend_on_how_they_are_made(dataset_url, ops, how):
    given = {"columns": ["image", "sample"], "ops": ops, "remainder": "drop"}
    with tpufeed.Loader(dataset_url, **given, **{"batch_size": 7, "threads": 2} | how) as loader:
        made = [pixels_by_sample(loader) for _ in range(2)]
    with tpufeed.Loader(dataset_url, **given, batch_size=14, threads=3, prefetch=3) as loader:
        for epoch in made:
            other = pixels_by_sample(loader)
            assert list(other) == list(epoch)
            assert_same_pixels(epoch, other)


def test_the_pixels_of_a_jpeg_are_those_that_it_decodes_to(dataset_url, stored):
    """CenterCrop only cuts these photographs, so a slice of what libjpeg-turbo decodes is its reference."""
    with tpufeed.Loader(dataset_url, ops=[CenterCrop(64)], shuffle=False, remainder="pad", batch_size=16) as loader:
        images = np.concatenate([image[mask] for image, _, mask in loader])
    encoded = stored(dataset_url).column("image/encoded")
    assert len(images) == len(encoded)
    shapes = set()
    for image, data in zip(images, encoded, strict=True):
        whole = simplejpeg.decode_jpeg(data, "RGB", fastupsample=True)
        height, width = whole.shape[:2]
        shapes.add((height, width))
        top, left = (height - 64) // 2, (width - 64) // 2
        np.testing.assert_array_equal(image, whole[top : top + 64, left : left + 64])
    assert shapes == {(120, 160), (160, 120)}


def test_set_epoch_chooses_the_next_epoch(cache_url):
    with tpufeed.Loader(cache_url, columns=["image", "sample"], batch_size=10) as loader:
        epochs = [pixels_by_sample(loader) for _ in range(3)]
        for chosen in (1, 0, 2):
            loader.set_epoch(chosen)
            again = pixels_by_sample(loader)
            assert list(again) == list(epochs[chosen])
            assert_same_pixels(again, epochs[chosen])


def test_a_batch_larger_than_the_split_is_padded_or_repeated(cache_url):
    with tpufeed.Loader(cache_url, "val", columns=["sample"], remainder="pad", batch_size=100) as loader:
        ((ids, mask),) = loader
    assert (len(ids), mask.sum()) == (100, 26)
    assert sorted(ids[mask]) == list(range(26))
    with tpufeed.Loader(cache_url, "val", columns=["sample"], remainder="repeat", batch_size=60) as loader:
        (ids,) = loader
    assert sorted(collections.Counter(ids.tolist()).values()) == [2] * 18 + [3] * 8


@pytest.mark.parametrize(
    ("batch_size", "size", "advice"), [(71, 1, "batch_size of at most 70"), (36, 2, "at most 35"), (1, 71, "'pad'")]
)
def test_an_epoch_without_batches_is_an_error_that_names_the_numbers(cache_url, batch_size, size, advice):
    loader = tpufeed.Loader(cache_url, batch_size=batch_size, world=(0, size))
    for use in (len, iter):
        with pytest.raises(OptionError, match=f"70 .*{batch_size} .*{size} .*{advice}"):
            use(loader)


def test_lanes_that_cannot_be_dealt_are_an_error_with_a_proposal(cache_url):
    loader = tpufeed.Loader(cache_url, lanes=16, world=(0, 3), batch_size=4)
    with pytest.raises(OptionError, match="lanes=24"):
        iter(loader)
    with tpufeed.Loader(cache_url, lanes=18, world=(0, 3), batch_size=4) as loader:
        assert len(list(loader)) == len(loader) == 5


def test_images_are_contiguous_and_aligned(dataset_url, cache_url, ops):
    for url, given in ((dataset_url, ops), (cache_url, None)):
        with tpufeed.Loader(url, ops=given, batch_size=7) as loader:
            for images, labels in loader:
                assert images.dtype == np.uint8
                assert images.shape == (7, 64, 64, 3)
                assert images.flags.c_contiguous
                assert images.flags.writeable
                assert images.ctypes.data % 64 == 0
                assert (labels.dtype, labels.shape) == (np.int64, (7,))


@pytest.mark.parametrize(
    ("place", "cached"), [("memory", False), ("fsspec url", True), ("fsspec store", False), ("memory", True)]
)
def test_a_store_that_is_read_by_ranges_gives_the_same_batches(dataset_url, cache_url, ops, place, cached):
    local = cache_url if cached else dataset_url
    if place == "memory":
        store = open_store(f"memory://loaders/{'cache' if cached else 'dataset'}")
        for info in open_store(local).iter_objects():
            store.put(info.name, open_store(local).read(info.name))
    else:
        store = open_store(f"local://{local}") if place == "fsspec url" else FsspecStore(f"file://{local}")
        assert isinstance(store, FsspecStore)
    assert store.local_path("manifest.json") is None
    options = {"columns": ["image", "label", "sample"], "batch_size": 9, "ops": None if cached else ops}
    remote = tpufeed.Loader(find_dataset(store), **options)
    with remote, tpufeed.Loader(local, **options) as loader:
        for _ in range(2):
            for ours, theirs in zip(loader, remote, strict=True):
                for left, right in zip(ours, theirs, strict=True):
                    np.testing.assert_array_equal(left, right)
