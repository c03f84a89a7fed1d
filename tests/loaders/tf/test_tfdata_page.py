"""Every command and program of docs/tfdata.md runs as it stands."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
SERVICE = "python examples/tfdata_service.py "


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


# Each is a fork of one process, as TensorFlow takes five seconds to import; its runtime starts in each fork.
FORKS = """
import json, os, runpy, sys
from pathlib import Path
import keras

for number, command in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if not child:
        with open(f"{number}.txt", "w") as file:
            os.dup2(file.fileno(), 1)
        sys.argv, sys.path[0] = command, str(Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")
        sys.exit()
    assert not os.waitpid(child, 0)[1], command
"""


@pytest.fixture(scope="module")
def outputs(folder):
    """What the programs printed, joined to one, and what the command did."""
    programs = blocks("python")
    assert len(programs) == 8
    (folder / "program.py").write_text("\n".join(programs))
    (command,) = (line for block in blocks("bash") for line in block.splitlines() if not line.startswith(SERVICE))
    python, *arguments = shlex.split(command)
    assert python == "python"
    given = [sys.executable, "-c", FORKS, json.dumps([["program.py"], arguments])]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(given, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return [(folder / f"{number}.txt").read_text() for number in range(2)]


def test_the_programs_are_one_that_runs(folder, outputs):
    output = outputs[0]
    assert output.count("val_accuracy") == 3
    assert output.splitlines()[-1] == "(8, 64, 64, 3)"


def test_the_command_runs(outputs):
    assert outputs[1].strip()


def test_the_example_has_the_options_of_the_commands_for_a_service():
    """test_tfservice.py starts such a service."""
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith(SERVICE)]
    assert [command.split()[2] for command in commands] == ["dispatcher", "worker"]
    program = (DOCS.parent / "examples/tfdata_service.py").read_text()
    for option in set(re.findall(r"--[a-z-]+", "".join(commands))):
        assert f'"{option}"' in program
