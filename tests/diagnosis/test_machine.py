import mmap
import os
from importlib import metadata
from pathlib import Path

import pytest

import tpufeed
from tpufeed.diagnosis import machine as machines
from tpufeed.diagnosis.machine import clashes, crowds, describe, describe_place, machine, place_of
from tpufeed.diagnosis.residency import resident_share


def test_the_machine_says_what_figures_need_to_be_read() -> None:
    found = machine()
    assert found["cores"] >= 1
    assert found["ram_gib"] > 0
    assert found["versions"]["numpy"]
    line = describe(found)
    assert found["cpu"] in line
    assert f"{found['cores']} cores" in line
    assert found["date"] in line


def test_a_place_says_how_much_of_it_is_cached(dataset_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tpufeed.open_dataset(dataset_url)
    shards = list(Path(dataset_url).glob("*.tfrecord"))
    size = sum(len(path.read_bytes()) for path in shards)
    place = place_of(dataset)
    assert place["bytes"] == size
    assert place["free_gb"] > 0
    assert place["page_cache"] == 1.0  # it was read a moment ago
    for share, said in (
        (1.0, "page cache warm (100 % of it is"),
        (0.5, "partly warm (50 %"),
        (0.0, "page cache cold (0 %"),
    ):
        assert said in describe_place({**place, "file_system": "ext4", "page_cache": share})
    assert "page cache: unknown" in describe_place({**place, "file_system": "ext4", "page_cache": None})
    assert "on tmpfs" in describe_place({**place, "file_system": "tmpfs"})
    monkeypatch.setattr(machines, "_file_system", lambda _: "tmpfs")
    assert describe_place(place_of(dataset)).endswith("in memory")


def test_a_remote_place_has_no_page_cache(colour_folder: Path) -> None:
    tpufeed.shard(colour_folder, "memory://places/colours", workers=1)
    place = place_of(tpufeed.open_dataset("memory://places/colours"))
    assert (place["file_system"], place["free_gb"], place["page_cache"]) == (None, None, None)
    assert describe_place(place) == "memory://places/colours: 0 MB, remote"


def test_what_is_dropped_from_the_page_cache_is_not_resident(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(64 * mmap.PAGESIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        assert resident_share([path]) == 1.0
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_share([path]) == 1.0:
        pytest.skip("this file system keeps its pages")
    assert resident_share([path]) == 0.0
    with path.open("rb") as file:
        os.pread(file.fileno(), 1, 0)
    share = resident_share([path])
    assert share is not None
    assert 0 < share <= 1


def test_what_cannot_be_known_is_none(tmp_path: Path) -> None:
    assert resident_share([tmp_path / "gone"]) is None
    (tmp_path / "empty").touch()
    assert resident_share([tmp_path / "empty"]) is None
    assert resident_share([]) is None


def test_a_busy_host_is_said() -> None:
    assert crowds({"cores": 2, "load": 1.0}) == ()
    assert crowds({"cores": 2, "load": 5.57}) == (
        "the load was 5.6 on 2 cores before this began: figures are low and noisy; run it again on a quiet host",
    )
    assert "0.6 on 1 core before" in crowds({"cores": 1, "load": 0.6})[0]


def test_two_opencvs_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"opencv-python-headless": "5.0", "numpy": "2.4"}

    def version(package: str) -> str:
        if package not in there:
            raise metadata.PackageNotFoundError(package)
        return there[package]

    monkeypatch.setattr(metadata, "version", version)
    assert clashes() == ()
    there["opencv-python"] = "4.12"
    (said,) = clashes()
    assert said.startswith("opencv-python and opencv-python-headless are installed over one another as cv2")
