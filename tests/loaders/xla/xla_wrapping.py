"""What to_xla makes of other loaders, and of states; run within xla_one_device.py."""

import collections
import copy
import dataclasses
import logging
import pickle
import threading
import time

import numpy as np
import torch
import torch_xla
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, RandomSampler
from torch_xla import runtime
from torch_xla.debug import metrics
from torch_xla.distributed import parallel_loader

import tpufeed
from tpufeed.errors import OptionError, TpufeedError
from tpufeed.loaders import device
from tpufeed.loaders.rank_check import EpochSpec
from tpufeed.loaders.xla import runtime as xla_runtime

Pair = collections.namedtuple("Pair", "image label")


class Source:
    """Batches that are made one by one."""

    def __init__(self, make, batches=4):
        self.make, self.batches = make, batches

    def __iter__(self):
        return map(self.make, range(self.batches))


class Stateful(Source):
    """That counts what was taken from it, as StatefulDataLoader does."""

    taken = start = 0

    def __iter__(self):
        self.taken, self.start = self.start, 0
        for number in range(self.taken, self.batches):
            self.taken = number + 1
            yield self.make(number)

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.start = state["taken"]


def number(value):
    return torch.tensor([value])


def run(loader):
    """What a loop over `loader` was given, and the error that ended it."""
    seen = []
    try:
        for batch in loader:
            seen.append(batch.item() if isinstance(batch, torch.Tensor) else batch)
    except Exception as error:  # noqa: BLE001  # whichever it is
        return seen, f"{type(error).__name__}: {error}", repr(error.__cause__)
    return seen, None, None


def threads():
    return [thread.name for thread in threading.enumerate() if "tpufeed" in thread.name]


def failing():
    """Each way in which a source, or the way to the device, can fail."""

    def at(position, error):
        def make(value):
            if value == position:
                raise error
            return number(value)

        return make

    def unsendable(value):
        return number(value) if value != 2 else torch.empty(3).to_sparse()

    class Unopenable(Source):
        def __iter__(self):
            raise OSError("no such stream")

    cause = ValueError("rotten")
    cause.__cause__ = KeyError("the reason")
    workers = DataLoader(range(8), batch_size=2, num_workers=1, collate_fn=Fails(5), multiprocessing_context="fork")
    found = {
        "in the middle": run(tpufeed.device_loader(Source(at(2, cause)), "xla")),
        "at once": run(tpufeed.device_loader(Source(at(0, ValueError("rotten"))), "xla")),
        "opening": run(tpufeed.device_loader(Unopenable(number), "xla")),
        "none": run(tpufeed.device_loader(Source(lambda value: number(value) if value != 2 else None), "xla")),
        "sending": run(tpufeed.device_loader(Source(unsendable, 20), "xla")),
        "a worker": run(tpufeed.device_loader(workers, "xla")),
    }
    return found, threads()


class Fails:
    def __init__(self, sample):
        self.sample = sample

    def __call__(self, samples):
        if self.sample in samples:
            raise ValueError("rotten")
        return number(samples[0])


def forms():
    """Batches of every form, and what comes out: types, devices and values."""
    image, label = torch.arange(6).reshape(2, 3), np.array([1.5, 2.5], np.float32)
    batches = {
        "tuple": (image, label),
        "list": [image, label],
        "namedtuple": Pair(image, label),
        "dict": {"image": image, "label": label},
        "ordered": collections.OrderedDict(image=image, label=label),
        "user dict": collections.UserDict(image=image, label=label),
        "nested": {"a": [image, (label, "text", None, 7)], "b": {"c": image.to(torch.uint8)}},
        "strings": (image, np.array(["x", "y"], object), np.array(["x", "y"])),
        "no tensor": ("x", "y"),
        "subclass": (torch.nn.Parameter(label_of(label)), image),
        "transposed": image.t(),
    }

    def shown(value):
        if isinstance(value, torch.Tensor):
            return value.device.type, type(value).__name__, str(value.dtype), value.cpu().tolist()
        if isinstance(value, dict):
            return {name: shown(part) for name, part in value.items()}
        if isinstance(value, tuple | list):
            return type(value).__name__, [shown(part) for part in value]
        return value.tolist() if isinstance(value, np.ndarray) else value

    return {
        name: shown(next(iter(tpufeed.device_loader(Source(lambda _, batch=batch: batch, 1), "xla"))))
        for name, batch in batches.items()
    }


