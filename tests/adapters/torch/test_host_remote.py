"""TFRecordImages over shards that are not this machine's: orders that local copies can follow, and others."""

import itertools
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from crc32c import crc32c

import tpufeed
from tests.frameworks import lazy
from tests.local_copies import wait_copied
from tpufeed import cache
from tpufeed.dataset.manifest import IndexFile, Shard, Variant
from tpufeed.dataset.order import EpochOrder
from tpufeed.errors import ObjectChangedError
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.store import open_store
from tpufeed.stream.random_access import ShardAdmission

torch = lazy("torch")
DataLoader = lazy("torch.utils.data:DataLoader")
DistributedSampler = lazy("torch.utils.data:DistributedSampler")

_numbers = itertools.count()
SAMPLES, SHARDS = 70, 16


@pytest.fixture(scope="module")
def small_url(dataset_url, tmp_path_factory):
    """A cache of one variant whose shards hold five samples each."""
    url = str(tmp_path_factory.mktemp("small") / "cache")
    cache.warmup(dataset_url, url, size=16, shard_bytes="5KB", workers=1)
    assert len(shards_of(url)) == SHARDS
    return url


@pytest.fixture(scope="module")
def pixels(small_url):
    dataset = tpufeed.TFRecordImages(small_url, columns=["image"])
    return np.stack([image.numpy() for image in dataset])


@pytest.fixture(scope="module")
def bucket(small_url):
    """`bucket()` is the URL of a fresh copy in memory."""

    def make(folder=small_url):
        url = f"memory://torchhost/{next(_numbers)}"
        store = open_store(url)
        for file in Path(folder).iterdir():
            if file.is_file():
                store.put(file.name, file.read_bytes())
        return url

    return make


def shards_of(url):
    return tpufeed.open_dataset(url).split("train").variants[0].shards


def read(dataset, pixels, epochs, sampler, **options):
    """Epochs by DataLoader, whose samples are the right ones."""
    for epoch in epochs:
        sampler.set_epoch(epoch)
        batches = [tuple(map(np.asarray, batch)) for batch in DataLoader(dataset, 10, sampler=sampler, **options)]
        samples = np.concatenate([samples for _, samples in batches])
        assert sorted(samples.tolist()) == list(range(SAMPLES))
        np.testing.assert_array_equal(np.concatenate([images for images, _ in batches]), pixels[samples])


def copies_of(dataset):
    return dataset._samples.open()._admission.copies


def random_order(dataset):
    return DistributedSampler(dataset, 1, 0, shuffle=True)


def make(*given, **options):
    return tpufeed.TFRecordImages(*given, columns=["image", "sample"], **options)


def wait_until_copied(dataset, folder, count, seconds=60):
    """What is fetched may come after the epoch that has asked for it."""
    done, left = threading.Event(), int(seconds / 0.01)
    while len(list(Path(folder).glob("*/*.shard"))) < count and left:
        done.wait(0.01)
        left -= 1
    assert len(list(Path(folder).glob("*/*.shard"))) == count


# Orders


def test_a_random_order_over_what_fits_is_remote_for_one_epoch(bucket, pixels, tmp_path, caplog):
    dataset = make(bucket(), local_dir=tmp_path)
    read(dataset, pixels, [0], random_order(dataset))
    wait_until_copied(dataset, tmp_path, SHARDS + 1)  # and the index
    read(dataset, pixels, [1], random_order(dataset))
    misses = copies_of(dataset).statistics().misses
    read(dataset, pixels, range(2, 8), random_order(dataset))
    assert copies_of(dataset).statistics().misses == misses
    assert copies_of(dataset).statistics().shards_fetched == SHARDS + 1
    assert "order" not in caplog.text


@pytest.mark.all
@pytest.mark.parametrize("order", ["random", "lanes"])
def test_samples_over_what_does_not_fit(bucket, pixels, order, tmp_path):
    """There is room for nine shards, for two, for one, and for none."""
    url = bucket()
    for budget in ("44KB", "11KB", "5KB", "1KB"):
        dataset = make(url, local_dir=tmp_path / budget, local_bytes=budget)
        sampler = random_order(dataset) if order == "random" else tpufeed.LaneSampler(dataset, lanes=2)
        read(dataset, pixels, range(4), sampler)


