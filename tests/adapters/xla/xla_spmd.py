"""Run by test_loader.py: under SPMD one process feeds four CPU devices.

xla_spmd.py CACHE CACHE_OF_COEFFICIENTS
"""

import faulthandler
import json
import os
import sys

os.environ.setdefault("TPUFEED_PROCESSES", "0")  # worker processes take a second to start
import numpy as np
import torch
import torch_xla
from torch.utils.data import DataLoader
from torch_xla import runtime
from torch_xla.distributed import spmd

import tpufeed
from tpufeed.errors import TpufeedError
from tpufeed.images import HorizontalFlip

faulthandler.dump_traceback_later(280, exit=True)

COLUMNS = ("image", "label", "sample")
ROWS = ("data", None, None, None)


def shards(tensor):
    """The first axis of the part that each device holds, in their order."""
    return [len(shard.data) for shard in sorted(spmd.XLAShardedTensor(tensor).local_shards, key=device_number)]


def device_number(shard):
    return int(shard.shard_device.rpartition(":")[2])


def iterate(source, sharding=None, **options):
    """Batches: how each column lies on the devices, its form and values; and the error that ended them."""
    found = {"batches": [], "error": None, "form": None}
    try:
        host = tpufeed.Loader(source, **options) if isinstance(source, str) else source
        loader = tpufeed.device_loader(host, "xla", sharding=sharding)
        for batch in loader:
            found["form"] = type(batch).__name__
            columns = batch.values() if isinstance(batch, dict) else batch
            columns = [column for column in columns if isinstance(column, torch.Tensor)]
            found["specs"] = [torch_xla._XLAC._get_xla_sharding_spec(column) for column in columns]
            found["shards"] = [shards(column) for column in columns]
            found["batches"].append([int(column.cpu().to(torch.int64).sum()) for column in columns])
    except (TpufeedError, RuntimeError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def main(cache, coded):
    runtime.use_spmd()
    loader = tpufeed.Loader(cache, columns=["sample"], batch_size=10).to_xla()
    epochs = [np.concatenate([samples.cpu().numpy() for samples in loader]).tolist() for _ in range(2)]
    devices = runtime.addressable_runtime_device_count()

    mesh = spmd.Mesh(np.arange(4), (4,), ("data",))
    images = spmd.ShardingSpec(mesh, ("data", None, None, None), minibatch=True)
    each = spmd.ShardingSpec(mesh, ("data",), minibatch=True)
    whole = spmd.ShardingSpec(mesh, ("data", None, None, None))
    square = spmd.Mesh(np.arange(4), (2, 2), ("data", "model"))
    copied, rows = spmd.ShardingSpec(square, ROWS), spmd.ShardingSpec(square, ROWS[:1])
    three = {"image": images, "label": each, "sample": None}
    given = {"columns": COLUMNS, "batch_size": 8, "shuffle": False}
    unsigned = torch.arange(65000, 65512).to(torch.uint16).reshape(8, 8, 8, 1)
    host = DataLoader(tpufeed.TFRecordImages(cache), batch_size=8, drop_last=True)
    cases = {
        "dict": iterate(cache, sharding=three, **given),
        "batches of dicts": iterate(cache, sharding=three, **given | {"columns": None}),
        "strings": iterate(cache, sharding=three, **given | {"columns": ("image", "label", "filename")}),
        "one for all": iterate(cache, sharding=images, **given),
        "no minibatch": iterate(cache, sharding=whole, **given),
        "none": iterate(cache, **given),
        "device ops": iterate(cache, sharding=three, device_ops=[HorizontalFlip(p=1.0)], **given),
        "device ops, one for all": iterate(cache, sharding=images, device_ops=[HorizontalFlip(p=1.0)], **given),
        "coefficients": iterate(coded, sharding=three, device_ops=[HorizontalFlip(p=1.0)], **given),
        "a DataLoader": iterate(host, sharding={"image": images, "label": each}),
        "unsigned": iterate([[unsigned]], sharding={"image": images}),
        "two axes": iterate(cache, sharding=copied, **given),
        "two axes, each": iterate(cache, sharding={"image": copied, "label": rows, "sample": None}, **given),
        "two axes, minibatch": iterate(cache, sharding=spmd.ShardingSpec(square, ROWS, minibatch=True), **given),
        "no spec": iterate(cache, sharding=3, **given),
        "missing": iterate(cache, sharding={"image": images, "label": each}, **given),
        "other axes": iterate(cache, sharding=three | {"label": images}, **given),
        "not divisible": iterate(cache, sharding=three, **given | {"batch_size": 6}),
        "a last batch": iterate(DataLoader(tpufeed.TFRecordImages(cache), batch_size=64), sharding=images),
    }
    print(json.dumps({"devices": devices, "length": len(loader), "epochs": epochs, "cases": cases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
