"""The index: the same offsets from a mapped file and from ranges of a remote one, and damage that is seen."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.dataset.index import Index, encode_index
from tpufeed.dataset.manifest import IndexFile, Shard, Variant
from tpufeed.errors import ObjectNotFoundError, ShardError
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.local import LocalStore
from tpufeed.storage.memory import MemoryStore

NAME = "train.index.npy"
OFFSETS = [np.array(part, np.uint64) for part in ([0, 20, 50, 90], [0], [0, 2**40], [0, 16, 32])]
STORES = {
    "local": lambda path: LocalStore(str(path)),
    "memory": lambda path: MemoryStore(f"memory://{path.name}"),
    "fsspec": lambda path: FsspecStore(f"memory://{path}"),
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def variant_of(offsets, size):
    shards = tuple(Shard(f"s{n}", int(part[-1]), 0, len(part) - 1) for n, part in enumerate(offsets))
    return Variant(shards, IndexFile(NAME, size, 0))


def index_of(store, data, size=None, offsets=OFFSETS):
    store.put(NAME, data)
    return Index(store, variant_of(offsets, len(data) if size is None else size))


def all_offsets(index, count=4):
    return [part.tolist() for part in index.offsets(range(count))]


def test_every_store_gives_the_offsets_that_were_written(store):
    index = index_of(store, encode_index(OFFSETS))
    assert all_offsets(index) == [part.tolist() for part in OFFSETS]
    assert all_offsets(index) == [part.tolist() for part in OFFSETS]
    assert index.offsets([2])[0].dtype == np.uint64


def test_bytes_of_the_file_never_change():
    data = encode_index(OFFSETS)
    assert len(data) == 128 + 8 * 10
    assert data[:6] == b"\x93NUMPY"
    loaded = np.load(io.BytesIO(data))
    assert (loaded.dtype, loaded.tolist()) == (np.uint64, np.concatenate(OFFSETS).tolist())
    assert np.load(io.BytesIO(encode_index([]))).tolist() == []
    assert data[128:].hex() == np.concatenate(OFFSETS).astype("<u8").tobytes().hex()


def test_a_remote_index_is_read_in_parts_alone(tmp_path):
    ranges = []

    class Counted(MemoryStore):
        """The real store, which notes what it is asked for."""

        def read(self, name, version=""):
            raise AssertionError("the whole index was read")

        def read_range(self, name, start, stop, version=""):
            ranges.append((start, stop))
            return MemoryStore.read(self, name, version)[start:stop]

    index = index_of(Counted(f"memory://{tmp_path.name}"), encode_index(OFFSETS))
    assert [part.tolist() for part in index.offsets([3, 2])] == [OFFSETS[3].tolist(), OFFSETS[2].tolist()]
    assert ranges[0] == (128 + 7 * 8, 128 + 10 * 8)
    assert len(ranges) == 2


@given(st.lists(st.lists(st.integers(16, 2**40), max_size=6), max_size=6))
def test_local_and_remote_agree(tmp_path_factory, lengths):
    offsets = [np.cumsum([0, *part]).astype(np.uint64) for part in lengths]
    path = tmp_path_factory.mktemp("index")
    for make in STORES.values():
        index = index_of(make(path), encode_index(offsets), offsets=offsets)
        assert all_offsets(index, len(offsets)) == [part.tolist() for part in offsets]


def changed(part, place, value):
    parts = [one.copy() for one in OFFSETS]
    parts[part][place] = value
    return encode_index(parts)


DAMAGED = {
    "no zero at the start": changed(0, 0, 1),
    "another size at the end": changed(0, 3, 91),
    "falling": changed(0, 2, 10),
    "past the end": changed(0, 1, 1000),
    "one offset less": encode_index([OFFSETS[0][:-1], *OFFSETS[1:]]),
    "one offset more": encode_index([np.append(OFFSETS[0], np.uint64(90)), *OFFSETS[1:]]),
    "another dataset's": encode_index([np.array([0, 7, 8], np.uint64)]),
    "cut within the header": encode_index(OFFSETS)[:100],
    "cut at the header's end": encode_index(OFFSETS)[:128],
    "cut within the first offsets": encode_index(OFFSETS)[: 128 + 20],
    "cut within the last offset": encode_index(OFFSETS)[:-2],
    "empty": b"",
    "text": b"this is no index\n" * 20,
    "another type": encode_index(OFFSETS)[:128] + np.concatenate(OFFSETS).astype(np.float64).tobytes(),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_index_is_a_shard_error(store, data):
    index = index_of(store, data, size=len(encode_index(OFFSETS)))
    with pytest.raises(ShardError, match=NAME) as caught:
        all_offsets(index)
    assert "tpufeed verify" in str(caught.value)


@pytest.mark.parametrize("size", [0, 79, 80, 128])
def test_an_index_too_small_for_the_manifest_s_records_is_a_shard_error_at_once(store, size):
    with pytest.raises(ShardError, match="bytes cannot hold"):
        Index(store, variant_of(OFFSETS, size))


def test_a_missing_index_is_an_error(store):
    index = Index(store, variant_of(OFFSETS, 208))
    with pytest.raises((ShardError, ObjectNotFoundError), match=NAME):
        index.offsets([0])


def test_an_index_of_numpy_s_other_header_sizes_is_read(store):
    """A reader takes the header's size from the manifest's, so any header of an npy file will do."""
    data = encode_index(OFFSETS)
    longer = data[:8] + (118 + 64).to_bytes(2, "little") + data[10:127] + b" " * 64 + data[127:]
    assert np.load(io.BytesIO(longer)).tolist() == np.concatenate(OFFSETS).tolist()
    assert all_offsets(index_of(store, longer)) == [part.tolist() for part in OFFSETS]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="there is no /proc/self/smaps")
def test_a_reader_keeps_no_pages_of_a_large_index(tmp_path):
    """Mapped pages are the page cache's, but a memory limit counts them; 8 MB are read here."""
    offsets = [np.arange(513, dtype=np.uint64) * 20] * 2000
    index = index_of(LocalStore(str(tmp_path)), encode_index(offsets), offsets=offsets)
    kept, resident = index.offsets([0])[0], []
    for shard in range(len(offsets)):
        (part,) = index.offsets([shard])
        assert part[-1] == 512 * 20
        if shard % 400 == 399:
            resident.append(resident_bytes(tmp_path / NAME))
    assert kept.tolist() == offsets[0].tolist()
    assert max(resident) < 4 << 20


def resident_bytes(path):
    """What this process has of a mapped file in its page tables."""
    mappings = Path("/proc/self/smaps").read_text().split(f"{path}\n")[1:]
    assert mappings
    return sum(1024 * int(re.search(r"Rss:\s+(\d+) kB", mapping)[1]) for mapping in mappings)


@pytest.mark.parametrize("records", [8_191, 8_192, 40_000])
def test_large_parts_are_not_copied_and_stay(records, tmp_path):
    offsets = [np.arange(records + 1, dtype=np.uint64) * 20, np.array([0, 20], np.uint64)]
    index = index_of(LocalStore(str(tmp_path)), encode_index(offsets), offsets=offsets)
    (first,) = index.offsets([0])
    assert first.flags.owndata == (records < 8_192)
    index.offsets([1])
    index.release()
    assert np.array_equal(first, offsets[0])
    assert np.array_equal(index.offsets([0])[0], offsets[0])
