"""Read the pages and run their commands, most in this process, which saves the start of another one."""

import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpufeed.cli.app import app

ROOT = Path(__file__).parents[3]
# The commands that measure take as many seconds as they are given.
SHORT = {
    "doctor": ["--seconds", "1"],
    "bench": ["--batch", "16", "--steps", "3", "--repeats", "1", "--warm-up", "0"],
}


def text_of(page: str) -> str:
    return (ROOT / ("README.md" if page == "README.md" else f"docs/{page}")).read_text()


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)


def lines_of(block: str) -> list[str]:
    """Return the commands of a block: a line that ends in a backslash goes on in the next one."""
    return re.split(r"(?<!\\)\n", block.rstrip("\n"))


def commands(page: str) -> list[str]:
    return [line for block in blocks(page, "bash") for line in lines_of(block)]


def run(command: str | list[str], folder: Path, **variables: str) -> str:
    """Run a command in a process of its own and return what it printed."""
    given = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PJRT_DEVICE": "CPU"}
    given |= {"USE_TORCH_XLA": "0", "CPU_NUM_DEVICES": "1"} | variables
    # jax sets the latter for good, and torch_xla stumbles over it
    environment = {name: value for name, value in given.items() if name not in ("PYTHONPATH", "TPU_SKIP_MDS_QUERY")}
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def run_program(code: str, folder: Path, **variables: str) -> str:
    (folder / "program.py").write_text(code)
    return run([sys.executable, "program.py"], folder, **variables)


def run_here(lines: list[str], folder: Path) -> None:
    """Run `tpufeed` commands in this process; those that measure do so for a moment."""
    level = logging.getLogger("tpufeed").level
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in lines:
            program, *words = shlex.split(line.replace("\\\n", " "), comments=True)
            assert program == "tpufeed", line
            done = CliRunner().invoke(app, [*words, *SHORT.get(words[0], [])], prog_name=program)
            assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
            assert done.stdout.strip(), line
    logging.getLogger("tpufeed").setLevel(level)  # commands change it


def make_photos(folder: Path, count: int, size: str) -> None:
    command = [sys.executable, ROOT / "scripts/make_photos.py", folder / "photos", "--count", count, "--size", size]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
