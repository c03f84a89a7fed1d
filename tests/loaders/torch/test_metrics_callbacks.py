"""MetricsLogger's callbacks for trainers of torch."""

import lightning
import pytest
import torch

import tpufeed

pytestmark = pytest.mark.usefixtures("lightning_without_xla")


def test_lightning_and_hugging_face_call_it_after_each_step(cache_url, monkeypatch):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, image, label):
            return {"loss": self.layer(image.float().mean((1, 2))).mean()}

        def training_step(self, batch, number):
            return self(*batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    steps = []
    loader = tpufeed.Loader(cache_url, batch_size=7, processes=0).to_torch()
    logger = tpufeed.MetricsLogger(loader, lambda _, step: steps.append(step), every_steps=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    lightning.Trainer(max_steps=9, callbacks=[logger.lightning()], **quiet).fit(Module(), loader)
    assert steps == [5, 9]
    steps.clear()
    lightning.Trainer(max_steps=3, accumulate_grad_batches=3, callbacks=[logger.lightning()], **quiet).fit(
        Module(), loader
    )
    assert steps == [3]  # of the optimizer, from 1 again, and what is left at the end

    # Else transformers and accelerate import torch_xla, which aborts the process after the tensorflow of other tests.
    monkeypatch.setenv("USE_TORCH_XLA", "0")
    monkeypatch.setattr("transformers.utils.import_utils.USE_TORCH_XLA", "0")  # it may have been read already
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    steps.clear()
    logger = tpufeed.MetricsLogger(loader, lambda _, step: steps.append(step), every_steps=4)
    handler = CallbackHandler([logger.hugging_face()], Module(), None, None, None)
    for number, _batch in enumerate(loader):
        handler.on_step_end(None, TrainerState(global_step=100 + number), TrainerControl())
    handler.on_train_end(None, TrainerState(), TrainerControl())
    assert steps == [104, 108, 109]
