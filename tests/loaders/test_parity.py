"""The same seeds give the same samples in every loader: two epochs of ids, pixels and labels, but of direct=True."""

import multiprocessing

import numpy as np
import pytest
from torch.utils.data import DataLoader

import tpufeed
from tests.loaders import contract
from tests.loaders.contract import FEEDS
from tpufeed.loaders.keras.dataset import KerasFeed

EPOCHS, BATCH, SEED = 2, 8, 5
OPTIONS = {"batch_size": BATCH, "seed": SEED, "columns": ["image", "label", "sample"], "remainder": "drop"}


def rows(batches):
    """[(sample, label, pixels)] of an epoch."""
    columns = [[np.asarray(column) for column in batch] for batch in batches]
    return [
        (int(sample), int(label), image.tobytes())
        for images, labels, samples in columns
        for image, label, sample in zip(images, labels, samples, strict=True)
    ]


@pytest.fixture(scope="module")
def xla_process():
    with multiprocessing.get_context("spawn").Pool(1, contract.start_on_cpu) as pool:
        yield pool


def of_feed(name, url, ops, xla_process):
    given = name, contract.epochs, url, (EPOCHS,), OPTIONS | {"ops": ops}
    if name == "torch_xla":
        return map(rows, xla_process.apply_async(contract.run, given).get(280))
    return map(rows, contract.run(*given))


def of_keras(url, ops):
    """On JAX and torch; Keras runs on TensorFlow here, whose `to_keras` is `to_tf`."""
    feed = KerasFeed(tpufeed.Loader(url, **OPTIONS, ops=ops))
    for _ in range(EPOCHS):
        feed.on_epoch_begin()
        yield rows([feed[number] for number in range(feed.num_batches)])
    feed.close()


def of_sampler(url, ops):
    given = {name: OPTIONS[name] for name in ("seed", "columns")}
    dataset = tpufeed.TFRecordImages(url, ops=ops, **given)
    sampler = tpufeed.LaneSampler(dataset, 1, 0, seed=SEED)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        yield rows(DataLoader(dataset, BATCH, sampler=sampler, drop_last=True))


def of_grain(url, ops, expected):
    """Grain has its own order: find the samples of each epoch, and return them in the expected order."""
    given = {name: OPTIONS[name] for name in ("seed", "columns")}
    samples = tpufeed.grain_source(url, ops=ops, **given).to_map_dataset().repeat(EPOCHS)
    for epoch, part in enumerate(expected):
        found = [samples[epoch * len(samples) // EPOCHS + sample] for sample, _, _ in part]
        yield [(int(each["sample"]), int(each["label"]), each["image"].tobytes()) for each in found]


@pytest.mark.parametrize("source", ["dataset", "cache"])
def test_every_loader_has_the_same_samples(request, ops, source, xla_process):
    url, ops = request.getfixturevalue(f"{source}_url"), ops if source == "dataset" else None
    with tpufeed.Loader(url, **OPTIONS, ops=ops) as loader:
        expected = [rows(loader) for _ in range(EPOCHS)]
    assert expected[0] != expected[1]
    found = {name: of_feed(name, url, ops, xla_process) for name in FEEDS if name not in ("numpy", "tf-direct")}
    found |= {"keras": of_keras(url, ops), "LaneSampler": of_sampler(url, ops), "grain": of_grain(url, ops, expected)}
    for name, epochs in found.items():
        assert list(epochs) == expected, name
