"""Class 8: a damaged shard is an error in whatever reads it; no reader takes what is left for the whole."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.tfrecords import records_of
from tpufeed import cache
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DamageError, TaskError, TpufeedError
from tpufeed.images import CenterCrop, Resize
from tpufeed.tfrecord.framing import HEADER_BYTES, encode_header

RECORD = 2
OPS = [Resize(40), CenterCrop(32)]


def flip_payload(data, start, stop):
    data[(start + stop) // 2] ^= 4


def flip_length(data, start, stop):
    data[start] ^= 1


def absurd_length(data, start, stop):
    """With the CRC that such a length has: whoever believes it asks for 8 EB."""
    data[start : start + HEADER_BYTES] = encode_header((1 << 63) - 1)


def cut_within(data, start, stop):
    del data[stop - 3 :]


def cut_between(data, start, stop):
    del data[start:]


DAMAGES = [flip_payload, flip_length, absurd_length, cut_within, cut_between]


@pytest.fixture(params=DAMAGES, ids=lambda damage: damage.__name__)
def damaged(request, copy):
    """A dataset of which record 2 of the second shard is damaged, or what follows it is gone."""
    name = open_dataset(copy).split("train").variants[0].shards[1].name
    data = bytearray((copy / name).read_bytes())
    offsets = [offset for offset, _ in records_of(bytes(data))]
    request.param(data, *offsets[RECORD : RECORD + 2])
    (copy / name).write_bytes(data)
    return copy, name


def load(url):
    with tpufeed.Loader(url, columns=["sample"], batch_size=1, shuffle=False, ops=OPS) as loader:
        return [int(sample) for samples in loader for sample in samples]


READERS = {
    "examples": lambda url, _: len(list(open_dataset(url).iter_examples("train"))),
    "verify": lambda url, _: tpufeed.verify(url).records,
    "Loader": lambda url, _: len(load(url)),
    "torch": lambda url, _: len([image for image, *_ in tpufeed.TFRecordImages(url, "train")]),
    "warmup": lambda url, out: cache.warmup(url, out, size=32, workers=1).images,
}


@pytest.mark.first_cases(12)
@pytest.mark.parametrize("remote", [False, True], ids=["local", "by ranges"])
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_takes_damage_for_the_end(reader, remote, damaged, in_memory, tmp_path):
    folder, name = damaged
    with pytest.raises((DamageError, TaskError)) as raised:
        READERS[reader](in_memory(folder) if remote else folder, tmp_path / "out")
    assert name in str(raised.value)
    assert "Traceback" not in str(raised.value)


@pytest.mark.parametrize("reader", READERS)
def test_undamaged_they_read_all_of_it(reader, dataset_url, tmp_path):
    assert READERS[reader](dataset_url, tmp_path / "out") == 40


@pytest.mark.parametrize("damage", [flip_payload, flip_length, absurd_length, cut_within], ids=lambda d: d.__name__)
def test_damage_is_not_adopted(damage, dataset_url, tmp_path):
    """A foreign shard that ends between two records is whole, for all that anyone can know."""
    (tmp_path / "foreign").mkdir()
    shards = [shutil.copy(path, tmp_path / "foreign") for path in sorted(Path(dataset_url).glob("*.tfrecord"))]
    data = bytearray(Path(shards[1]).read_bytes())
    offsets = [offset for offset, _ in records_of(bytes(data))]
    damage(data, *offsets[-2:])
    Path(shards[1]).write_bytes(data)
    with pytest.raises(DamageError, match=rf"{shards[1]}, record \d+, byte \d+") as raised:
        tpufeed.adopt(tmp_path / "foreign")
    assert raised.value.exit_code == 1
    assert not (tmp_path / "foreign/manifest.json").exists()


def test_an_index_that_lies_is_no_other_sample(copy):
    """Its offsets rise and end at the shard's size, but one of them is off: the framing tells."""
    path = copy / "train.index.npy"
    index = np.load(path)
    index[3] += 8
    np.save(path, index)
    with pytest.raises(DamageError, match=r"record 2, byte"):
        load(copy)


def test_a_shard_that_grew_is_told(copy):
    """A sound record behind the last is no part of the dataset."""
    shard = open_dataset(copy).split("train").variants[0].shards[0]
    data = (copy / shard.name).read_bytes()
    (copy / shard.name).write_bytes(data + encode_header(0) + b"\xd8\xea\x82\xa2")
    with pytest.raises(
        TpufeedError, match=f"{shard.name} has {len(data) + 16} bytes, but the manifest says {len(data)}"
    ):
        load(copy)
    os.truncate(copy / shard.name, len(data))
    assert load(copy) == list(range(40))
