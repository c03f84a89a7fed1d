import dataclasses
import io
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.errors import ObjectNotFoundError, StoreError
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.local import LocalStore
from tpufeed.storage.memory import MemoryStore
from tpufeed.storage.reading import DamagedReadError, open_compared, open_object

STORES = {
    "memory": lambda path: MemoryStore(f"memory://{path.name}-ranges"),
    "local": lambda path: LocalStore(str(path / "local")),
    "fsspec": lambda path: FsspecStore(f"local://{path}/fsspec"),
}
DATA = bytes(range(256)) * 40000  # 10 MB: more than one block


@pytest.fixture(params=STORES, ids=str)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def test_an_object_is_read_like_a_file(store):
    store.put("a/b", DATA)
    with open_object(store, "a/b") as file:
        assert file.readable()
        assert file.seekable()
        assert file.read(3) == DATA[:3]
        assert file.tell() == 3
        assert file.seek(-5, io.SEEK_END) == len(DATA) - 5
        assert file.read() == DATA[-5:]
        assert file.read(1) == b""
        assert file.seek(1, io.SEEK_SET) == 1
        assert file.seek(2, io.SEEK_CUR) == 3
        assert file.read() == DATA[3:]
        assert file.seek(len(DATA) + 10) == len(DATA) + 10
        assert file.read(5) == b""


@pytest.mark.all
def test_text_is_read_by_blocks(tmp_path, monkeypatch):
    store = MemoryStore(f"memory://{tmp_path.name}-text")
    store.put("text", b"0.jpg,rose\n" * 600_000)
    spans, read_range = [], store.read_range
    monkeypatch.setattr(store, "read_range", lambda *span: spans.append(span[1:]) or read_range(*span))
    with io.TextIOWrapper(open_object(store, "text")) as text:
        assert sum(line == "0.jpg,rose\n" for line in text) == 600_000
    assert spans == [(0, 4 << 20), (4 << 20, 6_600_000)]


@pytest.mark.parametrize("name", ["absent", "folder/absent", "folder"])
def test_what_is_not_there(store, name):
    store.put("folder/x", b"")
    with pytest.raises(StoreError, match=name) as raised:
        open_object(store, name)
    assert store.url in str(raised.value)
    if name != "folder":
        assert isinstance(raised.value, ObjectNotFoundError)


def test_an_object_that_goes_while_it_is_read(tmp_path):
    store = MemoryStore(f"memory://{tmp_path.name}-goes")
    store.put("a", DATA)
    with open_object(store, "a") as file:
        file.read(10)
        store.delete("a")
        with pytest.raises(ObjectNotFoundError):
            file.read()


@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 250), st.integers(-1, 250)), max_size=10))
def test_any_reads_give_what_the_bytes_give(data, reads):
    store = MemoryStore("memory://ranges-property")
    store.delete("x")
    store.put("x", data)
    expected = io.BytesIO(data)
    with open_object(store, "x") as file:
        for start, count in reads:
            assert file.seek(start) == expected.seek(start)
            assert file.read(count) == expected.read(count)
            assert file.tell() == expected.tell()


class Vouching(MemoryStore):
    """Vouches for CRCs; `damage` gives other bytes for some reads, counted from 0."""

    def __init__(self, url, damage=lambda _, data: data):
        super().__init__(url)
        self.damage, self.spans = damage, []

    def stat(self, name):
        found = super().stat(name)
        return found and dataclasses.replace(found, crc32c=crc32c(self.read(name)))

    def read_range(self, name, start, stop, version=""):
        self.spans.append((start, stop))
        return self.damage(len(self.spans) - 1, super().read_range(name, start, stop, version))


def flip_first(data):
    return bytes([data[0] ^ 1]) + data[1:]


def put_in(tmp_path, *damage):
    store = Vouching(f"memory://{tmp_path.name}-compared", *damage)
    store.put("a", DATA)
    return store


@pytest.mark.parametrize("skip", [0, 100, 3 << 20], ids=str)
@pytest.mark.parametrize("damaged", [None, 0, 1], ids=str)
def test_an_object_that_is_read_in_turn_is_compared(skip, damaged, tmp_path):
    """What is skipped is fetched with what follows: the damaged byte may be one of those that nobody looks at."""
    store = put_in(tmp_path, lambda number, data: flip_first(data) if number == damaged else data)
    with open_object(store, "a", compare=True) as file:
        assert file.read(4 << 20)[1:] == DATA[1 : 4 << 20]
        file.seek(skip, io.SEEK_CUR)
        if damaged is None:
            assert file.read() == DATA[(4 << 20) + skip :]
        else:
            with pytest.raises(DamagedReadError, match=r"/a: crc32c .*[0-9a-f]{8}"):
                file.read()
    assert store.spans[1][0] == 4 << 20


def test_where_more_than_a_block_is_skipped_nothing_is_compared(tmp_path):
    store = put_in(tmp_path, lambda _, data: flip_first(data))
    with open_object(store, "a", compare=True) as file:
        file.read(10)
        file.seek(9 << 20)
        assert len(file.read()) == len(DATA) - (9 << 20)


def test_bytes_that_are_read_twice_count_once(tmp_path):
    store = put_in(tmp_path)
    with open_object(store, "a", compare=True) as file:
        assert file.read(5 << 20) == DATA[: 5 << 20]
        file.seek(0)
        assert file.read() == DATA


@pytest.mark.parametrize("damaged", [(), (0,), (0, 1)], ids=str)
def test_a_copy_is_compared_before_it_is_read(damaged, tmp_path):
    """A damage that comes twice is not what was put, either."""
    store = put_in(tmp_path, lambda number, data: flip_first(data) if number in damaged else data)
    if damaged == (0, 1):
        with pytest.raises(DamagedReadError, match="/a: crc32c"), open_compared(store, "a"):
            raise AssertionError("it was opened")
        return
    with open_compared(store, "a") as file:
        assert file.read() == DATA
        path = file.name
    assert len(store.spans) == 1 + len(damaged)
    assert not Path(path).exists()


def test_a_store_without_crcs_is_not_compared(store):
    store.put("a", DATA)
    with open_compared(store, "a") as file, open_object(store, "a", compare=True) as other:
        assert file.read() == other.read() == DATA
