"""Every command of docs/shard.md runs, in a folder with sources of all kinds."""

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
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", (ROOT / "docs/shard.md").read_text(), re.DOTALL)
    for line in block.splitlines()
]


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


def test_the_commands_run_as_they_stand(sources: Path) -> None:
    assert len(COMMANDS) > 12
    assert {line.split()[1] for line in COMMANDS} == {"shard", "info", "verify", "show", "adopt"}
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in COMMANDS:
        done = subprocess.run(
            line, shell=True, cwd=sources, env=environment, check=False, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert done.stdout.strip(), line
    assert set(tpufeed.open_dataset(sources / "out/by-folder").manifest.splits) == {"train", "val"}
    table = tpufeed.open_dataset(sources / "out/table")
    assert {spec.name: spec.dtype for spec in table.manifest.features}["height_cm"] == "float32"
    assert tpufeed.open_dataset(sources / "out/tars").manifest.class_names == ("0", "1", "2")
    assert not (sources / "out/never").exists()
    assert (sources / "sheet.png").stat().st_size > 1000
