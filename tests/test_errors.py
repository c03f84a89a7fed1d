"""The error tree: what its docstring draws, and that errors survive the way out of a worker process."""

import copy
import pickle
import re

import pytest

from tpufeed import errors
from tpufeed.errors import ImageError, MissingExtraError, TpufeedError, UsageError

ALL = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TpufeedError)]


def made(kind):
    if kind is ImageError:
        return kind("truncated", "the file ends early")
    return kind("gcsfs", "gcs") if kind is MissingExtraError else kind("a message")


@pytest.mark.parametrize("kind", ALL)
def test_errors_survive_pickling(kind):
    error = made(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__


def test_the_tree_is_the_one_that_is_drawn():
    drawn, above = {}, {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"([| +-]*)(\w+Error)(?: \((\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            above[depth] = match[2]
            drawn[match[2]] = (above.get(depth - 1), match[3])
    assert set(drawn) == {kind.__name__ for kind in ALL}
    for kind in ALL:
        parent, builtin = drawn[kind.__name__]
        bases = [base.__name__ for base in kind.__bases__]
        assert bases == [name for name in (parent, builtin) if name] or kind is TpufeedError


def test_exit_codes():
    assert {kind.exit_code for kind in ALL if issubclass(kind, UsageError)} == {2}
    assert {kind.exit_code for kind in ALL if not issubclass(kind, UsageError)} == {1}


def test_a_missing_extra_says_what_to_install():
    assert str(MissingExtraError("gcsfs", "gcs")) == "gcsfs is not installed: pip install 'tpufeed[gcs]'"
