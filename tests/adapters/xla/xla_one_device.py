"""Run by test_loader.py on one CPU device: writes down what to_xla, and device_loader of other loaders, did there.

xla_one_device.py CACHE FLAT OUT
"""

import collections
import dataclasses
import faulthandler
import gc
import json
import logging
import os
import pickle
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch_xla
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader
from torch_xla import runtime
from torch_xla.debug import metrics
from torch_xla.distributed import parallel_loader

import tpufeed
from tpufeed.adapters import device
from tpufeed.adapters.xla import runtime as xla_runtime
from tpufeed.errors import OptionError
from tpufeed.stream.rank_check import EpochSpec

Pair = collections.namedtuple("Pair", "image label")
OPEN = []

os.environ.setdefault("TPUFEED_PROCESSES", "0")  # worker processes take a second to start
faulthandler.dump_traceback_later(280, exit=True)


class Source:
    """Batches that are made one by one."""

    def __init__(self, make, batches=4):
        self.make, self.batches = make, batches

    def __iter__(self):
        return map(self.make, range(self.batches))


def number(value):
    return torch.tensor([value])


def run(loader):
    """What a loop over `loader` was given, and the error that ended it."""
    seen = []
    try:
        for batch in loader:
            seen.append(batch.item() if isinstance(batch, torch.Tensor) else batch)
    except Exception as error:  # noqa: BLE001  # whichever it is
        return seen, f"{type(error).__name__}: {error}"
    return seen, None


def threads():
    return [thread.name for thread in threading.enumerate() if "tpufeed" in thread.name]


def failing():
    """What is no batch, what does not get to the device, and a worker process that fails."""

    def unsendable(value):
        return number(value) if value != 2 else torch.empty(3).to_sparse()

    workers = DataLoader(range(8), batch_size=2, num_workers=1, collate_fn=Fails(5), multiprocessing_context="fork")
    found = {
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


UNSIGNED = "uint16", "uint32", "uint64"


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
        "subclass": (torch.nn.Parameter(torch.from_numpy(label)), image),
        "transposed": image.t(),
        "unsigned": {each: torch.tensor([0, 1, 60000]).to(getattr(torch, each)) for each in UNSIGNED},
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
    deadline = time.monotonic() + 60
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    device._CLOSE_SECONDS = 10.0
    return seen, messages, threads()


def states_of_others():
    """What a loader without states saves, and says of a state of another."""
    plain = tpufeed.device_loader(DataLoader(range(4)), "xla")
    plain.load_state_dict(plain.state_dict())
    try:
        plain.load_state_dict({"taken": 2})
    except OptionError as error:
        return plain.state_dict(), str(error)


def refused(cache):
    """What device_loader and to_xla say to what they cannot take."""
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


def over_collectives():
    """A spec as ranks that are processes exchange it, here by a collective of one."""
    spec, kind = EpochSpec(0, 7, 5, "order", "broken \u00e9"), runtime.device_type
    runtime.device_type = lambda: "TPU"
    try:
        return list(xla_runtime.exchange(spec, tpufeed.World())) == [spec]
    finally:
        runtime.device_type = kind


def compiled():
    """Graphs that each of four steps has compiled, which normalise, and the transfers back to the host."""
    images = torch.arange(4 * 8 * 16 * 3).reshape(4, 8, 16, 3).to(torch.uint8)
    counts, fetched = [], metrics.metric_data("TransferFromDeviceTime")[0]
    for _ in range(4):
        before = (metrics.metric_data("CompileTime") or [0])[0]
        floats = tpufeed.to_device_float(images.to(torch_xla.device()))
        torch_xla.sync()
        counts.append((metrics.metric_data("CompileTime") or [0])[0] - before)
    fetched = metrics.metric_data("TransferFromDeviceTime")[0] - fetched
    return counts, fetched, (floats.device.type, str(floats.dtype))


def on_host(value):
    """Tensors as numpy arrays, each with its device's type."""
    if isinstance(value, torch.Tensor):
        return value.device.type, value.cpu().numpy()
    if isinstance(value, dict):
        return {name: on_host(item) for name, item in value.items()}
    return tuple(map(on_host, value)) if isinstance(value, tuple) else value


def kept_on_the_device(cache):
    """All batches of four epochs, held on the device and looked at only at the end."""
    loader = tpufeed.Loader(cache, columns=["image", "sample"], batch_size=5).to_xla()
    kept = [(epoch, batch) for epoch in range(4) for batch in loader]
    return [(epoch, on_host(batch)) for epoch, batch in kept]


def wrong_device(cache):
    """What goes to sys.unraisablehook when a loader cannot be opened."""
    unraisable = []
    sys.unraisablehook = lambda item: unraisable.append(str(item.exc_value))
    try:
        next(iter(tpufeed.Loader(cache, batch_size=8).to_xla(device="nonsense")))
    except RuntimeError as error:
        message = str(error)
    gc.collect()
    sys.unraisablehook = sys.__unraisablehook__
    return message, unraisable


def floats():
    """Normalised images in each layout and dtype."""
    pixels = torch.arange(2 * 8 * 16 * 3, dtype=torch.int64).reshape(2, 8, 16, 3).to(torch.uint8)
    images = pixels.to(torch_xla.device())
    own = {"mean": (0.1, 0.2, 0.3), "std": (1.0, 0.5, 0.25), "dtype": torch.float32}
    made = {
        "NCHW": tpufeed.to_device_float(images),
        "NHWC": tpufeed.to_device_float(images, layout="NHWC"),
        "own": tpufeed.to_device_float(images, **own),
    }
    dtypes = {name: (value.dtype, value.device.type) for name, value in made.items()}
    return pixels.numpy(), dtypes, {name: value.cpu().float().numpy() for name, value in made.items()}


def lightning(cache, folder):
    """What xla_lightning.py finds on one device; imported here, as it takes seconds."""
    import xla_lightning

    xla_lightning.main(cache, "1", folder)
    return {name: json.loads(Path(folder, f"{name}.json").read_text()) for name in ("whole", "left", "0")}


def main(cache, flat, out):
    found = {
        "failing": failing(),
        "forms": forms(),
        "stuck": stuck(),
        "states of others": states_of_others(),
        "refused": refused(cache),
        "counted": counted(cache),
        "over collectives": over_collectives(),
        "compiled": compiled(),
        "kept": kept_on_the_device(cache),
        "wrong device": wrong_device(cache),
        "floats": floats(),
        "lightning": lightning(cache, Path(out).parent),
        "mixture's dataset": tpufeed.Loader(tpufeed.Mixture({cache: 1, flat: 1}), columns=["image"]).to_xla().dataset,
    }
    Path(out).write_bytes(pickle.dumps(found))
    OPEN.append(iter(tpufeed.Loader(cache, batch_size=1).to_xla()))  # the process has to end all the same
    next(OPEN[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
