"""A small ResNet on all devices of torch_xla: bfloat16, validation, checkpoints, and going on after a kill.

    tpufeed shard photos flowers --splits train=0.8,val=0.2
    python examples/torch_xla_resnet.py --data flowers --epochs 10 --out run1

On a TPU VM that is all; without a TPU put PJRT_DEVICE=CPU CPU_NUM_DEVICES=4 before it. The same command again goes on
after the last checkpoint, in mid-epoch, also with another number of devices: each step sees the same samples, and the
losses differ by rounding only.
"""

import argparse
import os
import sys
import threading
from pathlib import Path

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize


def train(_, options):
    """One rank: a process, or on CPU and TPU v2 and v3 a thread, with a device of its own."""
    device, world = torch_xla.device(), xr.world_size()
    dataset = tpufeed.open_dataset(options.data)
    model = ResNet(len(dataset.manifest.class_names), options).to(device)
    optimizer = torch.optim.SGD(model.parameters(), options.learning_rate, momentum=0.9, nesterov=True)
    loader, val = open_train(options, dataset, world), open_val(options, dataset, world)
    epoch, seen, loss_sum = restore(options, model, optimizer, loader)
    while epoch < options.epochs:
        clock = tpufeed.StepClock()
        total = torch.tensor(loss_sum / world, device=device)  # stays there: reading it would stop the device
        loader.set_epoch(epoch)  # of an epoch that was restored, the rest stays the rest
        for step, (images, labels) in enumerate(clock(loader), seen // options.batch_size + 1):
            optimizer.zero_grad()
            loss = cross_entropy(scores_of(model, images), labels)
            loss.backward()
            apply_gradients(optimizer)
            total += loss.detach() * len(labels)
            seen += len(labels) * world
            if options.measure:
                torch_xla.sync()
                xm.wait_device_ops()  # else the device's time can show up as a wait for a batch
            # A DataLoader has no state to go on from in mid-epoch: with --sampler distributed whole epochs are saved.
            if step % options.every == 0 and loader.state_dict():
                save(options, model, optimizer, loader, (epoch, seen, total))
        loss_mean, right = sum(gather(total.item())) / seen, sum(gather(count_right(model, val)))
        held_out = dataset.split("val").records
        told = f"loss {loss_mean:.4f} of {seen} samples, {right} of {held_out} held out are right"
        xm.master_print(f"epoch {epoch}: {told}, {rates(clock.report(), world)}", flush=True)
        epoch, seen, loss_sum = epoch + 1, 0, 0.0
        save(options, model, optimizer, loader, (epoch, seen, torch.zeros(())))
    loader.close()
    val.close()


def open_train(options, dataset, world):
    """This rank's share of each epoch. As `--batch-size` is of all ranks, their number changes no step."""
    crops = [RandomResizedCrop(size=options.size), HorizontalFlip()]
    batch_size = options.batch_size // world
    if options.device_ops:  # compiled with the step
        return tpufeed.Loader(options.data, batch_size=batch_size, device_ops=crops, seed=options.seed).to_xla()
    ops = None if dataset.manifest.cache else crops  # the pixels of a cache have been augmented
    if options.sampler == "lanes":
        return tpufeed.Loader(options.data, batch_size=batch_size, ops=ops, seed=options.seed).to_xla()
    images = tpufeed.TFRecordImages(options.data, ops=ops, seed=options.seed)
    sampler = DistributedSampler(images, world, xr.global_ordinal(), seed=options.seed, drop_last=True)
    # drop_last: other ranks would wait for ever for one with a batch less. Its set_epoch reaches sampler and images.
    return tpufeed.device_loader(DataLoader(images, batch_size, sampler=sampler, drop_last=True), "xla")


def open_val(options, dataset, world):
    """Each image once on one of the ranks; padded, so that all take equal steps of one shape, which compile once."""
    cropped = dataset.manifest.cache and not options.device_ops
    ops = None if cropped else [Resize(options.size * 9 // 8), CenterCrop(options.size)]
    batch_size = options.batch_size // world
    padded = {"shuffle": False, "remainder": "pad"}
    return tpufeed.Loader(options.data, "val", batch_size=batch_size, ops=ops, **padded).to_xla()


def scores_of(model, images):
    """uint8 pixels crossed to the device, a quarter of the bytes; there they become floats, and bf16 what is costly."""
    with torch.autocast("xla", dtype=torch.bfloat16):
        return model(tpufeed.to_device_float(images)).float()


def count_right(model, val):
    """Of this rank's share of the split."""
    right = torch.zeros((), dtype=torch.int64, device=torch_xla.device())
    with torch.no_grad():
        for images, labels, mask in val:
            right += ((scores_of(model, images).argmax(1) == labels) & mask).sum()
    return int(right.item())


def save(options, model, optimizer, loader, progress):
    """One file for all: the ranks' weights are equal, and so are their loaders' states, which count all samples."""
    epoch, seen, total = progress
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    state |= {"epoch": epoch, "seen": seen, "loss_sum": sum(gather(total.item()))}
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "checkpoint.pt"
    # Every rank calls this, as all have to run what is still pending; the first of all writes.
    xm.save(state, f"{file}.new", global_master=True)
    if xm.is_master_ordinal(local=False):
        Path(f"{file}.new").replace(file)  # in one move: killed while it writes, the one before is whole
        print(f"saved: epoch {epoch}, {seen} samples", flush=True)
    gather(0)  # nobody ends, or trains on towards the next one, before this one stands


def restore(options, model, optimizer, loader):
    """The epoch to go on in, the samples of it that were seen, and the sum of their losses."""
    file = options.out / "checkpoint.pt"  # on a pod, in a folder that all hosts see
    if not file.is_file():
        return 0, 0, 0.0
    state = torch.load(file, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    xm.master_print(f"goes on in epoch {state['epoch']} after {state['seen']} samples", flush=True)
    return state["epoch"], state["seen"], state["loss_sum"]


# CPU devices are threads of one process, and torch_xla's collectives time out between them: there ranks meet here.
CPU_RANKS = int(os.environ.get("CPU_NUM_DEVICES", "1"))
GATE, VALUES = threading.Barrier(CPU_RANKS, timeout=300), [None] * CPU_RANKS


def gather(value):
    """The values of all ranks, once all are here."""
    if xr.device_type() != "CPU":
        return xm.mesh_reduce("gather", value, list)
    VALUES[xr.global_ordinal()] = value
    GATE.wait()
    values = list(VALUES)
    GATE.wait()  # nobody brings the next value before all have read these
    return values


def apply_gradients(optimizer):
    """A step with the mean of all ranks' gradients."""
    if xr.device_type() != "CPU" or xr.world_size() == 1:
        xm.optimizer_step(optimizer)
        return
    gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
    mean = torch.stack(gather(parameters_to_vector(gradients).cpu())).mean(0)
    vector_to_parameters(mean.to(torch_xla.device()), gradients)
    optimizer.step()


class Block(nn.Module):
    """GroupNorm: batch norm's running means would be other ones on each rank, and no checkpoint holds them all."""

    def __init__(self, before, width, stride):
        super().__init__()
        first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False), nn.GroupNorm(8, width), nn.ReLU()
        second = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.GroupNorm(8, width)
        self.body = nn.Sequential(*first, *second)
        same = before == width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, images):
        return torch.relu(self.shortcut(images) + self.body(images))


class ResNet(nn.Module):
    """A stem, and stages, each twice as wide as the one before. Equal seeds give all ranks equal weights."""

    def __init__(self, classes, options):
        super().__init__()
        width = options.width
        layers = [nn.Conv2d(3, width, 5, 2, padding=2, bias=False), nn.GroupNorm(8, width), nn.ReLU()]
        before = width
        for stage, blocks in enumerate(options.blocks):
            after = width * 2**stage
            layers.append(Block(before, after, 1 if stage == 0 else 2))
            layers += [Block(after, after, 1) for _ in range(blocks - 1)]
            before = after
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
        generator = torch.Generator().manual_seed(options.seed)  # ranks that are threads have torch's own in common
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.kaiming_normal_(parameter, generator=generator)
        nn.init.zeros_(self.body[-1].bias)

    def forward(self, images):
        return self.body(images)


def rates(report, world):
    """Of all devices together, if all are as fast as this one."""
    if report.images_per_second is None:
        return "n/a images/s, idle n/a"
    return f"{report.images_per_second * world:,.0f} images/s, idle {report.idle_percent:.1f} %"


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset or cache with labels, and splits train and val")
    parser.add_argument("--out", type=Path, default=Path("xla-run"), help="a folder; one with a checkpoint goes on")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128, help="of all devices together")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    parser.add_argument(
        "--device-ops", action="store_true", help="crop on the device; --data is a cache of whole images"
    )
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage")
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 2, 2, 2], help="of each stage")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--sampler", choices=("lanes", "distributed"), default="lanes", help="whose order")
    parser.add_argument("--no-measure", dest="measure", action="store_false", help="faster; idle comes out too high")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.device_ops and options.sampler == "distributed":
        parser.error("--device-ops needs --sampler lanes: a DataLoader's ops run on the host")
    return options


def main(options):
    """A rank for each device."""
    torch_xla.launch(train, args=(options,))


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
