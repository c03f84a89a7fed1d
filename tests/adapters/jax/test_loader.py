"""Iterations of to_jax on 8 CPU devices: what is ahead of need, and Grain's protocol of iterators.

test_contract.py has what all feeds share.
"""

import gc
import importlib
import itertools
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import LoaderError, OptionError
from tpufeed.images import Custom

jax = lazy("jax")

COLUMNS = ["image", "label", "sample"]
BATCH = 16


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tpufeed-jax")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    assert not threads()
    yield
    gc.collect()
    assert not threads()


def make(url, sharding=None, device_prefetch=2, **options):
    loader = tpufeed.Loader(url, **{"batch_size": BATCH, "columns": COLUMNS, "processes": 0} | options)
    return loader.to_jax(sharding, device_prefetch=device_prefetch)


def make_numpy(url, **options):
    return tpufeed.Loader(url, **{"batch_size": BATCH, "columns": COLUMNS, "processes": 0} | options)


def samples(batches):
    return [np.asarray(batch[2]).tolist() for batch in batches]


@pytest.fixture(scope="module")
def epochs(cache_url):
    """The samples of Loader's batches."""
    with make_numpy(cache_url) as loader:
        return [samples(loader) for _ in range(3)]


# Ahead of need


GATE = """
import threading

left, reached, opened = [{images}], threading.Event(), threading.Event()


def gate(image, rng):
    left[0] -= 1
    if left[0] < 0:
        reached.set()
        assert opened.wait(60)
    return image
"""


@pytest.fixture
def make_gate(tmp_path, monkeypatch):
    """A module with an op that lets `images` images pass, and keeps the next one until it is opened."""

    def make(images):
        name = f"gate_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(GATE.format(images=images))
        monkeypatch.syspath_prepend(str(tmp_path))
        return importlib.import_module(name)

    return make


def test_what_is_on_the_devices_is_handed_out_while_the_host_decodes_the_next(cache_url, make_gate):
    size = 3
    gate = make_gate(8 * (1 + size))
    options = {"batch_size": 8, "threads": 1, "ops": [Custom(gate.gate)], "device_prefetch": size}
    with make(cache_url, **options) as loader:
        iterator = iter(loader)
        got = [next(iterator)]
        assert gate.reached.wait(60)  # the batches on the devices are all that there are
        got += [next(iterator) for _ in range(size)]
        assert not gate.opened.is_set()
        gate.opened.set()
        got += list(iterator)
    with make_numpy(cache_url, batch_size=8) as host:
        assert samples(got) == samples(host)


@pytest.mark.parametrize("donated", [False, True])
def test_batches_that_are_kept_are_never_overwritten(cache_url, donated):
    """On the CPU an array shares the memory of the host's batch, which is page-aligned."""
    step = jax.jit(lambda image: 255 - image, donate_argnums=(0,) if donated else ())
    kept = []
    with make(cache_url, batch_size=8, prefetch=2) as loader:
        for _ in range(3):
            for image, _, sample in loader:
                before = np.array(image)
                if len(kept) % 2:
                    kept.append((step(image), 255 - before, sample))
                    assert image.is_deleted() is donated
                else:
                    kept.append((image, before, sample))
    assert len(kept) == 24
    for image, expected, _ in kept:
        np.testing.assert_array_equal(np.asarray(image), expected)


def test_arrays_outlive_their_loader_and_their_memory_goes_with_them(cache_url, stored):
    loader = make(cache_url, batch_size=8)
    image, _, sample = next(iter(loader))
    loader.close()
    del loader
    gc.collect()
    np.testing.assert_array_equal(image, stored(cache_url).pixels[np.asarray(sample)])
    with make(cache_url, batch_size=8, prefetch=1) as loader:
        pointers = [image.addressable_shards[0].data.unsafe_buffer_pointer() for _ in range(10) for image, *_ in loader]
    assert len(pointers) == 80
    assert len(set(pointers)) <= 10  # the pool's buffers, again and again


# Leaving


