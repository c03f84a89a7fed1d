"""docs/reliability.md: each of its 21 classes is there, and each test that it names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reliability.md"
CLASSES = 21

# What no test shows yet, or is not kept: classes without any test, and parts. Whoever fills a gap removes it here and
# its "Not yet" on the page.
WITHOUT_TESTS: set[int] = set()
GAPS: dict[int, str] = {}


def sections():
    """Text by number of class."""
    parts = re.split(r"^## (\d+)\. .*$", PAGE.read_text(), flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def named_in(text):
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)


def test_every_class_has_its_section_and_a_test_or_is_a_known_gap():
    found = sections()
    assert sorted(found) == list(range(1, CLASSES + 1))
    assert {number for number, text in found.items() if not named_in(text)} == WITHOUT_TESTS
    assert {number for number, text in found.items() if "**Not yet**" in text} == set(GAPS)


@pytest.mark.parametrize("number", range(1, CLASSES + 1))
def test_the_tests_that_it_names_exist(number):
    for path, name in named_in(sections()[number]):
        functions = {
            node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, f"{path} has no {name}"


def test_the_rounds_of_kills_are_those_of_the_tests():
    told = re.findall(r"`(tests/[\w/]+\.py)::\w+`: (\d+) rounds, (?:or )?(\d+)", PAGE.read_text())
    assert len(told) == 5
    for path, few, many in told:
        assert f'"rounds", [{few}, pytest.param({many}, marks=pytest.mark.long)]' in (ROOT / path).read_text(), path


def test_every_test_of_this_folder_is_named():
    named = set(named_in(PAGE.read_text()))
    for path in Path(__file__).parent.glob("test_[0-9]*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert (str(path.relative_to(ROOT)), node.name) in named, f"{path.name}::{node.name}"
