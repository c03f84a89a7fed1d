"""Every command and program of docs/tfdata.md runs as it stands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, dataset_url, cache_url):
    """What the page says is there."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(dataset_url, folder / "flowers")
    shutil.copytree(cache_url, folder / "flowers-224")
    (folder / "examples").symlink_to(DOCS.parent / "examples")
    return folder


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / "tfdata.md").read_text(), re.DOTALL)


def run(command, folder):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_the_programs_are_one_that_runs(folder):
    programs = blocks("python")
    assert len(programs) == 11
    (folder / "program.py").write_text("\n".join(programs))
    output = run("python program.py", folder)
    assert output.count("val_accuracy") == 6
    assert (folder / "backup.json").is_file()
    assert output.splitlines()[-1] == "(8, 64, 64, 3)"


SERVICE = "python examples/tfdata_service.py "


def test_the_command_runs(folder):
    (command,) = (line for block in blocks("bash") for line in block.splitlines() if not line.startswith(SERVICE))
    assert run(command, folder).strip()


def test_the_example_has_the_options_of_the_commands_for_a_service():
    """test_tfservice.py starts such a service."""
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith(SERVICE)]
    assert [command.split()[2] for command in commands] == ["dispatcher", "worker"]
    program = (DOCS.parent / "examples/tfdata_service.py").read_text()
    for option in set(re.findall(r"--[a-z-]+", "".join(commands))):
        assert f'"{option}"' in program