def label_of(array):
    return torch.from_numpy(array)


def stuck():
    """Leaving a loop over a source that is busy for ever: what is logged."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("tpufeed").addHandler(handler)
    device._CLOSE_SECONDS = 0.3
    released, reached = threading.Event(), threading.Event()

    def make(value):
        if value == 2:
            reached.set()
            released.wait(60)
        return number(value)

    loader = tpufeed.device_loader(Source(make, 5), "xla", device_prefetch=1)
    seen = []
    for batch in loader:
        seen.append(batch.item())
        if len(seen) == 2:
            reached.wait(20)
            break
    released.set()
    deadline = time.monotonic() + 20
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    device._CLOSE_SECONDS = 10.0
    return seen, messages, threads()


def states(cache):
    """A state after each number of batches, and the samples that a loader that loads it goes on with."""
    options = {"columns": ["sample"], "batch_size": 10}
    loader = tpufeed.Loader(cache, **options).to_xla()
    found = [(loader.state_dict(), "before")]
    for _ in range(2):
        for samples in loader:
            time.sleep(0.02)  # the queues fill
            found.append((loader.state_dict(), samples.cpu().tolist()))
    rests = []
    for taken in (3, 7, 10):
        other = tpufeed.Loader(cache, **options).to_xla()
        other.load_state_dict(found[taken][0])
        assert other.state_dict()["epoch"] == (taken >= 7)
        other.set_epoch(other.state_dict()["epoch"])  # as Lightning does
        rests.append([samples.cpu().tolist() for samples in other])
    moved = tpufeed.Loader(cache, **options).to_xla()
    moved.load_state_dict(found[3][0])
    moved.set_epoch(1)
    rests.append([samples.cpu().tolist() for samples in moved])
    return found, rests


def states_of_others():
    source = Stateful(number, 6)
    loader = tpufeed.device_loader(source, "xla")
    iterator = iter(loader)
    seen = [next(iterator).item() for _ in range(2)]
    time.sleep(0.2)
    state = loader.state_dict()
    other = tpufeed.device_loader(Stateful(number, 6), "xla")
    other.load_state_dict(state)
    plain = tpufeed.device_loader(DataLoader(range(4)), "xla")
    plain.load_state_dict(plain.state_dict())
    try:
        plain.load_state_dict(state)
    except OptionError as error:
        message = str(error)
    return seen, state, source.taken, [batch.item() for batch in other], plain.state_dict(), message


def epochs_named(cache):
    """set_epoch while an iteration is open, before it is begun, and of a user's sampler."""
    options = {"columns": ["sample"], "batch_size": 10}
    loader = tpufeed.Loader(cache, **options).to_xla()
    iterator = iter(loader)
    loader.sampler.set_epoch(3)
    named = [samples.cpu().tolist() for samples in iterator]
    iterator = iter(loader)
    next(iterator)
    loader.batch_sampler.sampler.set_epoch(5)
    try:
        next(iterator)
    except TpufeedError as error:
        message = str(error)
    dataset, epochs = tpufeed.TFRecordImages(cache), []

    class Sampler(RandomSampler):
        def set_epoch(self, epoch):
            epochs.append(epoch)

    tpufeed.device_loader(DataLoader(dataset, sampler=Sampler(dataset)), "xla").set_epoch(4)
    return named, message, epochs


def copies(cache):
    """A loader that has not been iterated, copied and pickled."""
    loader = tpufeed.Loader(cache, columns=["sample"], batch_size=10).to_xla()
    found = []
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader)), loader):
        found.append([samples.cpu().tolist() for samples in other])
        other.close()
    found.append([samples.cpu().tolist() for samples in pickle.loads(pickle.dumps(loader))])
    return found


