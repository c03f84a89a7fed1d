"""What numpy_loader delivers: which samples, in which order, with which pixels."""

import collections
import itertools

import numpy as np
import pytest
import simplejpeg

import tpufeed
from tpufeed.dataset.reader import find_dataset
from tpufeed.errors import OptionError
from tpufeed.images.ops import CenterCrop
from tpufeed.loaders.loader import NumpyLoader
from tpufeed.loaders.options import LoaderOptions
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.registry import open_store

SAMPLES = 70  # of the split train
ALL = set(range(SAMPLES))


def epoch_ids(url, **options):
    """The sample ids of the next epoch, and their masks where there are some."""
    with tpufeed.numpy_loader(url, columns=["sample"], **options) as loader:
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


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("remainder", ["drop", "pad", "repeat"])
def test_the_ranks_see_every_sample_once_in_equally_many_batches(cache_url, remainder, size):
    ranks, lengths = [], []
    for rank in range(size):
        with tpufeed.numpy_loader(
            cache_url, columns=["sample"], batch_size=8, remainder=remainder, world=(rank, size)
        ) as loader:
            batches = list(loader)
            lengths.append((len(batches), len(loader)))
        assert all(len(batch[0] if remainder == "pad" else batch) == 8 for batch in batches)
        ranks.append(np.concatenate([ids[mask] for ids, mask in batches] if remainder == "pad" else batches))
    expected = SAMPLES // (8 * size) if remainder == "drop" else -(-SAMPLES // (8 * size))
    assert lengths == [(expected, expected)] * size
    counts = collections.Counter(np.concatenate(ranks).tolist())
    if remainder == "drop":
        assert set(counts.values()) == {1}
        assert counts.total() == expected * 8 * size
    elif remainder == "pad":
        assert counts == dict.fromkeys(ALL, 1)
    else:
        assert set(counts) == ALL
        assert counts.total() == expected * 8 * size
        assert max(counts.values()) == 2


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


def test_epochs_differ_in_order_and_crops_and_a_seed_repeats_both(dataset_url, ops):
    def epochs(seed):
        with tpufeed.numpy_loader(
            dataset_url, columns=["image", "sample"], ops=ops, seed=seed, batch_size=10
        ) as loader:
            return [pixels_by_sample(loader) for _ in range(2)]

    first, second = epochs(0)
    assert list(first) != list(second)
    assert set(first) == set(second) == ALL
    assert sum(np.array_equal(first[sample], second[sample]) for sample in ALL) < SAMPLES / 10
    for once, again in zip((first, second), epochs(0), strict=True):
        assert list(once) == list(again)
        assert_same_pixels(once, again)
    other = epochs(1)[0]
    assert list(other) != list(first)
    assert sum(np.array_equal(first[sample], other[sample]) for sample in ALL) < SAMPLES / 10


@pytest.mark.parametrize(
    "how",
    [{"threads": 1}, {"threads": 5}, {"batch_size": 1}, {"batch_size": 35}, {"prefetch": 1}, {"prefetch": 9}],
    ids=str,
)
def test_pixels_do_not_depend_on_how_they_are_made(dataset_url, ops, how):
    given = {"columns": ["image", "sample"], "ops": ops, "remainder": "drop"}
    with tpufeed.numpy_loader(dataset_url, **given, **{"batch_size": 7, "threads": 2} | how) as loader:
        made = [pixels_by_sample(loader) for _ in range(2)]
    with tpufeed.numpy_loader(dataset_url, **given, batch_size=14, threads=3, prefetch=3) as loader:
        for epoch in made:
            other = pixels_by_sample(loader)
            assert list(other) == list(epoch)
            assert_same_pixels(epoch, other)


def test_the_pixels_of_a_jpeg_are_those_that_it_decodes_to(dataset_url, stored):
    """CenterCrop only cuts these photographs, so a slice of what libjpeg-turbo decodes is its reference."""
    with tpufeed.numpy_loader(
        dataset_url, ops=[CenterCrop(64)], shuffle=False, remainder="pad", batch_size=16
    ) as loader:
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


def test_epoch_e_reads_variant_e_mod_k_with_the_stored_pixels(cache_url, stored):
    variants = [stored(cache_url, "train", number).pixels for number in (0, 1)]
    assert not any(np.array_equal(*pair) for pair in zip(*variants, strict=True))
    with tpufeed.numpy_loader(cache_url, columns=["image", "label", "sample"], batch_size=10) as loader:
        for epoch in (0, 1, 2, 3):
            seen = 0
            for images, labels, samples in loader:
                np.testing.assert_array_equal(images, variants[epoch % 2][samples])
                np.testing.assert_array_equal(labels, stored(cache_url).labels[samples])
                seen += len(samples)
            assert seen == SAMPLES


