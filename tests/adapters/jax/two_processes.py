"""Two processes of JAX with four CPU devices each, that iterate to_jax; each writes down what it saw.

Usage: two_processes.py CACHE_URL BROKEN_URL FOLDER     process 1 takes BROKEN_URL where it is to fail
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tpufeed
from tpufeed.images import HorizontalFlip

SIZE, DEVICES = 2, 4
COLUMNS = ["image", "sample"]


def make(url, sharding=None, device_prefetch=2, **options):
    loader = tpufeed.Loader(url, **{"batch_size": 8, "columns": COLUMNS, "processes": 0, "threads": 1} | options)
    return loader.to_jax(sharding, device_prefetch=device_prefetch)


def rows_of(array):
    """The first row and the values of each block of this process."""
    blocks = {shard.index[0].start or 0: np.asarray(shard.data).tolist() for shard in array.addressable_shards}
    return sorted(blocks.items())


def check_pixels(pixels, image, sample):
    """Each device holds the images, or the part of them, that its samples are."""
    ids = {shard.device: np.asarray(shard.data) for shard in sample.addressable_shards}
    for shard in image.addressable_shards:
        expected = pixels[ids[shard.device]][(slice(None), *shard.index[1:])]
        np.testing.assert_array_equal(np.asarray(shard.data), expected)


def epoch_of(loader, pixels):
    """The rows of each batch. The global array is one and the same: all processes find the same sum of all pixels."""
    total = jax.jit(lambda image: image.astype("int32").sum())
    found = []
    for image, sample in loader:
        check_pixels(pixels, image, sample)
        found.append((rows_of(sample), sample.shape[0], int(total(image))))
    return found


def error_of(loader):
    """What the first batch raises, and what that comes from."""
    try:
        next(iter(loader))
    except Exception as error:  # noqa: BLE001  # whatever it is
        return f"{type(error).__name__}: {error}", type(error.__context__).__name__
    return None


def meshes():
    """By name: a sharding, and whether it splits images, too."""
    devices = np.array(jax.devices())
    mixed, model = devices.reshape(2, 4).T, devices.reshape(2, 2, 2).transpose(1, 2, 0)
    return {
        "backwards": Mesh(devices[::-1], ("data",)),
        "interleaved": Mesh(mixed.ravel(), ("data",)),
        "model in a process": Mesh(devices.reshape(4, 2), ("data", "model")),
        "model across": NamedSharding(Mesh(mixed, ("data", "model")), P("data")),
        "pixels across": NamedSharding(Mesh(mixed, ("data", "model")), P("data", "model")),
        "all across": NamedSharding(Mesh(model, ("a", "b", "model")), P(("a", "b"), None, "model")),
        "replicated": NamedSharding(Mesh(devices, ("data",)), P()),
        "overlapping": NamedSharding(Mesh(devices[[0, 1, 2, 4, 3, 5, 6, 7]].reshape(4, 2), ("d", "m")), P("d")),
        "unequal": Mesh(devices[[0, 1, 4]], ("data",)),
        "of process 0": Mesh(devices[:4], ("data",)),
    }


def run(process, loader, url, broken):
    odd = process == 1
    with tpufeed.Loader(url, batch_size=8, columns=["sample"], processes=0) as host:
        host_epoch = [samples.tolist() for samples in host]
    with tpufeed.Loader(url, batch_size=70, shuffle=False, processes=0, world=(0, 1)) as host:
        ((pixels, _),) = host
        host.set_epoch(1)
        ((other_pixels, _),) = host
    found = {"epochs": [epoch_of(loader, pixels), epoch_of(loader, other_pixels)], "length": len(loader)}
    found["host"] = host_epoch
    iterator = iter(make(url))
    next(iterator), next(iterator)
    found["state"] = iterator.get_state()
    shardings = meshes()
    for name in ("backwards", "interleaved", "model in a process", "model across", "pixels across", "all across"):
        found[name] = epoch_of(make(url, sharding=shardings[name]), pixels)
    found["replicated"] = epoch_of(make(url, sharding=shardings["replicated"]), pixels)
    for name in ("interleaved", "model in a process", "replicated"):
        mirrored = make(url, sharding=shardings[name], device_ops=[HorizontalFlip(p=1.0)])
        found[f"{name}, device ops"] = epoch_of(mirrored, pixels[:, :, ::-1])

    found["batch size"] = error_of(make(url, batch_size=4 if odd else 8))
    found["seed"] = error_of(make(url, seed=int(odd)))
    found["cannot begin"] = error_of(make(broken if odd else url, shuffle=False))
    found["sharding"] = error_of(make(url, sharding=shardings["replicated"] if odd else None))
    resumed = make(url)
    if odd:
        resumed.load_state_dict(loader.state_dict())
    found["resumed"] = error_of(resumed)
    for name in ("overlapping", "unequal"):
        found[name] = error_of(make(url, sharding=shardings[name], batch_size=12))
    found["of process 0"] = error_of(make(url, sharding=shardings["of process 0"]))

    sync_global_devices("before a process is alone")
    if not odd:
        found["by hand"] = len(list(make(url, world=(0, 2))))  # taken at its word, without asking the other
        found["alone"] = error_of(make(url, timeout_seconds=1))
    sync_global_devices("it has given up")
    if odd:
        next(iter(make(url)))  # comes then, and finds what that left
    return found


def main(url, broken, folder, port, process):
    loader = make(url)  # before JAX knows that there are others
    jax.distributed.initialize(f"127.0.0.1:{port}", SIZE, int(process), initialization_timeout=60)
    Path(folder, f"{process}.json").write_text(json.dumps(run(int(process), loader, url, broken)))
    sync_global_devices("the end")


def start():
    """Both processes; the exit code of the worse."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}", "JAX_PLATFORMS": "cpu"}
    commands = [[sys.executable, *sys.argv, port, str(process)] for process in range(SIZE)]
    started = [subprocess.Popen(command, env=os.environ | flags) for command in commands]
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    sys.exit(start() if len(sys.argv) == 4 else main(*sys.argv[1:]))
