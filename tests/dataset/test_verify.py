"""Each kind of damage to files is found, and its place is told; one damage hides no other."""

import itertools
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

import tpufeed
from tpufeed import verify
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DamageError, DatasetDamagedError, DatasetUnreadableError
from tpufeed.storage.memory import MemoryStore

sys.path.insert(0, str(Path(__file__).parent))

from damaging import damages_of, edit_manifest, flip, offsets_of, places_of, shards_of

PLACES = ["length", "length's CRC", "payload", "payload's CRC"]


def position(place, start, stop):
    return {"length": start + 1, "length's CRC": start + 8, "payload": (start + stop) // 2, "payload's CRC": stop - 1}[
        place
    ]


def test_sound_datasets_pass(dataset_url, cache_url, memory_url):
    for url, records in ((dataset_url, 40), (memory_url, 40), (cache_url, 80), (f"local://{dataset_url}", 40)):
        found = verify(url, decode="all")
        shards = [
            shard for split in open_dataset(url).manifest.splits.values() for v in split.variants for shard in v.shards
        ]
        assert (found.url, found.records, found.shards) == (open_dataset(url).url, records, len(shards))
        assert found.bytes == sum(shard.bytes for shard in shards)
        assert found.decoded == (0 if url == cache_url else 40)


def test_progress(dataset_url, copy):
    seen = []
    found = verify(dataset_url, listener=seen.append)
    assert (seen[0].bytes, seen[0].records) == (0, 0)
    assert [progress.bytes for progress in seen] == sorted(progress.bytes for progress in seen)
    assert (seen[-1].bytes, seen[-1].records, seen[-1].damages) == (found.bytes, 40, 0)
    assert {progress.total_bytes for progress in seen} == {found.bytes}
    flip(copy / shards_of(copy)[0].name, 100)
    damages_of(copy, listener=seen.append)
    assert seen[-1].damages == 1


def test_an_error_of_the_listener_stops_the_threads(dataset_url):
    def stop(progress):
        if progress.bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        verify(dataset_url, listener=stop)
    assert caught.tb  # which keeps what was running
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("tpufeed-walk")]


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_byte_is_found_with_shard_record_and_byte(place, number, copy):
    shard = shards_of(copy)[number]
    offsets = offsets_of(copy, number if number >= 0 else len(shards_of(copy)) - 1)
    record = shard.records // 2
    flip(copy / shard.name, position(place, *offsets[record : record + 2]))
    assert places_of(copy) == [(shard.name, record, offsets[record])]


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_every_damaged_record_is_listed(remote, copy, tmp_path):
    """All records of two shards, each damaged at another place, and one of the other split."""
    expected = []
    for number in (1, 3):
        shard, offsets = shards_of(copy)[number], offsets_of(copy, number)
        for record, (start, stop) in enumerate(itertools.pairwise(offsets)):
            flip(copy / shard.name, position(PLACES[record % 4], start, stop))
            expected.append((shard.name, record, start))
    shard = shards_of(copy, "val")[0]
    flip(copy / shard.name, 500)
    expected.append((shard.name, 0, 0))
    url = copy
    if remote:
        store = MemoryStore(f"memory://{tmp_path}")
        for path in copy.glob("*.*"):
            store.put(path.name, path.read_bytes())
        url = store.url
    assert places_of(url) == expected


def test_every_byte_counts(copy):
    """Damage at 60 places all over the dataset's files, each found and told in one line."""
    rng = np.random.default_rng(7)
    names = [path.name for path in copy.iterdir() if path.name.endswith((".tfrecord", ".npy"))]
    for name in [*names, *rng.choice(names, 45)]:
        at = int(rng.integers((copy / name).stat().st_size))
        flip(copy / name, at)
        (damage,) = damages_of(copy)
        assert name in f"{damage}"
        flip(copy / name, at)
    assert verify(copy).records == 40


@pytest.mark.parametrize("records", [0, 1, -1], ids=["emptied", "all but one lost", "one lost"])
def test_a_shard_cut_between_two_records(records, copy):
    shard, offsets = shards_of(copy)[1], offsets_of(copy, 1)
    records %= shard.records
    os.truncate(copy / shard.name, offsets[records])
    (damage,) = damages_of(copy)
    assert (damage.shard, damage.record, damage.byte) == (shard.name, records, offsets[records])
    assert f"{records} records in {offsets[records]} bytes, but the manifest says {shard.records}" in damage.message


