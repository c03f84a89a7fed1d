"""Read the pages and run their commands, most in this process, which saves the start of another one.

Each test file that runs some says so by a constant: `RUNS = {"xla.md": "", "README.md": "import keras"}`, of which a
value is a pattern that its blocks match. `unrun` tells what of that was not run, and a fixture of tests/conftest.py
asks it after the file's last test. test_pages.py compares all these with the pages.
"""

import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import conftest, lean
from tpufeed.cli.app import app

ROOT = Path(__file__).parents[3]
# The commands that measure take as many seconds as they are given.
SHORT = {
    "doctor": ["--seconds", "1"],
    "bench": ["--batch", "16", "--steps", "3", "--repeats", "1", "--warm-up", "0"],
}
# What no test of CI runs as it stands: page, pattern, reason.
UNRUN = (
    ("", r"^(\S*/)?pip (un)?install ", "changes the environment of the tests"),
    ("README.md", r"^\./scripts/demo", "takes minutes: test_demo.py runs it on fewer photographs"),
    ("README.md", r"^\./scripts/test", "runs these tests"),
    ("install.md", r"uv venv|-m venv|conda create|^git clone", "makes environments, as root or with conda"),
    ("tpu-vm.md", "", "test_tpu_vm.py types it, with a stand-in for gcloud"),
    ("scaleout.md", r"tpu-vm ssh|^(all|first) ", "only with scripts/test --long: test_tpu_vm.py"),
    ("scaleout.md", "ray start|ray job|--engine|^FROM", "needs several hosts: tests/engines has Ray and Beam"),
    ("which-tpu.md", "scripts/check-tpu", "needs a TPU: test_check_tpu.py runs it with --cpu"),
    ("examples/README.md", r"gs://\$?BUCKET|tpu-vm scp", "needs a TPU and a bucket: test_page.py checks the options"),
    ("examples/README.md", "--device-ops", "test_jax.py and test_torch_xla.py run them with fewer epochs"),
)
_ran: list[str] = []


def text_of(page: str) -> str:
    return (ROOT / (page if page.endswith("README.md") else f"docs/{page}")).read_text()


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def lines_of(block: str) -> list[str]:
    """The commands of a block; one that goes on in the next line is one line here."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def commands(page: str) -> list[str]:
    return [line for block in blocks(page, "bash") for line in lines_of(block)]


def parts(page: str) -> list[str]:
    """The programs and commands of a page. A script is one of them."""
    scripts = [block for block in blocks(page, "bash") if block.startswith("#!")]
    inside = [line for script in scripts for line in lines_of(script)]
    return [*blocks(page), *scripts, *(line for line in commands(page) if line not in inside)]


def reason_of(page: str, part: str) -> str | None:
    """Why no test runs it."""
    for pages, pattern, reason in UNRUN:
        if re.fullmatch(pages or ".*", page) and re.search(pattern, part, re.MULTILINE):
            return reason
    return None


def ran(*texts: str) -> None:
    """Note what was run, and ended well, by other means than the functions below."""
    _ran.extend(texts)


def unrun(page: str, pattern: str) -> list[str]:
    """The parts of a page that match, of which no test so far has run any text that has them."""
    asked = [part for part in parts(page) if re.search(pattern, part, re.MULTILINE) and not reason_of(page, part)]
    assert asked, f"{page} has nothing that matches {pattern!r}"
    texts = [f"\n{text.strip()}\n" for text in _ran]
    return [part for part in asked if not any(f"\n{part.strip()}\n" in text for text in texts)]


def run(command: str | list[str], folder: Path, **variables: str) -> str:
    """Run a command in a process of its own and return what it printed."""
    given = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PJRT_DEVICE": "CPU"}
    given |= {"USE_TORCH_XLA": "0", "CPU_NUM_DEVICES": "1"} | variables
    given["PYTHONPATH"] = lean.FOLDER
    # jax sets it for good, and torch_xla stumbles over it
    environment = {name: value for name, value in given.items() if name != "TPU_SKIP_MDS_QUERY"}
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
    if isinstance(command, str):
        ran(command)
    return done.stdout


def run_program(code: str, folder: Path, **variables: str) -> str:
    (folder / "program.py").write_text(code)
    output = run([sys.executable, "program.py"], folder, **variables)
    ran(code)
    return output


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
            ran(line)
    logging.getLogger("tpufeed").setLevel(level)  # commands change it


def make_photos(folder: Path, count: int, size: str) -> None:
    conftest.make_photos(folder / "photos", count, size, classes=5)
