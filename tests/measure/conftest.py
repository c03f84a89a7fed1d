"""Datasets whose images are flat colours, so that a thumbnail tells which sample it is."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tpufeed.cache import warmup
from tpufeed.images import HorizontalFlip
from tpufeed.images.ops import RandomResizedCrop
from tpufeed.measure import stages
from tpufeed.measure.tpu_compiler import ProgramCost

ROOT = Path(__file__).parents[2]
OPS = [RandomResizedCrop(32), HorizontalFlip()]
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 210), "größe猫": (230, 220, 40)}


def write_images(folder, each):
    """`each` PNGs a class, of the class's colour with a shade of their own."""
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            shade = np.clip(np.array(colour) + number, 0, 255).astype(np.uint8)
            Image.fromarray(np.broadcast_to(shade, (40, 60, 3))).save(folder / name / f"{name}-{number:02}.png")
    return folder


def make_cost(least_seconds=0.5):
    """What a compiler could say of a step."""
    return ProgramCost(
        tpu="v5e-8",
        devices=1,
        hbm_bytes=2e9,
        accessed_bytes=3e9,
        flops=3e9,
        temporary_bytes=4,
        bandwidth_seconds=least_seconds,
        peak_seconds=least_seconds / 2,
        compile_seconds=1.5,
        layouts=((0, 1),),
        compiler="0.0.1",
    )


@pytest.fixture(scope="session")
def colour_folder(once):
    return once(write_images, 10)


@pytest.fixture(scope="session")
def dataset_url(once, colour_folder):
    """40 samples in several shards; not to be changed."""
    return str(once(_make_dataset, colour_folder))


def _make_dataset(folder, images):
    tpufeed.shard(images, folder, shard_bytes="3KB", splits="train=0.8,val=0.2", workers=1)


@pytest.fixture(scope="session")
def cache_url(once, dataset_url):
    """Raw pixels in three variants."""
    return str(once(_make_cache, dataset_url))


def _make_cache(folder, url):
    warmup(url, folder, size=32, variants=3, workers=1)


@pytest.fixture(scope="session")
def flat_url(colour_folder, tmp_path_factory):
    """Without labels."""
    folder = tmp_path_factory.mktemp("sheet") / "flat"
    folder.mkdir()
    for path in sorted(colour_folder.glob("*/*-0[0-4].png")):
        shutil.copy(path, folder)
    tpufeed.shard(folder, folder.parent / "flat-dataset", workers=1)
    return str(folder.parent / "flat-dataset")


@pytest.fixture
def copy(dataset_url, tmp_path):
    """A copy of the dataset to damage."""
    return Path(shutil.copytree(dataset_url, tmp_path / "copy"))


@pytest.fixture
def quiet_host(monkeypatch, tmp_path):
    """No TPU, no worker processes unless a test wants them, and copies of shards in a folder of the test's own."""
    monkeypatch.setenv("TPUFEED_PROCESSES", "0")
    monkeypatch.setenv("TPUFEED_LOCAL_DIR", str(tmp_path / "copies"))
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    monkeypatch.setattr(stages, "_DEVICES", ("/nonexistent/accel*",))


@pytest.fixture(scope="session")
def python_with_libtpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the Python of an environment with libtpu. In .venv, JAX would look for a TPU in every test."""
    venv, uv = tmp_path_factory.mktemp("libtpu"), [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--clear", "--python", sys.executable, venv], check=True)
    subprocess.run([*uv, "pip", "install", "-q", "--python", venv, f"{ROOT}[tpu-compiler]"], check=True)
    return venv / "bin/python"
