"""The programs of docs/tfdata.md run; its commands are those that test_tfservice.py starts a service with."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/tfdata.md").read_text(), re.DOTALL)


def test_the_programs_are_one_that_runs(tmp_path, dataset_url):
    programs = blocks("python")
    assert len(programs) == 3
    shutil.copytree(dataset_url, tmp_path / "flowers")
    command = [sys.executable, "-c", "\n".join(programs)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_commands_are_those_of_the_example():
    commands = [line.split() for block in blocks("bash") for line in block.splitlines()]
    assert [command[:3] for command in commands] == [
        ["python", "examples/tfdata_service.py", role] for role in ("dispatcher", "worker")
    ]
    program = (ROOT / "examples/tfdata_service.py").read_text()
    options = {word for command in commands for word in command if word.startswith("--")}
    for option in options | set(re.findall(r"--[a-z-]+", blocks("yaml")[0])):
        assert f'"{option}"' in program
