"""States of Loader: a training loop continues at its place."""

import itertools
import json

import numpy as np
import pytest

import tpufeed
from tpufeed.dataset.order import World
from tpufeed.errors import OptionError
from tpufeed.images import CenterCrop

BATCH = 5


def make(url, rank=0, size=1, **options):
    given = {"columns": ["sample", "image"], "remainder": "pad", "batch_size": BATCH, "world": (rank, size)}
    return tpufeed.Loader(url, **given | options)


def samples_of(batch):
    ids, images, mask = batch
    return [(int(sample), bytes(image)) for sample, image, real in zip(ids, images, mask, strict=True) if real]


def global_epoch(loaders, start=0):
    """The samples of the next epoch of all ranks, in global order; position g belongs to rank g mod W."""
    first = start % len(loaders)
    sequence = []
    for batches in zip(*loaders[first:], *loaders[:first], strict=True):
        dealt = itertools.zip_longest(*map(samples_of, batches))
        sequence += [sample for sample in itertools.chain.from_iterable(dealt) if sample is not None]
    return sequence


@pytest.mark.all
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_state_at_every_boundary_gives_exactly_the_rest_to_any_world(cache_url, epoch, size):
    """Saved by each of `size` ranks, loaded by 1, 2 and 4: what was not handed out comes, in the same order."""
    savers = [make(cache_url, rank, size) for rank in range(size)]
    for loader in savers:
        loader.set_epoch(epoch)
    iterators = [iter(loader) for loader in savers]
    batches = len(savers[0])
    whole = global_epoch([make_at(cache_url, 0, 1, {**savers[0].state_dict()})])
    following = [make(cache_url)]
    following[0].set_epoch(epoch + 1)
    after = global_epoch(following)
    for done in range(batches + 1):
        states = [json.loads(json.dumps(loader.state_dict())) for loader in savers]
        assert all(state == states[0] for state in states)
        assert states[0]["samples"] == min(70, done * BATCH * size)
        handed_out = min(70, done * BATCH * size)
        for other in (1, 2, 4):
            loaders = [make_at(cache_url, rank, other, states[0]) for rank in range(other)]
            assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
            if done < batches:
                assert global_epoch(loaders, handed_out) == whole[handed_out:]
            assert global_epoch(loaders) == after
            for loader in loaders:
                loader.close()
        if done < batches:
            for iterator in iterators:
                next(iterator)
    for loader in savers:
        loader.close()


def make_at(url, rank, size, state, **options):
    loader = make(url, rank, size, **options)
    loader.load_state_dict(state)
    return loader


def test_a_state_does_not_move_with_what_is_prefetched(cache_url):
    with make(cache_url, prefetch=9) as loader:
        iterator = iter(loader)
        assert loader.state_dict()["samples"] == 0
        next(iterator)
        assert loader.state_dict()["samples"] == BATCH
        rest = list(iterator)
    with make_at(cache_url, 0, 1, {**loader.state_dict(), "samples": BATCH}) as again:
        for left, right in zip(rest, again, strict=True):
            np.testing.assert_array_equal(left[0], right[0])


def test_under_drop_the_end_of_an_epoch_is_the_start_of_the_next(cache_url):
    with make(cache_url, remainder="drop", batch_size=16) as loader:
        iterator = iter(loader)
        for _ in range(4):  # 64 of 70
            next(iterator)
        state = loader.state_dict()
        expected = [batch[0].tolist() for batch in loader]
    assert (state["epoch"], state["samples"]) == (0, 64)
    with make_at(cache_url, 0, 1, state, remainder="drop", batch_size=16) as again:
        assert again.state_dict()["epoch"] == 1
        assert [batch[0].tolist() for batch in again] == expected
    with make_at(cache_url, 0, 1, state, remainder="drop", batch_size=2) as again:
        assert len(list(again)) == 3  # a smaller batch finds room for what is left


