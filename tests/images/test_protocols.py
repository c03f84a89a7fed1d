"""Parameters of ops: one form for what means the same, errors that say what is allowed, and signatures."""

import json
import math
import pickle
from dataclasses import fields
from decimal import Decimal

import pytest

from tests.images.ops.every import gather
from tpufeed.errors import OptionError
from tpufeed.images import ColorJitter, Custom, RandAugment, RandomCrop, RandomErasing, RandomResizedCrop, Rotate
from tpufeed.images.description import from_dict, parse_op, signature, to_dict
from tpufeed.images.ops import OPS
from tpufeed.images.protocols import PixelOp, WindowOp


@pytest.mark.parametrize(("one", "other"), gather("SAME"), ids=str)
def test_what_means_the_same_has_the_same_description(one, other):
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert json.dumps(to_dict(one)) == json.dumps(to_dict(other))
    assert from_dict(json.loads(json.dumps(to_dict(one)))) == one
    assert pickle.loads(pickle.dumps(one)) == one


def test_every_op_is_described_by_name_version_and_parameters():
    for name, kind in OPS.items():
        names = {field.name for field in fields(kind)}
        op = next(case.op for case in gather("CASES") if type(case.op) is kind)
        described = to_dict(op)
        assert isinstance(op, WindowOp | PixelOp)
        assert described["op"] == name == kind.__name__
        later = {field.name for field in fields(kind) if field.metadata}  # described if not the default
        assert set(described) == {"op", "version", *names} - later
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
    assert signature(Custom) == "Custom(target, version='1', sample=False, random=True)"
    assert signature(RandAugment) == "RandAugment(num_ops=2, magnitude=9, fill=128, transforms=None)"
    whole = Custom("a:b", sample=True)
    assert to_dict(whole)["sample"] is True
    assert from_dict(to_dict(whole)) == parse_op(repr(whole)) == whole


CHANCES = [
    (type(case.op), {"p": p}, "p is a number between 0 and 1, not")
    for case in gather("CASES")
    if hasattr(case.op, "p") and case.crc is not None and type(case.op) is not Rotate
    for p in (-0.1, 1.1, math.nan, "x", None, True, 1j, Decimal("0.5"))
]


@pytest.mark.parametrize(("kind", "parameters", "message"), [*CHANCES, *gather("REFUSED")], ids=str)
def test_parameters_that_cannot_be_are_option_errors_that_name_the_op(kind, parameters, message):
    with pytest.raises(OptionError, match=f"^{kind.__name__}: .*{message}") as caught:
        kind(**parameters)
    assert ", not " in str(caught.value)
    assert len(str(caught.value)) < 250
