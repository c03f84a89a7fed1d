"""One dataset of real photographs for all loader tests, caches of it, and what they hold by a parser's account."""

import functools
import shutil
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
