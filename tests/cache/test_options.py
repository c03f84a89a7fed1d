"""What a cache is asked for, where it cannot be: refused before anything is written."""

import pytest

from tpufeed.cache import warmup
from tpufeed.errors import OptionError
from tpufeed.images.ops import HorizontalFlip, RandomResizedCrop, Resize

SIDE = 32


@pytest.mark.parametrize("ops", [[], [Resize(SIDE)], [HorizontalFlip()]])
def test_ops_that_leave_sizes_open_are_refused(ops, source, tmp_path):
    with pytest.raises(OptionError, match=r"images of different sizes; end with one that fixes the size"):
        warmup(source, tmp_path / "c", ops=ops, workers=1)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variants": 0}, "variants are between 1 and 1000, not 0"),
        ({"encode": "png"}, "encode is 'raw' or 'jpeg', not 'png'"),
        ({"size": 0}, "size is one or two numbers of pixels"),
        ({"workers": 0}, "workers are at least 1"),
        ({"shard_bytes": "2KB"}, "a shard of 2000 bytes cannot hold one record of 3472; .*--shard-size"),
        ({"ops": ["RandomResizedCrop"]}, "ops are tpufeed.images.RandomResizedCrop"),
        ({"ops": [RandomResizedCrop]}, "ops are tpufeed.images.RandomResizedCrop"),
    ],
)
def test_options_that_cannot_be(options, message, source, tmp_path):
    with pytest.raises(OptionError, match=message):
        warmup(source, tmp_path / "c", **{"size": SIDE, "workers": 1, **options})
    assert not (tmp_path / "c").exists()
