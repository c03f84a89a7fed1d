"""scripts/house: what it counts in a small package, and the budgets of roads of this one."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = {
    "top/a.py": "import tpufeed.low.b\n\n\nclass Same:\n    pass\n",
    "low/b.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import tpufeed.top.a\n",
    "low/c.py": 'ENTRY = "tpufeed.top.a:run"\n\n\nclass Same:\n    pass\n',
}
BUDGETS = {"files": 6, "names_twice": 1, "climbs": 2, "circles": 1, "lines": {"total": 14, "low": 9, "top": 5}}


def house(tmp_path, budgets=BUDGETS):
    for name, text in FILES.items():
        path = tmp_path / "tpufeed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    (tmp_path / "tpufeed/__init__.py").touch()
    lines = ", ".join(f"{room} = {most}" for room, most in budgets["lines"].items())
    rest = "\n".join(f"{name} = {most}" for name, most in budgets.items() if name != "lines")
    linter = '[[tool.importlinter.contracts]]\ntype = "layers"\ncontainers = ["tpufeed"]\nlayers = ["top", "low"]\n'
    (tmp_path / "pyproject.toml").write_text(f"{linter}\n[tool.house]\n{rest}\nlines = {{ {lines} }}\n")
    command = [sys.executable, ROOT / "scripts/house", "--root", tmp_path]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_names_what_it_counts(tmp_path):
    done = house(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "low                9 lines     3 files\n" in done.stdout
    assert "Same: low/c.py, top/a.py\n" in done.stdout
    assert "tpufeed.low.b -> tpufeed.top.a (types)\n" in done.stdout
    assert "tpufeed.low.c -> tpufeed.top.a (by a string)\n" in done.stdout
    assert "circles: 1\n  tpufeed.low.b, tpufeed.top.a\n" in done.stdout


@pytest.mark.parametrize("name", ["files", "names_twice", "climbs", "circles", "lines.total", "lines.low"])
def test_fails_above_a_budget(tmp_path, name):
    group, _, room = name.partition(".")
    most = BUDGETS[group][room] - 1 if room else BUDGETS[group] - 1
    done = house(tmp_path, BUDGETS | {group: BUDGETS[group] | {room: most} if room else most})
    assert done.returncode == 1
    assert done.stderr.startswith(f"scripts/house: {name} = {most + 1}, above its budget of {most}\nbudgets stand")


def test_each_room_has_a_budget_and_each_budget_a_room(tmp_path):
    done = house(tmp_path, BUDGETS | {"lines": {"total": 14, "low": 9, "left": 5}})
    assert done.returncode == 1
    assert "lines.top has no budget" in done.stderr
    assert "lines.left is a budget, but there is no such room" in done.stderr


def test_roads_of_this_package_are_within_their_budgets():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/house", "--roads"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "road of a photo: " in done.stdout
    assert "road of a batch: " in done.stdout
