"""Odd images of all formats, sound and broken, through every policy: what `scripts/try-images` checks."""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.images.odd_images import iter_odd_images

ROOT = Path(__file__).parents[2]


def try_images(*options):
    command = [sys.executable, ROOT / "scripts/try-images", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)


@pytest.mark.all
def test_some_hundred_odd_images_hold_what_is_promised():
    done = try_images("--files", 60, "--seed", 39)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 files" in done.stdout


def test_a_seed_gives_the_same_images():
    assert list(islice(iter_odd_images(5), 40)) == list(islice(iter_odd_images(5), 40))
    assert list(islice(iter_odd_images(5), 40)) != list(islice(iter_odd_images(6), 40))
