"""Loaders as Accelerate prepares them, written down as JSON in a process of two_ranks.py."""

import json

import accelerate
import numpy as np
from accelerate.data_loader import prepare_data_loader
from accelerate.state import PartialState
from torch.utils.data import DataLoader

import tpufeed
from tpufeed.errors import OptionError


class Counting(tpufeed.TFRecordImages):
    """Knows the samples that it has read, and in which epochs."""

    read = ()

    def __getitems__(self, indices):
        self.read = [*self.read, *indices]
        return super().__getitems__(indices)


def ids(loader):
    return [samples.tolist() for _, samples in loader]


def error_of(act):
    try:
        act()
    except OptionError as error:
        return str(error)
    return None


def write(url, path):
    found = {}
    dataset = Counting(url, columns=["image", "sample"])
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(dataset, 10, shuffle=True))
    found["alone"] = [(ids(loader), dataset[0][0].sum().item()) for _ in range(2)]

    dataset = Counting(url, columns=["image", "sample"])
    sampler = tpufeed.LaneSampler(dataset)
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(dataset, 10, sampler=sampler))
    found["lanes"], found["sums"] = [], []
    for _ in range(3):
        batches = [(images, samples.tolist()) for images, samples in loader]
        found["lanes"].append([samples for _, samples in batches])
        found["sums"].append([np.asarray(images).sum(axis=(1, 2, 3), dtype=int).tolist() for images, _ in batches])

    found["two"] = []
    for rank in range(2):
        dataset = Counting(url, columns=["image", "sample"])
        for options in ({"shuffle": False}, {"sampler": tpufeed.LaneSampler(dataset, 1, 0)}):
            dataset.read = []
            given = DataLoader(dataset, 7, **options)
            loader = prepare_data_loader(given, num_processes=2, process_index=rank, use_seedable_sampler=True)
            found["two"].append({"rank": rank, "ids": ids(loader), "read": len(dataset.read)})

    host = tpufeed.Loader(url, columns=["image", "sample"], batch_size=10).to_torch()
    found["skipped"] = {
        "host": error_of(lambda: accelerate.skip_first_batches(host, 3)),
        "device": error_of(lambda: accelerate.skip_first_batches(tpufeed.device_loader(host, "cpu"), 3)),
        "wrapped": error_of(lambda: prepare_data_loader(host, num_processes=2, process_index=0)),
        "parts": error_of(lambda: next(iter(DataLoader(host.dataset, batch_sampler=host.batch_sampler)))),
    }
    for _ in zip(range(3), host, strict=False):
        pass
    other = tpufeed.Loader(url, columns=["image", "sample"], batch_size=10).to_torch()
    other.load_state_dict(host.state_dict())
    found["gone on"] = ids(accelerate.Accelerator(cpu=True).prepare(other))

    found["refused"] = ""
    PartialState._shared_state["num_processes"] = 2  # and torch.distributed would say so, too
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        len(tpufeed.LaneSampler(dataset))
    except OptionError as error:
        found["refused"] = str(error)
    path.write_text(json.dumps(found))
