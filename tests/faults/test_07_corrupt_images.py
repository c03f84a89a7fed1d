"""Class 7: corrupt images are lines and counts within the budget; one more is an error, and there is no dataset."""

import json
import shutil
from pathlib import Path

import pytest

import tpufeed
from tpufeed import cache
from tpufeed.dataset.reader import find_dataset
from tpufeed.errors import TooManyRejectsError
from tpufeed.storage.registry import open_store


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


def warm(src, dst, **options):
    return cache.warmup(src, dst, size=32, variants=2, **options)


@pytest.mark.parametrize("build", [tpufeed.shard, warm], ids=["shard", "warmup"])
def test_a_budget_is_kept_to_the_image(build, corrupt, tmp_path):
    folder, reasons = corrupt
    with pytest.raises(TooManyRejectsError, match=r"of 40 inputs cannot be taken so far .*; 4 are allowed") as raised:
        build(folder, tmp_path / "d", max_rejects=4, workers=1)
    assert raised.value.exit_code == 1
    assert find_dataset(open_store(tmp_path / "d")) is None
    result = build(folder, tmp_path / "d", max_rejects=5, workers=1)
    lines = [json.loads(line) for line in (tmp_path / "d/rejects.jsonl").read_text().splitlines()]
    assert {line["path"]: line["reason"] for line in lines} == reasons
    assert all(line["message"] for line in lines)
    assert result.manifest.rejects == dict.fromkeys(sorted(reasons.values()), 1)
    assert tpufeed.verify(tmp_path / "d").records == 35 * (2 if build is warm else 1)
