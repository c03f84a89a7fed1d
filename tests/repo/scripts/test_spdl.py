"""`run.py spdl`: what SPDL's script is given, and what tpufeed hands to its clock."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import spdl as bench
from tests.frameworks import lazy

torch = lazy("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spdl")
    bench.make_imagenet(folder, 2 * bench.BATCH)
    return folder


def run_dataloader(batches, most):
    """As SPDL's script does."""
    begun = time.monotonic()
    found = [len(images) for (images, _), _ in zip(batches, range(most), strict=False)]
    return sum(found), time.monotonic() - begun


def test_the_folder_is_what_torchvision_takes_for_imagenet(folder):
    classes, of_val = torch.load(folder / "imagenet" / "meta.bin")
    assert classes == {path.name: [path.name] for path in (folder / "imagenet" / "val").iterdir() if path.is_dir()}
    assert len(classes) > 1
    assert of_val == []


def test_our_batches_are_those_of_the_photographs(folder):
    import cv2

    batches = list(bench.our_batches(folder / "shards", 2, "batch"))
    assert [images.shape for images, _ in batches] == [(32, 3, 224, 224)] * 2
    assert {images.dtype for images, _ in batches} == {torch.uint8}
    files = sorted((folder / "imagenet" / "val").rglob("*.jpg"))
    expected = [
        cv2.resize(cv2.imread(str(file)), (224, 224), interpolation=cv2.INTER_AREA)[..., ::-1] for file in files
    ]
    means = np.sort([image.mean() for image in expected])
    ours = np.sort(torch.cat([images for images, _ in batches]).float().mean((1, 2, 3)).numpy())
    np.testing.assert_allclose(ours, means, atol=0.5)


def test_fewer_images_than_asked_for_are_an_error(folder):
    script = SimpleNamespace(run_dataloader=lambda *_: (0, 1.0))
    with pytest.raises(ValueError, match="0 images of 3200"):
        bench.measure(script, "ours", 1, "batch", folder)


def test_a_rate_is_that_of_the_scripts_clock(folder, monkeypatch):
    monkeypatch.setattr(bench, "BATCHES", 2)
    script = SimpleNamespace(run_dataloader=lambda batches, most: (run_dataloader(batches, most)[0], 0.5))
    assert bench.measure(script, "ours", 1, "batch", folder) == 2 * bench.BATCH / 0.5
    script.exp_spdl = lambda **given: (given["batch_size"] * given["max_items"], 0.25)
    assert bench.measure(script, "exp_spdl", 1, "normalise", folder) == 2 * bench.BATCH / 0.25
