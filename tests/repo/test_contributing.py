"""CONTRIBUTING: its map of rooms is that of the package, its first op runs, and what it asks of files holds."""

import re
import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from tests import frameworks
from tpufeed.images.device import DeviceOps
from tpufeed.images.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_each_room_has_its_layer() -> None:
    mapped = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    (layers,) = (
        contract["layers"]
        for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["tpufeed"]
    )
    assert layers[0] == "__main__"  # of `python -m`, not a room
    numbered = enumerate(reversed(layers[1:]))
    expected = {(str(height), room) for height, rooms in numbered for room in rooms.split(" | ")}
    assert set(mapped) == expected
    folders = {path.parent.name for path in (ROOT / "tpufeed").glob("*/__init__.py")}
    assert folders | {"errors", "options", "text", "_version"} == {room for _, room in mapped}


def test_each_file_on_the_ways_is_there() -> None:
    named = [name for name in re.findall(r"`(\w+/[\w/]*\.py)`", PAGE) if "invert" not in name]  # of the first change
    assert len(named) > 15
    known = [name for name in named if (ROOT / "tpufeed" / name).is_file() or (ROOT / name).is_file()]
    assert known == named


def test_each_function_on_the_ways_is_in_a_file_of_its_row() -> None:
    rows = re.findall(r"^\| [^|]* \| ([^|]*`[^|]*) \| (`[^|]*\.py`[^|]*) \|$", PAGE, re.MULTILINE)
    assert len(rows) > 25
    for functions, files in rows:
        code = "".join((ROOT / "tpufeed" / name).read_text() for name in re.findall(r"`([^`]*)`", files))
        for name in re.findall(r"`(\w+\.)?(\w+)`", functions):
            owner, function = name[0].rstrip("."), name[1]
            assert re.search(rf"^ *(def|class) {function}\b", code, re.MULTILINE), (function, files)
            assert not owner or re.search(rf"^class {owner}\b", code, re.MULTILINE), (owner, files)


def test_the_op_of_the_first_change_runs() -> None:
    code, test = map(dedent, re.findall(r"```python\n(.*?) *```", PAGE, re.DOTALL))
    module: dict[str, Any] = {"__name__": "invert"}
    exec(code, module)
    exec(test.replace("from tpufeed.images import Invert\n", ""), module)
    (case,) = module["CASES"]
    assert DeviceOps([case.op], (2, 2)).width == 1
    pipeline = Pipeline([case.op], 0)
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    draws = [drawn[0] for drawn in pipeline.draw(0, np.array([0]))]
    np.testing.assert_array_equal(pipeline.run(pixels, draws), 255 - pixels)


def test_collecting_the_tests_imports_no_framework() -> None:
    """Each process that runs tests collects all of them."""
    assert frameworks.collected == []


def test_fragments_of_the_changelog_have_a_type() -> None:
    types = "|".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["fragment"])
    names = [path.name for path in (ROOT / "changelog.d").glob("[!.]*")]
    assert [name for name in names if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({types})\.md", name)] == []


def test_the_lock_names_versions_and_no_host() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    assert [line for line in lines if not re.match(r"#|[\w.-]+==[\w.]+( ; |$)", line) or "://" in line] == []
