"""A build that was killed, that runs twice, or whose destination or source has changed since."""

import json
import shutil

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


@pytest.mark.parametrize(("damage", "reported"), [("flipped", True), ("flipped", False), ("gone", True)])
def test_a_damaged_shard_is_made_anew(build_options, damage, reported, photo_folder, unfinished, undisturbed):
    shard = unfinished / shard_of(undisturbed, 2)
    if damage == "flipped":
        flip(shard, 1000)
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


@pytest.mark.parametrize("damage", ["empty", "no UTF-8", "other bytes"])
def test_a_damaged_report_is_made_anew(build_options, damage, photo_folder, unfinished, undisturbed):
    data = reports(unfinished)[1].read_bytes()
    changed = {
        "empty": b"",
        "no UTF-8": data.replace(b"train-00001", b"train-0000\xff"),
        "other bytes": data.replace(b'"crc32c":', b'"crc32c":1'),
    }[damage]
    assert changed != data
    reports(unfinished)[1].write_bytes(changed)
    assert tpufeed.shard(photo_folder, unfinished, workers=1, **build_options).manifest == undisturbed.manifest


@pytest.mark.all
def test_reports_of_a_build_whose_plan_is_gone_are_not_believed(
    build_options, photo_folder, unfinished, bytes_of, tmp_path
):
    """Its shards have other names: they are not of this build, and do not block it."""
    for name in ("_tpufeed/plan.jsonl", "train.index.npy", "val.index.npy"):
        (unfinished / name).unlink()
    options = {**build_options, "shard_bytes": "60KB"}
    result = tpufeed.shard(photo_folder, unfinished, workers=1, **options)
    fresh = tpufeed.shard(photo_folder, tmp_path / "fresh", workers=1, **options)
    assert result.manifest.content_digest == fresh.manifest.content_digest
    assert tpufeed.verify(unfinished).records == 90


def test_a_source_that_is_refused_leaves_nothing_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoInputsError):
        tpufeed.shard(tmp_path / "empty", tmp_path / "new/d", workers=1)
    assert not (tmp_path / "new").exists()
    (tmp_path / "d").mkdir()
    with pytest.raises(NoInputsError):
        tpufeed.shard(tmp_path / "empty", tmp_path / "d", workers=1)
    assert list((tmp_path / "d").iterdir()) == []  # what was there stays


@pytest.mark.all
def test_files_that_change_after_the_plan_are_rejects(build_options, photo_folder, tmp_path):
    source, folder = tmp_path / "photos", tmp_path / "d"
    shutil.copytree(photo_folder, source)
    tpufeed.shard(source, folder, workers=1, **build_options)
    for path in [path for path in folder.rglob("*") if path.is_file() and path.name != "plan.jsonl"]:
        path.unlink()
    grown, overwritten, deleted = sorted(source.glob("*/*.jpg"))[::40]
    with grown.open("ab") as file:
        file.write(b"more")
    overwritten.write_bytes(overwritten.read_bytes()[:-5] + b"xxxxx")
    deleted.unlink()
    shutil.copy(max(source.glob("*/*.jpg")), grown.with_name("added-later.jpg"))
    result = tpufeed.shard(source, folder, workers=1, **build_options)
    rejects = map(json.loads, (folder / "rejects.jsonl").read_text().splitlines())
    changed = {str(path.relative_to(source)) for path in (grown, overwritten, deleted)}
    assert {(each["path"], each["reason"]) for each in rejects} == {(path, "changed_during_build") for path in changed}
    assert result.manifest.rejects == {"changed_during_build": 3}
    assert tpufeed.verify(folder).records == 87
