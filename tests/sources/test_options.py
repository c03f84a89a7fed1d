import inspect
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed import Boxes
from tpufeed.cache import warmup
from tpufeed.cache.options import CacheOptions
from tpufeed.errors import OptionError
from tpufeed.images.policy import Images
from tpufeed.options import parse_size
from tpufeed.sharding.build import shard
from tpufeed.sources.options import OPTIONS, ShardOptions, parse_shares


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MB", 64_000_000),
        ("128MiB", 128 << 20),
        ("1.5 GB", 1_500_000_000),
        ("0.5KiB", 512),
        (" 10kb ", 10_000),
        ("7", 7),
        ("7b", 7),
        (1 << 20, 1 << 20),
        ("2gib", 2 << 30),
        ("9007199254740993", 9007199254740993),  # no float in between
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@given(st.integers(0, 10**15), st.sampled_from([("", 1), ("kB", 10**3), ("MiB", 1 << 20), ("GB", 10**9)]))
def test_a_size_is_number_times_unit(number, unit):
    assert parse_size(f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize(
    "text", ["", "MB", "64XB", "-1", "64 M B", "1e6", "1,5MB", "0x10", "inf", "nan", "٣MB", "1..5"]
)
def test_what_is_no_size(text):
    with pytest.raises(OptionError, match="64MB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "splits"),
    [
        ("train", {"train": 1.0}),
        ("train=1", {"train": 1.0}),
        ("train=0.9,val=0.1", {"train": 0.9, "val": 0.1}),
        (" train = 0.5 , val = 0.5 ", {"train": 0.5, "val": 0.5}),
        ("a=.5,b=5e-1", {"a": 0.5, "b": 0.5}),
    ],
)
def test_splits(text, splits):
    assert parse_shares(text) == splits


def test_a_share_alone_is_no_split():
    with pytest.raises(OptionError, match=r"'0\.9'"):
        parse_shares("0.9")


@pytest.mark.parametrize("text", ["train=", "train=x", "train=0.9,val=", "train=50%", "train=0.9=0.1"])
def test_what_is_no_split(text):
    with pytest.raises(OptionError, match=r"train=0\.9,val=0\.1"):
        parse_shares(text)


def test_a_split_given_twice():
    with pytest.raises(OptionError, match="split train"):
        parse_shares("train=0.5,train=0.5")


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({}, "split"),
        ({"train": 0.9}, r"0\.9, not 1"),
        ({"train": 0.9, "val": 0.2}, r"1\.1, not 1"),
        ({"train": 0.0, "val": 1.0}, "split train"),
        ({"80/20": 1.0}, "'80/20'"),
        ({"train-clean": 1.0}, "train_clean"),
        ({"train": 1.5, "val": -0.5}, "split train"),
        ({"train": float("nan")}, "split train"),
        ({"train": float("inf")}, "split train"),
        ({"": 1.0}, "''"),
        ({"a/b": 1.0}, "'a/b'"),
        ({"../up": 1.0}, "'../up'"),
        ({".hidden": 1.0}, "'.hidden'"),
        ({"train-v0": 1.0}, "'train-v0'"),  # would look like a variant
        ({"tráin": 1.0}, "'tráin'"),
        ({"train\n": 1.0}, r"'train\\n'"),
    ],
)
def test_splits_that_cannot_be(splits, message):
    with pytest.raises(OptionError, match=message):
        ShardOptions(splits=splits)


@pytest.mark.parametrize(("size", "message"), [(0, "not 0"), (-1, "-1")])
def test_a_shard_has_a_size(size, message):
    with pytest.raises(OptionError, match=message):
        ShardOptions(shard_bytes=size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check": "fast"}, "'fast'"),
        ({"presize": 0}, "presize"),
        ({"presize": 20000}, "20000"),
        ({"quality": 0}, r"images\.quality"),
        ({"gamma": "keep"}, "gamma"),
        ({"encode": "avif"}, r"images\.encode"),
        ({"presize_mode": "wide"}, r"images\.presize_mode"),
        ({"progresive": "keep"}, "use progressive"),
    ],
)
def test_options_of_images_that_cannot_be(options, message):
    with pytest.raises(OptionError, match=message):
        Images(**options)


