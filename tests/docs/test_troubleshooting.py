"""docs/troubleshooting.md: its commands and programs run, and it has every error."""

import logging
import re
import shlex
from pathlib import Path

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tpufeed import cache, errors
from tpufeed.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()


def make_photos(folder: Path, count: int, files: list[Path]) -> Path:
    for number in range(count):
        path = folder / ("cat", "dog")[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(files[number % len(files)]) as image:
            image.convert("RGB").resize((96 + number % 3, 72)).save(path)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory, photo_files):
    """The folder of the page."""
    folder = tmp_path_factory.mktemp("troubleshooting")
    make_photos(folder / "photos", 40, photo_files)
    logger = logging.getLogger("tpufeed")
    level = logger.level
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("tpufeed.engines.choice.available_cores", lambda: 1)  # no worker processes
        tpufeed.shard("photos", "flowers", shard_bytes=60_000)
        cache.warmup("flowers", "flowers-64", size=64)
        yield folder
    logger.setLevel(level)


def commands_of(page: str) -> list[list[str]]:
    return [
        shlex.split(line) for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()
    ]


def test_the_commands_run(place):
    """But for those that measure for many seconds, which have tests of their own."""
    for words in commands_of(PAGE):
        if words[1] in ("doctor", "bench"):
            continue
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{words}\n{done.output}\n{done.exception!r}"
        assert done.stdout.strip(), words
    assert tpufeed.open_dataset("flowers-56").manifest.cache.variants == 2
    assert not Path("flowers-96").exists()


def test_every_flag_exists():
    groups = typer.main.get_command(app).commands
    commands = {**groups, "cache": groups["cache"].commands["warmup"]}
    flags = {name: {flag for option in command.params for flag in option.opts} for name, command in commands.items()}
    for words in commands_of(PAGE):
        assert {word for word in words if word.startswith("--")} <= flags[words[1]], words
    named = set(re.findall(r"--[a-z][a-z-]*", PAGE)) - {"--shm-size", "--help"}  # Docker's, and that of each command
    assert named <= set.union(*flags.values())


def test_the_programs_run(place):
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(program, "troubleshooting", "exec"), {"__name__": "program"})
    assert Path("run.json").exists()


def test_the_table_of_errors_is_the_tree_in_its_order():
    tree = re.findall(r"^[| +-]*(\w+Error)", errors.__doc__, re.MULTILINE)
    rows = re.findall(r"^\| `(\w+Error)`", PAGE, re.MULTILINE)
    assert rows == tree
    assert set(tree) <= set(vars(errors))
