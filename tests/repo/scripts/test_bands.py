"""What benchmarks/bands.py compares: all ways of storage give the same pixels, and each loader its batches."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import bands

PIXELS = bands.make_pixels(3, (96, 96, 13))


@pytest.mark.parametrize("box", [(0, 0, 96, 96), (33, 5, 70, 96)])
def test_ways_of_storage_are_lossless(box):
    for way, (encode, read) in bands.codecs().items():
        assert np.array_equal(read(encode(PIXELS), box), PIXELS[box[0] : box[2], box[1] : box[3]]), way


@pytest.mark.uses("torch")
@pytest.mark.parametrize("name", ["13 bands of 64x64", "X-ray of 1024x1024"])
def test_loaders_give_batches_of_one_shape(tmp_path: Path, name: str):
    work = bands.WORKS[name]._replace(count=16, batch=4)
    bands.make(work, tmp_path)
    side = min(bands.CROP, work.shape[0])
    images, labels = next(bands.our_batches(work, tmp_path))
    assert (images.dtype, images.shape, labels.shape) == ("uint16", (4, side, side, work.shape[2]), (4,))
    if work.tiff is None:
        pixels, label = bands.Files(bands.OPENCV, tmp_path / "files")[5]
        assert (pixels.shape, label) == ((1, side, side), 2)  # two files of each class
