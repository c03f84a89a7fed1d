"""One dataset of real photographs for all loader tests, caches of it, and what they hold by a parser's account."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpufeed
from tests.conftest import make_photos
from tpufeed import cache
from tpufeed.dataset.reader import open_dataset
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop

ROOT = Path(__file__).parents[2]
PHOTOS = 96
SIDE = 64


@pytest.fixture(scope="session")
def photo_folder(once: Callable[..., Path]) -> Path:
    """Upright and wide photographs in three class folders."""
    return once(make_photos, PHOTOS)


@pytest.fixture(scope="session")
def dataset_url(once: Callable[..., Path], photo_folder: Path) -> str:
    """JPEGs that differ in size; splits train and val, several shards each."""
    return str(once(_make_dataset, photo_folder))


def _make_dataset(folder: Path, photos: Path) -> None:
    tpufeed.shard(photos, folder, shard_bytes="80KB", splits="train=0.7,val=0.3", workers=1)


@pytest.fixture(scope="session")
def cache_url(once: Callable[..., Path], dataset_url: str) -> str:
    """Raw pixels in two variants of random crops."""
    return str(once(_make_cache, dataset_url))


def _make_cache(folder: Path, url: str) -> None:
    cache.warmup(url, folder, size=SIDE, variants=2, shard_bytes="150KB", workers=1)


@pytest.fixture(scope="session")
def flat_url(once: Callable[..., Path], photo_folder: Path) -> str:
    """A cache of unlabelled photographs."""
    return str(once(_make_flat, photo_folder) / "cache")


def _make_flat(folder: Path, photos: Path) -> None:
    (folder / "photos").mkdir(parents=True)
    for photo in sorted(photos.glob("*/*.jpg"))[:20]:
        shutil.copy(photo, folder / "photos")
    tpufeed.shard(folder / "photos", folder / "dataset", shard_bytes="50KB", workers=1)
    cache.warmup(folder / "dataset", folder / "cache", ops=[CenterCrop(SIDE)], workers=1)


@pytest.fixture(scope="session")
def ops() -> list[Any]:
    """For training from `dataset_url`."""
    return [RandomResizedCrop(size=SIDE), HorizontalFlip()]


@dataclass(frozen=True)
class Stored:
    """What a split holds, in its own order, by a full parse of every record."""

    features: list[dict[str, Any]]

    def column(self, key: str) -> list[Any]:
        return [features[key].values[0] for features in self.features]

    def texts(self, key: str) -> list[str]:
        return [str(value, "utf-8") for value in self.column(key)]

    @functools.cached_property
    def labels(self) -> np.ndarray:
        return np.array(self.column("image/class/label"))

    @functools.cached_property
    def pixels(self) -> np.ndarray:
        return np.stack([np.frombuffer(p, np.uint8).reshape(SIDE, SIDE, 3) for p in self.column("image/tensor")])

    def __len__(self) -> int:
        return len(self.features)


@pytest.fixture(scope="session")
def stored() -> Callable[..., Stored]:
    """`stored(url, split, variant)`."""
    return functools.cache(
        lambda url, split="train", variant=0: Stored(list(open_dataset(url).iter_examples(split, variant)))
    )


@pytest.fixture(scope="session")
def broken_url(cache_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy of the cache that has lost the shards of its first variant."""
    folder = tmp_path_factory.mktemp("broken") / "cache"
    shutil.copytree(cache_url, folder)
    for shard in folder.glob("train-v0-*.tfrecord"):
        shard.unlink()
    return str(folder)


@dataclass(frozen=True)
class Damaged:
    """A dataset with a damaged record: sample number `sample`, which is `record` of `shard` and starts at `byte`."""

    url: str
    sample: int
    shard: str
    record: int
    byte: int


@pytest.fixture(scope="session")
def damage(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Damaged]:
    """`damage(url, sample, split)` copies the dataset and changes one byte of the sample's image."""

    def make(url: str, sample: int, split: str = "train") -> Damaged:
        copy = tmp_path_factory.mktemp("damaged") / "dataset"
        shutil.copytree(url, copy)
        variant = open_dataset(copy).split(split).variants[0]
        offsets, record = np.load(copy / variant.index.name), sample
        for shard in variant.shards:
            if record < shard.records:
                break
            offsets, record = offsets[shard.records + 1 :], record - shard.records
        byte = int(offsets[record])
        data = bytearray((copy / shard.name).read_bytes())
        data[byte + 2000] ^= 0x10
        (copy / shard.name).write_bytes(data)
        return Damaged(str(copy), sample, shard.name, record, byte)

    return make


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    """`run_script(name, *arguments, devices=1)` runs a script below this folder on CPU devices of torch_xla."""

    def run(name: str, *arguments: object, devices: int = 1, seconds: float = 280) -> str:
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "PYTHONFAULTHANDLER": "1"}
        command = [sys.executable, str(Path(__file__).parent / name), *map(str, arguments)]
        with subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                pytest.fail(f"{name} hangs after:\n{process.communicate()[0]}")
        assert process.returncode == 0, output
        return output

    return run


@pytest.fixture(scope="session")
def run_forks() -> Callable[..., list[tuple[int, str, str]]]:
    """`run_forks(modules, runs, folder, **variables)` runs forks.py: `(status, stdout, stderr)` of each program."""

    def run(modules: str, runs: list[dict[str, Any]], folder: Path, **variables: str) -> list[tuple[int, str, str]]:
        command = [sys.executable, str(Path(__file__).with_name("forks.py")), modules, json.dumps(runs), str(folder)]
        environment = os.environ | {"TPUFEED_PROCESSES": "0"} | variables
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=280 * (1 + len(runs)), check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        statuses = json.loads(done.stdout.splitlines()[-1])
        texts = [[(folder / f"{n}.{name}").read_text() for name in ("out", "err")] for n in range(len(statuses))]
        return [(status, *each) for status, each in zip(statuses, texts, strict=True)]

    return run


@pytest.fixture
def lightning_without_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning tries to import torch_xla, which aborts the process after the tensorflow of other tests."""
    monkeypatch.setattr("lightning.fabric.accelerators.xla._XLA_AVAILABLE", False)
