"""What all feeds of one loader share: its place, and one iteration at a time."""

import copy
import itertools
import pickle

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import LoaderError, OptionError

KerasFeed = lazy("tpufeed.adapters.keras.dataset:KerasFeed")

pytestmark = pytest.mark.xdist_group("frameworks")

FEEDS = {
    "numpy": lambda loader: loader,
    "torch": lambda loader: loader.to_torch(),
    "device": lambda loader: loader.to_device("cpu"),
    "jax": lambda loader: loader.to_jax(),
    "tf": lambda loader: loader.to_tf(deterministic=True),
}
OURS = [name for name in FEEDS if name != "tf"]  # a tf.data.Dataset has nothing of a feed


def in_turn(names):
    """Pairs in which each name is once the first and once the second."""
    names = list(names)
    return list(zip(names, [*names[1:], names[0]], strict=True))


def make(url, **options):
    return tpufeed.Loader(url, **{"batch_size": 8, "columns": ["sample"], "processes": 0} | options)


def lists(batches):
    return [np.asarray(batch).tolist() for batch in batches]


def take(feed, count):
    return lists(itertools.islice(feed, count))


@pytest.fixture(scope="module")
def epochs(cache_url):
    with make(cache_url) as loader:
        return [lists(loader) for _ in range(3)]


@pytest.mark.parametrize("names", in_turn(FEEDS), ids=" then ".join)
def test_any_feed_continues_what_another_has_begun(cache_url, epochs, names):
    """Where the loop was, not what is prefetched; by the state, and by the same loader in its next epoch."""
    first, second = (FEEDS[name] for name in names)
    with make(cache_url) as loader, make(cache_url) as other:
        assert take(first(loader), 3) == epochs[0][:3]
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == (0, 24)
        other.load_state_dict(state)
        assert lists(second(other)) == epochs[0][3:]
        assert lists(second(loader)) == epochs[1]
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("names", [*in_turn(OURS), ("numpy", "numpy")], ids=" then ".join)
def test_the_newest_iteration_counts_and_the_older_one_says_so(cache_url, epochs, names):
    with make(cache_url) as loader:
        older, newer = (iter(FEEDS[name](loader)) for name in names)
        assert take(older, 2) == epochs[0][:2]
        assert take(newer, 1) == epochs[1][:1]
        with pytest.raises(LoaderError, match="another iteration"):
            next(older)
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (1, 8)
        assert lists(newer) == epochs[1][1:]


@pytest.mark.parametrize("name", OURS)
def test_moving_the_loader_ends_an_iteration_of_its_feed(cache_url, epochs, name):
    with make(cache_url) as loader:
        feed = FEEDS[name](loader)
        for move in (loader.set_epoch, feed.set_epoch, lambda _: feed.load_state_dict(loader.stream.state_at(2, 0))):
            iterator = iter(feed)
            next(iterator)
            move(2)
            with pytest.raises(LoaderError, match="set_epoch"):
                next(iterator)
            assert lists(feed) == epochs[2]


@pytest.mark.parametrize("name", FEEDS)
def test_what_was_taken_ahead_of_a_loop_that_was_left_counts_for_nothing(cache_url, epochs, name):
    """With `repeat` it is of later epochs: 8 batches are one."""
    with make(cache_url, repeat=True) as loader:
        assert take(FEEDS[name](loader), 7) == epochs[0][:7]
        assert take(loader, 2) == epochs[1][:2]


@pytest.mark.parametrize("name", OURS)
def test_a_feed_has_what_its_loader_has(cache_url, epochs, name):
    with FEEDS[name](make(cache_url)) as feed:
        assert (feed.class_names, feed.batch_size, len(feed)) == (("astronaut", "cat", "coffee"), 8, 8)
        assert take(feed, 2) == epochs[0][:2]
        assert f"Loader({cache_url!r}, 'train', batch_size=8, epoch=0, samples=16)" in repr(feed)
        others = [copy.copy(feed), copy.deepcopy(feed), pickle.loads(pickle.dumps(feed))]
        assert [lists(other) for other in others] == [epochs[0][2:]] * 3
        assert feed.state_dict()["samples"] == 16
        assert getattr(feed.stats(), "host", feed.stats()).batches >= 2


def test_keras_and_its_loader_have_one_place(cache_url, epochs):
    loader = make(cache_url)
    feed = KerasFeed(loader.stream)
    feed.on_epoch_begin()
    assert lists(feed[number] for number in range(3)) == epochs[0][:3]
    assert feed.state_dict() == loader.state_dict()
    feed.load_state_dict(loader.stream.state_at(1, 16))
    feed.on_epoch_begin()
    assert lists(feed[number] for number in range(6)) == epochs[1][2:]
    feed.close()


@pytest.mark.parametrize("name", ["to_torch", "to_device", "to_xla", "to_jax", "to_tf", "to_keras"])
def test_options_of_reading_are_the_loader_s(cache_url, name):
    with pytest.raises(OptionError, match=f"{name} .*'batch_size'"):
        getattr(make(cache_url), name)(batch_size=8)
    with pytest.raises(OptionError, match=r"'device_prefetch'.*to_device"):
        make(cache_url, device_prefetch=2)
