"""Run by test_torchxla.py on one CPU device: writes down what to_xla did there.

xla_one_device.py CACHE FLAT DAMAGED OUT
"""

import faulthandler
import gc
import importlib
import json
import os
import pickle
import sys
import threading
import time
from pathlib import Path

import torch
import torch_xla
import xla_wrapping

import tpufeed
from tpufeed.errors import LoaderError, RecordError

sys.path.append(str(Path(__file__).parents[3] / "scripts"))
OPEN = []

os.environ.setdefault("TPUFEED_PROCESSES", "0")  # worker processes take a second to start
faulthandler.dump_traceback_later(140, exit=True)


def on_host(value):
    """Tensors as numpy arrays, each with its device's type."""
    if isinstance(value, torch.Tensor):
        return value.device.type, value.cpu().numpy()
    if isinstance(value, dict):
        return {name: on_host(item) for name, item in value.items()}
    return tuple(map(on_host, value)) if isinstance(value, tuple) else value


def threads(*names):
    return [thread.name for thread in threading.enumerate() if any(name in thread.name for name in names)]


def threads_left(seconds=20):
    """Of torch_xla's loader at once, of ours when an executor's have had the time to end."""
    left = threads("tpufeed-xla")
    deadline = time.monotonic() + seconds
    while threads("tpufeed-decode") and time.monotonic() < deadline:
        time.sleep(0.01)
    return left + threads("tpufeed-decode")


def asked_again(iterator):
    """What one that has ended before its time says."""
    try:
        return next(iterator)
    except LoaderError as error:
        return str(error)
    except StopIteration:
        return "ended"


def kinds_of_batches(cache, flat):
    """The first batch by each choice of columns."""
    chosen = {
        "default": (cache, {}),
        "dict": (cache, {"columns": None, "remainder": "pad"}),
        "strings": (cache, {"columns": ["image", "filename", "sample"]}),
        "labels alone": (cache, {"columns": ["label"]}),
        "unlabelled": (flat, {}),
        "unlabelled, padded": (flat, {"remainder": "pad"}),
    }
    return {
        name: on_host(next(iter(tpufeed.Loader(url, batch_size=8, shuffle=False, **options).to_xla())))
        for name, (url, options) in chosen.items()
    }


def kept_on_the_device(cache):
    """All batches of four epochs, held on the device and looked at only at the end."""
    loader = tpufeed.Loader(cache, columns=["image", "sample"], batch_size=5).to_xla()
    kept = [(epoch, batch) for epoch in range(4) for batch in loader]
    return [(epoch, on_host(batch)) for epoch, batch in kept]


def epochs_of_iterators(cache):
    """The samples of an epoch after 20 iterations that were never begun, or left after a few batches."""
    found, replaced = [], []
    for used in (0, 1, 3):
        loader = tpufeed.Loader(cache, columns=["sample"], batch_size=10).to_xla()
        for _ in range(20):
            iterator = iter(loader)
            for _ in range(used):
                next(iterator)
        replacing = iter(loader)  # while `iterator` is open
        found.append([on_host(samples)[1] for samples in replacing])
        if used:
            replaced.append(asked_again(iterator))
        loader.set_epoch(0)
        found.append([on_host(samples)[1] for samples in loader])
    return found, replaced


def leaving(cache):
    """Threads that are left after each way to leave a loop; without the help of the garbage collector."""
    gc.disable()
    left = {}
    loader = tpufeed.Loader(cache, batch_size=2).to_xla()
    for _batch in loader:
        break
    left["break"] = threads("tpufeed-xla")
    try:
        for _batch in loader:
            raise KeyError
    except KeyError:
        pass
    left["exception"] = threads("tpufeed-xla")
    iterator = iter(loader)
    next(iterator)
    loader.close()
    left["close"] = threads("tpufeed-xla", "tpufeed-decode")
    left["asked after close"] = asked_again(iterator)
    left["batches after that"] = sum(1 for _ in loader)
    for _batch in loader:
        break
    del loader, iterator
    left["forgotten"] = threads_left()
    return left


def failing(damaged):
    """Samples delivered, the error, the threads that are left, and whether the next epoch (variant 1) is read."""
    loader = tpufeed.Loader(damaged, columns=["sample"], batch_size=5, shuffle=False).to_xla()
    delivered = []
    iterator = iter(loader)
    try:
        for samples in iterator:
            delivered += samples.cpu().tolist()
    except RecordError as error:
        message, trace = str(error), error.__traceback__
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    result = {"delivered": delivered, "message": message, "frames": frames, "after": asked_again(iterator)}
    result["threads at the error"] = threads("tpufeed-xla")
    result["next epoch"] = sum(1 for _ in loader)
    del loader, iterator, samples, trace
    result["threads"] = threads_left()
    return result


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


def samples_of_every_kind(folder):
    """Masks, boxes and labels of several classes, by to_xla and by Loader."""
    importlib.import_module("make_scenes").main(folder / "scenes", 20)
    kinds = {"label": "kinds", "boxes": "boxes", "box_format": "xywh", "keypoints": "spot"}
    source, target = folder / "scenes/scenes.jsonl", folder / "dataset"
    tpufeed.shard(source, target, workers=1, image_columns={"mask": "mask_path:mask"}, **kinds)
    columns = ["image", "mask", "boxes", "label", "spot", "window", "filename"]
    options = {"columns": columns, "batch_size": 8, "ops": [tpufeed.images.RandomResizedCrop(32)]}
    with tpufeed.Loader(target, **options) as host, tpufeed.Loader(target, **options).to_xla() as device:
        return host.form.names, next(iter(host)), on_host(next(iter(device)))


def main(cache, flat, damaged, out):
    found = {
        "wrapping": xla_wrapping.collect(cache),  # first: before there is a runtime
        "leaving": leaving(cache),
        "failing": failing(damaged),
        "kinds": kinds_of_batches(cache, flat),
        "kept": kept_on_the_device(cache),
        "epochs": epochs_of_iterators(cache),
        "wrong device": wrong_device(cache),
        "floats": floats(),
        "samples": samples_of_every_kind(Path(out).parent),
        "lengths": [
            len(tpufeed.Loader(cache, batch_size=8, remainder=how).to_xla()) for how in ("drop", "pad", "repeat")
        ],
        "lightning": lightning(cache, Path(out).parent),
        "mixture's dataset": tpufeed.Loader(tpufeed.Mixture({cache: 1, flat: 1}), columns=["image"]).to_xla().dataset,
    }
    Path(out).write_bytes(pickle.dumps(found))
    OPEN.append(iter(tpufeed.Loader(cache, batch_size=1).to_xla()))  # the process has to end all the same
    next(OPEN[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
