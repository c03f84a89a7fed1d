"""Class 7: corrupt images are lines and counts within the budget; one more is an error, and there is no dataset."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.tfrecords import encode_features, encode_record
from tpufeed import cache
from tpufeed.dataset.reader import find_dataset
from tpufeed.errors import TooManyRejectsError
from tpufeed.images import CenterCrop, RandomResizedCrop
from tpufeed.storage.store import open_store
from tpufeed.tfrecord.example import Feature


@pytest.fixture
def corrupt(photo_folder, tmp_path):
    """A copy of the photographs with one file for each way to be corrupt, by path."""
    folder = Path(shutil.copytree(photo_folder, tmp_path / "photos"))
    files = sorted(folder.glob("*/*.jpg"))[::7][:5]
    whole = files[0].read_bytes()
    middle = len(whole) // 2
    kinds = {
        "zero_bytes": b"",
        "truncated": whole[: len(whole) * 2 // 3],
        "not_an_image": b"<html>404</html>" * 9,
        "too_large": whole.replace(*_size_of(whole)),
        "unreadable": whole[:middle] + b"\xff\xd8" * 200 + whole[middle + 400 :],
    }
    for file, data in zip(files, kinds.values(), strict=True):
        file.write_bytes(data)
    return folder, {str(file.relative_to(folder)): reason for file, reason in zip(files, kinds, strict=True)}


def _size_of(jpeg):
    """Height and width in the frame header, and 65535x65535 in their place."""
    at = next(jpeg.find(bytes([0xFF, marker])) for marker in (0xC0, 0xC2) if bytes([0xFF, marker]) in jpeg)
    return jpeg[at : at + 9], jpeg[at : at + 5] + b"\xff" * 4


@pytest.mark.all
def test_a_budget_is_kept_to_the_image(corrupt, tmp_path):
    folder, reasons = corrupt
    with pytest.raises(TooManyRejectsError, match=r"of 40 inputs .*, and 4 are allowed") as raised:
        tpufeed.shard(folder, tmp_path / "d", max_rejects=4, workers=1)
    assert raised.value.exit_code == 1
    assert find_dataset(open_store(tmp_path / "d")) is None
    result = tpufeed.shard(folder, tmp_path / "d", max_rejects=5, workers=1)
    lines = [json.loads(line) for line in (tmp_path / "d/rejects.jsonl").read_text().splitlines()]
    assert {line["path"]: line["reason"] for line in lines} == reasons
    assert all(line["message"] for line in lines)
    assert result.manifest.rejects == dict.fromkeys(sorted(reasons.values()), 1)
    assert tpufeed.verify(tmp_path / "d").records == 35


def stray(jpeg, at):
    return jpeg[:at] + bytes(range(16)) + jpeg[at:]


MENDABLE = {
    "between segments": lambda jpeg: stray(jpeg, jpeg.index(b"\xff\xdb")),
    "zeros before the end": lambda jpeg: jpeg[:-2] + bytes(30) + jpeg[-2:],
    "no end marker": lambda jpeg: jpeg[:-2],
}


@pytest.fixture
def mendable(photo_folder, tmp_path):
    """A copy of the photographs of which three have all of their pixels, and damage elsewhere; and their paths."""
    folder = Path(shutil.copytree(photo_folder, tmp_path / "mendable"))
    files = sorted(folder.glob("*/*.jpg"))[::9][:3]
    for file, damage in zip(files, MENDABLE.values(), strict=True):
        file.write_bytes(damage(file.read_bytes()))
    return folder, {str(file.relative_to(folder)) for file in files}


@pytest.mark.parametrize("check", ["full", "header"])
def test_damage_beside_the_pixels_is_mended_and_counted(mendable, photo_folder, tmp_path, check):
    tpufeed.shard(photo_folder, tmp_path / "sound", workers=1, seed=1)
    result = tpufeed.shard(
        mendable[0], tmp_path / "d", workers=1, seed=1, images=tpufeed.Images(check=check), max_rejects=0
    )
    unseen = check == "header"  # of the three, filling at the end of a scan is not looked for
    assert result.manifest.odd == {"damaged": 3 - unseen}
    assert result.manifest.images == {"jpeg": 37 + unseen, "jpeg, mended": 3 - unseen}
    assert tpufeed.verify(result.url, decode="100%").records == 40
    options = {"ops": [CenterCrop(100)], "shuffle": False, "batch_size": 40}
    sound, found = (next(iter(tpufeed.Loader(tmp_path / name, **options)))[0] for name in ("sound", "d"))
    assert np.array_equal(sound, found)


def test_a_policy_rejects_damage_of_every_kind(mendable, tmp_path):
    folder, names = mendable
    result = tpufeed.shard(folder, tmp_path / "mended", max_rejects=0, workers=1)
    assert result.manifest.odd == {"damaged": 3}
    result = tpufeed.shard(folder, tmp_path / "d", max_rejects=3, workers=1, images=tpufeed.Images(damaged="reject"))
    lines = [json.loads(line) for line in (tmp_path / "d/rejects.jsonl").read_text().splitlines()]
    assert {line["path"] for line in lines} == names
    assert result.manifest.odd == {}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("processes", [0, 1])
def test_records_of_others_with_such_damage_stop_no_run(mendable, photo_folder, tmp_path, processes):
    """The bytes are another tool's, who copied the files; so they stay, and each reader mends what it reads."""
    names = [file.relative_to(photo_folder) for file in sorted(photo_folder.glob("*/*.jpg"))]
    folders = {"sound": photo_folder, "mendable": mendable[0]}
    for kind, folder in folders.items():
        path = tmp_path / kind / "records/train-00000-of-00001.tfrecord"
        path.parent.mkdir(parents=True)
        example = [encode_features({"image": Feature("bytes", [(folder / name).read_bytes()])}) for name in names]
        path.write_bytes(b"".join(map(encode_record, example)))
        tpufeed.adopt(path.parent)
    ops, batches = [RandomResizedCrop(32)], {}
    for kind in folders:
        options = {"ops": ops, "batch_size": 20, "seed": 1, "processes": processes}
        with tpufeed.Loader(tmp_path / kind / "records", **options) as loader:
            batches[kind] = np.concatenate([images.copy() for images in loader])
            assert loader.stats().bad_records == 0
    assert np.array_equal(batches["sound"], batches["mendable"])
    url = tmp_path / "mendable/records"
    assert tpufeed.verify(url, decode="100%").records == 40
    assert tpufeed.TFRecordImages(url, ops=ops)[0].shape == (32, 32, 3)
    result = cache.warmup(url, tmp_path / "cache", size=32, workers=1, max_rejects=0)
    assert result.manifest.odd == {"damaged": 3}
