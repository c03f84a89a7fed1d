"""A LightningModule trains with to_torch, with nothing of Lightning's told about it."""

import itertools

import lightning.pytorch as pl
import pytest
import torch

import tpufeed

pytestmark = pytest.mark.usefixtures("lightning_without_xla")

EPOCHS = 2


class Model(pl.LightningModule):
    """Writes down what it is handed; `fails_at` is a step of training that raises."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.fails_at = fails_at
        self.trained, self.evaluated = [], []

    def training_step(self, batch, number):
        images, samples = batch
        if self.global_step == self.fails_at:
            raise RuntimeError("the power fails")
        assert (images.dtype, images.shape) == (torch.uint8, (10, 64, 64, 3))
        self.trained.append((self.current_epoch, number, samples.tolist()))
        return self.layer(images[:, 0, 0, :1].float() / 255).mean()

    def validation_step(self, batch, number):
        samples, mask = batch
        self.evaluated.append((self.current_epoch, self.trainer.sanity_checking, samples[mask].tolist()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def make(url, split="train", **options):
    given = {"batch_size": 10, "processes": 0, "threads": 1, "columns": ["image", "sample"]}
    return tpufeed.Loader(url, split, **given | options).to_torch()


def fit(model, loader, val=None, folder=None, resume=None, **options):
    callbacks = []
    if folder:
        callbacks = [pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)]
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        **quiet,
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=callbacks,
        enable_checkpointing=bool(callbacks),
        **options,
    )
    trainer.fit(model, loader, val, ckpt_path=resume)


@pytest.fixture(scope="module")
def epochs(cache_url):
    with tpufeed.Loader(cache_url, batch_size=10, processes=0, columns=["sample"]) as loader:
        return [(epoch, number, batch.tolist()) for epoch in range(EPOCHS) for number, batch in enumerate(loader)]


def test_it_trains_on_each_sample_once_an_epoch_and_evaluates_all(cache_url, epochs):
    model, val = Model(), make(cache_url, "val", columns=["sample"], shuffle=False, remainder="pad")
    with make(cache_url) as loader, val:
        fit(model, loader, val)
    assert model.trained == epochs
    assert sorted(itertools.chain(*(samples for epoch, _, samples in model.trained if epoch))) == list(range(70))
    sanity = [samples for _, checking, samples in model.evaluated if checking]
    assert sanity == [list(range(10)), list(range(10, 20))]  # two batches, and the epoch is left
    for epoch in range(EPOCHS):
        seen = [samples for at, checking, samples in model.evaluated if at == epoch and not checking]
        assert list(itertools.chain(*seen)) == list(range(26))


FORMS = {
    "host": lambda host: host,
    "device": lambda host: tpufeed.device_loader(host, "cpu"),
    "clock": tpufeed.StepClock(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_failed_in_mid_epoch_goes_on_where_it_was(cache_url, epochs, tmp_path, form):
    """Lightning names the epoch before each, also before the one that it goes on with."""
    first, second = Model(fails_at=10), Model()
    for model, resume in ((first, None), (second, tmp_path / "step=10.ckpt")):
        with make(cache_url) as host:
            loader = FORMS[form](host)
            if resume is None:
                with pytest.raises(RuntimeError, match="the power fails"):
                    fit(model, loader, folder=tmp_path)
            else:
                fit(model, loader, resume=resume)
    assert first.trained == epochs[:10]
    assert second.trained == epochs[10:]


@pytest.mark.parametrize("limit", [5, 0.5])
def test_it_goes_on_within_shorter_epochs_with_checks_between(cache_url, epochs, tmp_path, limit):
    """Each epoch has its first five batches, or half of seven; `last` stands after the second batch of the second."""
    length, last = (5, 7) if limit == 5 else (3, 5)
    first, second = Model(fails_at=last), Model()
    for model, resume in ((first, None), (second, tmp_path / f"step={last}.ckpt")):
        val = make(cache_url, "val", columns=["sample"], shuffle=False, remainder="pad")
        given = {"folder": tmp_path, "resume": resume, "limit_train_batches": limit, "val_check_interval": 2}
        with make(cache_url) as loader, val:
            if resume is None:
                with pytest.raises(RuntimeError, match="the power fails"):
                    fit(model, loader, val, **given)
            else:
                fit(model, loader, val, **given)
    expected = [each for each in epochs if each[1] < length]
    assert (first.trained, second.trained) == (expected[:last], expected[last:])
