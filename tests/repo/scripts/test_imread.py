"""The rows of `run.py imread` do what they say: every decoder gives the photograph, every traversal has every image."""

import numpy as np
import pytest

import tpufeed
from benchmarks import imread


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from scripts.make_photos import make_photos

    folder = tmp_path_factory.mktemp("imread")
    make_photos(folder / "photos", 40, (375, 500))
    tpufeed.shard(folder / "photos", folder / "shards", images=tpufeed.Images(check="header"), workers=1)
    return folder


def test_decoders_agree(folder):
    data = next((folder / "photos").rglob("*.jpg")).read_bytes()
    expected = imread.decoder("pillow")(data).astype(int)
    assert expected.shape == (375, 500, 3)
    for name in imread.DECODERS:
        pixels = imread.decoder(name)(data)
        assert pixels.shape == expected.shape
        assert np.abs(pixels - expected).mean() < 2, name  # TensorFlow takes the fast DCT


def test_a_traversal_of_ours_has_every_image(folder):
    traverse = imread.our_batches(folder / "shards", 0)
    assert [sum(traverse()) for _ in range(2)] == [40, 40]
    assert len(imread.measure("simplejpeg", "-", folder, 3)) == 3
