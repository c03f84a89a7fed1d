"""Worlds of many hosts, one process each, simulated in this process: what each asks a bucket for.

Most of it is arithmetic over made-up manifests, as loaders do it. Where requests are counted real loaders run, over a
dataset whose shards are one shard of real records under many names.
"""

from collections import Counter
from itertools import count

import cv2
import msgspec
import numpy as np
import pytest

import tpufeed
from tests.dataset.lanes import lane_parts
from tpufeed.dataset.index import encode_index
from tpufeed.dataset.manifest import (
    CacheInfo,
    IndexFile,
    Manifest,
    Shard,
    Split,
    Variant,
    decode_manifest,
    encode_manifest,
)
from tpufeed.dataset.naming import MANIFEST, index_name, shard_name
from tpufeed.dataset.order import EpochOrder, Share, World, default_lanes
from tpufeed.dataset.reader import Dataset, find_dataset, open_dataset
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import OptionError
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.memory import MemoryStore
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.sampler import DatasetSampler

WORLDS = (1, 2, 3, 24, 128)
SHARDS_A_RANK = 20
BATCH = 16
_fresh = count()


def due_shards(records, world, epoch=0, seed=7):
    """The shards that a rank's loader has fetched for one epoch, by what it knows of epochs."""
    sampler = DatasetSampler(made_up(records), "train", LoaderOptions(batch_size=BATCH, seed=seed))
    ((_, _, now), _) = sampler.cursor(world, epoch).due_shards()
    return now


def made_up(shard_records, record_bytes=26_000):
    """A remote dataset that nobody can read a record of, whose shards differ by some 15 % of their bytes."""
    shards = tuple(
        Shard(shard_name("train", None, number, len(shard_records)), records * record_bytes, 0, records)
        for number, records in enumerate(shard_records)
    )
    index = IndexFile(index_name("train", None), 128 + 8 * sum(records + 1 for records in shard_records), 0)
    split = Split(sum(shard_records), (), (Variant(shards, index),))
    empty = {"options": {}, "rejects": {}, "images": {}, "odd": {}, "input_digest": "", "class_names": ()}
    features = (FeatureSpec("image/tensor", "uint8", (8, 8, 3)),)
    empty["cache"] = CacheInfo("", (), (), "raw", (8, 8, 3), "uint8", 1, 0, "pods")
    manifest = Manifest(run_id="pods", tool_version="0", splits={"train": split}, features=features, **empty)
    return Dataset(MemoryStore(f"memory://made-up-{next(_fresh)}"), manifest)


def uneven(shards, mean=40, seed=0):
    return np.random.default_rng(seed).integers(int(mean * 0.93), int(mean * 1.07) + 1, shards).tolist()


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("size", WORLDS)
def test_a_host_downloads_the_shards_of_its_lanes_alone(size):
    records = uneven(SHARDS_A_RANK * size)
    total, largest = sum(records), max(records)
    fetched = [due_shards(records, World(rank, size)) for rank in range(size)]
    assert set().union(*fetched) == set(range(len(records)))
    a_host = [sum(records[shard] for shard in shards) for shards in fetched]
    assert max(a_host) <= total / size + 2 * largest
    assert sum(a_host) <= total + (size if size > 1 else 0) * largest  # a shard at each border
    lanes = default_lanes(World(0, size))
    order = EpochOrder(records, 7, 0, lanes)
    read = [
        {part.shard for lane in range(rank, lanes, size) for part in lane_parts(order, lane)} for rank in range(size)
    ]
    assert [set(shards) for shards in fetched] == read
    # Shards of equal records, of a number that is a multiple of the hosts, are downloaded once in the pod.
    fetched = [due_shards([40] * len(records), World(rank, size)) for rank in range(size)]
    assert sorted(shard for shards in fetched for shard in shards) == list(range(len(records)))


