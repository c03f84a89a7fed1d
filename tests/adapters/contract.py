"""The loaders that one contract binds, each as a `Feed`, and what the tests do with one: functions that take `make`.

`make(**options)` makes the feed. torch_xla cannot be imported after tensorflow, so the functions run in another process
where the feed is its: they take and return what can be pickled.
"""

import copy
import gc
import itertools
import mmap
import os
import pickle
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import tpufeed
from tpufeed.errors import OptionError
from tpufeed.images import Custom

SECONDS = 20  # only keep a failing test from hanging
OPTIONS = {"batch_size": 8, "seed": 3, "remainder": "pad", "columns": ["image", "label", "sample"]}

Make = Callable[..., "Feed"]


class Feed:
    """A loader whose epochs are numpy batches; here that of numpy."""

    exact = True  # in order, and in pixels of JPEGs
    loads = saves = True  # states
    copies = True
    ints = np.int64

    def __init__(self, url: str, split: str = "train", state: Any = None, **options: Any) -> None:
        self.loader = self.open(url, split, **options)
        if state is not None:
            self.loader.load_state_dict(state)

    def open(self, url: str, split: str, **options: Any) -> Any:
        return tpufeed.Loader(url, split, **options)

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches(self.loader)

    def take(self, count: int) -> Iterator[Any]:
        """The first `count` batches of an iteration."""
        return itertools.islice(self, count)

    def batches(self, loader: Any) -> Iterator[Any]:
        for batch in loader:
            if isinstance(batch, dict):
                yield {name: self.on_host(value) for name, value in batch.items()}
            else:
                yield tuple(map(self.on_host, batch)) if isinstance(batch, tuple) else self.on_host(batch)

    def on_host(self, value: Any) -> np.ndarray:
        """A column as an array, after a look at where it was; strings are on the host, whatever the framework."""
        if isinstance(value, np.ndarray) and value.dtype == object:
            return value
        return self.copied(value)

    def copied(self, value: Any) -> np.ndarray:
        assert type(value) is np.ndarray
        return value

    def state(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def close(self) -> None:
        self.loader.close()

    @staticmethod
    def let_go() -> None:
        """Have the framework give back what it keeps for its next call."""


class TorchFeed(Feed):
    def open(self, url: str, split: str, **options: Any) -> Any:
        return tpufeed.Loader(url, split, **options).to_torch()

    def copied(self, value: Any) -> np.ndarray:
        assert value.device.type == "cpu"
        return value.numpy()


class TorchDeviceFeed(TorchFeed):
    """Two batches on the device ahead of the loop; the CPU is the device."""

    def open(self, url: str, split: str, **options: Any) -> Any:
        return tpufeed.device_loader(super().open(url, split, **options), "cpu")


class XlaFeed(Feed):
    def open(self, url: str, split: str, **options: Any) -> Any:
        return tpufeed.Loader(url, split, **options).to_xla()

    def copied(self, value: Any) -> np.ndarray:
        assert value.device.type == "xla"
        return value.cpu().numpy()


class JaxFeed(Feed):
    """On 8 devices."""

    ints = np.int32

    def open(self, url: str, split: str, **options: Any) -> Any:
        with mock.patch.dict(os.environ):  # in which jax leaves what torch_xla stumbles over in other tests' processes
            return tpufeed.Loader(url, split, **options).to_jax()

    def copied(self, value: Any) -> np.ndarray:
        assert len(value.sharding.device_set) == 8
        return np.asarray(value)

    @staticmethod
    def let_go() -> None:
        import jax

        jax.device_put(0).block_until_ready()  # drops arrays that its threads have done with


class TfFeed(Feed):
    saves = copies = False
    given: dict[str, Any] = {}  # noqa: RUF012  # a constant

    def __init__(self, url: str, split: str = "train", **options: Any) -> None:
        super().__init__(url, split, **options)
        self.dataset = self.loader.to_tf(**self.given)

    def __iter__(self) -> Iterator[Any]:
        return self.batches(self.dataset)

    def take(self, count: int) -> Iterator[Any]:
        return self.batches(self.dataset.take(count))

    def copied(self, value: Any) -> np.ndarray:
        array = value.numpy()
        return np.vectorize(bytes.decode, otypes=[object])(array) if array.dtype == object else array

    def close(self) -> None:
        del self.dataset  # all that a user needs to do


class TfExactFeed(TfFeed):
    saves = True
    given = {"deterministic": True}  # noqa: RUF012


class TfDirectFeed(TfFeed):
    exact = loads = False
    given = {"direct": True}  # noqa: RUF012


FEEDS: dict[str, type[Feed]] = {
    "numpy": Feed,
    "torch": TorchFeed,
    "torch-device": TorchDeviceFeed,
    "torch_xla": XlaFeed,
    "jax": JaxFeed,
    "tf": TfFeed,
    "tf-deterministic": TfExactFeed,
    "tf-direct": TfDirectFeed,
}


def start_on_cpu() -> None:
    """In the process of torch_xla, before that is imported."""
    os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="1")
    gc.disable()
    import torch_xla  # noqa: F401

    gc.freeze()  # collections need not look through it
    gc.enable()


