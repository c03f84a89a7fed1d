"""device_loader on the CPU and on meta tensors, and with stand-ins for an accelerator."""

import gc
import itertools
import pickle
import sys
import threading
import time
import weakref
from collections import namedtuple
from collections.abc import Mapping

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import LoaderError, MissingExtraError, OptionError

torch_device = lazy("tpufeed.adapters.torch.device")

torch = lazy("torch")
DataLoader = lazy("torch.utils.data:DataLoader")
TensorDataset = lazy("torch.utils.data:TensorDataset")
DistributedSampler = lazy("torch.utils.data.distributed:DistributedSampler")


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tpufeed-device")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    assert not threads()
    yield
    assert not threads()


class Source:
    """`count` tensors a pass, of which number `fails` raises; keeps the threads that asked for each."""

    def __init__(self, count, fails=None):
        self.count, self.fails = count, fails
        self.passes, self.asked = 0, []
        self.ended = threading.Event()

    def __len__(self):
        return self.count

    def __iter__(self):
        self.passes += 1
        try:
            for number in range(self.count):
                self.asked.append(threading.current_thread())
                if number == self.fails:
                    raise ValueError(f"batch {number} is bad")
                yield torch.tensor(number)
        finally:
            self.ended.set()


def numbers(batches):
    return [int(batch) for batch in batches]


