"""examples/samples_jax.py and samples_torch.py: the commands of the page, on fewer scenes, and each task is learned."""

import importlib
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.repo.docs import pages
from tpufeed.cli.app import app

RUNS = {"examples/README.md": "scenes"}

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def commands():
    """The lines of the page, by what they run."""
    found = [line for line in pages.commands("examples/README.md") if "scenes" in line]
    assert len(found) == 6
    return found


@pytest.fixture(scope="module")
def folder(commands, tmp_path_factory):
    folder, (draw, shard, *_) = tmp_path_factory.mktemp("samples"), map(shlex.split, commands)
    sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "scripts")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        importlib.import_module("make_scenes").main(Path(draw[1]), 240)
        done = CliRunner().invoke(app, [*shard[1:], "--workers", "1"])
        assert done.exit_code == 0, done.output
        pages.ran(*commands[:2])
        yield folder
    del sys.path[:2]


@pytest.mark.parametrize(
    ("number", "epochs", "bounds"), [(2, 12, (0.9, 1)), (3, 9, (0, 4)), (4, 4, (0.5, 1)), (5, 5, (0.4, 1))]
)
def test_each_task_is_learned(commands, folder, monkeypatch, number, epochs, bounds):
    """Shares of tags, pixels to the point, intersection over union, and views whose partner is nearest of 31."""
    _, program, *words = shlex.split(commands[number])
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TPUFEED_PROCESSES", "0")
    example = importlib.import_module(Path(program).stem)
    measure = example.main(example.parse([*words, "--epochs", str(epochs)]))
    assert bounds[0] <= measure <= bounds[1]
    pages.ran(commands[number])