@pytest.mark.parametrize("left", [5, 14, 2000])
@pytest.mark.parametrize("lost", [1, 2])
def test_a_shard_cut_within_a_record(lost, left, copy):
    shard, start = shards_of(copy)[1], offsets_of(copy, 1)[-1 - lost]
    os.truncate(copy / shard.name, start + left)
    (damage,) = damages_of(copy)
    assert (damage.shard, damage.record, damage.byte) == (shard.name, shard.records - lost, start)
    assert f"truncated: the shard ends at byte {start + left} of {shard.bytes}" in damage.message
    assert ("2 records are lost" in damage.message) == (lost == 2)


def test_a_shard_with_something_behind_it(copy):
    shard = shards_of(copy)[0]
    with (copy / shard.name).open("ab") as file:
        file.write(b"\0" * 100)
    flip(copy / shard.name, 30)
    assert places_of(copy) == [(shard.name, 0, 0), (shard.name, shard.records, shard.bytes)]
    flip(copy / shard.name, 30)
    data = (copy / shard.name).read_bytes()[: shard.bytes]
    (copy / shard.name).write_bytes(data + data[: offsets_of(copy, 0)[1]])  # a sound record behind the last
    (damage,) = damages_of(copy)
    assert f"{shard.records + 1} records in" in damage.message


@pytest.mark.parametrize("name", ["shard", "index"])
def test_a_missing_file_is_one_line(name, copy):
    path = copy / (shards_of(copy, "val")[-1].name if name == "shard" else "val.index.npy")
    path.unlink()
    (damage,) = damages_of(copy)
    assert str(damage) == f"{path.name}: is missing, but the manifest names it"


@pytest.mark.parametrize("alike", [True, False], ids=["of as many records", "of other counts"])
def test_two_shards_exchanged(alike, copy):
    """Report shards that were swapped in one line each: their records are sound, but in the wrong file."""
    shards = shards_of(copy)
    one = shards[0]
    other = next(shard for shard in shards[1:] if (shard.records == one.records) == alike)
    (copy / one.name).rename(copy / "kept")
    (copy / other.name).rename(copy / one.name)
    (copy / "kept").rename(copy / other.name)
    damages = damages_of(copy)
    assert [damage.shard for damage in damages] == [one.name, other.name]
    assert all("the file of another build" in damage.message for damage in damages)


def test_sound_records_in_another_order(copy):
    shard, offsets = shards_of(copy)[1], offsets_of(copy, 1)
    data = (copy / shard.name).read_bytes()
    first, second, *rest = [data[start:stop] for start, stop in itertools.pairwise(offsets)]
    assert len(first) != len(second)
    (copy / shard.name).write_bytes(b"".join([second, first, *rest]))
    (damage,) = damages_of(copy)
    assert (damage.shard, damage.record, damage.byte) == (shard.name, 1, len(second))
    assert "the file of another build" in damage.message


def test_the_message_names_the_first_and_the_count(copy):
    for shard in shards_of(copy)[:5]:
        flip(copy / shard.name, 100)
    with pytest.raises(DamageError, match=rf"^{re.escape(str(copy))}: 5 damages: .* 2 more\. "):
        verify(copy)


@pytest.mark.parametrize("kind", ["*.tfrecord", "*.npy"])
def test_what_cannot_be_read_is_not_damaged(kind, copy):
    one, two = min(copy.glob(kind)), max(copy.glob("*.tfrecord"))
    one.unlink()
    one.symlink_to(one)  # too many links: an error of reading even to root
    with pytest.raises(DatasetUnreadableError) as caught:
        verify(copy)
    assert [each.file for each in caught.value.unreadable] == [one.name]
    assert str(caught.value.unreadable[0]) in str(caught.value)
    flip(two, 100)
    with pytest.raises(DatasetDamagedError, match="; 1 file ") as damaged:
        verify(copy)
    assert [damage.shard for damage in damaged.value.damages] == [two.name]
    assert damaged.value.unreadable == caught.value.unreadable


@pytest.mark.parametrize("file", ["in/train/a.tfrecord", "train.index.npy"])
def test_what_is_damaged_in_an_adopted_dataset_is_restored_or_adopted_again(file, photo, tmp_path, write_tfrecords):
    shard = write_tfrecords(tmp_path / "in/train/a.tfrecord", [{"image": photo}] * 2)
    tpufeed.adopt(tmp_path / "in", tmp_path)
    damaged, sound = tmp_path / file, shard.read_bytes()
    flip(damaged, 70)
    with pytest.raises(DatasetDamagedError) as caught:
        verify(tmp_path)
    assert "or remove manifest.json and its indexes, and run the same tpufeed adopt again" in caught.value.remedy
    assert "--overwrite" not in caught.value.remedy
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "train.index.npy").unlink()
    shard.write_bytes(sound)
    tpufeed.adopt(tmp_path / "in", tmp_path)
    assert verify(tmp_path).records == 2


