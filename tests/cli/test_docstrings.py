"""Help of flags from docstrings."""

import inspect
from types import SimpleNamespace

import pytest

from tpufeed.cache.build import warmup
from tpufeed.cli import docstrings
from tpufeed.measure.bench import BenchOptions
from tpufeed.sharding.build import shard


@pytest.mark.parametrize(
    ("place", "documented"),
    [("sharding.build:shard", shard), ("cache.build:warmup", warmup), ("measure.bench:BenchOptions", BenchOptions)],
)
def test_every_argument_is_found(place, documented):
    flags = docstrings._FLAGS.get(place, {})
    assert [*docstrings.read_args(place)] == [
        flags.get(name, name) for name in inspect.signature(documented).parameters
    ]


@pytest.mark.parametrize(
    ("text", "default", "expected", "shown"),
    [
        ("side of `dst`, e.g. 7. More. Default: as `min_side`.", None, "Side of DST, e.g. 7.", "as --least"),
        ("side of `tpufeed.shard`, or `Dataset`", 3, "Side of tpufeed shard, or Dataset.", True),
        ("emulated:PROFILE. Default: 9.", 3, "emulated:PROFILE.", True),
        ("as in `tpufeed.shard`", None, "Of another.", True),
    ],
)
def test_help_is_the_first_sentence(text, default, expected, shown, monkeypatch):
    monkeypatch.setattr(docstrings, "read_args", {"own": {"size": text}, "other": {"size": "of another."}}.__getitem__)
    of_kind = {"help": None, "multiple": False, "show_default": True}
    size = SimpleNamespace(name="size", opts=["--size"], param_type_name="option", default=default, **of_kind)
    side = SimpleNamespace(name="min_side", opts=["--least"], param_type_name="option", **of_kind | {"help": "x"})
    dst = SimpleNamespace(name="dst", opts=["dst"], param_type_name="argument", **of_kind | {"help": "x"})
    docstrings.describe([size, side, dst], "own other")
    assert (size.help, size.show_default, side.help) == (expected, shown, "x")


def test_flags_that_take_several_values_say_so(monkeypatch):
    monkeypatch.setattr(docstrings, "read_args", lambda _: {"unset": "options."})
    unset = SimpleNamespace(
        name="unset", opts=["--unset"], param_type_name="option", help=None, multiple=True, default=None
    )
    docstrings.describe([unset], "one")
    assert unset.help == "Options. Repeatable."
