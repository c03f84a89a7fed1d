"""Damage to an index, and counts of a manifest that are wrong."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

import tpufeed
from tpufeed import verify
from tpufeed.dataset.reader import open_dataset

sys.path.insert(0, str(Path(__file__).parent))

from damaging import damages_of, edit_manifest, flip, offsets_of, places_of, shards_of


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
    tpufeed.shard(photo_folder, tmp_path / "d", shares="train=0.999999,val=0.000001", workers=1)
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