@pytest.mark.parametrize(("record_bytes", "with_index"), [(26_000, 32), (110_000, 64)])
def test_the_index_is_fetched_whole_only_where_it_is_little_beside_the_shards(record_bytes, with_index):
    """A host of many would fetch the offsets of all others' records as well."""
    for size in (1, 2, with_index, 512):
        dataset = made_up(uneven(SHARDS_A_RANK * size), record_bytes)
        (variant,) = dataset.split("train").variants
        numbers = due_shards([shard.records for shard in variant.shards], World(0, size))
        copied = list(dataset.reader("train").due(numbers))
        shards_bytes = sum(variant.shards[number].bytes for number in numbers)
        assert [item.name for item in copied[: len(numbers)]] == [variant.shards[number].name for number in numbers]
        assert (variant.index.name in [item.name for item in copied]) == (size <= with_index)
        assert sum(item.size_bytes for item in copied) <= 1.011 * shards_bytes  # and the part that is its own
        assert RemoteShard(variant.index.name, variant.index.bytes, 0, dataset.url) in dataset.reader("train").due(())


# Requests


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    """Manifest, index and shard of 24 raw images."""
    folder = tmp_path_factory.mktemp("pods")
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(24):
        cv2.imwrite(str(folder / f"images/{number:02d}.png"), rng.integers(0, 256, (8, 8, 3), np.uint8))
    tpufeed.shard(folder / "images", folder / "dataset", workers=1)
    tpufeed.cache.warmup(folder / "dataset", folder / "one", size=8, variants=1, workers=1)
    return folder / "one"


class CountingStore(MemoryStore):
    """A bucket, seen by one host: `asked` is what for, and of which object."""

    def __init__(self, url):
        super().__init__(url)
        self.asked = Counter()

    def read(self, name, version=""):
        self.asked["whole", name] += 1
        return super().read(name, version)

    def read_range(self, name, start, stop, version=""):
        self.asked["range", name] += 1
        return super().read(name, version)[start:stop]

    def stat(self, name):
        self.asked["stat", name] += 1
        return super().stat(name)

    def iter_objects(self, prefix=""):
        self.asked["list", prefix] += 1
        return super().iter_objects(prefix)

    def iter_folders(self):
        self.asked["list", ""] += 1
        return super().iter_folders()


@pytest.fixture(scope="module")
def make_bucket(one_shard):
    """`make_bucket(shards)`: the URL of a dataset whose shards are one under many names."""

    def make(shards):
        store = MemoryStore(f"memory://pod-{next(_fresh)}")
        manifest = decode_manifest((one_shard / MANIFEST).read_bytes(), "one")
        split = manifest.splits["train"]
        (variant,) = split.variants
        (shard,) = variant.shards
        data, offsets = (one_shard / shard.name).read_bytes(), np.load(one_shard / variant.index.name)
        names = [shard_name("train", None, number, shards) for number in range(shards)]
        entries = tuple(
            msgspec.structs.replace(shard, name=name, generation=store.put(name, data).version) for name in names
        )
        index = encode_index([offsets] * shards)
        store.put(index_name("train", None), index)
        many = Variant(entries, IndexFile(index_name("train", None), len(index), 0))
        whole = Split(split.records * shards, tuple(each * shards for each in split.class_counts), (many,))
        store.put(MANIFEST, encode_manifest(msgspec.structs.replace(manifest, splits={"train": whole})))
        return store.url

    return make


def first_batch(url, world, **options):
    """What the loader of a host asks for until it has its first batch, by kind."""
    store = CountingStore(url)
    dataset = find_dataset(store)
    with tpufeed.Loader(dataset, batch_size=BATCH, world=world, threads=1, **options) as loader:
        images = next(iter(loader))
    assert images.shape == (BATCH, 8, 8, 3)
    asked = Counter()
    for (kind, name), times in store.asked.items():
        what = name if name in (MANIFEST, index_name("train", None)) else "shards"
        asked[kind, what] += times
    return asked


