"""Options that cannot be are refused before anything is written."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from tests.sharding.previews import preview_warmup
from tpufeed.cache import warmup
from tpufeed.cli.app import app
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import OptionError
from tpufeed.images import HorizontalFlip, RandomCrop, RandomResizedCrop, Resize

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
    with pytest.raises(OptionError, match="size"):
        warmup(source, tmp_path / "c", ops=ops, workers=1)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variants": 0}, "variants"),
        ({"variants": "2"}, "variants"),
        ({"encode": "gif"}, "'gif'"),
        ({"encode": "dct", "quality": 93}, "1 to 92, not 93"),
        ({"encode": "dct", "size": 40}, "multiples of 16.*40x40.*32x32"),
        ({"encode": "dct", "names": "kaggle"}, "'dct' makes none"),
        ({"quality": 0}, "quality"),
        ({"seed": -1}, "seed"),
        ({"shard_bytes": "much"}, "'much'"),
        ({"splits": "train"}, "splits"),
        ({"max_rejects": "many"}, "'many'"),
        ({"live": [Foreign()]}, "'Foreign'"),
        ({"live": ["RandomCrop(16)"]}, "ops"),
        ({"size": 0}, "size"),
        ({"workers": 0}, "workers"),
        ({"shard_bytes": "2KB"}, "3472"),
        ({"size": None, "ops": ["RandomResizedCrop"]}, "ops"),
        ({"ops": [RandomResizedCrop(SIDE)]}, "size"),
    ],
)
def test_options_that_cannot_be(options, message, source, tmp_path):
    with pytest.raises(OptionError, match=message):
        warmup(source, tmp_path / "c", **{"size": SIDE, "workers": 1, **options})
    assert not (tmp_path / "c").exists()


@pytest.fixture(scope="module")
def augmented(source, tmp_path_factory):
    """A cache of two variants of random crops."""
    ops = [Resize((48, 48)), RandomCrop(SIDE), HorizontalFlip()]
    return warmup(source, tmp_path_factory.mktemp("options") / "augmented", ops=ops, variants=2, workers=1).url


@pytest.mark.parametrize("do", [warmup, preview_warmup])
def test_an_augmented_cache_is_no_source_unless_it_is_allowed(do, augmented, tmp_path):
    """It would make crops of crops, of the first variant only; also if only the encoding changes."""
    for options in ({"size": 16}, {"ops": [], "encode": "png"}):
        with pytest.raises(OptionError, match="--allow-augmented"):
            do(augmented, tmp_path / "c", workers=1, **options)
    assert not (tmp_path / "c").exists()
    assert do(augmented, tmp_path / "c", size=16, workers=1, allow_augmented=True)


def test_what_is_allowed_is_the_first_variant(augmented, tmp_path):
    done = warmup(augmented, tmp_path / "c", ops=[], workers=1, allow_augmented=True)
    expected, found = (open_dataset(url).iter_examples("train", 0) for url in (augmented, done.url))
    for one, other in zip(expected, found, strict=True):
        assert bytes(one["image/tensor"].values[0]) == bytes(other["image/tensor"].values[0])


def test_a_cache_that_is_presized_is_a_source_as_any_other(source, tmp_path):
    """Also with live ops: nothing that is stored went through them."""
    presized = warmup(source, tmp_path / "p", ops=[Resize((48, 48))], live=[RandomCrop(SIDE)], workers=1).url
    assert warmup(presized, tmp_path / "c", size=SIDE, variants=2, workers=1).images


def test_the_command_takes_an_augmented_cache_where_it_is_told_to(augmented, tmp_path):
    arguments = ["cache", "warmup", augmented, str(tmp_path / "c"), "--size", "16", "--workers", "1"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "--allow-augmented" in refused.output
    assert CliRunner().invoke(app, [*arguments, "--allow-augmented"]).exit_code == 0
