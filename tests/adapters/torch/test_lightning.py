"""Lightning trains from to_torch and from DataLoader over TFRecordImages, without being told of them."""

import itertools
from types import SimpleNamespace

import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import UsageError

torch = lazy("torch")
DataLoader = lazy("torch.utils.data:DataLoader")
DistributedSampler = lazy("torch.utils.data:DistributedSampler")

pytestmark = [pytest.mark.usefixtures("lightning_without_xla"), pytest.mark.all]

EPOCHS = 2
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


@pytest.fixture(scope="module")
def lightning():
    """Lightning, and a module that writes down what it is handed; `fails_at` is a step of training that raises.

    Not imported above: each worker of pytest-xdist imports all modules of tests.
    """
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self, fails_at=None):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.fails_at = fails_at
            self.trained, self.evaluated, self.images = [], [], []

        def training_step(self, batch, number):
            images, samples = batch
            if self.global_step == self.fails_at:
                raise RuntimeError("the power fails")
            assert (images.dtype, images.shape) == (torch.uint8, (10, 64, 64, 3))
            self.trained.append((self.current_epoch, number, samples.tolist()))
            self.images.append(images.numpy().copy())
            return self.layer(images[:, 0, 0, :1].float() / 255).mean()

        def validation_step(self, batch, number):
            samples, mask = batch
            self.evaluated.append((self.current_epoch, self.trainer.sanity_checking, samples[mask].tolist()))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    return SimpleNamespace(pl=pl, Model=Model)


def make(url, split="train", **options):
    given = {"batch_size": 10, "processes": 0, "threads": 1, "columns": ["image", "sample"]}
    return tpufeed.Loader(url, split, **given | options).to_torch()


@pytest.fixture(scope="module")
def fit(lightning):
    def run(model, loader, val=None, folder=None, resume=None, **options):
        callbacks = []
        if folder:
            callbacks = [lightning.pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)]
        given = {"max_epochs": EPOCHS, "callbacks": callbacks, "enable_checkpointing": bool(folder)}
        lightning.pl.Trainer(**QUIET, **given | options).fit(model, loader, val, ckpt_path=resume)

    return run


@pytest.fixture(scope="module")
def epochs(cache_url):
    with tpufeed.Loader(cache_url, batch_size=10, processes=0, columns=["sample"]) as loader:
        return [(epoch, number, batch.tolist()) for epoch in range(EPOCHS) for number, batch in enumerate(loader)]


# to_torch


@pytest.mark.all
def test_it_trains_on_each_sample_once_an_epoch_and_evaluates_all(cache_url, epochs, lightning, fit):
    model, val = lightning.Model(), make(cache_url, "val", columns=["sample"], shuffle=False, remainder="pad")
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


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_failed_in_mid_epoch_continues_where_it_was(cache_url, epochs, tmp_path, form, lightning, fit):
    """Lightning names the epoch before each, also before the one that it continues."""
    first, second = lightning.Model(fails_at=10), lightning.Model()
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


def test_it_continues_within_shorter_epochs_with_checks_between(cache_url, epochs, tmp_path, lightning, fit):
    """Each epoch is half of seven batches; it fails after the second batch of the second one."""
    first, second = lightning.Model(fails_at=5), lightning.Model()
    for model, resume in ((first, None), (second, tmp_path / "step=5.ckpt")):
        val = make(cache_url, "val", columns=["sample"], shuffle=False, remainder="pad")
        given = {"folder": tmp_path, "resume": resume, "limit_train_batches": 0.5, "val_check_interval": 2}
        with make(cache_url) as loader, val:
            if resume is None:
                with pytest.raises(RuntimeError, match="the power fails"):
                    fit(model, loader, val, **given)
            else:
                fit(model, loader, val, **given)
    expected = [each for each in epochs if each[1] < 3]
    assert (first.trained, second.trained) == (expected[:5], expected[5:])


def test_overfit_batches_needs_a_loader_that_does_not_shuffle(cache_url, lightning, fit):
    model = lightning.Model()
    with make(cache_url) as loader, pytest.raises(UsageError, match="shuffle=False"):
        fit(model, loader, overfit_batches=1)
    with make(cache_url, shuffle=False) as loader:
        fit(model, loader, overfit_batches=1)
    assert model.trained == [(epoch, 0, list(range(10))) for epoch in range(EPOCHS)]


# DataLoader over TFRecordImages


def test_epochs_move_with_a_lane_sampler(cache_url, stored, lightning, fit):
    """Its order, and the variants of the cache: Lightning tells the epoch to the sampler, and to nobody else."""
    dataset = tpufeed.TFRecordImages(cache_url, columns=["image", "sample"])
    model = lightning.Model()
    fit(model, DataLoader(dataset, 10, sampler=tpufeed.LaneSampler(dataset), drop_last=True), max_epochs=3)
    assert [epoch for epoch, *_ in model.trained] == [0] * 7 + [1] * 7 + [2] * 7
    for (epoch, _, samples), images in zip(model.trained, model.images, strict=True):
        assert (images == stored(cache_url, "train", epoch % 2).pixels[samples]).all()
    first, second, third = (model.trained[number][2] for number in (0, 7, 14))
    assert first != second != third


@pytest.mark.parametrize("own", [False, True], ids=["DistributedSampler", "LaneSampler"])
def test_two_processes_share_the_samples(cache_url, own, lightning):
    """As Lightning prepares a DataLoader in each of them."""
    from lightning.pytorch.trainer.states import RunningStage

    seen = []
    for rank in range(2):
        trainer = lightning.pl.Trainer(**QUIET, enable_checkpointing=False, devices=2, strategy="ddp")
        trainer.strategy.cluster_environment.set_global_rank(rank)
        assert (trainer.world_size, trainer.global_rank) == (2, rank)
        dataset = tpufeed.TFRecordImages(cache_url, columns=["image", "sample"])
        sampler = tpufeed.LaneSampler(dataset, 2, rank) if own else None
        loader = DataLoader(dataset, 7, shuffle=sampler is None, sampler=sampler, num_workers=1)
        prepared = trainer._data_connector._prepare_dataloader(loader, shuffle=True, mode=RunningStage.TRAINING)
        assert (prepared.sampler is sampler) == own
        assert isinstance(prepared.sampler, DistributedSampler)
        assert (prepared.sampler.num_replicas, prepared.sampler.rank, len(prepared)) == (2, rank, 5)
        assert prepared.dataset is dataset
        seen += [sample for _, samples in prepared for sample in samples.tolist()]
    assert sorted(seen) == list(range(70))