def test_set_epoch_chooses_the_next_epoch(cache_url):
    with tpufeed.numpy_loader(cache_url, columns=["image", "sample"], batch_size=10) as loader:
        epochs = [pixels_by_sample(loader) for _ in range(3)]
        for chosen in (1, 0, 2):
            loader.set_epoch(chosen)
            again = pixels_by_sample(loader)
            assert list(again) == list(epochs[chosen])
            assert_same_pixels(again, epochs[chosen])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_evaluation_sees_each_sample_once(cache_url, stored, size):
    seen = []
    for rank in range(size):
        with tpufeed.numpy_loader(
            cache_url,
            "val",
            columns=["image", "sample"],
            shuffle=False,
            remainder="pad",
            batch_size=4,
            world=(rank, size),
        ) as loader:
            for images, samples, mask in loader:
                assert mask.dtype == np.bool_
                assert len(images) == len(samples) == len(mask) == 4
                np.testing.assert_array_equal(images, stored(cache_url, "val").pixels[samples])
                seen += samples[mask].tolist()
    assert sorted(seen) == list(range(26))
    if size == 1:
        assert seen == sorted(seen)
        assert not mask[-1]  # 26 is no multiple of 4


def test_evaluation_repeats_the_same_order_each_epoch(cache_url):
    with tpufeed.numpy_loader(cache_url, "val", columns=["sample"], shuffle=False, batch_size=13) as loader:
        assert np.concatenate(list(loader)).tolist() == np.concatenate(list(loader)).tolist() == list(range(26))


def test_a_batch_larger_than_the_split_is_padded_or_repeated(cache_url):
    with tpufeed.numpy_loader(cache_url, "val", columns=["sample"], remainder="pad", batch_size=100) as loader:
        ((ids, mask),) = loader
    assert (len(ids), mask.sum()) == (100, 26)
    assert sorted(ids[mask]) == list(range(26))
    with tpufeed.numpy_loader(cache_url, "val", columns=["sample"], remainder="repeat", batch_size=60) as loader:
        (ids,) = loader
    assert sorted(collections.Counter(ids.tolist()).values()) == [2] * 18 + [3] * 8


@pytest.mark.parametrize(
    ("batch_size", "size", "advice"), [(71, 1, "batch_size of at most 70"), (36, 2, "at most 35"), (1, 71, "'pad'")]
)
def test_an_epoch_without_batches_is_an_error_that_names_the_numbers(cache_url, batch_size, size, advice):
    loader = tpufeed.numpy_loader(cache_url, batch_size=batch_size, world=(0, size))
    for use in (len, iter):
        with pytest.raises(OptionError, match=f"70 samples.*batch of {batch_size} on each of {size} ranks.*{advice}"):
            use(loader)


def test_lanes_that_cannot_be_dealt_are_an_error_with_a_proposal(cache_url):
    loader = tpufeed.numpy_loader(cache_url, lanes=16, world=(0, 3), batch_size=4)
    with pytest.raises(OptionError, match="16 lanes cannot be dealt to 3 ranks; give lanes=24"):
        iter(loader)
    with tpufeed.numpy_loader(cache_url, lanes=18, world=(0, 3), batch_size=4) as loader:
        assert len(list(loader)) == len(loader) == 5


def test_images_are_contiguous_and_aligned(dataset_url, cache_url, ops):
    for url, given in ((dataset_url, ops), (cache_url, None)):
        with tpufeed.numpy_loader(url, ops=given, batch_size=7) as loader:
            for images, labels in loader:
                assert images.dtype == np.uint8
                assert images.shape == (7, 64, 64, 3)
                assert images.flags.c_contiguous
                assert images.flags.writeable
                assert images.ctypes.data % 64 == 0
                assert (labels.dtype, labels.shape) == (np.int64, (7,))


@pytest.mark.parametrize("place", ["memory", "fsspec url", "fsspec store"])
@pytest.mark.parametrize("cached", [False, True], ids=["dataset", "cache"])
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
    remote = NumpyLoader(find_dataset(store), "train", LoaderOptions(**options))
    with remote, tpufeed.numpy_loader(local, **options) as loader:
        for _ in range(2):
            for ours, theirs in zip(loader, remote, strict=True):
                for left, right in zip(ours, theirs, strict=True):
                    np.testing.assert_array_equal(left, right)
