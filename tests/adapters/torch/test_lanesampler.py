"""LaneSampler: tpufeed's order for DataLoader."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpufeed
from tests.frameworks import lazy
from tpufeed.dataset.manifest import IndexFile, Manifest, Shard, Split, Variant, encode_manifest
from tpufeed.dataset.order import EpochOrder
from tpufeed.dataset.schema import record_schema
from tpufeed.errors import OptionError
from tpufeed.storage.store import open_store

distributed = lazy("torch:distributed")
FakeStore = lazy("torch.testing._internal.distributed.fake_pg:FakeStore")
DataLoader = lazy("torch.utils.data:DataLoader")
DistributedSampler = lazy("torch.utils.data:DistributedSampler")
Subset = lazy("torch.utils.data:Subset")
StatefulDataLoader = lazy("torchdata.stateful_dataloader:StatefulDataLoader")

_numbers = itertools.count()


def made_up(shard_records):
    """A dataset of which there is no more than the manifest."""
    shards = tuple(Shard(f"{i}.tfrecord", 16 * records, i, records) for i, records in enumerate(shard_records))
    index = IndexFile("train.index.npy", 128 + 8 * sum(records + 1 for records in shard_records), 0)
    split = Split(sum(shard_records), (), (Variant(shards, index),))
    empty = {"options": {}, "rejects": {}, "images": {}, "odd": {}, "input_digest": "", "class_names": ()}
    manifest = Manifest(run_id="", tool_version="", splits={"train": split}, features=record_schema(False), **empty)
    url = f"memory://made-up/{next(_numbers)}"
    open_store(url).put("manifest.json", encode_manifest(manifest))
    return tpufeed.TFRecordImages(url)


def global_sequence(samplers):
    """The ids of all ranks, in the order in which a world reads them."""
    ranks = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(ids) for ids in ranks] == [len(ranks[0])] * len(ranks)
    return [sample for step in zip(*ranks, strict=True) for sample in step]


def world_of(dataset, size, **options):
    return [tpufeed.LaneSampler(dataset, size, rank, **options) for rank in range(size)]


# Order


@pytest.mark.all
@settings(max_examples=40)
@given(st.data())
def test_worlds_that_divide_the_lanes_read_one_sequence(data):
    """Each sample comes once; and any world that continues gets the rest."""
    dataset = made_up(data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(sum), "records"))
    lanes, epoch = data.draw(st.sampled_from([1, 2, 4, 6, 12]), "lanes"), data.draw(st.integers(0, 3), "epoch")
    options = {"lanes": lanes, "seed": data.draw(st.integers(0, 9), "seed"), "shuffle": data.draw(st.booleans())}
    shards = [shard.records for shard in dataset.dataset.split("train").variants[0].shards]
    expected = EpochOrder(shards, options["seed"], epoch, lanes, options["shuffle"])
    expected = expected.places_at(np.arange(len(dataset))).sample.tolist()
    assert sorted(expected) == list(range(len(dataset)))
    divisors = [size for size in range(1, lanes + 1) if not lanes % size]
    for size in divisors:
        samplers = world_of(dataset, size, **options)
        samplers[0].set_epoch(epoch)
        for sampler in samplers:
            sampler.epoch = epoch
        found = global_sequence(samplers)
        assert found[: len(dataset)] == expected
        assert found[len(dataset) :] == [expected[i % len(dataset)] for i in range(len(found) - len(dataset))]
    begun = data.draw(st.integers(0, len(dataset) - 1), "begun")
    resumed = world_of(dataset, data.draw(st.sampled_from(divisors), "ranks"), **options | {"lanes": None})
    for sampler in resumed:
        sampler.load_state_dict(samplers[0].state_at(begun))
    first = begun % len(resumed)  # the rank that has the first sample of the rest
    rest = global_sequence(resumed[first:] + resumed[:first])
    assert rest[: len(dataset) - begun] == expected[begun:]
    for sampler in resumed:
        sampler.set_epoch(epoch + 1)
    assert sorted(global_sequence(resumed)[: len(dataset)]) == sorted(expected)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_what_does_not_divide_is_dropped_or_filled_up(size):
    dataset = made_up([20, 5, 10])
    dropped, filled = (global_sequence(world_of(dataset, size, drop_last=drop)) for drop in (True, False))
    assert len(dropped) == 35 // size * size
    assert len(set(dropped)) == len(dropped)
    assert len(filled) == -(-35 // size) * size
    assert filled == (dropped + filled[len(dropped) : 35] + filled)[: len(filled)]
    assert set(filled) == set(range(35))


def test_chunks_join(monkeypatch):
    """Ids are worked out some thousand at a time."""
    dataset = made_up([50, 60, 70])
    whole = list(tpufeed.LaneSampler(dataset, 2, 1))
    monkeypatch.setattr("tpufeed.adapters.torch.lanesampler._CHUNK", 7)
    assert list(tpufeed.LaneSampler(dataset, 2, 1)) == whole


def test_a_rank_reads_its_share_of_the_shards():
    dataset = made_up([10] * 64)
    for sampler in world_of(dataset, 8):
        assert len({sample // 10 for sample in sampler}) <= 64 // 8 + 2
    random = DistributedSampler(dataset, 8, 0)
    assert len({sample // 10 for sample in random}) > 40


# In DataLoader


@pytest.mark.all
def test_set_epoch_moves_samples_that_workers_read(cache_url, stored):
    """The training loop knows the sampler only."""
    dataset = tpufeed.TFRecordImages(cache_url, columns=["image", "sample"])
    sampler = tpufeed.LaneSampler(dataset, seed=1)
    loader = DataLoader(dataset, 7, sampler=sampler, num_workers=2, persistent_workers=True)
    assert len(loader) == 10
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        images, samples = (np.concatenate(column) for column in zip(*loader, strict=True))
        np.testing.assert_array_equal(images, stored(cache_url, "train", epoch % 2).pixels[samples])
        assert samples.tolist() == list(sampler)
        orders.append(samples.tolist())
    assert orders[0] != orders[1] != orders[2]


def stateful(url, rank=0, size=1, workers=0):
    dataset = tpufeed.TFRecordImages(url, columns=["image", "sample"])
    sampler = tpufeed.LaneSampler(dataset, size, rank)
    return StatefulDataLoader(dataset, 7, sampler=sampler, num_workers=workers)


def test_a_state_before_the_first_sample_begins_no_epoch(cache_url):
    loader, plain = stateful(cache_url), tpufeed.LaneSampler(tpufeed.TFRecordImages(cache_url), 1, 0)
    loader.state_dict()
    for sampler in (loader.sampler, plain):
        sampler.set_epoch(3)
    assert [sample for _, samples in loader for sample in samples.tolist()] == list(plain)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("drop_last", "workers"),
    [
        (True, {"num_workers": 0}),
        (False, {"num_workers": 2, "persistent_workers": True}),
        (True, {"num_workers": 3, "snapshot_every_n_steps": 3}),
    ],
    ids=str,
)
def test_a_stateful_data_loader_goes_on_where_batches_leave_a_rest(cache_url, stored, workers, drop_last):
    """After an epoch with the one that `set_epoch` says, or the one after it; within an epoch with its rest."""

    def make():
        dataset = tpufeed.TFRecordImages(cache_url, columns=["image", "sample"])
        sampler = tpufeed.LaneSampler(dataset, 1, 0)
        return StatefulDataLoader(dataset, 16, sampler=sampler, drop_last=drop_last, **workers)

    def epoch(loader, number=None):
        if number is not None:
            loader.sampler.set_epoch(number)
        found = []
        for images, samples in loader:
            variants = (stored(cache_url, "train", number).pixels[samples] for number in range(2))
            found.append(([(images.numpy() == pixels).all() for pixels in variants].index(True), samples.tolist()))
        return found

    plain = tpufeed.LaneSampler(tpufeed.TFRecordImages(cache_url), 1, 0)
    expected = []
    for number in range(4):
        plain.set_epoch(number)
        ids = list(plain)
        expected.append([(number % 2, ids[begin : begin + 16]) for begin in range(0, 64 if drop_last else 70, 16)])
    first = make()
    states = {(-1, 0): first.state_dict()}  # before the first batch
    for number in range(2):
        first.sampler.set_epoch(number)
        for step, _ in enumerate(first):
            if step in (1, len(first) - 1):
                states[number, step + 1] = first.state_dict()
        states[number, 0] = first.state_dict()  # after the epoch
    alone = not workers["num_workers"]  # workers take long to start: a part of the combinations is for them
    for (number, taken), state in states.items() if alone else [*states.items()][-3:]:
        after = (None, 0) if number < 0 else (None, 3, number + 1)
        for told in ((None, number + 1, number) if taken else after)[: 3 if alone else 2]:
            again = make()
            again.load_state_dict(state)
            found = epoch(again, told)
            if taken:
                assert found == expected[number][taken:], (number, taken, told)
                found = epoch(again, number + 1)
            assert found == expected[number + 1 if taken or told is None else told], (number, taken, told)
    again.load_state_dict(states[0, 0])  # into one that is in use
    assert epoch(again) == expected[1]


def test_a_stateful_data_loader_goes_on_with_other_ranks(cache_url):
    ranks = [stateful(cache_url, rank, 2) for rank in range(2)]
    begun = [[next(batches)[1].tolist() for _ in range(2)] for batches in map(iter, ranks)]
    states = [loader.state_dict() for loader in ranks]
    assert states[0] == states[1]
    alone = stateful(cache_url)
    alone.load_state_dict(states[1])
    seen = [*itertools.chain(*begun), *(samples.tolist() for _, samples in alone)]
    assert sorted(itertools.chain(*seen)) == list(range(70))
    with pytest.raises(OptionError, match="seed is 0"):
        tpufeed.LaneSampler(alone.dataset, seed=1).load_state_dict(alone.sampler.state_at(np.int64(7)))


def test_a_state_at_the_end_of_an_epoch_begins_the_next():
    sampler = tpufeed.LaneSampler(made_up([20, 21]), 2, 0, lanes=4, drop_last=True)
    sampler.load_state_dict(sampler.state_at(40))  # one is left, which makes up no sample for each rank
    assert (sampler.epoch, len(sampler)) == (1, 20)


def test_the_world_is_that_of_torch_distributed_once_there_is_one():
    """A sampler may be made before ranks are launched."""
    sampler = tpufeed.LaneSampler(made_up([20, 20]), drop_last=True)
    assert (sampler.num_replicas, sampler.rank, sampler.lanes, len(sampler)) == (1, 0, 16, 40)
    distributed.init_process_group("fake", rank=5, world_size=12, store=FakeStore())
    try:
        assert (sampler.num_replicas, sampler.rank, sampler.lanes, len(sampler)) == (12, 5, 24, 3)
        assert (sampler.num_samples, sampler.total_size) == (3, 36)
        assert list(sampler) == list(tpufeed.LaneSampler(sampler.dataset, 12, 5, drop_last=True))
    finally:
        distributed.destroy_process_group()
    assert isinstance(sampler, DistributedSampler)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_replicas": 3, "rank": 0, "lanes": 16}, "lanes=24"),
        ({"num_replicas": 3, "rank": 3}, "rank"),
        ({"num_replicas": 3}, "rank"),
        ({"lanes": 0}, "lanes"),
        ({"seed": "a"}, "seed"),
    ],
)
def test_numbers_that_do_not_fit(options, message):
    with pytest.raises(OptionError, match=message):
        tpufeed.LaneSampler(made_up([20]), **options)


def test_fewer_samples_than_ranks():
    with pytest.raises(OptionError, match=r"3 samples.*4 ranks"):
        len(tpufeed.LaneSampler(made_up([3]), 4, 0, drop_last=True))
    with pytest.raises(OptionError, match="1 ranks"):
        list(DataLoader([], sampler=tpufeed.LaneSampler(made_up([0]), 1, 0)))
    assert len(tpufeed.LaneSampler(made_up([3]), 4, 0)) == 1


def test_other_datasets():
    with pytest.raises(OptionError, match="TFRecordImages"):
        tpufeed.LaneSampler(Subset(made_up([3]), [0]))


def test_states_of_others():
    sampler = tpufeed.LaneSampler(made_up([20, 20]), 2, 0, lanes=4)
    sampler.set_epoch(3)
    state = sampler.state_at(8)
    for change in ("content_digest", "split", "seed", "shuffle", "version", "epoch", "samples", "lanes"):
        other = tpufeed.LaneSampler(sampler.dataset, 2, 0)
        with pytest.raises(OptionError, match=f"{change} is 'x'"):
            other.load_state_dict(state | {change: "x"})
        assert (other.epoch, len(other)) == (0, 20)
    with pytest.raises(OptionError, match=r"4 lanes.*3 ranks"):
        tpufeed.LaneSampler(sampler.dataset, 3, 0).load_state_dict(state)


def test_ranks_that_cannot_be_told(monkeypatch):
    """Each would take itself for the only one, and all would read the same samples."""
    sampler = tpufeed.LaneSampler(made_up([20]))
    assert len(sampler) == 20
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "8")
        with pytest.raises(OptionError, match=r"torch\.distributed"):
            len(sampler)
