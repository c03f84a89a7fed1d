"""A LightningModule trains with DataLoader over TFRecordImages, with nothing of Lightning's told about it."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.trainer.states import RunningStage
from torch.utils.data import DataLoader, DistributedSampler

import tpufeed

pytestmark = pytest.mark.usefixtures("lightning_without_xla")

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Model(pl.LightningModule):
    """Writes down what it is handed."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, number):
        images, samples = batch
        assert (images.dtype, images.shape) == (torch.uint8, (10, 64, 64, 3))
        self.seen.append((self.current_epoch, samples.tolist(), images.numpy().copy()))
        return self.layer(images[:, 0, 0, :1].float() / 255).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


@pytest.fixture(scope="module")
def make(cache_url):
    return lambda: tpufeed.TFRecordImages(cache_url, columns=["image", "sample"])


def fit(loader, epochs):
    model = Model()
    pl.Trainer(**QUIET, accelerator="cpu", max_epochs=epochs).fit(model, loader)
    return model.seen


def test_a_module_trains(make, cache_url, stored):
    seen = fit(DataLoader(make(), 10, shuffle=True), 1)
    assert sorted(sample for _, samples, _ in seen for sample in samples) == list(range(70))
    for _, samples, images in seen:
        assert (images == stored(cache_url, "train").pixels[samples]).all()


def test_epochs_move_with_a_lane_sampler(make, cache_url, stored):
    """Its order, and the variants of the cache: Lightning tells the epoch to the sampler, and to nobody else."""
    dataset = make()
    seen = fit(DataLoader(dataset, 10, sampler=tpufeed.LaneSampler(dataset), drop_last=True), 3)
    assert [epoch for epoch, _, _ in seen] == [0] * 7 + [1] * 7 + [2] * 7
    for epoch, samples, images in seen:
        assert (images == stored(cache_url, "train", epoch % 2).pixels[samples]).all()
    assert seen[0][1] != seen[7][1] != seen[14][1]


@pytest.mark.parametrize("own", [False, True], ids=["DistributedSampler", "LaneSampler"])
def test_two_processes_share_the_samples(make, own):
    """As Lightning prepares a DataLoader in each of them."""
    seen = []
    for rank in range(2):
        trainer = pl.Trainer(**QUIET, accelerator="cpu", devices=2, strategy="ddp")
        trainer.strategy.cluster_environment.set_global_rank(rank)
        assert (trainer.world_size, trainer.global_rank) == (2, rank)
        dataset = make()
        sampler = tpufeed.LaneSampler(dataset, 2, rank) if own else None
        loader = DataLoader(dataset, 7, shuffle=sampler is None, sampler=sampler, num_workers=1)
        prepared = trainer._data_connector._prepare_dataloader(loader, shuffle=True, mode=RunningStage.TRAINING)
        assert (prepared.sampler is sampler) == own
        assert isinstance(prepared.sampler, DistributedSampler)
        assert (prepared.sampler.num_replicas, prepared.sampler.rank, len(prepared)) == (2, rank, 5)
        assert prepared.dataset is dataset
        seen += [sample for _, samples in prepared for sample in samples.tolist()]
    assert sorted(seen) == list(range(70))
