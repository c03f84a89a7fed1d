"""Lightning with tpufeed's loaders: training, validation, and checkpoints from which it goes on in mid-epoch.

    pip install '.[torch,lightning]'
    tpufeed shard photos flowers --splits train=0.8,val=0.2
    python examples/lightning_flowers.py --data flowers --epochs 10 --out run1

The accelerator is Lightning's choice. The same command again goes on after the last checkpoint in --out.
"""

import argparse
import itertools
import sys
import time

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import XLAAccelerator
from torch import nn

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize


class Flowers(pl.LightningDataModule):
    """The two loaders. They shard themselves, so Lightning adds no sampler, and puts their states into checkpoints."""

    def __init__(self, options):
        super().__init__()
        self.options = options
        manifest = tpufeed.open_dataset(options.data).manifest
        self.classes = len(manifest.class_names)
        self.cached = bool(manifest.cache)

    def load(self, *args, **options):
        loader = tpufeed.Loader(*args, batch_size=self.options.batch_size, **options)
        # On a TPU Lightning's ranks are torch_xla's, and `to_xla` sends the batches.
        return loader.to_xla() if XLAAccelerator.is_available() else loader.to_torch()

    def train_dataloader(self):
        ops = None if self.cached else [RandomResizedCrop(size=self.options.size), HorizontalFlip()]
        return self.load(self.options.data, ops=ops, seed=self.options.seed)

    def val_dataloader(self):
        ops = None if self.cached else [Resize(self.options.size), CenterCrop(self.options.size)]
        # Each image once, and the same number of steps on every rank: where the mask is False there is none.
        padded = {"shuffle": False, "remainder": "pad"}
        return self.load(self.options.data, "val", ops=ops, **padded)


class Classifier(pl.LightningModule):
    """A small convolutional net that prints a line an epoch."""

    def __init__(self, classes, learning_rate):
        super().__init__()
        self.learning_rate = learning_rate
        layers, widths = [], (3, 16, 32, 64)
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
        # Buffers, so that a checkpoint in mid-epoch holds what was counted so far; read but once an epoch, as reading
        # stops a TPU.
        self.register_buffer("trained", torch.zeros(2))  # sum of losses, images
        self.register_buffer("right", torch.zeros(2), persistent=False)  # told right, of how many

    def forward(self, images):
        """uint8 NHWC, as it crossed to the device: a quarter of a float's bytes."""
        return self.net(tpufeed.to_device_float(images, dtype=torch.float32))

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.trained += torch.stack([loss.detach() * len(labels), torch.full_like(loss, len(labels))])
        return loss

    def on_validation_epoch_start(self):
        self.right.zero_()

    def validation_step(self, batch, _):
        images, labels, mask = batch
        self.right += torch.stack([((self(images).argmax(1) == labels) & mask).sum(), mask.sum()])

    def on_train_start(self):  # on_train_epoch_start is left out where an epoch goes on
        self.stats, self.began = self.trainer.train_dataloader.stats(), time.perf_counter()

    def on_train_batch_end(self, *_):
        self.seconds = time.perf_counter() - self.began  # so far, and so without the validation that follows

    def on_train_epoch_end(self):
        # Lightning fetches the batches itself, where no StepClock can look; but the loader counts what it waited, too.
        stats = self.trainer.train_dataloader.stats()
        rate = (stats.batches - self.stats.batches) * self.trainer.train_dataloader.batch_size / self.seconds
        idle = 100 * (stats.wait_seconds - self.stats.wait_seconds) / self.seconds
        loss, images = self.sum_over_ranks(self.trained)
        right, held_out = self.sum_over_ranks(self.right)
        self.trained.zero_()
        told = f"{right / held_out:.3f} of {held_out:.0f} right, {rate:,.0f} images/s a rank, idle {idle:.1f} %"
        self.print(f"epoch {self.current_epoch}: loss {loss / images:.4f} of {images:.0f} images, {told}", flush=True)
        self.on_train_start()

    def sum_over_ranks(self, pair):
        return self.trainer.strategy.reduce(pair.clone(), reduce_op="sum").tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.learning_rate, momentum=0.9, nesterov=True)


def make_trainer(options):
    """The checkpoints are Lightning's own; what is quiet here is for the example."""
    saving = pl.callbacks.ModelCheckpoint(options.out, save_last=True, every_n_train_steps=options.every)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="auto", max_epochs=options.epochs, callbacks=[saving], **quiet)


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset or cache with labels, and splits train and val")
    parser.add_argument("--out", default="lightning-run", help="a folder; one with checkpoints goes on")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(options):
    """Train, from where the last checkpoint says, if there is one."""
    pl.seed_everything(options.seed, verbose=False)
    data = Flowers(options)
    model = Classifier(data.classes, options.learning_rate)
    make_trainer(options).fit(model, data, ckpt_path="last")


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
