"""Class 19: a clock that steps changes nothing: durations are monotonic, times of files are compared for equality."""

import ast
import os
import shutil
import time
from pathlib import Path

import pytest

import tpufeed
from tpufeed.errors import DatasetExistsError

SOURCES = sorted((Path(__file__).parents[2] / "tpufeed").rglob("*.py"))
WALL = {("time", "time"), ("time", "time_ns"), ("time", "localtime"), ("datetime", "now"), ("datetime", "utcnow")}
ORDER_OF_USE = "storage/copies_folder.py"  # which copy was used last; a step makes a poor choice of what goes first
CENTURY_NS = 100 * 365 * 86400 * 10**9


@pytest.mark.all
def test_no_source_file_asks_for_the_time_of_day():
    assert len(SOURCES) > 100
    asked = 0
    for path in SOURCES:
        if str(path).endswith(ORDER_OF_USE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in WALL, f"{path}:{node.lineno}"
                asked += (node.value.id, node.attr) == ("time", "monotonic")
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert not {"time", "time_ns", "localtime"} & {alias.name for alias in node.names}, path
    assert asked


def test_a_wall_clock_that_jumps_is_not_noticed(photo_folder, bytes_of, dataset_url, monkeypatch, tmp_path):
    now = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(now) * 4e9)
    assert abs(time.time() - time.time()) == 8e9
    tpufeed.shard(photo_folder, tmp_path / "d", shard_bytes="30KB", workers=1)
    assert bytes_of(tmp_path / "d") == bytes_of(dataset_url)
    assert tpufeed.verify(tmp_path / "d").records == 40


@pytest.mark.parametrize("step_ns", [-CENTURY_NS, 1], ids=["past", "a tick on"])
def test_times_of_files_are_identities_and_have_no_order(step_ns, photo_folder, tmp_path):
    """Photographs of 1925 and of 2125 are photographs; one that is moved in time is another file than was listed."""
    source = Path(shutil.copytree(photo_folder, tmp_path / "photos"))
    for path in source.glob("*/*.jpg"):
        when = path.stat().st_mtime_ns + step_ns
        os.utime(path, ns=(when, when))
    options = {"shard_bytes": "30KB", "workers": 1}
    assert tpufeed.shard(source, tmp_path / "d", **options).rejects == 0
    assert tpufeed.shard(source, tmp_path / "d", **options).earlier_images == 40
    moved = min(source.glob("*/*.jpg"))
    when = moved.stat().st_mtime_ns - step_ns
    os.utime(moved, ns=(when, when))
    with pytest.raises(DatasetExistsError, match="has changed since"):
        tpufeed.shard(source, tmp_path / "d", **options)


def test_files_of_a_dataset_may_be_of_any_time(copy, dataset_url):
    """Shards older than their manifest, or of the future, as after a copy between machines whose clocks differ."""
    for number, path in enumerate(sorted(copy.glob("*"))):
        os.utime(path, ns=((-1) ** number * CENTURY_NS, (-1) ** number * CENTURY_NS))
    assert tpufeed.verify(copy).records == 40
    assert tpufeed.open_dataset(copy).content_digest == tpufeed.open_dataset(dataset_url).content_digest
