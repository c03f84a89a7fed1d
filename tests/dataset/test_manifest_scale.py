"""30,000 shards: one request opens them, in a few times the manifest's memory; their index is written as it comes."""

import pickle
import sys
import tracemalloc

import pytest

from tpufeed.dataset import reader
from tpufeed.dataset.manifest import (
    IndexFile,
    Manifest,
    Shard,
    Split,
    Variant,
    decode_manifest,
    encode_manifest,
)
from tpufeed.dataset.naming import MANIFEST, index_name, shard_name
from tpufeed.dataset.schema import record_schema
from tpufeed.storage.memory import MemoryStore

SHARDS, RECORDS = 30_000, 1_000


def manifest_of(shards):
    entries = tuple(
        Shard(shard_name("train", None, number, shards), 128_000_000 + number, number, RECORDS, str(10**15 + number))
        for number in range(shards)
    )
    index = IndexFile(index_name("train", None), 128 + 8 * shards * (RECORDS + 1), 0)
    split = Split(shards * RECORDS, (), (Variant(entries, index),))
    empty = {"options": {}, "rejects": {}, "images": {}, "odd": {}, "input_digest": "", "class_names": ()}
    return Manifest(run_id="made up", tool_version="0", splits={"train": split}, features=record_schema(False), **empty)


@pytest.fixture(scope="module")
def manifest():
    return manifest_of(SHARDS)


@pytest.fixture
def asked(manifest, monkeypatch):
    """What is asked for of `memory://vast`, which holds the manifest and nothing else."""
    store, found = MemoryStore("memory://vast"), []
    store.delete(MANIFEST)
    store.put(MANIFEST, encode_manifest(manifest))
    for name in ("read", "read_range", "read_into", "read_many", "stat", "iter_objects", "iter_folders"):
        method = getattr(MemoryStore, name)

        def record(*args, method=method, name=name, **more):
            found.append((name, *args[1:2]))
            return method(*args, **more)

        monkeypatch.setattr(MemoryStore, name, record)
    return found


def test_it_is_opened_by_reading_its_manifest_alone(manifest, asked):
    dataset = reader.open_dataset("memory://vast")
    assert dataset.split("train").records == SHARDS * RECORDS
    assert dataset.is_remote
    assert dataset.content_digest == manifest.content_digest
    assert dataset.reader("train") is not None
    assert asked == [("read", MANIFEST)]
    assert len(pickle.dumps(dataset)) < 1000  # what worker processes are sent


def calls_of(run):
    """How many functions are called, of Python and of C: which of both a comprehension is depends on the release."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def test_opening_works_through_the_shards_once():
    """As many calls for each shard, however many there are, and few: seconds would come of more."""
    few, many = (encode_manifest(manifest_of(shards)) for shards in (500, 2_500))
    calls = [calls_of(lambda data=data: decode_manifest(data, "made up")) for data in (few, many)]
    a_shard = (calls[1] - calls[0]) / 2_000
    assert 0 < a_shard < 12
    assert calls[0] < 600 * 12


def test_memory_of_a_few_times_the_manifest(manifest):
    data = encode_manifest(manifest)
    tracemalloc.start()
    try:
        decoded = decode_manifest(data, "made up")
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoded == manifest
    assert kept < 3 * len(data)
    assert most < 5 * len(data)
