"""Run by test_loader.py: a LightningModule that trains from to_xla, on one CPU device or on four.

xla_lightning.py CACHE DEVICES OUT
"""

import contextlib
import faulthandler
import json
import os
import sys
from pathlib import Path

os.environ["TPUFEED_PROCESSES"] = "0"
import torch
from lightning.fabric.accelerators.xla import XLAAccelerator
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import XLAStrategy
from torch_xla import runtime

import tpufeed

faulthandler.dump_traceback_later(280, exit=True)


class Module(LightningModule):
    def __init__(self, out):
        super().__init__()
        self.out, self.epochs, self.validated = out, {}, []
        self.head = torch.nn.Linear(3, 3)

    def forward(self, images):
        return self.head(tpufeed.to_device_float(images, dtype=torch.float32).mean((2, 3)))

    def training_step(self, batch, number):
        images, labels, samples = batch
        assert images.device.type == "xla"
        self.epochs.setdefault(self.current_epoch, []).append(samples.cpu().tolist())
        return torch.nn.functional.cross_entropy(self(images), labels)

    def validation_step(self, batch, number):
        _, _, samples, mask = batch
        self.validated += samples.cpu()[mask.cpu()].tolist()

    def on_train_end(self):
        loader = self.trainer.train_dataloader
        found = {"epochs": self.epochs, "validated": self.validated, "loader": type(loader).__name__}
        found["strategy"] = type(self.trainer.strategy).__name__
        found["kept by XLAStrategy"] = XLAStrategy().process_dataloader(loader) is loader
        Path(self.out, f"{runtime.global_ordinal()}.json").write_text(json.dumps(found))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def patch_collectives():
    """Ranks that are threads have none that work: see Rendezvous."""
    import torch_xla.core.xla_model as xm

    xm.rendezvous = lambda *_, **__: []
    xm.reduce_gradients = xm.collective_broadcast = lambda *_, **__: None
    xm.mesh_reduce = lambda _, data, reduce: reduce([data] * 4)
    XLAStrategy.broadcast = lambda _, value, **__: value


def trainer(devices, **options):
    strategy = XLAStrategy(sync_module_states=False) if devices > 1 else "auto"
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return Trainer(accelerator="tpu", devices=devices, strategy=strategy, **quiet, **options)


class Leave(Exception):
    pass


class LeftEarly(Module):
    """Is killed in the middle of its second epoch, after a checkpoint."""

    def on_train_batch_end(self, outputs, batch, number):
        if self.current_epoch == 1 and number == 2:
            self.trainer.save_checkpoint(Path(self.out, "middle.ckpt"))
            raise Leave


def loaders(cache):
    options = {"columns": ["image", "label", "sample"], "batch_size": 5}
    return tpufeed.Loader(cache, **options).to_xla(), tpufeed.Loader(
        cache, "val", shuffle=False, remainder="pad", **options
    ).to_xla()


def main(cache, devices, out):
    XLAAccelerator.auto_device_count = staticmethod(lambda: int(devices))
    if devices == "4":
        patch_collectives()
        trainer(4, max_epochs=2, enable_checkpointing=False).fit(Module(out), *loaders(cache))
        return
    module = Module(out)
    trainer(1, max_epochs=2, enable_checkpointing=False).fit(module, *loaders(cache))
    left = LeftEarly(out)
    with contextlib.suppress(Leave):
        trainer(1, max_epochs=2, enable_checkpointing=False).fit(left, *loaders(cache))
    resumed = Module(out)
    Path(out, "whole.json").write_text(Path(out, "0.json").read_text())
    trainer(1, max_epochs=2, enable_checkpointing=False).fit(
        resumed, *loaders(cache), ckpt_path=Path(out, "middle.ckpt"), weights_only=False
    )
    Path(out, "left.json").write_text(json.dumps(left.epochs))


if __name__ == "__main__":
    main(*sys.argv[1:])