def test_a_loaded_state_s_lanes_win(cache_url):
    with make(cache_url, lanes=4) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = [batch[0].tolist() for batch in iterator]
    with make_at(cache_url, 0, 1, state, lanes=6) as again:
        assert again.state_dict()["lanes"] == 4
        assert [batch[0].tolist() for batch in again] == rest
    with make(cache_url, 0, 3) as loader, pytest.raises(OptionError, match=r"4 lanes.*3 ranks"):
        loader.load_state_dict(state)


def test_a_state_of_something_else_is_refused_and_changes_nothing(cache_url, dataset_url):
    with make(cache_url) as loader:
        next(iter(loader))
        state = loader.state_dict()
    others = {
        "content_digest": make(dataset_url, ops=[CenterCrop(64)]),
        "seed": make(cache_url, seed=1),
        "shuffle": make(cache_url, shuffle=False),
        "split": tpufeed.Loader(cache_url, "val", batch_size=BATCH),
    }
    for name, other in others.items():
        before = other.state_dict()
        with pytest.raises(OptionError, match=name):
            other.load_state_dict(state)
        assert other.state_dict() == before


@pytest.mark.parametrize("version", [2, 99])
def test_a_state_of_another_order_is_refused_and_says_what_to_do(cache_url, version):
    with make(cache_url) as loader:
        state = {**loader.state_dict(), "version": version, "epoch": 3, "samples": 2 * BATCH}
        with pytest.raises(OptionError, match=rf"{version}.*set_epoch\(3\)"):
            loader.load_state_dict(state)
        assert loader.state_dict()["epoch"] == 0
        loader.set_epoch(state["epoch"])
        assert sum(len(samples_of(batch)) for batch in loader) == 70


def test_numbers_of_a_state_may_come_back_as_arrays(cache_url):
    """As some checkpoints hand them back."""
    with make(cache_url) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = [batch[0].tolist() for batch in iterator]
    arrays = {name: np.array(state[name]) for name in ("epoch", "lanes", "samples")}
    with make_at(cache_url, 0, 1, {**state, **arrays}) as again:
        assert json.loads(json.dumps(again.state_dict())) == state
        assert [batch[0].tolist() for batch in again] == rest
    with make(cache_url) as loader, pytest.raises(OptionError, match="samples"):
        loader.load_state_dict({**state, "samples": True})


def test_a_state_is_json_where_options_are_numbers_of_numpy(cache_url):
    options = {"batch_size": np.int64(5), "lanes": np.int32(16), "seed": np.int64(3), "shuffle": np.True_}
    with make(cache_url, np.int64(1), np.int64(2), **options) as loader, make(cache_url, 1, 2, seed=3) as plain:
        for each in (loader, plain):
            next(iter(each))
        assert json.dumps(loader.state_dict()) == json.dumps(plain.state_dict())


def test_a_state_that_fills_no_batch_changes_nothing(cache_url):
    with make(cache_url) as loader:
        state = loader.state_dict()
    with make(cache_url, remainder="drop", batch_size=1000, lanes=2) as loader:
        before = loader.state_dict()
        with pytest.raises(OptionError, match="1000"):
            loader.load_state_dict({**state, "lanes": 4})
        assert loader.state_dict() == before


@pytest.mark.parametrize("mixed", [False, True])
def test_epochs_may_have_large_numbers(cache_url, mixed):
    with make(tpufeed.Mixture({cache_url: 1}) if mixed else cache_url) as loader:
        loader.set_epoch(1 << 50)
        assert len(list(loader)) == len(loader)


def test_lanes_are_bounded(cache_url):
    with make(cache_url, lanes=1 << 16) as loader:
        assert len(list(loader)) == 14
    with make(cache_url, lanes=1 << 40) as loader, pytest.raises(OptionError, match="65536"):
        iter(loader)


def test_an_epoch_that_could_not_be_opened_is_still_to_come(cache_url):
    """As if the framework were asked for the world before it knows."""
    answers = iter([RuntimeError("not initialised"), World(0, 1)])

    def find():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with tpufeed.Loader(cache_url, columns=["sample"], batch_size=BATCH) as loader:
        loader.stream.find_world_by(find)
        with pytest.raises(RuntimeError, match="not initialised"):
            iter(loader)
        assert iter(loader).epoch == 0
