"""Every command of docs/shard.md and docs/cache.md runs, in a folder with sources of all kinds."""

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import tpufeed
from tpufeed.tfrecord.example import Feature, encode_example
from tpufeed.tfrecord.framing import encode_record

ROOT = Path(__file__).parent.parent
AUGMENT = """
def heavy(image, rng):
    return image ^ rng.integers(0, 4, image.shape, "uint8")
"""


def commands_of(page: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, ROOT / "scripts/make_photos.py", folder / "photos", "--count", 60, "--size", "300x225"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    photos = sorted((folder / "photos").glob("*/*.jpg"))
    with (folder / "flowers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "species", "subset", "height_cm", "note"])
        for number, photo in enumerate(photos):
            subset = "val" if number % 6 == 0 else "train"
            writer.writerow(
                [photo.relative_to(folder), photo.parent.name, subset, number / 2, "" if number % 2 else "x"]
            )
    for number, photo in enumerate(photos):
        target = folder / "splits" / ("val" if number % 6 == 0 else "train") / photo.parent.name / photo.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photo, target)
    (folder / "tars").mkdir()
    for part in range(2):
        with tarfile.open(folder / f"tars/flowers-{part:04d}.tar", "w") as tar:
            for number, photo in enumerate(photos[part::2]):
                for suffix, data in (("jpg", photo.read_bytes()), ("cls", str(number % 3).encode())):
                    info = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    (folder / "foreign").mkdir()
    for part in range(2):
        examples = (
            encode_example({"image": Feature("bytes", [photo.read_bytes()]), "class": Feature("int64", [number % 3])})
            for number, photo in enumerate(photos[part::2])
        )
        (folder / f"foreign/train-{part:05d}-of-00002.tfrecord").write_bytes(b"".join(map(encode_record, examples)))
    return folder


def run_all(commands: list[str], folder: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    for line in commands:
        done = subprocess.run(
            line, shell=True, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert done.stdout.strip(), line


def test_the_commands_for_sharding_run_as_they_stand(sources: Path) -> None:
    commands = commands_of("shard.md")
    assert len(commands) > 12
    assert {line.split()[1] for line in commands} == {"shard", "info", "verify", "show", "adopt"}
    run_all(commands, sources)
    assert set(tpufeed.open_dataset(sources / "out/by-folder").manifest.splits) == {"train", "val"}
    table = tpufeed.open_dataset(sources / "out/table")
    assert {spec.name: spec.dtype for spec in table.manifest.features}["height_cm"] == "float32"
    assert tpufeed.open_dataset(sources / "out/tars").manifest.class_names == ("0", "1", "2")
    assert not (sources / "out/never").exists()
    assert (sources / "sheet.png").stat().st_size > 1000


def test_the_commands_for_caches_run_as_they_stand(sources: Path, tmp_path: Path) -> None:
    for name in ("photos", "splits", "flowers.csv"):
        (tmp_path / name).symlink_to(sources / name)
    (tmp_path / "my").mkdir()
    (tmp_path / "my/augment.py").write_text(AUGMENT)
    commands = commands_of("cache.md")
    assert len(commands) > 12
    assert {line.split()[1] for line in commands} == {"shard", "info", "cache"}
    run_all(commands, tmp_path)
    final = tpufeed.open_dataset(tmp_path / "out/final").manifest.cache
    assert final is not None
    assert [op["op"] for op in final.final] == ["RandomCrop", "HorizontalFlip"]
    heavy = tpufeed.open_dataset(tmp_path / "out/heavy").manifest.cache
    assert heavy is not None
    assert heavy.ops[1] == {"op": "Custom", "version": "2", "target": "my.augment:heavy"}
    assert set(tpufeed.open_dataset(tmp_path / "out/table").manifest.splits) == {"train", "val"}
    assert not (tmp_path / "out/never").exists()
    beside = [path.name for path in (tmp_path / "out").glob("photos-64-*")]
    assert len(beside) == 1
