"""One contract for all loaders: the same samples with the same pixels in the same order, by design.md's account.

The expectation is put together from the order, a full parse of the stored records, and the ops run image by image.
"""

import numpy as np
import pytest

import tpufeed
from tpufeed.dataset.order import EpochOrder
from tpufeed.dataset.reader import open_dataset
from tpufeed.loaders.decoder import Decoder

SEED, BATCH, LANES, EPOCHS = 3, 9, 16, 3
OPTIONS = {"columns": ["image", "label", "sample"], "batch_size": BATCH, "seed": SEED, "remainder": "pad"}


def numpy_epochs(source, url, given, request):
    with tpufeed.numpy_loader(url, **OPTIONS, **given) as loader:
        return [list(loader) for _ in range(EPOCHS)]


def tf_epochs(source, url, given, request):
    dataset = tpufeed.tf_dataset(url, **OPTIONS, **given)
    return [[tuple(tensor.numpy() for tensor in batch) for batch in dataset] for _ in range(EPOCHS)]


def xla_epochs(source, url, given, request):
    found, _ = request.getfixturevalue("one_device")
    epochs = found["contract"][source]
    assert {device for epoch in epochs for batch in epoch for device, _ in batch} == {"xla"}
    return [[tuple(array for _, array in batch) for batch in epoch] for epoch in epochs]


@pytest.fixture(params=[numpy_epochs, tf_epochs, xla_epochs], ids=["numpy", "tf", "xla"])
def loader(request):
    return request.param


@pytest.mark.parametrize("source", ["dataset", "cache"])
def test_samples_pixels_and_order(loader, source, stored, request):
    url = request.getfixturevalue(f"{source}_url")
    given = {"ops": request.getfixturevalue("ops")} if source == "dataset" else {}
    variants = open_dataset(url).split("train").variants
    epochs = loader(source, url, given, request)
    assert len(epochs) == EPOCHS
    for epoch, batches in enumerate(epochs):
        assert len(batches) == 8  # 70 samples: 7 batches of 9 and one of 7
        records = [shard.records for shard in variants[0].shards]
        order = EpochOrder(records, SEED, epoch, LANES).places(0, 70).sample
        assert [sample for *_, samples, mask in batches for sample in samples[mask]] == order.tolist()
        assert [mask.tolist() for *_, mask in batches] == [[True] * 9] * 7 + [[True] * 7 + [False] * 2]
        held = stored(url, "train", epoch % len(variants))
        for images, labels, samples, _ in batches:
            assert [array.dtype for array in (images, labels, samples)] == [np.uint8, np.int64, np.int64]
            np.testing.assert_array_equal(labels, held.labels[samples])
            np.testing.assert_array_equal(images, expected_pixels(url, held, samples, epoch, given))


def expected_pixels(url, held, samples, epoch, given):
    if not given:
        return held.pixels[samples]
    decoder, encoded = Decoder(open_dataset(url), given["ops"], SEED), held.column("image/encoded")
    draws = decoder.pipeline.draw(epoch, samples)
    return np.stack(
        [decoder.decode(encoded[s], [op[row] for op in draws]).copy() for row, s in enumerate(samples.tolist())]
    )
