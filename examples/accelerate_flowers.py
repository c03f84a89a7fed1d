"""Accelerate with to_torch: `save_state` keeps the loader's place, and `load_state` goes on in mid-epoch.

    pip install '.[torch]' accelerate
    tpufeed shard photos flowers --splits train=0.8,val=0.2
    accelerate launch examples/accelerate_flowers.py --data flowers --steps 100 --out run1

The same command again goes on after the last checkpoint in --out, also with another number of processes.
"""

import argparse
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

import tpufeed
from tpufeed.images import HorizontalFlip, RandomResizedCrop


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset or cache with labels and a split train")
    parser.add_argument(
        "--out", type=Path, default=Path("accelerate-run"), help="a folder; one with checkpoints goes on"
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    return parser.parse_args(arguments)


def main(options):
    """Train, from where the last checkpoint says, if there is one."""
    manifest = tpufeed.open_dataset(options.data).manifest
    accelerator = Accelerator()
    loader = tpufeed.Loader(
        options.data,
        batch_size=options.batch_size,
        ops=None if manifest.cache else [RandomResizedCrop(size=options.size), HorizontalFlip()],
        columns=["image", "label", "sample"],
        repeat=True,  # epoch after epoch: steps are counted here
    ).to_torch()
    feed = tpufeed.device_loader(loader, accelerator.device)  # deals samples to processes itself: not for `prepare`
    model = torch.nn.Linear(3, len(manifest.class_names))
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 0.01))
    accelerator.register_for_checkpointing(feed)  # has state_dict and load_state_dict, which is all it takes
    done = max((int(folder.name) for folder in options.out.glob("*") if folder.name.isdecimal()), default=0)
    if done:
        accelerator.load_state(str(options.out / str(done)))
        print(f"goes on after step {done}", flush=True)
    for number, (images, labels, samples) in zip(range(done + 1, options.steps + 1), feed, strict=False):
        scores = model(tpufeed.to_device_float(images, dtype=torch.float32).mean((2, 3)))
        loss = torch.nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        print(f"step {number}: loss {loss:.5f}, samples {samples.tolist()}", flush=True)
        if number % options.every == 0:
            new = options.out / f"{number}.new"
            accelerator.save_state(str(new))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                new.rename(options.out / str(number))  # whole, whatever happens


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
