"""A training over torchvision's ImageFolder, moved to torch_xla by docs/moving.md: a rank per device, and a resume.

Killed, it goes on with the same command. The first run is preempted in mid-epoch.
"""

from pathlib import Path

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch.nn.functional import cross_entropy
from torch_xla import runtime
from torch_xla_resnet import apply_gradients, gather  # of the examples: they work between CPU devices, too

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize

EPOCHS, EVERY, PREEMPTED = 4, 3, 6
CHECKPOINT = Path("checkpoint.pt")


def train(index):
    ops = [RandomResizedCrop(32), HorizontalFlip()]
    loader = tpufeed.Loader("flowers", "train", batch_size=4, ops=ops).to_xla()
    once = {"shuffle": False, "remainder": "pad", "ops": [Resize(36), CenterCrop(32)]}
    val = tpufeed.Loader("flowers", "val", batch_size=4, **once).to_xla()
    torch.manual_seed(0)
    layers = [nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, len(loader.class_names))]
    model = nn.Sequential(*layers).to(torch_xla.device())
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    first, done = 0, 0
    resumes = CHECKPOINT.exists()
    if resumes:
        saved = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first, done = saved["epoch"], saved["done"]
        xm.master_print(f"resumes in epoch {first} after step {done}")
    for epoch in range(first, EPOCHS):
        for images, labels in loader:
            loss = cross_entropy(model(tpufeed.to_device_float(images, dtype=torch.float32)), labels)
            optimizer.zero_grad()
            loss.backward()
            apply_gradients(optimizer)  # elsewhere xm.optimizer_step
            done += 1
            if done % EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "done": done}
                xm.save(state | {"loader": loader.state_dict()}, CHECKPOINT)
            if done == PREEMPTED and not resumes:
                return
        losses = gather(loss.item())
        xm.master_print(f"loss {sum(losses) / len(losses):.4f} at step {done}")
    hits = torch.zeros(2, dtype=torch.int64, device=torch_xla.device())
    with torch.no_grad():
        for images, labels, mask in val:
            right = model(tpufeed.to_device_float(images, dtype=torch.float32)).argmax(1) == labels
            hits += torch.stack([(right & mask).sum(), mask.sum()])
    right, seen = map(sum, zip(*gather(hits.tolist()), strict=True))
    xm.master_print(f"{right} of {seen} right on {runtime.world_size()} ranks")


if __name__ == "__main__":
    torch_xla.launch(train)
