"""The Hugging Face Trainer over to_torch: a checkpoint of it holds the loader's place, and goes on in mid-epoch.

    pip install '.[torch]' transformers accelerate
    tpufeed shard photos flowers --splits train=0.8,val=0.2
    python examples/huggingface_trainer.py --data flowers --epochs 10 --out run1

The same command again goes on after the last checkpoint in --out.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import tpufeed
from tpufeed.images import HorizontalFlip, RandomResizedCrop


class Model(torch.nn.Module):
    """A linear classifier of mean colours; any model that returns a loss will do."""

    def __init__(self, classes):
        super().__init__()
        self.layer = torch.nn.Linear(3, classes)

    def forward(self, pixel_values, labels):
        scores = self.layer(pixel_values.mean((2, 3)))
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


class LoaderTrainer(Trainer):
    """Takes a tpufeed loader as `train_dataset`, and its batches as they come: no DataLoader is made of it."""

    def get_train_dataloader(self):
        return self.train_dataset

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        images, labels, samples = inputs
        output = model(pixel_values=tpufeed.to_device_float(images, dtype=torch.float32), labels=labels)
        print(f"step {self.state.global_step + 1}: loss {output['loss']:.5f}, samples {samples.tolist()}", flush=True)
        return (output["loss"], output) if return_outputs else output["loss"]


class KeepPlace(TrainerCallback):
    """Saves the loader's state with each checkpoint; all ranks have the same one."""

    def __init__(self, loader):
        self.loader = loader

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            place = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            place.write_text(json.dumps(self.loader.state_dict()))


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset or cache with labels and a split train")
    parser.add_argument("--out", default="trainer-run", help="a folder; one with checkpoints goes on")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    return parser.parse_args(arguments)


def main(options):
    """Train, from where the last checkpoint says, if there is one."""
    manifest = tpufeed.open_dataset(options.data).manifest
    loader = tpufeed.Loader(
        options.data,
        batch_size=options.batch_size,
        ops=None if manifest.cache else [RandomResizedCrop(size=options.size), HorizontalFlip()],
        columns=["image", "label", "sample"],
    ).to_torch()
    last = get_last_checkpoint(options.out) if Path(options.out).is_dir() else None
    if last:
        loader.load_state_dict(json.loads(Path(last, "loader.json").read_text()))
        print(f"goes on after {Path(last).name}", flush=True)
    arguments = TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        learning_rate=0.05,
        save_steps=options.every,
        save_total_limit=2,
        ignore_data_skip=True,  # the loader's state says where to go on, so that nothing is to be skipped
        per_device_train_batch_size=options.batch_size,  # what the Trainer's own numbers are reckoned with
        report_to="none",
        disable_tqdm=True,
    )
    LoaderTrainer(
        Model(len(manifest.class_names)), arguments, train_dataset=loader, callbacks=[KeepPlace(loader)]
    ).train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
