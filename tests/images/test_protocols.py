"""Parameters of ops: one form for what means the same, errors that say what is allowed, and signatures."""

import json
import math
import pickle
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from tpufeed.errors import OptionError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Custom,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
    VerticalFlip,
)
from tpufeed.images.description import from_dict, parse_op, signature, to_dict
from tpufeed.images.ops import OPS
from tpufeed.images.protocols import PixelOp, WindowOp

SAME = [
    (RandomResizedCrop(scale=(0.08, 1)), RandomResizedCrop(scale=[0.08, 1.0])),
    (RandomResizedCrop([96, 128]), RandomResizedCrop((np.int64(96), np.uint8(128)))),
    (Resize(np.int32(5)), Resize(5)),
    (CenterCrop((1, 16384)), CenterCrop([1, np.int64(16384)])),
    (HorizontalFlip(1), HorizontalFlip(1.0)),
    (HorizontalFlip(0), HorizontalFlip(-0.0)),
    (HorizontalFlip(0.5), HorizontalFlip(Fraction(1, 2))),
    (Grayscale(1), Grayscale(np.float32(1))),
    (RandomCrop(3, fill=[1, 2, 3]), RandomCrop(3, fill=(1, 2, 3))),
    (Rotate(30), Rotate((-30, 30.0))),
    (ColorJitter(0.5, hue=0.25), ColorJitter((0.5, 1.5), 0, [1, 1], (-0.25, 0.25))),
    (GaussianBlur(sigma=2), GaussianBlur(1, (2, 2.0))),
    (RandomErasing(value=[0, 1, 2]), RandomErasing(value=(0, 1, 2))),
    (RandAugment(np.int64(2)), RandAugment(2)),
    (RandAugment(transforms=["rotate", np.str_("color")]), RandAugment(transforms=("rotate", "color"))),
    (Custom("a:b", 2), Custom("a:b", "2")),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=str)
def test_what_means_the_same_has_the_same_description(one, other):
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert json.dumps(to_dict(one)) == json.dumps(to_dict(other))
    assert from_dict(json.loads(json.dumps(to_dict(one)))) == one
    assert pickle.loads(pickle.dumps(one)) == one


def test_every_op_is_described_by_name_version_and_parameters():
    given = {"size": 224, "degrees": 10, "target": "a:b"}
    for name, kind in OPS.items():
        names = {field.name for field in fields(kind)}
        op = kind(**{key: value for key, value in given.items() if key in names})
        described = to_dict(op)
        assert isinstance(op, WindowOp | PixelOp)
        assert described["op"] == name == kind.__name__
        assert set(described) == {"op", "version", *names} - {"sample", "transforms"}  # described if not the default
        assert described["version"] == ("1" if kind is Custom else 1)
        assert from_dict(described) == op
        assert not hasattr(op, "__dict__")
        with pytest.raises(OptionError, match=f"{name} .*'quality'.*{name}\\("):
            from_dict({**described, "quality": 3})
        if kind is not Custom:
            with pytest.raises(OptionError, match=f"{name} .*version 9, .*version 1"):
                from_dict({**described, "version": 9})


def test_descriptions_never_change():
    """Fingerprints of caches are made of them."""
    ops = [
        RandomCrop(32, 4),
        ColorJitter(0.5),
        RandomErasing(value="random"),
        Custom("a:b", "2"),
        RandAugment(),
        RandAugment(transforms=("rotate", "color")),
    ]
    assert [json.dumps(to_dict(op), sort_keys=True) for op in ops] == [
        '{"fill": 0, "op": "RandomCrop", "padding": 4, "size": 32, "version": 1}',
        '{"brightness": [0.5, 1.5], "contrast": [1.0, 1.0], "hue": [0.0, 0.0], "op": "ColorJitter", '
        '"saturation": [1.0, 1.0], "version": 1}',
        '{"op": "RandomErasing", "p": 0.5, "ratio": [0.3, 3.3], "scale": [0.02, 0.33], "value": "random", '
        '"version": 1}',
        '{"op": "Custom", "target": "a:b", "version": "2"}',
        '{"fill": 128, "magnitude": 9, "num_ops": 2, "op": "RandAugment", "version": 1}',
        '{"fill": 128, "magnitude": 9, "num_ops": 2, "op": "RandAugment", "transforms": ["rotate", "color"], '
        '"version": 1}',
    ]


