"""Run by test_loader.py on four CPU devices, a thread each: writes down what every rank's to_xla did.

xla_four_devices.py DATASET CACHE DAMAGED INCOMPLETE OUT
"""

import copy
import faulthandler
import json
import logging
import os
import sys
import threading
import time
import traceback
import zlib
from pathlib import Path

import numpy as np
import torch_xla
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torch_xla import runtime
from torch_xla.distributed.parallel_loader import MpDeviceLoader, ParallelLoader

import tpufeed
from tpufeed.adapters.xla import runtime as runtime_of_ours
from tpufeed.errors import TpufeedError
from tpufeed.images import HorizontalFlip, RandomResizedCrop

OPS = (RandomResizedCrop(size=64), HorizontalFlip())
COLUMNS = ("image", "sample")
ALL_RANKS = threading.Barrier(4, timeout=250)

os.environ.setdefault("TPUFEED_PROCESSES", "0")  # worker processes take a second to start
faulthandler.dump_traceback_later(280, exit=True)


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
    loader = tpufeed.Loader(url, **{"columns": COLUMNS, "batch_size": 5} | options).to_xla()
    result = [iterate(loader) for _ in range(epochs)]
    loader.close()
    return result


class Unsized:
    """Batches of a user's own."""

    def __init__(self, batches, fails=""):
        self.batches, self.fails = batches, fails

    def __iter__(self):
        if self.fails == "iter":
            raise OSError("no such stream")
        return self.generate()

    def generate(self):
        if self.fails == "first":
            raise ZeroDivisionError
        for number in range(self.batches):
            yield np.zeros((2, 4, 4, 3), np.uint8), np.array([number, number])


class Source(Unsized):
    """That says how many there are, or says it wrongly."""

    def __init__(self, batches, length=None, fails=""):
        super().__init__(batches, fails)
        self.length = batches if length is None else length

    def __len__(self):
        return self.length


def wrapped(source, **options):
    return [iterate(tpufeed.device_loader(source, "xla", **options))]


def host_loaders(cache, launched, rank):
    """An epoch of each host loader, through torch_xla's own loaders, which iterate it in a thread that is no rank's."""
    device, options = torch_xla.device(), {"columns": ["sample"], "batch_size": 5}

    def ids(loader):
        return [batch.cpu().tolist() for batch in loader]

    def parallel(loader):
        return ParallelLoader(loader, [device]).per_device_loader(device)

    def lanes(sampler):
        return DataLoader(sampler.dataset, batch_size=5, sampler=sampler, drop_last=True)

    def later(loader):
        """Asked for its first batch in a thread of nobody's."""
        found = []
        thread = threading.Thread(target=lambda: found.extend(ids(loader)))
        thread.start()
        thread.join()
        return found

    dataset = tpufeed.TFRecordImages(cache, columns=["sample"])
    found = {
        "MpDeviceLoader": ids(MpDeviceLoader(tpufeed.Loader(cache, **options).to_torch(), device)),
        "ParallelLoader": ids(parallel(tpufeed.Loader(cache, **options).to_torch())),
        "to_xla": ids(tpufeed.device_loader(tpufeed.Loader(cache, **options).to_torch(), "xla")),
        "thread": later(tpufeed.Loader(cache, **options).to_torch()),
        "copy": later(copy.deepcopy(tpufeed.Loader(cache, **options).to_torch())),
        "Loader": [batch.tolist() for batch in tpufeed.Loader(cache, **options)],
        "LaneSampler": ids(MpDeviceLoader(lanes(tpufeed.LaneSampler(dataset)), device)),
    }
    errors = {}
    strangers = []
    threading.Thread(target=lambda: strangers.append(tpufeed.Loader(cache, **options).to_torch())).start()
    while not strangers:
        time.sleep(0.01)
    for name, loader in (("launched", launched), ("made by a stranger", strangers[0])):
        try:
            len(loader)
        except TpufeedError as error:
            errors[name] = str(error)
    return found, errors