def run(name: str, do: Callable[..., Any], url: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What `do` returns for the feed `name`."""
    return do(partial(FEEDS[name], url, **OPTIONS | options), *arguments)


# What tests do.


def epochs(make: Make, count: int = 1, **options: Any) -> list[list[Any]]:
    with closing(make(**options)) as feed:
        return [list(feed) for _ in range(count)]


def of_ranks(make: Make, size: int) -> list[list[Any]]:
    """An epoch of each rank."""
    return [epochs(make, world=(rank, size))[0] for rank in range(size)]


def of_main(make: Make, ops: list[Any]) -> list[Any]:
    """A batch through a function of `__main__`."""
    function = types.FunctionType(darken.__code__, {}, "darken")
    function.__module__, function.__qualname__ = "__main__", "darken"
    there = mock.patch.object(sys.modules["__main__"], "darken", function, create=True)
    with there, closing(make(ops=[*ops, Custom(function)], processes=0)) as feed:
        return next(iter(feed))


def darken(image: Any, rng: Any) -> Any:
    return image // 2


def class_names(make: Make, mixture: Any) -> list[tuple[str, ...]]:
    """Of the loader, and of one that reads a mixture instead."""
    found = []
    for change in (make, partial(make.func, mixture, **make.keywords)):  # type: ignore[attr-defined]
        with closing(change()) as feed:
            found.append(feed.loader.class_names)
    return found


def first(make: Make, batches: int) -> list[Any]:
    with closing(make()) as feed:
        return list(itertools.islice(feed, batches))


def cut(make: Make, counts: list[int], **options: Any) -> tuple[list[list[Any]], Any]:
    """Take `counts` batches, each count from another iteration; and the state after them, if the feed saves one."""
    with closing(make(**options)) as feed:
        return [list(feed.take(count)) for count in counts], feed.state() if feed.saves else None


def copied(make: Make, batches: int) -> tuple[list[Any], list[list[Any]]]:
    """An epoch, and what copies and a pickle have that are made after `batches` of its batches."""
    with closing(make()) as feed:
        iterator = iter(feed)
        taken = [next(iterator) for _ in range(batches)]
        loader = feed.loader
        others = [copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
        taken += list(iterator)
        rests = []
        for other in others:
            with closing(other):
                rests.append(list(feed.batches(other)))
        return taken, rests


def after_break(make: Make) -> list[Any]:
    """The epoch after one that was left within."""
    with closing(make()) as feed:
        for _batch in feed:
            break
        return list(feed)


def saved(make: Make, batches: int) -> dict[str, Any]:
    """The state within the second epoch."""
    with closing(make()) as feed:
        list(feed)
        iterator = iter(feed)
        for _ in range(batches):
            next(iterator)
        return feed.state()


def until_error(make: Make) -> tuple[list[Any], str, int]:
    """The batches before an error, its text, and how many batches the next epoch has."""
    with closing(make()) as feed:
        batches, iterator = [], iter(feed)
        try:
            for batch in iterator:
                batches.append(batch)
        except Exception as error:  # noqa: BLE001  # each framework has its own
            return batches, str(error), len(list(feed))
    raise AssertionError("no error")


def refusal(make: Make, **options: Any) -> str:
    """The text of an OptionError."""
    try:
        with closing(make(**options)) as feed:
            if not isinstance(feed, TfFeed):  # a dataset says it when it is made: later it would be TensorFlow's error
                next(iter(feed))
    except OptionError as error:
        return str(error)
    raise AssertionError("no error")


def left_uncollected(make: Any, ways: list[str], damaged: str, **options: Any) -> dict[str, tuple[Any, Any]]:
    """By way of leaving a feed: what the process holds before and after it, if the two differ.

    The garbage collector is off, as many training loops have it. `damaged` is the URL for the damaged record.
    """
    leave(make, ways[0], options)  # what a framework opens once stays
    gc.collect()
    wait_until(lambda: not any(name.startswith("tpufeed-") for name in held()["threads"]))
    gc.disable()
    try:
        found = {}
        for way in ways:
            before, mappings = held(), count_mappings()
            leave(partial(make.func, damaged, **make.keywords) if way == "damaged record" else make, way, options)
            make.func.let_go()
            wait_until(lambda: held() == before)  # noqa: B023  # is called at once
            after = held()
            if after != before or count_mappings() != mappings:
                wait_until(lambda: count_mappings() == mappings)  # noqa: B023  # is called at once
                after = held()
                if after != before or count_mappings() != mappings:
                    found[way] = (before, mappings), (after, count_mappings())
        return found
    finally:
        gc.enable()


def leave(make: Make, way: str, options: dict[str, Any]) -> None:
    feed = make(**options)
    try:
        for number, _batch in enumerate(feed):
            if number == 2:
                if way == "break":
                    break
                if way == "close":
                    feed.close()
                    break
                assert way != "exception"
    except Exception:  # noqa: BLE001  # each framework has its own
        assert way in ("exception", "damaged record")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def held() -> dict[str, Any]:
    """Of this process: what it would run out of."""
    threads = [thread.name for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    return {
        "descriptors": descriptors_open(),
        "threads": sorted(threads),
        "processes": len(children.split()),
        "batches": Path("/proc/self/maps").read_text().count("tpufeed-batches"),
    }


def count_mappings() -> int:
    """Of files, by a walk through all objects, which takes a while beside TensorFlow's millions."""
    return sum(type(kept) is mmap.mmap for kept in gc.get_objects())


def descriptors_open() -> int:
    return len(os.listdir("/proc/self/fd"))