def test_a_host_s_first_requests_do_not_grow_with_the_pod(make_bucket):
    """The manifest, offsets of the shards that its lanes begin with, and the records of the batches ahead."""
    index, seen = ("range", index_name("train", None)), {}
    for size in (1, 8, 128):
        url = make_bucket(SHARDS_A_RANK * size)
        for rank in {0, size // 2, size - 1}:
            asked = first_batch(url, (rank, size), local_bytes=0, prefetch=2)
            assert set(asked) == {("whole", MANIFEST), index, ("range", "shards")}  # no list, no stat
            assert asked["whole", MANIFEST] == 2  # this store has no checksums, so it is compared with itself
            lanes = default_lanes(World(0, size)) // size
            assert 1 <= asked[index] <= 2 * lanes
            assert BATCH <= asked["range", "shards"] <= 3 * BATCH
            # Without the records: how many batches it got ahead is a matter of time, not of the pod.
            seen.setdefault(size, []).append(sum(asked.values()) - asked["range", "shards"])
    assert max(seen[128]) <= max(seen[8]) <= max(seen[1])


def test_what_is_copied_is_what_the_lanes_read(make_bucket, monkeypatch, tmp_path):
    """Return the shards that the real loaders of all eight hosts fetch, for this epoch and the next one."""
    handed = []
    monkeypatch.setattr(LocalCopies, "fetch", lambda _, shards: handed.append([shard.name for shard in shards]))
    size = 8
    url = make_bucket(SHARDS_A_RANK * size)
    (variant,) = open_dataset(url).split("train").variants
    records = [shard.records for shard in variant.shards]
    for rank in range(size):
        first_batch(
            url,
            (rank, size),
            local_dir=tmp_path,
        )
        numbers = [due_shards(records, World(rank, size), epoch, seed=0) for epoch in (0, 1)]
        expected = dict.fromkeys(variant.shards[number].name for epoch in numbers for number in epoch)
        names = [name for name in handed[-1] if name != variant.index.name]
        assert names == list(expected)
        assert [len(epoch) for epoch in numbers] == [SHARDS_A_RANK, SHARDS_A_RANK]
    assert len(handed) == size


# Another pod goes on


def positions_of(loader, start, batches=None):
    """The global positions that a rank is handed from `start` on."""
    options = loader.stream.options
    share = Share(loader.dataset.split("train").records, BATCH, options.world, options.remainder, start)
    handed = [share.positions(number) for number in range(len(share) if batches is None else batches)]
    return np.concatenate([positions[mask] for positions, mask in handed])


def pod_of(dataset, size):
    options = {"batch_size": BATCH, "seed": 7, "remainder": "pad"}
    return [tpufeed.Loader(dataset, world=World(rank, size), **options) for rank in range(size)]


@pytest.mark.parametrize(("before", "after"), [(64, 32), (32, 64)])
def test_a_pod_of_another_size_goes_on_with_exactly_the_rest(before, after):
    """In the middle of an epoch, with what the states of loaders say; and no host fetches what is read already."""
    dataset = made_up(uneven(SHARDS_A_RANK * before, mean=12))
    (variant,) = dataset.split("train").variants
    records = [shard.records for shard in variant.shards]
    pod = pod_of(dataset, before)
    batches = len(pod[0]) // 3
    samples = batches * BATCH * before
    state = pod[0].stream.state_at(3, samples)
    assert all(loader.stream.state_at(3, samples) == state for loader in pod)
    seen = [positions_of(loader, 0, batches) for loader in pod]

    resumed = pod_of(dataset, after)
    for loader in resumed:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    rest = [positions_of(loader, samples) for loader in resumed]
    order = EpochOrder(records, 7, 3, state["lanes"])
    found = order.places_at(np.concatenate([*seen, *rest])).sample
    assert len(found) == order.records
    assert np.array_equal(np.sort(found), np.arange(order.records))

    lanes = {loader.stream.lanes for loader in resumed}
    assert lanes == {default_lanes(World(0, before))}
    left = sum(map(len, rest)) / order.records * len(records)
    due = [order.due_shards(range(rank, order.lanes, after), samples) for rank in range(after)]
    assert max(map(len, due)) <= left / after + 2 * order.lanes / after + 2


def test_a_pod_that_does_not_divide_the_lanes_is_refused():
    dataset = made_up(uneven(400))
    state = pod_of(dataset, 8)[0].stream.state_at(0, 1280)
    with pytest.raises(OptionError, match=r"16 lanes .* 3 ranks"):
        pod_of(dataset, 3)[0].load_state_dict(state)