# Damage to an index, and counts of a manifest that are wrong.


@pytest.mark.parametrize("at", [70, 128, 136, -8], ids=["header", "first", "second", "last"])
def test_a_damaged_index(at, copy):
    path = copy / "train.index.npy"
    flip(path, at)
    (damage,) = damages_of(copy)
    assert damage.shard == path.name
    assert "CRC-32C" in damage.message


def test_damage_beside_a_damaged_index(copy):
    """Without offsets to rely on, what follows a wrong length is unknown and said to be; a payload hides none."""
    shards, start = shards_of(copy), offsets_of(copy, 1)[1]
    flip(copy / shards[0].name, 100)
    flip(copy / shards[0].name, offsets_of(copy, 0)[2] + 100)
    flip(copy / shards[1].name, start)
    flip(copy / "train.index.npy", 70)
    found = damages_of(copy)
    assert [(damage.shard, damage.record) for damage in found] == [
        ("train.index.npy", None),
        (shards[0].name, 0),
        (shards[0].name, 2),
        (shards[1].name, 1),
    ]
    assert f"{shards[1].bytes - start} bytes from here on are not checked" in found[-1].message


@pytest.mark.parametrize("wrong", [1, -5000, 1 << 40], ids=["a byte off", "within another record", "outside"])
def test_an_index_that_lies_and_has_the_crc_of_the_manifest(wrong, copy):
    path = copy / "train.index.npy"
    offsets, shard = offsets_of(copy, 1), shards_of(copy)[1]
    index = np.load(path)
    index[shards_of(copy)[0].records + 2] = offsets[1] + wrong
    np.save(path, index)
    edit_manifest(
        copy,
        lambda manifest: manifest["splits"]["train"]["variants"][0]["index"].update(crc32c=crc32c(path.read_bytes())),
    )
    (damage,) = damages_of(copy)
    if wrong == 1 << 40:
        assert damage.shard == shard.name
        assert f"{path}: the offsets of {shard.name} do not fit its {shard.bytes} bytes" in damage.message
    else:
        assert (damage.shard, damage.record, damage.byte) == (shard.name, 1, offsets[1])
        assert damage.message == f"the index (train.index.npy) has it at byte {offsets[1] + wrong}"


def test_an_index_cut_in_an_empty_split(photo_folder, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", splits="train=0.999999,val=0.000001", workers=1)
    assert verify(tmp_path / "d").records == 40
    os.truncate(tmp_path / "d/val.index.npy", 100)
    assert places_of(tmp_path / "d") == [("val.index.npy", None, None)]


def test_class_counts_that_are_wrong(copy):
    def swap(manifest):
        counts = manifest["splits"]["train"]["class_counts"]
        counts[0], counts[1] = counts[0] + 1, counts[1] - 1

    found = open_dataset(copy).split("train").class_counts
    edit_manifest(copy, swap)
    flip(copy / shards_of(copy, "val")[0].name, 30)  # another split's damage hides nothing
    damages = damages_of(copy)
    assert damages[0].shard == "manifest.json"
    assert f"split 'train' has {found[0]} records of class 'astronaut', not {found[0] + 1}" in damages[0].message
    assert len(damages) == 2


def test_record_counts_that_are_wrong(copy):
    def more(manifest):
        manifest["splits"]["train"]["records"] += 1
        manifest["splits"]["train"]["variants"][0]["shards"][1]["records"] += 1

    edit_manifest(copy, more)
    assert [place[0] for place in places_of(copy)] == ["train.index.npy", shards_of(copy)[1].name]


@pytest.mark.parametrize("field", ["crc32c", "bytes"])
def test_a_manifest_of_another_shard(field, copy):
    shard = shards_of(copy)[0]

    def change(manifest):
        manifest["splits"]["train"]["variants"][0]["shards"][0][field] += 1

    edit_manifest(copy, change)
    (damage,) = damages_of(copy)
    assert damage.shard == shard.name
    assert f"{shard.bytes} bytes" in damage.message
    assert "the manifest says" in damage.message