def wait_for(condition):
    """The deadline only keeps a failing test from hanging."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


# Batches


@pytest.mark.parametrize("size", [1, 50])
def test_order_is_kept_and_each_loop_iterates_anew(size):
    source = Source(20)
    prefetch = tpufeed.device_loader(source, "cpu", device_prefetch=size)
    assert len(prefetch) == 20
    for _ in range(2):
        assert numbers(prefetch) == list(range(20))
    assert source.passes == 2
    assert numbers(tpufeed.device_loader([torch.tensor(7)], "cpu", device_prefetch=size)) == [7]
    assert numbers(tpufeed.device_loader([], "cpu", device_prefetch=size)) == []


def test_just_size_batches_are_ahead():
    source = Source(20)
    iterator = iter(tpufeed.device_loader(source, "cpu", device_prefetch=3))
    assert source.passes == 0  # iter() alone asks for nothing
    for handed in range(1, 17):
        next(iterator)
        wait_for(lambda: len(source.asked) >= handed + 3)  # noqa: B023  # is called at once
        time.sleep(0.002)
        assert len(source.asked) == handed + 3
    del iterator


def test_the_first_batch_comes_in_the_thread_of_the_caller():
    """Ranks talk to one another there, and processes are forked."""
    source = Source(5)
    numbers(tpufeed.device_loader(source, "cpu"))
    assert source.asked[0] is threading.current_thread()
    assert {thread.name for thread in source.asked[1:]} == {"tpufeed-device_0"}


def test_tensors_move_at_any_depth_and_all_else_stays():
    Pair = namedtuple("Pair", "left right")
    one, names = torch.ones(2, 3), np.array(["a", "b"], object)
    batch = {"a": (one, [one, "text"]), "b": Pair(one, None), "names": names}
    (moved,) = tpufeed.device_loader([batch], "meta")
    for tensor in (moved["a"][0], moved["a"][1][0], moved["b"].left):
        assert (tensor.device.type, tensor.shape, tensor.dtype) == ("meta", (2, 3), torch.float32)
    assert (moved["a"][1][1], moved["b"].right) == ("text", None)
    assert type(moved["b"]) is Pair
    assert moved["names"] is names
    assert isinstance(moved, Mapping)
    (same,) = tpufeed.device_loader([one])
    assert same is one  # no accelerator: the CPU, and no copy


def test_a_wrong_size_is_an_error():
    for size in (0, -1, 1.5):
        with pytest.raises(OptionError, match="device_prefetch"):
            tpufeed.device_loader([], "cpu", device_prefetch=size)


# Leaving


@pytest.mark.parametrize("fails", [0, 7])
def test_an_exception_comes_after_the_batches_before_it(fails):
    source = Source(20, fails)
    prefetch = tpufeed.device_loader(source, "cpu", device_prefetch=2)
    iterator = iter(prefetch)
    assert numbers(itertools.islice(iterator, fails)) == list(range(fails))
    with pytest.raises(ValueError, match=f"batch {fails} ") as caught:
        next(iterator)
    assert caught.traceback[-1].name == "__iter__"  # leads to the source
    assert not threads()
    with pytest.raises(StopIteration):
        next(iterator)
    source.fails = None
    assert numbers(prefetch) == list(range(20))


@pytest.mark.parametrize("way", ["break", "exception", "interrupt", "close", "next loop", "garbage"])
def test_every_way_to_leave_ends_the_thread_and_the_source(way):
    source = Source(1000)
    prefetch = tpufeed.device_loader(source, "cpu")
    if way == "break":
        for _ in prefetch:
            assert threads()
            break
    elif way in ("exception", "interrupt"):
        error = {"exception": ValueError, "interrupt": KeyboardInterrupt}[way]
        with pytest.raises(error):  # noqa: PT012
            for _ in prefetch:
                raise error
    elif way == "close":
        iterator = iter(prefetch)
        next(iterator)
        prefetch.close()
        with pytest.raises(LoaderError, match="closed"):
            next(iterator)
    elif way == "next loop":
        iterator = iter(prefetch)
        next(iterator)
        following = iter(prefetch)
        assert next(iterator) == 1  # that one has not begun
        next(following)
        with pytest.raises(LoaderError, match="another iteration"):
            next(iterator)
        del following
    else:
        cycle = [iter(prefetch)]
        cycle.append(cycle)
        next(cycle[0])
        del cycle
        gc.collect()
    assert not threads()
    assert source.ended.is_set()
    asked = len(source.asked)
    time.sleep(0.01)
    assert len(source.asked) == asked < 10


def test_an_interrupted_wait_ends_the_thread(monkeypatch):
    source = Source(1000)
    iterator = iter(tpufeed.device_loader(source, "cpu"))
    next(iterator)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tpufeed.adapters.device.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert not threads()


def test_closing_from_another_thread_ends_a_wait():
    release = threading.Event()

    def source():
        yield torch.tensor(0)
        release.wait(20)
        yield torch.tensor(1)
        raise AssertionError("was asked for more than size")

    prefetch = tpufeed.device_loader(Restartable(source), "cpu", device_prefetch=1)
    iterator = iter(prefetch)
    next(iterator)
    closer = threading.Thread(target=prefetch.close)
    closer.start()
    wait_for(lambda: iterator._closed)
    release.set()
    with pytest.raises(LoaderError, match="closed"):
        next(iterator)
    closer.join()


class Restartable:
    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        return self.generator()


def test_batches_that_were_handed_out_are_not_kept():
    class Big(torch.Tensor):
        pass

    made = []

    def source():
        for _ in range(6):
            batch = torch.zeros(4).as_subclass(Big)
            made.append(weakref.ref(batch))
            yield batch
            del batch

    for _ in tpufeed.device_loader(Restartable(source), "cpu"):
        pass
    del _
    assert [reference() for reference in made] == [None] * 6


# What a source has


def test_what_the_source_has_is_there_as_well():
    data = TensorDataset(torch.arange(12))
    sampler = DistributedSampler(data, 2, 0, seed=5)
    loader = DataLoader(data, 3, sampler=sampler, collate_fn=lambda rows: torch.stack([row for (row,) in rows]))
    prefetch = tpufeed.device_loader(loader, "cpu")
    assert (len(prefetch), prefetch.dataset, prefetch.batch_size) == (2, data, 3)
    assert prefetch.sampler is prefetch.batch_sampler.sampler is sampler
    assert not hasattr(prefetch, "state_dict")  # nor has a DataLoader
    assert not hasattr(prefetch, "nothing")
    prefetch.set_epoch(3)
    assert sampler.epoch == 3
    assert torch.cat(list(prefetch)).tolist() == list(sampler)
    tpufeed.device_loader([]).set_epoch(1)  # has none, and needs none
    assert len(pickle.loads(pickle.dumps(tpufeed.device_loader([1, 2])))) == 2


def test_a_state_of_any_kind_is_handed_through():
    class Cursor(list):
        at = 0

        def state_dict(self):
            return self.at

        def load_state_dict(self, state):
            self.at = state

        def __iter__(self):
            while self.at < len(self):
                self.at += 1
                yield self[self.at - 1]

    prefetch = tpufeed.device_loader(Cursor(map(torch.tensor, range(6))), "cpu")
    iterator = iter(prefetch)
    assert numbers(itertools.islice(iterator, 2)) == [0, 1]
    state = prefetch.state_dict()
    assert (state, repr(prefetch)[:24]) == (2, "StatefulTorchDeviceFeed(")
    prefetch.load_state_dict(state)
    assert numbers(prefetch) == [2, 3, 4, 5]


# An accelerator: there is none here, so its streams are stand-ins that note what is asked of them


class Stream:
    def __init__(self, device, log, name="side"):
        self.device, self.log, self.name = torch.device(device), log, name

    def __enter__(self):
        self.log.append("enter")

    def __exit__(self, *_):
        self.log.append("leave")

    def record_event(self):
        self.log.append("record")
        return Stream(self.device, self.log, "event")

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event.name}")


@pytest.fixture
def accelerator(monkeypatch):
    """meta tensors on an accelerator of that name; what is asked of it, in order."""
    log = []

    def synchronize(device):
        log.append(f"synchronize {device}")

    def pin(tensor):
        log.append("pin")
        return tensor

    def moved(tensor, device, non_blocking):
        log.append(f"to {device}, {non_blocking}")
        return to(tensor, device)

    to = torch.Tensor.to
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: Stream(device, log, "current"))
    monkeypatch.setattr(torch, "Stream", lambda device: Stream(device, log))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: log.append(f"used in {stream.name}"))
    return log


@pytest.mark.parametrize(
    ("device", "asked"), [([], ["pin", "to meta:3, False", "synchronize meta:3"]), (["cpu"], ["to cpu, True"])], ids=str
)
def test_without_streams_the_copy_is_waited_for(accelerator, device, asked):
    """The device has its number: in another thread the current one may be another. For the CPU nothing is pinned."""
    list(tpufeed.device_loader([torch.zeros(2)], *device))
    assert accelerator == asked


def test_pinned_memory_is_kept_until_the_copy_is_done(accelerator, monkeypatch):
    pinned, alive = [], []

    def pin(tensor):
        copied = tensor.clone()
        pinned.append(weakref.ref(copied))
        return copied

    def synchronize(_):
        alive.append([reference() is not None for reference in pinned])

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    iterator = iter(tpufeed.device_loader([(torch.zeros(2), torch.ones(2))]))
    next(iterator)
    assert alive == [[True, True]]
    gc.collect()
    assert [reference() for reference in pinned] == [None, None]
    iterator.close()


def test_with_streams_the_consumer_waits_on_the_device(accelerator, monkeypatch):
    monkeypatch.setattr(torch_device, "_STREAMED", ("meta",))
    list(tpufeed.device_loader([(torch.zeros(2), torch.ones(2))]))
    assert accelerator == [
        *("enter", "pin", "pin", "to meta:3, True", "to meta:3, True", "record", "leave"),
        *("current waits for event", "used in current", "used in current"),
    ]


# TorchTPU: the device "tpu"


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Put a package's metadata on the path, as pip would; its code is what no test here has."""

    def begin(name, *headers, **files):
        folder = tmp_path / f"{name}-0.2.0.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 0.2.0", *headers]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        for file, text in files.items():
            (folder / f"{file}.txt").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))

    return begin


@pytest.mark.parametrize("device", ["tpu", "tpu:0"])
def test_without_torch_tpu_the_extra_is_named(monkeypatch, device):
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    with pytest.raises(MissingExtraError, match=r"\[torchtpu\]"):
        tpufeed.device_loader([], device)


def test_where_torch_xla_is_its_loader_is_named():
    with pytest.raises(OptionError, match="to_xla"):
        tpufeed.device_loader([], "tpu")


@pytest.mark.parametrize("entries", [{}, {"entry_points": "[torch.backends]\ntorch_tpu = torch_tpu:_autoload\n"}])
def test_another_package_of_that_name_is_refused(install, entries):
    install("torch_tpu", **entries)
    with pytest.raises(OptionError, match="pip uninstall torch_tpu"):
        tpufeed.device_loader([], "tpu")


@pytest.mark.parametrize("header", ["Home-page: ", "Project-URL: Homepage, "])
def test_without_a_tpu_it_says_where_to_run(install, header):
    install("torch_tpu", f"{header}https://github.com/google-pytorch/torch_tpu")
    with pytest.raises(OptionError, match=r"torch_tpu 0\.2\.0"):
        tpufeed.device_loader([], "tpu")
