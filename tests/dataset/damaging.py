"""How tests damage a dataset, and what `verify` says of it."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from tests.tfrecords import encode_record
from tpufeed import verify
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetDamagedError


def shards_of(folder, split="train", variant=0):
    return open_dataset(folder).split(split).variants[variant].shards


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def offsets_of(folder, number, split="train", variant=0):
    """Where the records of a shard start, from the index by numpy."""
    found = open_dataset(folder).split(split).variants[variant]
    counts = [shard.records + 1 for shard in found.shards]
    return list(map(int, np.split(np.load(Path(folder, found.index.name)), np.cumsum(counts))[number]))


def edit_manifest(folder, change):
    path = Path(folder, "manifest.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def damages_of(url, **options):
    """All damages of a dataset, which must be damaged."""
    with pytest.raises(DatasetDamagedError) as caught:
        verify(url, **options)
    assert caught.value.damages
    assert str(caught.value.damages[0]) in str(caught.value)
    return caught.value.damages


def places_of(url, **options):
    return [(damage.shard, damage.record, damage.byte) for damage in damages_of(url, **options)]


@dataclass
class Forger:
    """Puts a sound record of any payload into a dataset, and makes index and manifest fit, as an attacker would."""

    folder: Path
    split: str = "train"
    variant: int = 0

    def payload(self, number, record):
        return bytes(open_dataset(self.folder).reader(self.split, self.variant).read(number, record))

    def replace(self, number, record, payload, *, fix_crc=True):
        """Put `payload` in place of a record's; returns (shard's name, record, byte)."""
        shard = shards_of(self.folder, self.split, self.variant)[number]
        offsets = offsets_of(self.folder, number, self.split, self.variant)
        data = (self.folder / shard.name).read_bytes()
        forged = encode_record(payload)
        data = data[: offsets[record]] + forged + data[offsets[record + 1] :]
        (self.folder / shard.name).write_bytes(data)
        moved = len(forged) - (offsets[record + 1] - offsets[record])
        entries = shards_of(self.folder, self.split, self.variant)
        index_path = self.folder / open_dataset(self.folder).split(self.split).variants[self.variant].index.name
        index = np.load(index_path)
        start = sum(entry.records + 1 for entry in entries[:number])
        index[start + record + 1 : start + shard.records + 1] += np.uint64(moved % 2**64)
        np.save(index_path, index)

        def fit(manifest):
            found = manifest["splits"][self.split]["variants"][self.variant]
            found["shards"][number]["bytes"] = len(data)
            if fix_crc:
                found["shards"][number]["crc32c"] = crc32c(data)
            found["index"]["crc32c"] = crc32c(index_path.read_bytes())

        edit_manifest(self.folder, fit)
        return shard.name, record, offsets[record]
