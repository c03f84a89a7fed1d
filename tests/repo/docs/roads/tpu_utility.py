"""A training as TPU_utility (github.com/Wabinab/TPU_utility) has it, with the changes that docs/moving.md lists.

Its parts are functions: one makes the datasets, one the DataLoaders, one goes through the epochs, and two through the
batches of one. Its first step there is to warm a cache of presized images.
"""

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torch_xla import runtime

import tpufeed

FLAGS = {"bs": 8, "lr": 0.01, "num_epochs": 4, "num_workers": 0, "seed": 1234}


def get_dataset():
    """The cached datasets: cached_dataset() there."""
    given = {"transform": torch.from_numpy}
    return tpufeed.TFRecordImages("flowers-64", "train", **given), tpufeed.TFRecordImages("flowers-64", "val", **given)


def dataloader(train_ds, val_ds, flags):
    world, rank = runtime.world_size(), runtime.global_ordinal()
    sampler = DistributedSampler(train_ds, num_replicas=world, rank=rank, shuffle=True, drop_last=True)
    train = DataLoader(train_ds, flags["bs"], sampler=sampler, num_workers=flags["num_workers"], drop_last=True)
    val = DataLoader(val_ds, flags["bs"], shuffle=False, num_workers=flags["num_workers"], drop_last=world > 1)
    return {"train": tpufeed.device_loader(train, "xla"), "val": tpufeed.device_loader(val, "xla")}


def train_cycle(dls, flags, train_loop_fn, val_loop_fn):
    for epoch in range(flags["num_epochs"]):
        for loader in dls.values():
            loader.set_epoch(epoch)
        loss = train_loop_fn(dls["train"])
        right, seen = val_loop_fn(dls["val"])
        xm.master_print(f"loss {loss:.4f}, {right} of {seen} right")


def _mp_fn(index, flags):
    torch.manual_seed(flags["seed"])
    device = torch_xla.device()
    layers = [nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    model = nn.Sequential(*layers).to(device)
    opt = torch.optim.Adam(model.parameters(), flags["lr"] * runtime.world_size())
    criterion = nn.CrossEntropyLoss()

    def train_loop_fn(loader):
        model.train()
        losses = []
        for data, target in loader:
            opt.zero_grad()
            loss = criterion(model(tpufeed.to_device_float(data, dtype=torch.float32)), target)
            loss.backward()
            xm.optimizer_step(opt)
            losses.append(loss.detach())
        return xm.mesh_reduce("loss", torch.stack(losses).mean().item(), np.mean)

    def val_loop_fn(loader):
        model.eval()
        right, seen = torch.zeros((), dtype=torch.int64, device=device), 0
        with torch.no_grad():
            for data, target in loader:
                right += (model(tpufeed.to_device_float(data, dtype=torch.float32)).argmax(1) == target).sum()
                seen += len(target)
        return xm.mesh_reduce("right", right.item(), np.sum), xm.mesh_reduce("seen", seen, np.sum)

    train_cycle(dataloader(*get_dataset(), flags), flags, train_loop_fn, val_loop_fn)
    xm.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    torch_xla.launch(_mp_fn, args=(FLAGS,))