def test_closing_from_another_thread_ends_a_wait(cache_url, make_gate):
    gate = make_gate(8)
    loader = make(cache_url, batch_size=8, threads=1, ops=[Custom(gate.gate)])
    iterator = iter(loader)
    next(iterator)
    assert gate.reached.wait(60)  # before it is closed, or nothing may be decoded any more
    closer = threading.Thread(target=loader.close)
    closer.start()
    threading.Timer(0.05, gate.opened.set).start()
    with pytest.raises(LoaderError, match="closed"):
        list(iterator)
    closer.join()


@pytest.mark.all
def test_a_process_ends_though_an_iteration_is_open(cache_url):
    code = "import sys, tpufeed; epoch = iter(tpufeed.Loader(sys.argv[1], batch_size=8).to_jax()); next(epoch)"
    command = [sys.executable, "-c", code, cache_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# As Grain's iterators


def test_a_grain_style_iterator(cache_url, epochs):
    """As its checkpoint handlers use it: JSON of a DatasetIterator's dict, and decode of any other iterator's."""
    with make(cache_url) as loader, make(cache_url) as other:
        iterator = iter(loader)
        assert iter(iterator) is iterator
        first = iterator.get_state()
        next(iterator)
        state = iterator.get_state()
        assert (state["epoch"], state["samples"]) == (0, BATCH)
        text = state.decode()
        assert text == json.dumps(loader.state_dict())
        rest = samples(iterator)
        assert rest == epochs[0][1:]
        for given in (state, json.loads(json.dumps(state, indent=4)), text.encode(), text):
            fresh = iter(other)
            fresh.set_state(given)
            assert samples(fresh) == rest
        iterator.set_state(first)  # one that is over continues as well
        assert next(iterator)[2].tolist() == epochs[0][0]
        iterator.set_state(text.encode())  # and one that is in the midst
        assert iterator.get_state() == state
        assert samples(iterator) == rest
        assert samples(loader) == epochs[1]
        with pytest.raises(OptionError, match="b'no json'"):
            iterator.set_state(b"no json")
        with pytest.raises(OptionError, match="not 3"):
            iterator.set_state(b"3")


def test_grains_own_checkpoint_saves_and_restores_an_iterator(cache_url, epochs, tmp_path, make_gate):
    from grain.checkpoint import CheckpointHandler

    gate = make_gate(0)
    with make(cache_url) as loader, make(cache_url, ops=[Custom(gate.gate)]) as other:
        iterator = iter(loader)
        taken = samples([next(iterator), next(iterator)])
        CheckpointHandler().save(tmp_path, iterator)
        restored = CheckpointHandler().restore(tmp_path, iter(other))
        assert gate.reached.wait(60)  # decoding has begun, and no epoch with it: the state is the same
        gate.opened.set()
        assert restored.get_state() == iterator.get_state()
        assert taken + samples(restored) == epochs[0]
        assert samples(iterator) == epochs[0][2:]
        assert samples(other) == epochs[1]


def test_start_prefetch_twice_or_late_changes_nothing(cache_url, epochs):
    with make(cache_url) as loader:
        iterator = iter(loader)
        iterator.start_prefetch()
        iterator.start_prefetch()
        first = next(iterator)
        iterator.start_prefetch()
        assert samples([first]) + samples(iterator) == epochs[0]
        iterator.start_prefetch()  # it is over
        assert samples(loader) == epochs[1]


def test_start_prefetch_beside_an_open_iteration_leaves_the_order_as_it_is(cache_url, epochs):
    """The thread of the open one prepares the next epoch at that time."""
    with make(cache_url, batch_size=8, prefetch=12) as loader, make_numpy(cache_url, batch_size=8) as host:
        expected = [samples(host), samples(host)]
        iterator, following = iter(loader), iter(loader)
        taken = []
        for _ in range(len(expected[0])):
            taken.append(next(iterator))
            following.start_prefetch()
        assert samples(taken) == expected[0]
        assert samples(following) == expected[1]


def test_what_it_took(cache_url):
    with make(cache_url, batch_size=8) as loader:
        assert loader.stats().batches == 0
        list(itertools.islice(loader, 3))
        stats = loader.stats()
        assert stats.batches == 3
        assert stats.transfer_bytes / (8 * (64 * 64 * 3 + 8 + 8)) in (3, 4, 5)  # up to two ahead
        assert stats.host.batches in (3, 4, 5)
        assert stats.transfer_seconds > 0
        assert stats.wait_seconds > 0
