"""The map of rooms in CONTRIBUTING is that of the package."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_each_room_has_its_layer() -> None:
    mapped = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    (layers,) = (
        contract["layers"]
        for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if "layers" in contract
    )
    assert layers[0] == "__main__"  # of `python -m`, not a room
    numbered = enumerate(reversed(layers[1:]))
    expected = {(str(height), room) for height, rooms in numbered for room in rooms.split(" | ")}
    assert set(mapped) == expected
    folders = {path.parent.name for path in (ROOT / "tpufeed").glob("*/__init__.py")}
    assert folders | {"errors", "options", "text", "_version"} == {room for _, room in mapped}


def test_each_file_on_the_ways_is_there() -> None:
    named = re.findall(r"`(\w+/[\w/]*\.py)`", PAGE)
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