def refused(cache):
    """What to_xla says to what it cannot take."""
    given = {
        "iterator": lambda: tpufeed.device_loader(iter([number(1)]), "xla"),
        "dataset": lambda: tpufeed.device_loader(tpufeed.TFRecordImages(cache).__getitem__, "xla"),
        "wrapped": lambda: tpufeed.device_loader(parallel_loader.MpDeviceLoader([], torch_xla.device()), "xla"),
        "options": lambda: tpufeed.device_loader([number(1)], "xla", batch_size=3),
        "queue": lambda: tpufeed.Loader(cache).to_xla(device_prefetch=0),
        "sharding": lambda: next(iter(tpufeed.device_loader([number(1)], "xla", sharding={}))),
    }
    found = {}
    for name, make in given.items():
        try:
            make()
        except OptionError as error:
            found[name] = str(error)
    return found


def counted(cache):
    """Statistics, and what Accelerate makes of the loader."""
    with tpufeed.Loader(cache, batch_size=10) as host:
        loader = Accelerator().prepare(tpufeed.device_loader(host, "xla"))
        devices = [images.device.type for images, _ in loader]
        stats = loader.stats()
        try:
            skip_first_batches(loader, 3)
        except OptionError as error:
            skipped = str(error)
    return type(loader).__name__, devices, dataclasses.asdict(stats), skipped


def on_torch_loader(cache):
    with tpufeed.Loader(cache, columns=["sample"], batch_size=10).to_torch() as host:
        return [samples.cpu().tolist() for samples in tpufeed.device_loader(host, "xla")]


def over_collectives():
    """A spec by the way that it takes where ranks are processes, here by a collective of one."""
    spec, kind = EpochSpec(0, 7, 5, "order", "broken \u00e9"), runtime.device_type
    runtime.device_type = lambda: "TPU"
    try:
        return list(xla_runtime.exchange(spec, tpufeed.World())) == [spec]
    finally:
        runtime.device_type = kind


def compiled():
    """Graphs that each of four steps has compiled, which flip, shift, mix and normalise; and the pixels of the last."""
    images = torch.arange(4 * 8 * 16 * 3).reshape(4, 8, 16, 3).to(torch.uint8)
    counts, fetched = [], metrics.metric_data("TransferFromDeviceTime")[0]
    for step in range(4):
        before = (metrics.metric_data("CompileTime") or [0])[0]
        on_device = images.to(torch_xla.device())
        moved = tpufeed.random_shift(tpufeed.random_flip(on_device, seed=(7, step)), pixels=3, seed=(7, step))
        labels = torch.arange(4, device=on_device.device)
        moved, _ = tpufeed.images.mixup(moved, labels, seed=(7, step), classes=4)
        moved, _ = tpufeed.images.cutmix(moved, labels, seed=(7, step), classes=4)
        floats = tpufeed.to_device_float(moved)
        torch_xla.sync()
        counts.append((metrics.metric_data("CompileTime") or [0])[0] - before)
    fetched = metrics.metric_data("TransferFromDeviceTime")[0] - fetched
    host = tpufeed.random_shift(tpufeed.random_flip(images, seed=(7, 3)), pixels=3, seed=(7, 3))
    for mix in (tpufeed.images.mixup, tpufeed.images.cutmix):
        host, _ = mix(host, torch.arange(4), seed=(7, 3), classes=4)
    return counts, fetched, moved.cpu().numpy(), host.numpy(), (floats.device.type, str(floats.dtype))


def collect(cache):
    return {
        "copies": copies(cache),  # first: no runtime yet
        "failing": failing(),
        "forms": forms(),
        "stuck": stuck(),
        "states": states(cache),
        "states of others": states_of_others(),
        "epochs": epochs_named(cache),
        "refused": refused(cache),
        "counted": counted(cache),
        "to_torch": on_torch_loader(cache),
        "over collectives": over_collectives(),
        "compiled": compiled(),
    }