def test_signatures_are_what_one_writes():
    assert signature(RandomCrop) == "RandomCrop(size, padding=0, fill=0)"
    assert signature(RandomResizedCrop) == "RandomResizedCrop(size=224, scale=(0.08, 1), ratio=(0.75, 1.333))"
    assert signature(Custom) == "Custom(target, version='1', sample=False)"
    assert signature(RandAugment) == "RandAugment(num_ops=2, magnitude=9, fill=128, transforms=None)"
    whole = Custom("a:b", sample=True)
    assert to_dict(whole)["sample"] is True
    assert from_dict(to_dict(whole)) == parse_op(repr(whole)) == whole


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        *((kind, {"size": size}, "size is one or two") for kind in (Resize, RandomCrop) for size in (0, True, 3.0)),
        *((RandomCrop, {"size": 3, "padding": value}, "padding is a whole number") for value in (-1, 1.5, None, True)),
        *((RandomCrop, {"size": 3, "fill": value}, "fill is a level") for value in (-1, 256, 0.5, "red", (1, 2), True)),
        *((kind, {"p": p}, "p is a number between 0 and 1, not")
          for kind in (HorizontalFlip, VerticalFlip, Grayscale, GaussianBlur, RandomErasing)
          for p in (-0.1, 1.1, math.nan, "x", None, True, 1j, Decimal("0.5"))),
        *((Rotate, {"degrees": value}, "degrees is a number") for value in (-1, 361, (3, 2), (-361, 0), "9", math.nan)),
        *((Rotate, {"degrees": 3, "fill": value}, "fill is a level") for value in (300, (0, 0, 256), "black")),
        *((ColorJitter, {kind: value}, f"{kind} is a number") for kind in ("brightness", "contrast", "saturation")
          for value in (-0.1, 100, (0.5,), (2, 1), (-1, 1), math.inf, "x", None, True)),
        *((ColorJitter, {"hue": value}, "hue is a number") for value in (-0.1, 0.51, (-0.6, 0), (0.3, 0.2), None)),
        *((GaussianBlur, {"sigma": value}, "sigma is") for value in (0, -1, (0, 1), (2, 1), 101, "x", None, True)),
        *((RandomErasing, {"scale": value}, "scale is") for value in ((0, 1), (0.5, 1.1), 0.5, None)),
        *((RandomErasing, {"ratio": value}, "ratio is") for value in ((0, 1), (2, 1), 1)),
        *((RandomErasing, {"value": value}, "value is") for value in (-1, 256, "noise", (1, 2), None, 0.5)),
        *((RandAugment, {"num_ops": value}, "num_ops is a whole number") for value in (-1, 101, 1.0, None)),
        *((RandAugment, {"magnitude": value}, "magnitude is a whole number") for value in (-1, 31, 9.5, "9")),
        (RandAugment, {"fill": 999}, "fill is a level"),
        *((RandAugment, {"transforms": value}, "transforms is one or more of identity, .*equalize, each once, not")
          for value in ((), [], "rotate", ("Rotate",), ("rotate", "rotate"), ("rotate", 3), ([],), {"rotate"}, b"x")),
        (CenterCrop, {"size": list(range(10_000))}, r"not \[0, 1, 2, .{40,90}\.\.\.$"),
    ],
    ids=str,
)  # fmt: skip
def test_parameters_that_cannot_be_are_option_errors_that_name_the_op(kind, parameters, message):
    with pytest.raises(OptionError, match=f"^{kind.__name__}: .*{message}") as caught:
        kind(**parameters)
    assert ", not " in str(caught.value)
    assert len(str(caught.value)) < 250
