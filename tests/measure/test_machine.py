from pathlib import Path

import tpufeed
from tpufeed.measure.machine import busy_notes, describe, describe_place, machine, place_of


def test_the_machine_says_what_figures_need_to_be_read() -> None:
    found = machine()
    assert found["cores"] >= 1
    assert found["ram_gib"] > 0
    assert found["versions"]["numpy"]
    line = describe(found)
    assert found["cpu"] in line
    assert f"{found['cores']} cores" in line
    assert found["date"] in line


def test_a_place_says_where_its_bytes_lie(dataset_url: str) -> None:
    size = sum(path.stat().st_size for path in Path(dataset_url).glob("*.tfrecord"))
    place = place_of(tpufeed.open_dataset(dataset_url))
    assert place["bytes"] == size
    assert place["free_gb"] > 0
    assert f" on {place['file_system']}, " in describe_place(place)


def test_a_remote_place_has_no_file_system(colour_folder: Path) -> None:
    tpufeed.shard(colour_folder, "memory://places/colours", workers=1)
    place = place_of(tpufeed.open_dataset("memory://places/colours"))
    assert (place["file_system"], place["free_gb"]) == (None, None)
    assert describe_place(place) == "memory://places/colours: 0 MB, remote"


def test_a_busy_host_is_said() -> None:
    assert busy_notes({"cores": 2, "load": 1.0}) == ()
    assert "the load was 5.6 on 2 cores before" in busy_notes({"cores": 2, "load": 5.57})[0]
    assert "0.6 on 1 core before" in busy_notes({"cores": 1, "load": 0.6})[0]
