"""Two ranks of torch.distributed that iterate to_torch, and a process of Accelerate; each writes down what it saw.

Usage: two_ranks.py CACHE_URL BROKEN_URL FOLDER     rank 1 takes BROKEN_URL if it is to fail
"""

import itertools
import json
import logging
import os
import sys
import time
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path

os.environ["USE_TORCH_XLA"] = "0"  # Accelerate would take torch_xla's world for its own

import host_accelerate
import torch
from accelerate import Accelerator
from torch import distributed
from torch.distributed.distributed_c10d import _get_default_store
from torch.utils.data import DataLoader, DistributedSampler

import tpufeed
from tpufeed.errors import LoaderError
from tpufeed.stream.batch import BatchDecoder

SIZE = 2


def make(url, **options):
    return tpufeed.Loader(
        url, **{"batch_size": 5, "processes": 0, "threads": 1, "columns": ["sample"]} | options
    ).to_torch()


def ids(loader):
    return [batch.tolist() for batch in loader]


def error_of(loader):
    """What the first batch raises, and what that comes from."""
    try:
        next(iter(loader))
    except LoaderError as error:
        return str(error), type(error.__context__).__name__
    return None


def run(rank, url, broken):
    found = {}
    with make(url) as loader:
        found["length"] = len(loader)
        found["epochs"] = [ids(loader), ids(loader)]
        state = loader.state_dict()

    odd = rank == 1
    found["batches"] = error_of(make(url, batch_size=4 if odd else 5))
    found["seed"] = error_of(make(url, seed=int(odd)))
    found["cannot begin"] = error_of(make(broken if odd else url, shuffle=False))
    resumed = make(url)
    if odd:
        resumed.load_state_dict(state)
    found["resumed"] = error_of(resumed)
    with make(url, batch_size=4 if odd else 5, world=(rank, SIZE)) as loader:
        found["by hand"] = len(ids(loader))  # taken at its word, without asking the other
    distributed.barrier()
    if not odd:
        _get_default_store().set_timeout(timedelta(seconds=1))
        found["alone"] = error_of(make(url))
    distributed.barrier()
    if odd:
        next(iter(make(url)))  # comes when rank 0 has given up, and finds what that left
    return found


def validated(rank, url):
    """Three epochs of a training that repeats on a device, each with a validation. Rank 1 is slow to decode.

    Rank 0 prefetches the next epoch before its validation begins, rank 1 does not. It leaves the loop for good while
    rank 1 is in it.
    """
    decode = BatchDecoder.decode

    def slow(*arguments):
        time.sleep(0.05)
        return decode(*arguments)

    BatchDecoder.decode = slow if rank else decode
    train = tpufeed.device_loader(make(url, repeat=True), "cpu")
    validation = make(url, split="val", shuffle=False)
    found = [(ids(itertools.islice(train, len(train))), ids(validation)) for _ in range(3)]
    train.close()
    BatchDecoder.decode = decode
    return found


def accelerate(url):
    """Accelerate's own two ranks, over the process group that is there."""
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == SIZE
    loader, model = make(url), torch.nn.Linear(1, 1)
    prepared, _ = accelerator.prepare(loader, model)
    assert prepared is accelerator.prepare_data_loader(loader) is loader
    on_device = accelerator.prepare(tpufeed.device_loader(loader, accelerator.device))
    return ids(on_device), loader.stats().samples


def launched(dataset, rank):
    """The brightness of a sample, in the epoch that this rank alone is in; the dataset is from before the launch."""
    if rank == 1:
        dataset.set_epoch(1)
    distributed.barrier()
    image, _ = dataset[0]
    distributed.barrier()
    return int(image.sum())


def log_to(path, _):
    logging.getLogger("tpufeed").addHandler(logging.FileHandler(path))


def frozen(url, folder):
    """What a spawned worker of this rank says in each of two epochs that nobody moves."""
    dataset, log = tpufeed.TFRecordImages(url), Path(folder, "frozen.log")
    sampler = DistributedSampler(dataset, SIZE, 0)
    workers = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
    loader = DataLoader(dataset, 7, sampler=sampler, worker_init_fn=partial(log_to, log), **workers)
    said = []
    for _ in range(2):
        assert len(list(loader)) == 5
        said.append(log.read_text())
    return said


def main(dataset, rank, url, broken, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(SIZE)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # Accelerate looks whether they are there
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE)
    found = run(rank, url, broken) | {"launched": launched(dataset, rank)}
    if rank == 0:
        found["frozen"] = frozen(url, folder)
    found["accelerate"] = accelerate(url)
    found["validated"] = validated(rank, url)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()


if __name__ == "__main__":
    # Forked: importing torch takes longer than all the rest.
    url, _, folder = sys.argv[1:]
    dataset, fork = tpufeed.TFRecordImages(url), get_context("fork").Process
    running = [fork(target=main, args=(dataset, rank, *sys.argv[1:])) for rank in range(SIZE)]
    running.append(fork(target=host_accelerate.write, args=(url, Path(folder, "accelerate.json"))))
    for process in running:
        process.start()
    for process in running:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in running))
