"""What a cache is asked for, where it cannot be: refused before anything is written."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from tpufeed.cache import warmup
from tpufeed.errors import OptionError
from tpufeed.images.ops import HorizontalFlip, RandomResizedCrop, Resize

SIDE = 32


@dataclass(frozen=True)
class Foreign:
    """An op by its methods, but none that a loader could make from a manifest."""

    version: ClassVar[int] = 1
    draws: ClassVar[int] = 0

    def output_size(self, size):
        return size

    def skips(self, draws):
        return False

    def apply(self, image, draws, out):
        return image


@pytest.mark.parametrize("ops", [[], [Resize(SIDE)], [HorizontalFlip()]])
def test_ops_that_leave_sizes_open_are_refused(ops, source, tmp_path):
    with pytest.raises(OptionError, match=r"images of different sizes; end with one that fixes the size"):
        warmup(source, tmp_path / "c", ops=ops, workers=1)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variants": 0}, "variants is a whole number between 1 and 1000, not 0"),
        ({"variants": 1001}, "variants is a whole number between 1 and 1000, not 1001"),
        ({"variants": 2.0}, "variants is a whole number"),
        ({"variants": "2"}, "variants is a whole number"),
        ({"encode": "gif"}, "encode is one of raw, jpeg, png, webp, not 'gif'"),
        ({"quality": 0}, "quality is a whole number between 1 and 100, not 0"),
        ({"quality": True}, "quality is a whole number"),
        ({"seed": -1}, "a seed is a whole number between 0 and"),
        ({"seed": 2**63}, "a seed is a whole number between 0 and"),
        ({"seed": "x"}, "a seed is a whole number between 0 and"),
        ({"shard_bytes": "much"}, "'much' is no size"),
        ({"presize": 64}, "warmup has no option presize; there are size, ops, final, variants,"),
        ({"hosts": 2, "variant": 2}, "warmup has no option hosts, variant; "),
        ({"split": "train"}, "is a dataset, whose splits and labels stand; these options are for raw images: split"),
        ({"max_pixels": 9, "policy": {}}, "these options are for raw images: max_pixels, policy"),
        ({"max_rejects": "many"}, "'many' is no budget for rejects"),
        ({"overwrite": True, "new_dir": True}, "either overwrite the cache that stands there, or take a new folder"),
        ({"final": [Foreign()]}, "'Foreign' is none of the ops that this tpufeed has"),
        ({"final": ["RandomCrop(16)"]}, "ops are tpufeed.images.RandomResizedCrop"),
        ({"size": 0}, "size is one or two numbers of pixels"),
        ({"workers": 0}, "workers are at least 1"),
        ({"shard_bytes": "2KB"}, "a shard of 2000 bytes cannot hold one record of 3472; .*--shard-size"),
        ({"size": None, "ops": ["RandomResizedCrop"]}, "ops are tpufeed.images.RandomResizedCrop"),
        ({"size": None, "ops": [RandomResizedCrop]}, "ops are tpufeed.images.RandomResizedCrop"),
        ({"ops": [RandomResizedCrop(SIDE)]}, "give either a size, or ops of which one fixes it"),
    ],
)
def test_options_that_cannot_be(options, message, source, tmp_path):
    with pytest.raises(OptionError, match=message):
        warmup(source, tmp_path / "c", **{"size": SIDE, "workers": 1, **options})
    assert not (tmp_path / "c").exists()
