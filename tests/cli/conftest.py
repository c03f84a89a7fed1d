"""The command, in this process or in another, with photographs and a dataset to run it on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpufeed.cli.app import app

ROOT = Path(__file__).parents[2]
TPUFEED = str(Path(sys.executable).with_name("tpufeed"))


def run_here(*arguments):
    """Run the command in this process."""
    words = list(map(str, arguments))
    done = CliRunner().invoke(app, words, prog_name="tpufeed", env={"COLUMNS": "80"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def run_command(*arguments, **environment):
    """Run the installed command in another process."""
    command = [TPUFEED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def run():
    """`run(*arguments, **environment)` returns what came of the command; with variables, another process runs it."""
    return lambda *words, **environment: run_command(*words, **environment) if environment else run_here(*words)


def make_photos(folder, count):
    command = [sys.executable, ROOT / "scripts/make_photos.py", folder, "--count", count, "--size", "160x120"]
    subprocess.run([*map(str, command), "--classes", "3"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory):
    """30 photographs of 12 kB in three class folders."""
    return make_photos(tmp_path_factory.mktemp("cli") / "photos", 30)


@pytest.fixture(scope="session")
def large_folder(tmp_path_factory):
    """300 photographs: enough to be interrupted."""
    return make_photos(tmp_path_factory.mktemp("cli") / "many", 300)


@pytest.fixture(scope="session")
def dataset_url(photo_folder):
    """Not to be changed."""
    url = str(photo_folder.parent / "dataset")
    done = run_here("shard", photo_folder, url, "--shard-size", "60KB", "--splits", "train=0.7,val=0.3")
    assert done.returncode == 0, done.stderr
    return url


@pytest.fixture(scope="session")
def cache_url(dataset_url):
    """Not to be changed."""
    done = run_here("cache", "warmup", dataset_url, f"{dataset_url}-cache", "--size", "32", "--variants", "2")
    assert done.returncode == 0, done.stderr
    return f"{dataset_url}-cache"
