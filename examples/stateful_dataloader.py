"""A DataLoader that must stay, as one with a collate_fn: torchdata's StatefulDataLoader goes on in mid-epoch.

    pip install '.[torch]' torchdata
    tpufeed shard photos flowers --splits train=0.8,val=0.2
    python examples/stateful_dataloader.py --data flowers --epochs 10 --workers 4 --out run1

The same command again goes on after the last checkpoint in --out, also under torchrun with another number of processes.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torchdata.stateful_dataloader import StatefulDataLoader

import tpufeed
from tpufeed.images import HorizontalFlip, RandomResizedCrop


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset or cache with labels and a split train")
    parser.add_argument(
        "--out", type=Path, default=Path("stateful-run"), help="a folder; one with a checkpoint goes on"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    parser.add_argument("--workers", type=int, default=0, help="processes that decode")
    return parser.parse_args(arguments)


def main(options):
    """Train, from where the checkpoint says, if there is one."""
    if "WORLD_SIZE" in os.environ:  # torchrun's
        distributed.init_process_group("gloo")
    manifest = tpufeed.open_dataset(options.data).manifest
    ops = None if manifest.cache else [RandomResizedCrop(size=options.size), HorizontalFlip()]
    dataset = tpufeed.TFRecordImages(options.data, ops=ops, columns=["image", "label", "sample"])
    sampler = tpufeed.LaneSampler(dataset)  # its iterator has the state that StatefulDataLoader looks for
    loader = StatefulDataLoader(dataset, options.batch_size, sampler=sampler, num_workers=options.workers)
    model = torch.nn.Linear(3, len(manifest.class_names))
    net = torch.nn.parallel.DistributedDataParallel(model) if distributed.is_initialized() else model
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    checkpoint, done, begin = options.out / "checkpoint.pt", 0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        done, begin = saved["done"], saved["epoch"]
        print(f"goes on after step {done}", flush=True)
    for epoch in range(begin, options.epochs):
        sampler.set_epoch(epoch)
        for images, labels, samples in loader:
            scores = net(tpufeed.to_device_float(images, dtype=torch.float32).mean((2, 3)))
            loss = torch.nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            print(f"step {done}: loss {loss:.5f}, samples {samples.tolist()}", flush=True)
            if done % options.every == 0 and sampler.rank == 0:
                options.out.mkdir(parents=True, exist_ok=True)
                parts = {"model": model, "optimizer": optimizer, "loader": loader}
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save(states | {"done": done, "epoch": epoch}, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)  # whole, whatever happens
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
