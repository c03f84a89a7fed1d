import errno
import os
import subprocess
import sys
import tempfile
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

import tpufeed
from tests.frameworks import lazy
from tests.tfrecords import records_of
from tpufeed.dataset.index import encode_index
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.writer import IndexWriter, ShardWriter, check_writable
from tpufeed.errors import DatasetNotFoundError, StoreError
from tpufeed.storage.store import open_store
from tpufeed.tfrecord.example import Feature, encode_entries
from tpufeed.tfrecord.layout import FixedLayout

tf = lazy("tensorflow")

LAYOUT = FixedLayout("image/encoded", ("image/class/label", "image/height"))
TPUFEED = Path(sys.executable).with_name("tpufeed")

int64s = st.integers(-(1 << 63), (1 << 63) - 1)
samples = st.lists(st.tuples(st.binary(max_size=300), st.tuples(int64s, int64s), st.text(max_size=20)), max_size=8)


def write(path, images):
    with closing(ShardWriter(path, LAYOUT)) as writer:
        for image, ints, text in images:
            writer.add(image, ints, encode_entries({"text": Feature("bytes", (text.encode(),))}))
    return writer


@settings(max_examples=20)
@given(samples)
def test_what_is_written_is_read_back(images):
    with tempfile.TemporaryDirectory() as folder:
        written = write(Path(folder, "shard"), images)
        data = Path(folder, "shard").read_bytes()
    assert (written.offsets[-1], written.crc32c) == (len(data), crc32c(data))
    records = records_of(data)
    assert [offset for offset, _ in records] == written.offsets[:-1]
    found = [(bytes(image), ints) for image, ints in (LAYOUT.decode(payload) for _, payload in records)]
    assert found == [(image, ints) for image, ints, _ in images]


@pytest.mark.uses("tensorflow")
def test_tensorflow_reads_every_record(tmp_path):
    images = [(bytes([n]) * n, (n - 3, 1 << n), f"größe {n}") for n in range(7)]
    write(tmp_path / "shard", images)
    wanted = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "text": tf.io.FixedLenFeature([], tf.string),
    }
    found = []
    for record in tf.data.TFRecordDataset(str(tmp_path / "shard")):
        sample = {key: value.numpy() for key, value in tf.io.parse_single_example(record, wanted).items()}
        ints = int(sample["image/class/label"]), int(sample["image/height"])
        found.append((sample["image/encoded"], ints, sample["text"].decode()))
    assert found == images


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8).data])
def test_images_may_lie_in_any_kind_of_memory(kind, tmp_path):
    data = bytes(range(256)) * 10
    write(tmp_path / "shard", [(kind(data), (1, 2), "x")])
    write(tmp_path / "bytes", [(data, (1, 2), "x")])
    assert (tmp_path / "shard").read_bytes() == (tmp_path / "bytes").read_bytes()


def test_an_empty_shard(tmp_path):
    written = write(tmp_path / "shard", [])
    assert (written.crc32c, written.offsets) == (0, [0])
    assert (tmp_path / "shard").read_bytes() == b""


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "shard").write_text("mine")
    with pytest.raises(StoreError, match="shard: "):
        ShardWriter(tmp_path / "shard", LAYOUT)
    assert (tmp_path / "shard").read_text() == "mine"


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match="nowhere/shard: "):
        ShardWriter(tmp_path / "nowhere/shard", LAYOUT)


def test_a_value_that_does_not_fit_leaves_the_shard_sound(tmp_path):
    with closing(ShardWriter(tmp_path / "shard", LAYOUT)) as writer:
        writer.add(b"one", (1, 1), b"")
        with pytest.raises(tpufeed.errors.RecordError):
            writer.add(b"two", (1 << 63, 1), b"")
        writer.add(b"three", (3, 3), b"")
    data = (tmp_path / "shard").read_bytes()
    assert len(records_of(data)) == 2
    assert (writer.offsets[-1], writer.crc32c) == (len(data), crc32c(data))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv[:2] = ["tpufeed"]
from tpufeed.cli import main
main()
"""


@pytest.mark.all
def test_a_shard_that_cannot_grow_is_an_error_and_with_room_the_same_command_goes_on(photo_folder, tmp_path):
    """The last record is written in part, which is no error of the write itself."""
    tpufeed.shard(photo_folder, tmp_path / "whole", workers=1)
    (shard,) = (tmp_path / "whole").glob("*.tfrecord")
    room = str(shard.stat().st_size - 1000)
    command = [sys.executable, "-c", LIMITED, room, "shard", photo_folder, tmp_path / "d", "--workers", "1"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"error: train-00000-of-00001.tfrecord: {tmp_path}/d/" in done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "d").glob("*.tfrecord"))
    assert not (tmp_path / "d/_tpufeed/tmp").exists()
    with pytest.raises(DatasetNotFoundError):
        open_dataset(tmp_path / "d")
    assert tpufeed.shard(photo_folder, tmp_path / "d", workers=1).images == 40
    assert tpufeed.verify(tmp_path / "d").records == 40


# Index


@pytest.mark.parametrize("lengths", [[[20, 30, 40], [], [2**40], [16, 16]], [[]], []])
def test_an_index_written_shard_by_shard_is_the_same_file(lengths, tmp_path):
    expected = encode_index([np.cumsum([0, *shard], dtype=np.uint64) for shard in lengths])
    writer = IndexWriter(tmp_path / "index.npy")
    for shard in lengths:
        writer.add(np.cumsum([0, *shard], dtype=np.uint64))
    assert writer.finish() == (len(expected), crc32c(expected))
    assert (tmp_path / "index.npy").read_bytes() == expected


def test_writing_an_index_keeps_none_of_it(tmp_path):
    writer, lengths = IndexWriter(tmp_path / "index.npy"), np.arange(1001, dtype=np.uint64) * 100
    writer.add(lengths)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(300):
            writer.add(lengths)
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    size, _ = writer.finish()
    assert size == 128 + 301 * 1001 * 8


def test_an_index_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"gone/index\.npy: "):
        IndexWriter(tmp_path / "gone" / "index.npy")


@pytest.mark.parametrize("moment", ["is_dir", "access"])
def test_a_folder_that_another_process_removes_meanwhile_is_no_obstacle(moment, tmp_path, monkeypatch):
    folder = tmp_path / "part-00002" / "_tpufeed"
    folder.mkdir(parents=True)
    owner, seen = Path if moment == "is_dir" else os, []
    ask = getattr(owner, moment)

    def vanish(path, *arguments):
        seen.append(path)
        if path == folder and folder.exists():
            folder.rmdir()
        return ask(path, *arguments)

    monkeypatch.setattr(owner, moment, vanish)
    check_writable(open_store(folder.parent))
    assert folder in seen
    assert not os.path.lexists(folder)