def frozen(url):
    """How often two epochs of a cache whose epoch nobody moves were called read again, by the epoch."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    dataset = tpufeed.TFRecordImages(url)
    sampler = DistributedSampler(dataset, num_replicas=4, rank=runtime.global_ordinal())
    loader = MpDeviceLoader(DataLoader(dataset, batch_size=6, sampler=sampler), torch_xla.device())
    ALL_RANKS.wait()
    logging.getLogger("tpufeed").addHandler(handler)
    counts = []
    for _ in range(2):
        for _batch in loader:
            pass
        ALL_RANKS.wait()
        counts.append(sum("samples are read again" in message for message in said))
        ALL_RANKS.wait()
    logging.getLogger("tpufeed").removeHandler(handler)
    return counts


def two_of_torch(cache):
    """What a loader says if torch.distributed has two ranks, and torch_xla four."""
    ALL_RANKS.wait()
    if runtime.global_ordinal() == 0:
        distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    ALL_RANKS.wait()
    message = None
    try:
        len(tpufeed.Loader(cache, batch_size=5).to_torch())
    except TpufeedError as error:
        message = str(error)
    by_hand = len(tpufeed.Loader(cache, batch_size=5, world=(0, 2)).to_torch())
    ALL_RANKS.wait()
    if runtime.global_ordinal() == 0:
        distributed.destroy_process_group()
    ALL_RANKS.wait()
    return message, by_hand


def unmade(cache, rank):
    """What the ranks say if one has no dataset."""
    runtime_of_ours._RENDEZVOUS._patience_seconds = 5
    ALL_RANKS.wait()
    error = None
    try:
        (epoch,) = read(cache if rank != 2 else "/nothing", 1)
        error = epoch["error"]
    except TpufeedError as caught:
        error = [type(caught).__name__, str(caught)]
    ALL_RANKS.wait()  # or the rank without a loader would meet the others with its next one
    runtime_of_ours._RENDEZVOUS._patience_seconds = 300
    return error


def parting(cache, rank):
    """What goes wrong on one rank, or on all of them."""
    dataset = tpufeed.TFRecordImages(cache, columns=COLUMNS)
    unequal = DataLoader(Subset(dataset, range(rank, 70, 4) if rank < 3 else range(20)), batch_size=4, drop_last=True)
    return {
        "lanes": read(cache, 1, lanes=6),
        "no batches": read(cache, 1, batch_size=18),
        "unmade": unmade(cache, rank),
        "seeds": read(cache, 1, seed=rank // 3 * rank),
        "batches": wrapped(Source(3 if rank else 4)),
        "unequal sampler": wrapped(unequal),
        "no length": wrapped(Unsized(2)),
        "iter fails": wrapped(Source(2, fails="iter" if rank == 3 else "")),
        "first batch fails": wrapped(Source(2, fails="first" if rank == 0 else "")),
        "by hand": read(cache, 1, world=(0, 1)),
        "some": wrapped(Source(3), check_ranks=False) if rank == 2 else [{"batches": []}],
        "too short": wrapped(Source(2 if rank == 1 else 3, 3)),
        "too long": wrapped(Source(4 if rank == 1 else 3, 3)),
    }


def leave_early(url):
    """Threads of torch_xla's loader and of ours that are left when every rank has left three loops early."""
    for _ in range(3):
        loader = tpufeed.Loader(url, batch_size=2).to_xla()
        for _batch in loader:
            break
    del loader, _batch
    ALL_RANKS.wait()
    left = [thread.name for thread in threading.enumerate() if "tpufeed-xla" in thread.name]
    deadline = time.monotonic() + 60  # those of an executor end on their own
    while decoding_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    ALL_RANKS.wait()
    return left + decoding_threads()


def decoding_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tpufeed-decode")]


def main(*given):  # as torch_xla calls it
    """Measure. A rank that fails ends all: the others would wait for it."""
    try:
        measure(*given)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)


def measure(index, dataset, cache, damaged, incomplete, out, launched):
    rank = runtime.global_ordinal()
    found = {"rank": rank, "size": runtime.world_size()}
    found["length"] = len(tpufeed.Loader(cache, batch_size=5).to_xla())
    found["cache"] = read(cache, 2)
    found["dataset"] = read(dataset, 2, ops=OPS, remainder="repeat")
    found["damaged"] = read(damaged, 2, lanes=4, shuffle=False)
    found["incomplete"] = read(incomplete, 1, lanes=4, shuffle=False)
    found["host loaders"] = host_loaders(cache, launched, rank)
    found["frozen"] = frozen(cache)
    found["torch"] = two_of_torch(cache)
    found |= parting(cache, rank)
    found["threads"] = leave_early(cache)
    Path(out, f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch_xla.launch(main, args=(*sys.argv[1:], tpufeed.Loader(sys.argv[2], batch_size=5).to_torch()))
