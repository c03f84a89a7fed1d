"""Class 21: no input, one, a million; names that are as long as names can be, and of any script."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tpufeed import cache
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import NoInputsError
from tpufeed.images import CenterCrop, Resize
from tpufeed.tfrecord.example import decode_example

OPS = [Resize(40), CenterCrop(32)]
TPUFEED = Path(sys.executable).with_name("tpufeed")
# Runs a command and prints the kB of the largest process below it.
LARGEST = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_no_input_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "t.jsonl").write_text("")
    for source in ("photos", "t.jsonl"):
        with pytest.raises(NoInputsError) as raised:
            tpufeed.shard(tmp_path / source, tmp_path / "d", workers=1)
        assert raised.value.exit_code == 2
        assert not (tmp_path / "d").exists()


@pytest.mark.all
def test_one_input_goes_all_the_way(photo_folder, tmp_path):
    (tmp_path / "photos/a").mkdir(parents=True)
    shutil.copy(min(photo_folder.glob("*/*.jpg")), tmp_path / "photos/a")
    tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=2)
    cache.warmup(tmp_path / "d", tmp_path / "c", size=32, variants=2, workers=2)
    assert tpufeed.verify(tmp_path / "c").records == 2
    with tpufeed.Loader(tmp_path / "c", batch_size=4, remainder="pad", world=(0, 2), lanes=2) as loader:
        (batch,) = loader
    assert batch[-1].tolist() == [True, False, False, False]
    with tpufeed.Loader(tmp_path / "c", batch_size=4, remainder="pad", world=(1, 2), lanes=2) as loader:
        (batch,) = loader
    assert not batch[-1].any()


SCRIPTS = [
    "größe",
    "猫の写真",
    "😀🇨🇭",
    "قطة",
    "o\u0301",
    "\u00f3",
    "a b",
    "tab\tbell\a",
    "'\"`$(x)",
    "-rf",
    "%s{0}",
    "COM1",
    ".hidden.x",
]


def longest(name):
    """`name` again and again, up to the 255 bytes that file systems take."""
    text = name
    while len((text + name).encode()) <= 230:
        text += name
    return text


@pytest.mark.all
def test_names_come_back_as_they_are(photo_folder, monkeypatch, tmp_path):
    """The longest that a file can have, below folders up to the 4,096 bytes of a path, in any script."""
    photos = sorted(photo_folder.glob("*/*.jpg"))
    (tmp_path / "p").mkdir()
    monkeypatch.chdir(tmp_path / "p")
    names = {}
    for number, script in enumerate(SCRIPTS):
        label = longest(script) if number % 2 else script
        name = f"{label}/{'/'.join([longest('d')] * (12 if number % 3 == 0 else 1))}/{longest(script)[:60]}{number}.jpg"
        os.makedirs(os.path.dirname(name))  # noqa: PTH103, PTH120  # Path would be no shorter
        shutil.copy(photos[number], name)
        names[name] = label
    assert max(len(name.encode()) for name in names) > 2500
    taken = {name: label for name, label in names.items() if not label.startswith(".")}
    result = tpufeed.shard(tmp_path / "p", tmp_path / "d", workers=2)
    assert (result.images, result.rejects) == (len(taken), 0)
    assert set(result.manifest.class_names) == set(taken.values())
    with tpufeed.Loader(tmp_path / "d", columns=["filename", "label"], batch_size=1, ops=OPS) as loader:
        found = {str(name[0]): result.manifest.class_names[int(label[0])] for name, label in loader}
    assert found == taken
    assert tpufeed.verify(tmp_path / "d").records == len(taken)


@pytest.mark.all
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rows", [2_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_as_many_inputs_as_one_likes(rows, photo_folder, tmp_path):
    """A table of rows that name the same 40 photographs, of 2 kB each."""
    (tmp_path / "small").mkdir()
    for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))):
        with Image.open(path) as image:
            image.resize((16, 12)).save(tmp_path / f"small/{number}.jpg", quality=40)
    with (tmp_path / "t.jsonl").open("w") as file:
        for row in range(rows):
            file.write(json.dumps({"path": f"small/{row % 40}.jpg", "label": row % 7, "row": row}) + "\n")
    options = ["--check", "header", "--workers", "2", "--shard-size", "4MB"]
    command = [TPUFEED, "shard", tmp_path / "t.jsonl", tmp_path / "d", *options]
    done = subprocess.run([sys.executable, "-c", LARGEST, *command], check=True, capture_output=True, text=True)
    assert int(done.stdout.splitlines()[-1]) < 400_000
    assert tpufeed.verify(tmp_path / "d").records == rows
    reader = open_dataset(tmp_path / "d").reader("train")
    shards = open_dataset(tmp_path / "d").split("train").variants[0].shards
    seen = np.zeros(rows, np.uint8)
    for shard, entry in enumerate(shards):
        for record in range(entry.records):
            seen[decode_example(reader.read(shard, record))["row"].values[0]] += 1
    assert (seen == 1).all()
