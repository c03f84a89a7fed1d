"""Each kind of damage is found, and its place is told."""

import itertools
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tpufeed import verify
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DamageError, DatasetNotFoundError, ManifestError, RecordError, ShardError
from tpufeed.storage.memory import MemoryStore


def shards_of(folder, split="train"):
    return open_dataset(folder).split(split).variants[0].shards


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def offsets_of(folder, number):
    """Where the records of a shard of `train` start, from the index by numpy."""
    counts = [shard.records + 1 for shard in shards_of(folder)]
    index = np.load(Path(folder, "train.index.npy"))
    return list(map(int, np.split(index, np.cumsum(counts))[number]))


def edit_manifest(folder, change):
    path = Path(folder, "manifest.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_sound_datasets_pass(dataset_url, cache_url, memory_url):
    for url, records in ((dataset_url, 40), (memory_url, 40), (cache_url, 80), (f"local://{dataset_url}", 40)):
        found = verify(url)
        shards = [
            shard for split in open_dataset(url).manifest.splits.values() for v in split.variants for shard in v.shards
        ]
        assert (found.url, found.records, found.shards) == (open_dataset(url).url, records, len(shards))
        assert found.bytes == sum(shard.bytes for shard in shards)


def test_no_dataset(tmp_path):
    with pytest.raises(DatasetNotFoundError):
        verify(tmp_path)


@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize("place", ["length", "length's CRC", "payload", "payload's CRC"])
def test_a_flipped_byte_is_found_with_shard_record_and_byte(place, number, copy):
    shard = shards_of(copy)[number]
    offsets = offsets_of(copy, number if number >= 0 else len(shards_of(copy)) - 1)
    record = shard.records // 2
    start, stop = offsets[record], offsets[record + 1]
    at = {"length": start + 1, "length's CRC": start + 8, "payload": (start + stop) // 2, "payload's CRC": stop - 1}
    flip(copy / shard.name, at[place])
    with pytest.raises(RecordError, match=rf"^{re.escape(str(copy / shard.name))}, record {record}, byte {start}: "):
        verify(copy)


def test_every_byte_counts(copy):
    """Damage at 60 places all over the dataset's files, each found."""
    rng = np.random.default_rng(7)
    names = [path.name for path in copy.iterdir() if path.name.endswith((".tfrecord", ".npy"))]
    for name in [*names, *rng.choice(names, 45)]:
        position = int(rng.integers((copy / name).stat().st_size))
        flip(copy / name, position)
        with pytest.raises(DamageError, match=re.escape(name.removesuffix(".index.npy"))):
            verify(copy)
        flip(copy / name, position)
    assert verify(copy).records == 40


def test_damage_in_any_variant_is_found(cache_url, tmp_path):
    shutil.copytree(cache_url, tmp_path / "c")
    shard = open_dataset(tmp_path / "c").split("val").variants[1].shards[-1]
    assert shard.name.startswith("val-v1-")
    flip(tmp_path / "c" / shard.name, 777)
    with pytest.raises(RecordError, match=rf"{shard.name}, record 0, byte 0"):
        verify(tmp_path / "c")


def test_a_shard_cut_between_two_records(copy):
    shard = shards_of(copy)[1]
    os.truncate(copy / shard.name, offsets_of(copy, 1)[-2])
    with pytest.raises(
        ShardError, match=rf"{shard.name}: {shard.records - 1} records; the manifest says {shard.records}"
    ):
        verify(copy)


@pytest.mark.parametrize("left", [5, 14, 2000])
def test_a_shard_cut_within_a_record(left, copy):
    shard, start = shards_of(copy)[1], offsets_of(copy, 1)[-2]
    os.truncate(copy / shard.name, start + left)
    with pytest.raises(RecordError, match=rf"{shard.name}, record {shard.records - 1}, byte {start}: truncated"):
        verify(copy)


def test_an_emptied_shard(copy):
    shard = shards_of(copy)[0]
    os.truncate(copy / shard.name, 0)
    with pytest.raises(ShardError, match=rf"{shard.name}: 0 records; the manifest says {shard.records}"):
        verify(copy)


def test_a_shard_with_something_behind_it(copy):
    shard = shards_of(copy)[0]
    with (copy / shard.name).open("ab") as file:
        file.write(b"\0" * 100)
    with pytest.raises(RecordError, match=rf"{shard.name}, record {shard.records}, byte {shard.bytes}"):
        verify(copy)


@pytest.mark.parametrize("name", ["shard", "index"])
def test_a_missing_file(name, copy):
    path = copy / (shards_of(copy)[-1].name if name == "shard" else "val.index.npy")
    path.unlink()
    with pytest.raises(ShardError, match=re.escape(path.name)):
        verify(copy)


def test_a_missing_file_in_a_remote_store(dataset_url, tmp_path):
    store = MemoryStore(f"memory://{tmp_path}")
    for path in Path(dataset_url).glob("*.*"):
        store.put(path.name, path.read_bytes())
    for name in (shards_of(dataset_url)[1].name, "val.index.npy"):
        data = store.read(name)
        store.delete(name)
        with pytest.raises(DamageError, match=re.escape(name)):
            verify(store.url)
        store.put(name, data)
    assert verify(store.url).records == 40


@pytest.mark.parametrize("alike", [True, False], ids=["of as many records", "of other counts"])
def test_two_shards_exchanged(alike, copy):
    """Their records are sound; they are not where the manifest says."""
    shards = shards_of(copy)
    one = shards[0]
    other = next(shard for shard in shards[1:] if (shard.records == one.records) == alike)
    (copy / one.name).rename(copy / "kept")
    (copy / other.name).rename(copy / one.name)
    (copy / "kept").rename(copy / other.name)
    message = "the manifest says .* a file of another build" if alike else "records; the manifest says"
    with pytest.raises(ShardError, match=rf"{one.name}: .*{message}"):
        verify(copy)


def test_sound_records_in_another_order(copy):
    shard = shards_of(copy)[0]
    data = (copy / shard.name).read_bytes()
    records = [data[start:stop] for start, stop in itertools.pairwise(offsets_of(copy, 0))]
    (copy / shard.name).write_bytes(b"".join(reversed(records)))
    with pytest.raises(ShardError, match=rf"{shard.name}: .*a file of another build"):
        verify(copy)


@pytest.mark.parametrize("position", ["header", "first", "middle", "last"])
def test_a_damaged_index(position, copy):
    path = copy / "train.index.npy"
    size = path.stat().st_size
    at = {"header": 70, "first": 128, "middle": 128 + (size - 128) // 2, "last": size - 8}[position]
    flip(path, at)
    with pytest.raises(ShardError, match="index"):
        verify(copy)


def test_an_index_that_fits_but_lies(copy):
    """Offsets that grow and end right, one of them a byte off."""
    offsets = offsets_of(copy, 1)
    index = np.load(copy / "train.index.npy")
    index[shards_of(copy)[0].records + 2] += 1
    np.save(copy / "train.index.npy", index)
    name = shards_of(copy)[1].name
    with pytest.raises(
        ShardError, match=rf"{name}: the index has record 1 at byte {offsets[1] + 1}; it is at byte {offsets[1]}"
    ):
        verify(copy)


def test_class_counts_that_are_wrong(copy):
    def swap(manifest):
        counts = manifest["splits"]["train"]["class_counts"]
        counts[0], counts[1] = counts[0] + 1, counts[1] - 1

    edit_manifest(copy, swap)
    with pytest.raises(ShardError, match=r"split 'train' has \[.*\] records by class, not \("):
        verify(copy)


def test_class_counts_that_are_wrong_in_an_empty_split(photo_folder, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", split="train=0.999999,val=0.000001", workers=1)
    assert verify(tmp_path / "d").records == 40
    os.truncate(tmp_path / "d/val.index.npy", 100)
    with pytest.raises(ShardError, match=r"val\.index\.npy"):
        verify(tmp_path / "d")


def test_record_counts_that_are_wrong(copy):
    def more(manifest):
        manifest["splits"]["train"]["records"] += 1
        manifest["splits"]["train"]["variants"][0]["shards"][1]["records"] += 1

    edit_manifest(copy, more)
    with pytest.raises(ShardError, match=r"train-0000[01]-of"):
        verify(copy)


def test_record_counts_that_contradict_each_other(copy):
    edit_manifest(copy, lambda manifest: manifest["splits"]["train"].update(records=1000))
    with pytest.raises(ManifestError, match="do not hold 1000 records"):
        verify(copy)


@pytest.mark.parametrize("field", ["crc32c", "bytes"])
def test_a_manifest_of_another_shard(field, copy):
    shard = shards_of(copy)[0]

    def change(manifest):
        manifest["splits"]["train"]["variants"][0]["shards"][0][field] += 1

    edit_manifest(copy, change)
    with pytest.raises(
        ShardError, match=rf"{shard.name}: {shard.bytes} bytes of CRC-32C {shard.crc32c:08x}; the manifest"
    ):
        verify(copy)


def test_a_label_beyond_the_classes(copy):
    def fewer(manifest):
        manifest["class_names"] = manifest["class_names"][:2]
        for split in manifest["splits"].values():
            split["class_counts"] = split["class_counts"][:2]

    edit_manifest(copy, fewer)
    with pytest.raises(RecordError, match=r"record \d+, byte \d+: label 2 of 2 classes"):
        verify(copy)


def test_a_feature_that_is_not_there(copy):
    def rename(manifest):
        assert manifest["features"][2]["name"] == "image/height"
        manifest["features"][2]["name"] = "image/depth"

    edit_manifest(copy, rename)
    with pytest.raises(RecordError, match=r"record 0, byte 0: feature 'image/depth' is missing; the record has"):
        verify(copy)
