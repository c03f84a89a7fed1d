"""A build that is killed, run twice, or finds its destination in another state than it left it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tpufeed
from tpufeed.errors import NoInputsError


def shard_of(result, number):
    return [shard for split in result.manifest.splits.values() for shard in split.variants[0].shards][number].name


def reports(folder):
    return sorted((folder / "_tpufeed/reports").glob("*.json"))


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def identity(path):
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def test_no_temporary_files_are_left(undisturbed):
    below = sorted(str(path.relative_to(undisturbed.url)) for path in Path(undisturbed.url).rglob("*"))
    assert "_tpufeed/plan.jsonl" in below
    assert not [name for name in below if "tmp" in name]


def test_what_is_done_is_not_done_again(build_options, photo_folder, unfinished, undisturbed, bytes_of):
    before = {path.name: identity(path) for path in unfinished.iterdir() if path.is_file()}
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)
    assert {name: identity(unfinished / name) for name in before} == before
    assert (result.images, result.earlier_images) == (90, 90)
    assert result.manifest == undisturbed.manifest
    assert bytes_of(unfinished) == bytes_of(undisturbed.url)


def test_a_finished_shard_without_a_report_is_accepted(build_options, photo_folder, unfinished, undisturbed, bytes_of):
    reports(unfinished)[1].unlink()
    shard = unfinished / shard_of(undisturbed, 1)
    before = identity(shard)
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)
    assert identity(shard) == before
    assert 0 < result.earlier_images < 90
    assert result.manifest == undisturbed.manifest
    assert reports(unfinished)[1].exists()


@pytest.mark.parametrize("reported", [True, False], ids=["reported", "orphan"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_shard_is_made_anew(build_options, damage, reported, photo_folder, unfinished, undisturbed):
    shard = unfinished / shard_of(undisturbed, 2)
    if damage == "flipped":
        flip(shard, 1000)
    elif damage == "cut":
        os.truncate(shard, 1000)
    else:
        shard.unlink()
    if not reported:
        reports(unfinished)[2].unlink()
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)
    assert result.manifest == undisturbed.manifest
    assert tpufeed.verify(unfinished).records == 90
    assert (
        result.earlier_images == 90 - json.loads(reports(unfinished)[2].read_text())["shards"][0]["lengths"].__len__()
    )


@pytest.mark.parametrize("damage", ["empty", "cut", "no report", "no UTF-8", "other bytes"])
def test_a_damaged_report_is_made_anew(build_options, damage, photo_folder, unfinished, undisturbed):
    data = reports(unfinished)[1].read_bytes()
    changed = {
        "empty": b"",
        "cut": data[:-20],
        "no report": b'{"task":1}',
        "no UTF-8": data.replace(b"train-00001", b"train-0000\xff"),
        "other bytes": data.replace(b'"crc32c":', b'"crc32c":1'),
    }[damage]
    assert changed != data
    reports(unfinished)[1].write_bytes(changed)
    assert tpufeed.shard(photo_folder, unfinished, workers=1, **build_options).manifest == undisturbed.manifest


def test_reports_of_a_build_whose_plan_is_gone_are_not_believed(
    build_options, photo_folder, unfinished, bytes_of, tmp_path
):
    """Its shards have other names, so they neither belong to this build nor stand in its way."""
    for name in ("_tpufeed/plan.jsonl", "train.index.npy", "val.index.npy"):
        (unfinished / name).unlink()
    options = {**build_options, "shard_bytes": "60KB"}
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **options)
    fresh = tpufeed.shard(photo_folder, tmp_path / "fresh", workers=1, **options)
    assert result.manifest.content_digest == fresh.manifest.content_digest
    assert tpufeed.verify(unfinished).records == 90


@pytest.mark.parametrize("damage", ["empty", "cut in a line", "a line less", "no JSON", "version"])
def test_a_damaged_plan_is_refused(build_options, damage, photo_folder, unfinished):
    plan = unfinished / "_tpufeed/plan.jsonl"
    data = plan.read_bytes()
    changed = {
        "empty": b"",
        "cut in a line": data[:-20],
        "a line less": data[: data.rstrip().rindex(b"\n") + 1],
        "no JSON": b"[" + data,
        "version": data.replace(b'"plan_version":1', b'"plan_version":7'),
    }[damage]
    assert changed != data
    plan.write_bytes(changed)
    message = "plan version 7; .*version 1 only" if damage == "version" else "not a readable plan: .*[Rr]emove"
    with pytest.raises(tpufeed.errors.ManifestError, match=message):
        tpufeed.shard(photo_folder, unfinished, workers=1, **build_options)
    assert not (unfinished / "manifest.json").exists()


def test_a_source_that_is_refused_leaves_nothing_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoInputsError):
        tpufeed.shard(tmp_path / "empty", tmp_path / "new/d", workers=1)
    assert not (tmp_path / "new").exists()
    (tmp_path / "d").mkdir()
    with pytest.raises(NoInputsError):
        tpufeed.shard(tmp_path / "empty", tmp_path / "d", workers=1)
    assert list((tmp_path / "d").iterdir()) == []  # what was there stays


@pytest.mark.parametrize("change", ["grown", "touched", "same size", "deleted"])
def test_a_file_that_changes_after_the_plan_is_a_reject(build_options, change, photo_folder, tmp_path):
    source, folder = tmp_path / "photos", tmp_path / "d"
    shutil.copytree(photo_folder, source)
    tpufeed.shard(source, folder, workers=1, **build_options)
    for path in [path for path in folder.rglob("*") if path.is_file() and path.name != "plan.jsonl"]:
        path.unlink()
    changed = min(source.glob("*/*.jpg"))
    if change == "grown":
        with changed.open("ab") as file:
            file.write(b"more")
    elif change == "touched":
        os.utime(changed, ns=(0, 0))
    elif change == "same size":
        data = bytearray(changed.read_bytes())
        changed.write_bytes(data[:-5] + b"xxxxx")
    else:
        changed.unlink()
    shutil.copy(max(source.glob("*/*.jpg")), changed.with_name("added-later.jpg"))
    result = tpufeed.shard(source, folder, workers=1, **build_options)
    (line,) = (folder / "rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == str(changed.relative_to(source))
    assert json.loads(line)["reason"] == "changed_during_build"
    assert result.manifest.rejects == {"changed_during_build": 1}
    assert tpufeed.verify(folder).records == 89


TWIN = """
import sys
import tpufeed
from tpufeed.sharding.build import shard
print("ready", flush=True)
sys.stdin.readline()
result = shard(sys.argv[1], sys.argv[2], shard_bytes="40KB", split="train=0.8,val=0.2", workers=2)
print(result.manifest.content_digest, result.manifest.run_id)
"""


def test_the_same_command_twice_at_once_succeeds_twice(photo_folder, unfinished, undisturbed, bytes_of):
    """Over shards that nobody has reported, all of them damaged."""
    for path in [*unfinished.glob("*.tfrecord"), unfinished / "rejects.jsonl", *unfinished.glob("*.npy")]:
        path.write_bytes(b"x" * path.stat().st_size)
    shutil.rmtree(unfinished / "_tpufeed/reports")
    twins = [
        subprocess.Popen(
            [sys.executable, "-c", TWIN, str(photo_folder), str(unfinished)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for twin in twins:
        assert twin.stdout.readline() == "ready\n"
    for twin in twins:
        twin.stdin.write("go\n")
        twin.stdin.flush()
    said = [twin.communicate() for twin in twins]
    assert [twin.returncode for twin in twins] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert said[0][0].split()[0] == undisturbed.manifest.content_digest
    assert bytes_of(unfinished) == bytes_of(undisturbed.url)
    assert tpufeed.verify(unfinished).records == 90
