"""`tpufeed verify`: what it prints of sound and of damaged datasets."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

import tpufeed
from tpufeed.dataset.reader import open_dataset
from tpufeed.images import CenterCrop


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
    assert done.stderr.startswith(f"error: {folder} is damaged: 3 damages in 2 files. To get files back")
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert re.match(rf"{one}, record 0, byte 0: the CRC of the payload", lines[0])
    assert re.match(rf"{two}, record 0, byte 0: the CRC of the payload", lines[1])
    assert re.match(rf"{two}, record {last}, byte \d+: truncated", lines[2])


def test_json_of_a_damaged_dataset(run, damaged):
    folder, one, two = damaged
    done = run("verify", folder, "--json")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {folder} is damaged: 3 damages in 2 files. To get files back")
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


def test_the_commands_that_it_names_make_lost_files_again(run, photo_folder, tmp_path):
    """Of a dataset that has grown, and of a cache of it."""
    folder, cache = tmp_path / "d", tmp_path / "cache"
    photos = sorted(photo_folder.glob("*/*.jpg"))
    for part, taken in (("a b", photos[:5]), ("b", photos[5:9])):
        (tmp_path / part).mkdir()
        for photo in taken:
            shutil.copy(photo, tmp_path / part)
    tpufeed.shard(tmp_path / "a b", folder, workers=1, shards=2)
    tpufeed.append(tmp_path / "b", folder, workers=1)
    tpufeed.cache.warmup(folder, cache, ops=[CenterCrop(16)], workers=1)
    options = {"shard": ["--shards", "2"], "append": [], "cache": ["--op", "CenterCrop(16)"]}
    for dataset, commands in ((folder, ["shard", "append"]), (cache, ["cache"])):
        lost = sorted(dataset.glob("**/*.tfrecord"))
        for path in lost:
            path.unlink()
        done = run("verify", dataset)
        assert (done.returncode, len(done.stdout.splitlines())) == (1, len(lost))
        found = [shlex.split(command) for command in re.findall(r"tpufeed (.*?) \(makes ", done.stderr)]
        assert [words[0] for words in found] == commands
        for words in found:
            done = run(*words, *options[words[0]], "--workers", "1")
            # It makes its own again, and names the command of the others.
            assert ("append of" in done.stderr) == bool(done.returncode) == (words is not found[-1])
        assert run("verify", dataset).returncode == 0


def test_no_command_is_named_for_a_shard_that_none_makes(run, dataset_url, tmp_path):
    folder = Path(shutil.copytree(dataset_url, tmp_path / "d"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["options"]["command"] = "adopt"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    next(folder.glob("*.tfrecord")).unlink()
    assert "run the same tpufeed adopt again" in run("verify", folder).stderr
