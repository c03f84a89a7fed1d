"""Ops as text: what is read, what is refused and how, and that nothing is ever run."""

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.images.ops.every import gather
from tpufeed.errors import OptionError
from tpufeed.images import (
    ColorJitter,
    Custom,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
)
from tpufeed.images.description import from_dict, parse_op, to_dict
from tpufeed.images.ops import OPS


@given(st.one_of(gather("MADE")))
def test_an_op_comes_back_from_its_text_and_its_description(op):
    assert parse_op(repr(op)) == op
    assert to_dict(parse_op(repr(op))) == to_dict(op)
    assert from_dict(to_dict(op)) == op
    if isinstance(op, Custom):
        assert parse_op(f"{op.target}@{op.version}") == op


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("RandomResizedCrop(size=224, scale=(0.3, 1.0))", RandomResizedCrop(224, (0.3, 1.0))),
        ("HorizontalFlip", HorizontalFlip()),
        (" HorizontalFlip ( ) ", HorizontalFlip()),
        ("Resize(256)", Resize(256)),
        ("Resize([96, 128])", Resize((96, 128))),
        ("ColorJitter(.4, .4, hue=(-.1, .1))", ColorJitter(0.4, 0.4, hue=0.1)),
        ("RandomErasing(1, value='random')", RandomErasing(1, value="random")),
        ("RandAugment(2, 9, transforms=('identity', 'posterize'))", RandAugment(transforms=("identity", "posterize"))),
        ("RandAugment(transforms=['rotate'])", RandAugment(transforms=("rotate",))),
        ("RandomCrop(\n  32,\n  padding=4)", RandomCrop(32, 4)),
        ("my.augment:heavy", Custom("my.augment:heavy")),
        ("my.augment:heavy@2", Custom("my.augment:heavy", "2")),
        ("my.augment:Class.method@2024-11 b@c", Custom("my.augment:Class.method", "2024-11 b@c")),
        ("Custom('my.augment:heavy', version='2')", Custom("my.augment:heavy", "2")),
        ("os:system", Custom("os:system")),  # a name like any other: not imported, let alone called
    ],
)
def test_texts_that_are_ops(text, op):
    assert parse_op(text) == op


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Resizee(3)", r"no op is called 'Resizee'\. Did you mean Resize\? There are CenterCrop, .*VerticalFlip, and"),
        ("randomresizedcrop(3)", r"Did you mean RandomResizedCrop\?"),
        ("Resize(sz=3)", r"Resize has no parameter 'sz' at character 8\. Did you mean size\? It is Resize\(size\)"),
        ("Resize(size=(3, 'ü'), q=1)", r"no parameter 'q' at character 23"),
        ("Resize(3,\n  q=1)", r"no parameter 'q' at character 3 of line 2"),
        ("Resize", r"Resize needs size: it is Resize\(size\)"),
        ("Resize(1, 2)", "2 values are too many: it is"),
        ("RandAugment(2, 9, 31)", "3 values are too many: it is"),  # torchvision's third is num_magnitude_bins
        ("GaussianBlur(23)", "p is a number between 0 and 1, not 23"),  # and its first the size of the kernel
        ("Resize(1, size=2)", "'size' at character 11 is given twice"),
        ("Resize(size=1, size=2)", "'size' at character 16 is given twice"),
        ("Resize(0)", r"size is one or two numbers.*not 0\. It is Resize\(size\)"),
        ("RandomCrop(3, fill=256)", r"fill is a level of 0 to 255.*RandomCrop\(size, padding=0, fill=0\)"),
        ("RandAugment(transforms=('rotato',))", r"transforms is one or more of identity, .*not \('rotato',\)\. It is"),
        ("Rotate(-3)", "degrees is a number between 0 and 360, or"),
        ("HorizontalFlip(p=True)", "p is a number between 0 and 1, not True"),
        ("HorizontalFlip(p=nan)", "nan at character 18 is not a number"),
        ("Resize(3", r"'\(' was never closed at character 7"),
        ("my.augment.heavy", r"A function of your own is written my\.augment:heavy\."),
        ("my.augment:heavy@", "version is a short text"),
        ("my/augment:heavy", "the target is 'module:function'"),
        ("__main__:f", "put it, .*into a module"),
        ("", "Write a name or a call, like"),
    ],
)
def test_texts_that_are_none_say_where_and_what_could_stand_there(text, message):
    with pytest.raises(OptionError, match=f"(?s)^op .*{message}") as caught:
        parse_op(text)
    assert repr(text) in str(caught.value)


HOSTILE = [
    "__import__('os')",
    "__import__('os').system('touch pwned')",
    "Resize(size=os.system('x'))",
    "Resize(__import__('os').getpid())",
    "Resize((lambda: 3)())",
    "Resize(*[3])",
    "Resize(**{'size': 3})",
    "Resize([x for x in (3, 4)])",
    "Resize(f'{3}')",
    "Resize(size:=3)",
    "Resize(9**9**9)",
    "Resize('x' * 10**9)",
    "Resize(1e999)",
    "Resize(0x" + "f" * 900 + ")",
    "Resize(3)(4)",
    "Resize.__class__",
    "Resize.__init__(3)",
    "Resize[3]",
    "Resize; HorizontalFlip",
    "Resize\nHorizontalFlip",
    "lambda: 1",
    "(" * 300 + ")" * 300,
    "[" * 150 + "]" * 150,
    "Resize(" + "[" * 150 + "]" * 150 + ")",
    "Resize(" + "-" * 900 + "1)",
    "-" * 900 + "1",
    "not " * 240 + "1",
    "a" + "()" * 400,
    "a" + ".b" * 450,
    "Resize(" + "1+" * 480 + "1)",
    "Resize" + " " * 990 + "(",
    "x" * 1001,
    "x" * 10**6,
    "m:" + "f" * 10**6,
    "Resize(\0)",
    "Resize('\ud800')",
    "\ud800",
    "m:\u202ef",
    "Ré size(3)",
    "\N{PILE OF POO}(3)",
    "Resize('\\N{no such name}')",
    "Resize('\\x')",
    "{x: 1}",
    "..:..",
    "a:b\n@2",
    "a:b@2\n3",
    "@", ":", ":@", "#", "\\", "'", '"""',
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:40])
def test_hostile_texts_are_option_errors_of_a_bearable_length(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)
    with pytest.raises(OptionError, match=r"(?s)^op ") as caught:
        parse_op(text)
    assert len(str(caught.value)) < 900
    assert not list(tmp_path.iterdir())
    assert set(sys.modules) == modules


@given(st.text(max_size=40) | st.builds("{}({})".format, st.sampled_from(sorted(OPS)), st.text("0159.,=()[]'size -")))
@example("HorizontalFlip(p=1j)")
def test_any_text_is_an_op_or_an_option_error(text):
    try:
        op = parse_op(text)
    except OptionError:
        return
    assert parse_op(repr(op)) == op
