"""docs/troubleshooting.md: its commands run, and its flags exist."""

import re

import pytest
import typer

import tpufeed
from tests.repo.docs.pages import commands, make_photos, run_here, text_of
from tpufeed.cli.app import app

RUNS = {"troubleshooting.md": ""}

PAGE = text_of("troubleshooting.md")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of the page."""
    folder = tmp_path_factory.mktemp("troubleshooting")
    make_photos(folder, 40, "96x72")
    tpufeed.shard(folder / "photos", folder / "flowers", shard_bytes=60_000, workers=1)
    return folder


def test_the_commands_run(place):
    run_here(commands("troubleshooting.md"), place)


def test_every_flag_exists():
    groups = typer.main.get_command(app).commands
    known = [*groups.values(), groups["cache"].commands["warmup"]]
    flags = {flag for command in known for option in command.params for flag in option.opts}
    named = set(re.findall(r"--[a-z][a-z-]*", PAGE)) - {"--shm-size", "--help"}  # Docker's, and that of each command
    assert named <= flags
