"""Every command and program of docs/tfdata.md, and those of docs/kaggle.md for TensorFlow, run as they stand."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.docs.pages import blocks as blocks_of
from tests.repo.docs.pages import commands, run_here

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
def outputs(folder, photo_folder):
    """What the programs printed, joined to one, what the command did, and what Kaggle's guide printed."""
    programs = blocks("python")
    assert len(programs) == 8
    (folder / "program.py").write_text("\n".join(programs))
    (command,) = (line for block in blocks("bash") for line in block.splitlines() if not line.startswith(SERVICE))
    python, *arguments = shlex.split(command)
    assert python == "python"
    (folder / "kaggle").mkdir()
    (folder / "kaggle/photos").symlink_to(photo_folder)
    run_here(commands("kaggle.md"), folder / "kaggle")
    guide = [program for program in blocks_of("kaggle.md") if "import jax" not in program and "xla" not in program]
    assert len(guide) == 2
    (folder / "kaggle.py").write_text("import os\n\nos.chdir('kaggle')\n" + "\n".join(guide))
    given = [sys.executable, "-c", FORKS, json.dumps([["program.py"], arguments, ["kaggle.py"]])]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(given, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return [(folder / f"{number}.txt").read_text() for number in range(3)]


def test_the_programs_are_one_that_runs(folder, outputs):
    output = outputs[0]
    assert output.count("val_accuracy") == 3
    assert output.splitlines()[-1] == "(8, 64, 64, 3)"


def test_the_command_runs(outputs):
    assert outputs[1].strip()


def test_kaggle_s_guide_runs_over_shards_that_are_named_for_it(outputs):
    """The program compares what its `count_data_items` finds with the number of records."""
    assert re.search(r"^4/4 - .* - loss: \d", outputs[2], re.MULTILINE)


def test_the_example_has_the_options_of_the_commands_for_a_service():
    """test_dataset.py starts such a service."""
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith(SERVICE)]
    assert [command.split()[2] for command in commands] == ["dispatcher", "worker"]
    program = (DOCS.parent / "examples/tfdata_service.py").read_text()
    for option in set(re.findall(r"--[a-z-]+", "".join(commands))):
        assert f'"{option}"' in program
