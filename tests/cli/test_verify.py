"""`tpufeed verify`: what it prints of sound and of damaged datasets."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import tpufeed
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.verify import REMEDY


@pytest.fixture
def damaged(dataset_url, tmp_path):
    """A dataset with three damages: two payloads and a shard that was cut."""
    copy = Path(shutil.copytree(dataset_url, tmp_path / "d"))
    one, two = sorted(copy.glob("train-*.tfrecord"))[:2]
    for path in (one, two):
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    os.truncate(two, two.stat().st_size - 100)
    return copy, one.name, two.name


def test_every_damage_is_a_line(run, damaged):
    folder, one, two = damaged
    last = open_dataset(folder).split("train").variants[0].shards[1].records - 1
    done = run("verify", folder)
    assert done.returncode == 1
    assert done.stderr == f"error: {folder} is damaged: 3 damages in 2 files. {REMEDY}\n"
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert re.match(rf"{one}, record 0, byte 0: the CRC of the payload", lines[0])
    assert re.match(rf"{two}, record 0, byte 0: the CRC of the payload", lines[1])
    assert re.match(rf"{two}, record {last}, byte \d+: truncated", lines[2])


def test_json_of_a_damaged_dataset(run, damaged):
    folder, one, two = damaged
    done = run("verify", folder, "--json")
    assert (done.returncode, done.stderr) == (1, f"error: {folder} is damaged: 3 damages in 2 files. {REMEDY}\n")
    facts = json.loads(done.stdout)
    assert (facts["sound"], facts["url"], facts["records"]) == (False, str(folder), None)
    assert [damage["shard"] for damage in facts["damages"]] == [one, two, two]
    assert facts["damages"][0].keys() == {"shard", "record", "byte", "message"}


def test_json_of_a_sound_dataset(run, dataset_url):
    done = run("verify", dataset_url, "--json", "--decode", "all")
    assert (done.returncode, done.stderr) == (0, "")
    found = tpufeed.verify(dataset_url)
    assert json.loads(done.stdout) == {
        "url": dataset_url,
        "sound": True,
        "shards": found.shards,
        "records": 30,
        "bytes": found.bytes,
        "decoded": 30,
        "damages": [],
        "unreadable": [],
    }


def test_no_more_than_a_hundred_lines(run, photo_folder, tmp_path):
    """Every record of 130 is damaged."""
    (tmp_path / "photos").mkdir()
    photo = next(photo_folder.glob("*/*.jpg")).read_bytes()
    for number in range(130):
        (tmp_path / f"photos/{number:03}.jpg").write_bytes(photo)
    tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=1)
    manifest = json.loads((tmp_path / "d/manifest.json").read_text())
    manifest["features"][1]["name"] = "image/depth"
    (tmp_path / "d/manifest.json").write_text(json.dumps(manifest))
    done = run("verify", tmp_path / "d")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 101
    assert done.stdout.splitlines()[-1] == "... and 30 more; --json lists all of them"
    assert len(json.loads(run("verify", tmp_path / "d", "--json").stdout)["damages"]) == 130


def test_decoding(run, dataset_url):
    done = run("verify", dataset_url, "--decode", "all")
    assert done.stdout.startswith("sound: 30 records in ")
    assert done.stdout.endswith(", 30 images decoded\n")
    done = run("verify", dataset_url, "--decode", "half")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: decode has to be 'all' or a share")
