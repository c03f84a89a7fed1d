"""Run by test_torchxla.py on four CPU devices, a thread each: writes down what every rank's xla_loader did.

xla_four_devices.py DATASET CACHE DAMAGED INCOMPLETE OUT
"""

import faulthandler
import json
import sys
import threading
import time
import zlib
from pathlib import Path

import torch_xla
from torch_xla import runtime

import tpufeed
from tpufeed.errors import TpufeedError
from tpufeed.images import HorizontalFlip, RandomResizedCrop

OPS = (RandomResizedCrop(size=64), HorizontalFlip())
COLUMNS = ("image", "sample")
ALL_RANKS = threading.Barrier(4, timeout=60)

faulthandler.dump_traceback_later(120, exit=True)


def iterate(loader):
    """Samples and checksums of an epoch's batches, and the error that ended it."""
    batches, error = [], None
    try:
        for images, samples, *mask in loader:
            assert images.device == torch_xla.device()
            checksums = [zlib.crc32(image) for image in images.cpu().numpy()]
            batches.append([samples.cpu().tolist(), checksums, *(column.cpu().tolist() for column in mask)])
    except TpufeedError as caught:
        error = [type(caught).__name__, str(caught)]
    return {"batches": batches, "error": error}


def read(url, epochs, **options):
    loader = tpufeed.xla_loader(url, **{"columns": COLUMNS, "batch_size": 5} | options)
    result = [iterate(loader) for _ in range(epochs)]
    loader.close()
    return result


def leave_early(url):
    """Threads of torch_xla's loader and of ours that are left when every rank has left three loops early."""
    for _ in range(3):
        loader = tpufeed.xla_loader(url, batch_size=2)
        for _batch in loader:
            break
    del loader, _batch
    ALL_RANKS.wait()
    names = ("_loader_worker", "(_worker)")
    left = [thread.name for thread in threading.enumerate() if any(name in thread.name for name in names)]
    deadline = time.monotonic() + 20  # those of an executor end on their own
    while decoding_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    ALL_RANKS.wait()
    return left + decoding_threads()


def decoding_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tpufeed-decode")]


def main(index, dataset, cache, damaged, incomplete, out):
    rank = runtime.global_ordinal()
    found = {"rank": rank, "size": runtime.world_size()}
    found["length"] = len(tpufeed.xla_loader(cache, batch_size=5))
    found["cache"] = read(cache, 2)
    found["dataset"] = read(dataset, 2, ops=OPS, remainder="repeat")
    found["evaluation"] = read(cache, 1, split="val", shuffle=False, remainder="pad", batch_size=4)
    found["damaged"] = read(damaged, 2, lanes=4, shuffle=False)
    found["incomplete"] = read(incomplete, 1, lanes=4, shuffle=False)
    found["unopened"] = read(cache, 1, lanes=6)
    found["no batches"] = read(cache, 1, batch_size=18)
    found["threads"] = leave_early(cache)
    Path(out, f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch_xla.launch(main, args=tuple(sys.argv[1:]))