class Walk:
    """Reads records of forty shards that are fetched at once, if at all. The local copies have room for 24."""

    SHARDS, RECORDS, ROOM = 40, 500, 24

    def __init__(self, tmp_path):
        store = open_store(f"memory://walk/{next(_numbers)}")
        data = bytes(self.RECORDS)
        shards = tuple(Shard(f"{i}", len(data), crc32c(data), self.RECORDS) for i in range(self.SHARDS))
        for shard in shards:
            store.put(shard.name, data)
        self.copied = [RemoteShard(shard.name, shard.bytes, shard.crc32c) for shard in shards]
        self.copies = LocalCopies(store, tmp_path, self.ROOM * len(data), connections=2)
        self.touched = ShardAdmission(self.copies, [Variant(shards, IndexFile("", 0, 0))], "here")

    def read(self, samples):
        """How many of `samples` are read from copies, how many by ranges; and the shards that are fetched."""
        before = self.copies.statistics().shards_fetched
        counts = self.touched._served, self.touched._refused
        reader = SimpleNamespace(due=lambda _: (), to_copy=self.copied.__getitem__)
        for start in range(0, len(samples), 50):
            self.touched.touch(reader, 0, [sample // self.RECORDS for sample in samples[start : start + 50]])
            for shard in self.touched._wanted:
                wait_copied(self.copies, shard, 60)
        served, refused = self.touched._served - counts[0], self.touched._refused - counts[1]
        return served, refused, self.copies.statistics().shards_fetched - before


@pytest.fixture
def walk(tmp_path):
    made = Walk(tmp_path)
    with made.copies:
        yield made


@pytest.mark.all
def test_lanes_pay_for_whole_shards(walk, caplog):
    """Each is fetched about once, and nearly all its records come from the copy."""
    order = [EpochOrder([walk.RECORDS] * walk.SHARDS, 1, epoch, lanes=8) for epoch in range(2)]
    for epoch in order:
        served, refused, fetched = walk.read(epoch.places_at(np.arange(epoch.records)).sample.tolist())
        assert refused <= 0.02 * epoch.records
        assert served >= 0.9 * epoch.records
        assert fetched <= walk.SHARDS + 2 * 8
    assert not caplog.records


@pytest.mark.all
def test_a_random_order_does_not_thrash(walk, caplog):
    """Fetching for each miss would fetch hundreds of shards for each that the samples make up."""
    samples = np.random.default_rng(0).permutation(walk.SHARDS * walk.RECORDS).tolist()
    served, refused, fetched = walk.read(samples)
    assert refused >= 0.3 * len(samples)
    assert served >= 0.4 * len(samples)
    assert fetched <= 2 * walk.SHARDS + walk.ROOM
    (warning,) = (record.getMessage() for record in caplog.records)
    assert all(datum in warning for datum in ("here", "60 %", "40 shards", "LaneSampler", "local_bytes"))


def test_without_room_nothing_is_copied(bucket, pixels, tmp_path):
    dataset = make(bucket(), local_dir=tmp_path, local_bytes=0)
    read(dataset, pixels, [0, 1], random_order(dataset))
    assert not list(tmp_path.iterdir())


# Processes


@pytest.mark.all
@pytest.mark.parametrize("copied", [True, False], ids=["copies", "ranges"])
def test_workers_are_forked_after_the_parent_has_read(bucket, pixels, copied, tmp_path):
    """The threads and connections that it has read with are not theirs."""
    dataset = make(bucket(), local_dir=tmp_path, **({} if copied else {"local_bytes": 0}))
    assert len(dataset.__getitems__(range(0, 70, 5))) == 14
    options = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 60}
    read(dataset, pixels, [0, 1], random_order(dataset), **options)
    read(dataset, pixels, [0], tpufeed.LaneSampler(dataset), **options)


def test_a_copy_does_not_read_another_dataset(bucket, small_url, cache_url):
    """As a spawned worker would that starts after a build with --overwrite."""
    url = bucket()
    data = pickle.dumps(make(url))
    assert torch.equal(pickle.loads(data)[3][0], make(small_url)[3][0])
    store, other = open_store(url), open_store(bucket(cache_url))
    store.delete("manifest.json")
    store.put("manifest.json", other.read("manifest.json"))
    copied = pickle.loads(data)
    assert len(copied) == SAMPLES
    with pytest.raises(ObjectChangedError, match="content digest"):
        copied[0]
