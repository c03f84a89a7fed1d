"""The command, in this process or in another, with photographs and a dataset to run it on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import make_photos
from tpufeed.cli.app import app

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


@pytest.fixture(scope="session")
def photo_folder(once):
    """30 photographs of 12 kB in three class folders."""
    return once(make_photos, 30)


@pytest.fixture(scope="session")
def large_folder(once):
    """300 photographs: enough to be interrupted."""
    return once(make_photos, 300)


@pytest.fixture(scope="session")
def dataset_url(once, photo_folder):
    """Not to be changed."""
    return str(once(_make_dataset, photo_folder))


def _make_dataset(folder, photos):
    done = run_here("shard", photos, folder, "--shard-size", "60KB", "--splits", "train=0.7,val=0.3")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def cache_url(once, dataset_url):
    """Not to be changed."""
    return str(once(_make_cache, dataset_url))


def _make_cache(folder, url):
    done = run_here("cache", "warmup", url, folder, "--size", "32", "--variants", "2")
    assert done.returncode == 0, done.stderr
