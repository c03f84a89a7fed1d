"""A training as Lightning's TPU pages have it, over a DataLoader with the dataset and sampler of docs/torch.md."""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize


def to_floats(image):
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


class Flowers(lightning.LightningDataModule):
    def setup(self, stage):
        crops = [RandomResizedCrop(size=64), HorizontalFlip()]
        self.train = tpufeed.TFRecordImages("flowers", "train", ops=crops, transform=to_floats)
        self.val = tpufeed.TFRecordImages("flowers", "val", ops=[Resize(72), CenterCrop(64)], transform=to_floats)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=8, sampler=tpufeed.LaneSampler(self.train), drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=8)


class LitClassifier(lightning.LightningModule):
    def __init__(self, learning_rate=0.01):
        super().__init__()
        self.save_hyperparameters()
        layers = [nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
        self.model = nn.Sequential(*layers)

    def forward(self, images):
        return self.model(images)

    def training_step(self, batch, number):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, number):
        images, labels = batch
        self.log("val_acc", (self(images).argmax(1) == labels).float().mean(), batch_size=len(labels))

    def on_train_epoch_end(self):
        shown, val = self.trainer.callback_metrics, self.trainer.datamodule.val
        print(f"loss {shown['train_loss']:.4f}, {round(float(shown['val_acc']) * len(val))} of {len(val)} right")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


if __name__ == "__main__":
    lightning.seed_everything(0)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=6, **quiet)  # there: "tpu", "auto"
    trainer.fit(LitClassifier(), datamodule=Flowers())
    trainer.save_checkpoint("model.ckpt")
