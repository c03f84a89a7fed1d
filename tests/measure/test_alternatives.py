"""Samples as small datasets, and what they would give stored otherwise."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

import tpufeed
from tests.measure.conftest import OPS
from tpufeed.images.windows import CenterCrop
from tpufeed.measure.alternatives import try_alternatives, write_sample
from tpufeed.measure.prediction import Alternative
from tpufeed.measure.sampling import take_sample

pytestmark = pytest.mark.usefixtures("quiet_host")


def attempt(folder: Path, url: str, images: Sequence[bytes], **more) -> tuple[tuple[Alternative, ...], list[str]]:
    return try_alternatives(url, images, folder, 0.02, **{"records": 1_000_000, "ops": OPS, "batch_size": 8, **more})


@pytest.fixture
def images(dataset_url: str) -> list[bytes]:
    return take_sample(tpufeed.open_dataset(dataset_url), "train", 10.0)[0][:16]


def test_a_sample_dataset_holds_the_samples(dataset_url: str, tmp_path: Path) -> None:
    images, damaged = take_sample(tpufeed.open_dataset(dataset_url), "train", 10.0)
    assert len(set(images)) == tpufeed.open_dataset(dataset_url).split("train").records
    assert not damaged
    made = write_sample(tmp_path / "sample", images[:12])
    assert set(take_sample(made, "train", 10.0)[0]) == set(images[:12])


def test_a_raw_sample_holds_the_pixels(tmp_path: Path) -> None:
    pixels = [bytes([shade]) * (8 * 8 * 3) for shade in range(6)]
    dataset = write_sample(tmp_path / "raw", pixels, (8, 8, 3))
    with tpufeed.Loader(dataset, batch_size=2, shuffle=False, threads=1) as loader:
        assert {image.tobytes() for batch in loader for image in batch} == set(pixels)


def test_a_raw_cache_is_tried_with_its_bytes_and_its_command(
    dataset_url: str, images: list[bytes], tmp_path: Path
) -> None:
    (raw,), notes = attempt(tmp_path, dataset_url, images)
    assert not notes  # images of 60 pixels are not presized
    assert raw.record_bytes == 32 * 32 * 3 + 400
    assert raw.cost.startswith("13.9 GB for 4 variants, about ")
    assert raw.do == f"warm a raw cache: tpufeed cache warmup {dataset_url} CACHE --size 32 --variants 4"


def test_commands_can_be_pasted_into_a_shell(images: list[bytes], tmp_path: Path) -> None:
    (raw,), _ = attempt(tmp_path, "my flowers", images, ops=(CenterCrop(32),))
    assert shlex.split(raw.do.partition(": ")[2])[3:7] == ["my flowers", "CACHE", "--op", repr(CenterCrop(32))]


def test_photographs_are_presized_as_sharding_does(photos: dict[str, bytes], tmp_path: Path) -> None:
    large = [photos["china.jpg"], photos["flower.jpg"]]
    (shard, presized, _), _ = attempt(tmp_path, "photos/", [*large * 4, b"no image"], are_files=True)
    assert shard.do == "make shards of the files: tpufeed shard photos/ DATASET"
    assert presized.do == "presize to 37: tpufeed shard photos/ DATASET-37 --presize 37"
    assert presized.record_bytes < len(min(large, key=len)) / 10


def test_what_cannot_be_tried_is_said(images: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found, notes = attempt(tmp_path / "file", "photos/", images, are_files=True)
    assert not found
    assert len(notes) == 2
    assert all("could not be tried" in note and "Not a directory" in note for note in notes)
    bad = [b"no image", b"none either"]
    assert attempt(tmp_path, "photos/", bad, are_files=True) == ((), [])  # no build would take them