def test_all_that_changes_bytes_stands_in_the_plan():
    """By the names of the keywords, as messages say what differs."""
    given = {
        "hosts": 3,
        "splits": {"a": 1.0},
        "split_by": None,
        "image": "path",
        "label": "kind",
        "classes": ("x", "y"),
        "seed": 7,
        "check": "header",
        "encode": "jpeg",
        "progressive": "baseline",
        "quality": 80,
        "presize": 64,
        "presize_mode": "long",
        "max_pixels": 10**6,
        "min_side": 5,
    }
    policy = {
        "exif": "ignore",
        "cmyk": "reject",
        "alpha": "black",
        "deep": "reject",
        "greyscale": "rgb",
        "animated": "reject",
        "extension": "reject",
        "damaged": "reject",
    }
    assert ShardOptions.of_flat(given | policy | {"shard_bytes": "1KB"}).to_dict() == {
        "shard_bytes": 1000,
        **given,
        **policy,
        "restart_markers": True,
    }
    assert ShardOptions(shards=6, hosts=3).to_dict()["shards"] == 6


def test_no_option_is_left_out_of_the_plan():
    plain = dict.fromkeys(("split_by", "split_with", "image", "group_by", "box_format", "keypoints", "label"), "xywh")
    given = plain | {"columns": {"a": "int64"}, "masks": "m", "label_separator": "|", "boxes": "b", "flip_pairs": "1:2"}
    given |= {"class_level": 2, "rename": {"a": "b"}, "texts": True}
    given |= {"box_columns": ["c"], "boxes_outside": "clip", "names": "kaggle", "keeps_classes": True, "classes": ["x"]}
    others = ShardOptions(splits="a=1", shards=2).to_dict() | ShardOptions(outlines="instance").to_dict()
    others |= ShardOptions(image_columns={"d": "e:mask"}, shard_bytes=9).to_dict()
    others |= ShardOptions(label_type="number", unlabelled="keep").to_dict()
    others |= ShardOptions(images=Images(frames=4, frame_stride=2, bands="reject")).to_dict()
    kept = Images(pixels="keep", nan="zero", nodata="mask")
    others |= ShardOptions(bands="2,1", georeference=True, images=kept).to_dict()
    assert (ShardOptions.of_flat(given).to_dict() | others).keys() >= OPTIONS.keys()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"shards": 4, "shard_bytes": "1MB"}, "shards"),
        ({"shards": 0}, "shards"),
        ({"shards": 12, "hosts": 8}, "8 hosts"),
        ({"hosts": 0}, "hosts"),
        ({"splits": "train", "split_by": "fold"}, "splits"),
        ({"shard_bytes": "many"}, "'many'"),
        ({"splits": ""}, "split"),
        ({"class_level": 0}, "from 1"),
        ({"label_type": "number", "classes": ["x"]}, "one number per sample"),
        ({"unlabelled": "keep", "names": "kaggle"}, "a class for each sample"),
        ({"label_type": "number", "names": "kaggle"}, "a class for each sample"),
        ({"rename": {"a": "c", "b": "c"}}, "the same name"),
        ({"rename": "a=c"}, "rename is a dict of texts"),
        ({"columns": "a:bool"}, "columns is a dict of texts"),
        ({"boxes": Boxes(keypoints="ax,ay,ax,ay")}, "a column twice"),
        ({"classes": []}, "classes"),
    ],
)
def test_keywords_that_cannot_be(keywords, message):
    with pytest.raises(OptionError, match=message):
        ShardOptions(**keywords)


def test_keywords_become_options(tmp_path):
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    options = ShardOptions(images=Images(presize=64, min_side=9), classes=tmp_path / "classes.txt", splits={"a": 1})
    assert (options.images.presize, options.images.min_side) == (64, 9)
    assert (options.class_names, options.split_shares) == (("cat", "dog"), {"a": 1})


@pytest.mark.parametrize(("function", "options"), [(shard, ShardOptions), (warmup, CacheOptions)])
def test_the_signature_has_the_defaults_of_the_options(function, options):
    parameters = inspect.signature(function).parameters
    for option in fields(options):
        if option.init and option.name not in ("keeps_classes", "boxes", "images"):
            assert parameters[option.name].default == option.default, option.name


@pytest.mark.parametrize(
    ("function", "keyword", "message"),
    [
        (shard, "num_workers", "use workers"),
        (shard, "alpha", r"write images=tpufeed\.Images\(alpha=\.\.\.\)"),
        (shard, "box_format", r"write boxes=tpufeed\.Boxes\(format=\.\.\.\)"),
        (shard, "box_colums", r"write boxes=tpufeed\.Boxes\(columns=\.\.\.\)"),
        (shard, "policy", r"write images=tpufeed\.Images\("),
        (shard, "boxes", r"boxes is a tpufeed\.Boxes\(column=\.\.\.\), not 1"),
        (Boxes, "box_format", "use format"),
        (warmup, "hosts", "'hosts'"),
        (warmup, "presize", "'presize'"),
    ],
)
def test_unknown_keywords(function, keyword, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        function(tmp_path, tmp_path / "d", **{keyword: 1})
