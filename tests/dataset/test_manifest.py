"""The manifest: what is written is read, what contradicts itself is refused, and the digest is of the content alone."""

import json
import pickle
import re
import sys
import tracemalloc
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.dataset import reader
from tpufeed.dataset.manifest import (
    CacheInfo,
    IndexFile,
    Manifest,
    Shard,
    Sizes,
    Split,
    Variant,
    decode_manifest,
    encode_manifest,
    iter_warnings,
)
from tpufeed.dataset.naming import MANIFEST, index_name, shard_name
from tpufeed.dataset.schema import FeatureSpec, record_schema
from tpufeed.errors import DamageError, ManifestError, ManifestVersionError
from tpufeed.images.pixel_format import PixelFormat
from tpufeed.storage.memory import MemoryStore

MB, GB = 10**6, 10**9
SHARDS = (
    Shard("train-00000-of-00002.tfrecord", 1000, 0xDEADBEEF, 3, "1700000000000001"),
    Shard("train-00001-of-00002.tfrecord", 900, 17, 2),
)
LABEL = FeatureSpec("image/class/label", "int64")
ENCODED = FeatureSpec("image/encoded", "bytes")
TENSOR = FeatureSpec("image/tensor", "uint8", (8, 8, 3))


def a_manifest(**changes):
    fields = {
        "run_id": "run-1",
        "tool_version": "0.1.0",
        "splits": {
            "train": Split(5, (3, 2), (Variant(SHARDS, IndexFile("train.index.npy", 184, 99)),)),
            "val": Split(0, (0, 0), (Variant((), IndexFile("val.index.npy", 128, 5)),)),
        },
        "class_names": ("cat", "größe"),
        "features": (ENCODED, LABEL, FeatureSpec("image/class/text", "string")),
        "options": {"command": "shard", "presize": 256, "nested": {"a": [1, None, 2.5]}},
        "input_digest": "abc",
        "rejects": {"truncated": 2},
        "images": {"jpeg": 5},
        "odd": {"exif": 1},
    }
    return Manifest(**{**fields, **changes})


def a_cache():
    variants = tuple(
        Variant(
            tuple(Shard(f"train-v{v}-0000{s}-of-00002.tfrecord", 400, v * 10 + s, 3 - s) for s in range(2)),
            IndexFile(f"train-v{v}.index.npy", 184, v),
        )
        for v in range(3)
    )
    cache = CacheInfo(
        source_digest="0" * 32,
        ops=({"op": "Resize", "version": 1, "size": [8, 8]},),
        live=(),
        encode="raw",
        shape=(8, 8, 3),
        dtype="uint8",
        variants=3,
        seed=1,
        fingerprint="f" * 32,
    )
    return a_manifest(splits={"train": Split(5, (3, 2), variants)}, features=(TENSOR, LABEL), cache=cache)


def as_json(manifest=None):
    return json.loads(encode_manifest(manifest or a_manifest()))


def decode(data):
    return decode_manifest(json.dumps(data).encode(), "gs://bucket/manifest.json")


@pytest.mark.parametrize("manifest", [a_manifest(), a_cache(), a_manifest(splits={})], ids=["raw", "cache", "empty"])
def test_round_trip(manifest):
    data = encode_manifest(manifest)
    found = decode_manifest(data, "here")
    assert found == manifest
    assert data.endswith(b"}\n")
    assert b'\n "format": "tpufeed-dataset",\n' in data
    assert encode_manifest(found) == data
    assert found.content_digest == manifest.content_digest


@pytest.mark.parametrize(("side", "is_sound"), [(16_384, True), (32_768, False)])
def test_the_size_of_an_image_is_limited_by_frame(side, is_sound):
    clips = FeatureSpec("image/encoded", "bytes", pixels=PixelFormat(frames=16))
    data = as_json(a_manifest(features=(clips, LABEL), sizes=Sizes(*[(side, side)] * 3)))
    with nullcontext() if is_sound else pytest.raises(ManifestError, match="cannot have"):
        assert decode(data).image_size == (side, side)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_is_an_error_that_says_what_to_do(version):
    data = {"format": "tpufeed-dataset", "format_version": version, "of the future": [1]}
    with pytest.raises(ManifestVersionError, match=f"bucket/manifest.json: .*{version}, .*version 1") as e:
        decode(data)
    assert "Install the tpufeed that wrote it" in str(e.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        b'{"format": "other", "format_version": 1}',
        b'{"format": "tpufeed-dataset", "format_version": "1"}',
        b'{"format": "tpufeed-dataset", "format_version": 1}',
        b'{"format": "tpufeed-dataset", "format_version": 1, "splits": ' + b"[" * 100_000,
        b'{"x":' * 100_000,
    ],
    ids=lambda data: repr(data[:30]),
)
def test_what_is_no_manifest_is_a_manifest_error_that_names_the_file(data):
    with pytest.raises(ManifestError, match=r"^here: ") as caught:
        decode_manifest(data, "here")
    assert not isinstance(caught.value, ManifestVersionError)
    assert isinstance(caught.value, DamageError)


def test_every_truncation_is_an_error():
    data = encode_manifest(a_manifest())
    for stop in range(0, len(data) - 2, 7):
        with pytest.raises(ManifestError):
            decode_manifest(data[:stop], "here")


PLACES = {
    "the manifest": lambda data: data,
    "a split": lambda data: data["splits"]["train"],
    "a variant": lambda data: data["splits"]["train"]["variants"][0],
    "a shard": lambda data: data["splits"]["train"]["variants"][0]["shards"][0],
    "an index": lambda data: data["splits"]["train"]["variants"][0]["index"],
    "a feature": lambda data: data["features"][0],
    "a cache": lambda data: data["cache"],
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_an_unknown_and_a_missing_field_are_errors(place):
    data = as_json(a_cache())
    place(data)["extra"] = 1
    with pytest.raises(ManifestError, match="extra"):
        decode(data)
    for field in place(as_json(a_cache())):
        if field in ("format", "format_version", "generation", "cache", "shape", "data_url", "listed"):
            continue  # these have defaults, or are tested above
        data = as_json(a_cache())
        del place(data)[field]
        with pytest.raises(ManifestError, match=field):
            decode(data)


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a//b", "a/../b", "a/", "..", ".", "", "a\0b", "a\nb"])
@pytest.mark.parametrize("place", ["a shard", "an index"])
def test_names_cannot_leave_the_dataset(name, place):
    data = as_json()
    PLACES[place](data)["name"] = name
    with pytest.raises(ManifestError, match="CRC-32C"):
        decode(data)


def set_shard(number, **fields):
    return lambda data: data["splits"]["train"]["variants"][0]["shards"][number].update(fields)


def set_split(**fields):
    return lambda data: data["splits"]["train"].update(fields)


def set_variants(change):
    return lambda data: change(data["splits"]["train"]["variants"])


def set_feature(**fields):
    return lambda data: data["features"][-1].update(fields)


CONTRADICTIONS = {
    "lists shorter than the shortest": set_feature(shape=None, lengths=[3, 2]),
    "lists of fewer than no items": set_feature(shape=None, lengths=[-1, 2]),
    "lists that no record can hold": set_feature(shape=None, lengths=[0, 1 << 20], item_shape=[1 << 20]),
    "items of no size": set_feature(shape=None, lengths=[0, 2], item_shape=[0]),
    "a tensor of a negative size": set_feature(shape=[4, -1]),
    "boxes of three numbers": set_feature(dtype="float32", shape=None, item_shape=[3], kind="boxes"),
    "fewer records than said": set_split(records=6),
    "more records than said": set_shard(0, records=4),
    "negative records": lambda data: (set_shard(0, records=-1)(data), set_shard(1, records=6)(data)),
    "negative bytes": set_shard(0, bytes=-1),
    "more classes' records than records": set_split(class_counts=[3, 3]),
    "negative classes": set_split(class_counts=[6, -1]),
    "no variants": set_split(variants=[]),
    "variants of other boundaries": set_variants(lambda variants: variants[1]["shards"].reverse()),
    "a variant without a shard": set_variants(lambda variants: variants[1]["shards"].pop()),
    "a file twice": set_variants(lambda variants: variants.append(variants[0])),
    "an index that is a shard": set_variants(
        lambda variants: variants[0]["index"].update(name=variants[0]["shards"][0]["name"])
    ),
    "no features": lambda data: data.update(features=[]),
    "an image without a shape": lambda data: data["features"][0].update(shape=None),
    "an image of two dimensions": lambda data: data["features"][0].update(shape=[8, 8]),
    "an image of no height": lambda data: data["features"][0].update(shape=[0, 8, 3]),
    "an image of four channels": lambda data: data["features"][0].update(shape=[8, 8, 4]),
    "a cache of no image": lambda data: data["cache"].update(shape=[8, 8]),
    "an op without a name": lambda data: data["cache"].update(ops=[{"op": None}]),
    "a live op without a name": lambda data: data["cache"].update(live=[{"op": None}]),
    "shards that lie nowhere": lambda data: data.update(data_url=""),
    "an unknown type": lambda data: data["features"][0].update(dtype="float8"),
    "a size that is a text": set_shard(0, bytes="1000"),
    "a size that is no integer": set_shard(0, bytes=1000.5),
}


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_errors(change):
    data = as_json(a_cache())
    assert decode(data) == a_cache()
    change(data)
    with pytest.raises(ManifestError, match=r"^gs://bucket/manifest.json: "):
        decode(data)


def test_the_digest_never_changes():
    assert a_manifest().content_digest == "add749aefca1cd96834e8301b7365c7e"
    assert a_cache().content_digest == "617c0ba5bf729adbc06fffa213570e81"


def test_who_built_it_when_and_from_what_is_not_in_the_digest():
    digest = a_manifest().content_digest
    for change in (
        {"run_id": "run-2"},
        {"tool_version": "9.9"},
        {"options": {}},
        {"input_digest": "other"},
        {"rejects": {}},
        {"images": {"png": 5}},
        {"cache": a_cache().cache},
    ):
        assert a_manifest(**change).content_digest == digest
    data = as_json()
    for shard in data["splits"]["train"]["variants"][0]["shards"]:
        shard["generation"] = "12345"
    data["splits"]["train"]["variants"][0]["index"]["crc32c"] = 1
    assert decode(data).content_digest == digest


def test_everything_it_covers_changes_the_digest():
    def swap(data):
        data["splits"]["train"]["variants"][0]["shards"].reverse()

    changes = [
        set_shard(0, crc32c=1),
        set_shard(1, bytes=901),
        lambda data: (set_shard(0, records=2)(data), set_shard(1, records=3)(data)),
        set_split(class_counts=[2, 3]),
        lambda data: data.update(class_names=["größe", "cat"]),
        lambda data: data.update(class_names=["cat"]),
        lambda data: data["features"].pop(),
        lambda data: data["features"][1].update(name="label"),
        lambda data: data["features"][1].update(dtype="float32"),
        lambda data: data["features"][1].update(shape=[2]),
        lambda data: data["splits"].pop("val"),
        lambda data: data["splits"].update(other=data["splits"].pop("val")),
        lambda data: data["splits"].update(train=data["splits"].pop("train")),  # after val
        swap,
    ]
    digests = {a_manifest().content_digest}
    for change in changes:
        data = as_json()
        change(data)
        digests.add(decode(data).content_digest)
    assert len(digests) == 1 + len(changes)
    data = as_json(a_cache())
    data["splits"]["train"]["variants"].reverse()
    assert decode(data).content_digest != a_cache().content_digest


@given(st.data())
def test_a_damaged_manifest_is_a_manifest_or_a_manifest_error(data):
    damaged = bytearray(encode_manifest(a_cache()))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from([*b'0-"{}[],:.e9', 0, 255]))
    try:
        found = decode_manifest(bytes(damaged), "here")
    except ManifestError:
        return
    assert isinstance(found.content_digest, str)
    assert found.tensor_shape is None or len(found.tensor_shape) == 3


@pytest.mark.parametrize(
    ("shards", "size_bytes", "hosts", "messages"),
    [
        (1, 128 * MB, 1, []),
        (8, 8 * 10 * MB, 8, []),
        (8, 8 * GB, 8, []),
        (1, 1000, 1, []),  # there are no more images
        (8, 8000, 8, []),
        (0, 0, 4, ["split s is empty"]),
        (3, 3 * 128 * MB, 4, [r"split s has fewer shards \(3\) than hosts \(4\)"]),
        (100, 100 * MB, 1, [r"split s has 100 shards of 1\.00 MB, less than 10 MB. Fewer and larger .*128MB"]),
        (64, 64 * MB, 8, [r"64 shards of 1\.00 MB"]),
        (2, 5 * GB, 1, [r"shards of 2\.5 GB\. Smaller ones .*128MB"]),
        (2, 5 * GB, 4, ["than hosts", r"shards of 2\.5 GB"]),
    ],
)
def test_what_is_said_of_a_split(shards, size_bytes, hosts, messages):
    found = list(iter_warnings("s", shards, size_bytes, hosts))
    assert len(found) == len(messages)
    assert all(re.search(message, warning) for message, warning in zip(messages, found, strict=True)), found


# 30,000 shards: one request opens them, in a few times the manifest's memory.


MANY_SHARDS, RECORDS = 30_000, 1_000


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
    return manifest_of(MANY_SHARDS)


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
    assert dataset.split("train").records == MANY_SHARDS * RECORDS
    assert dataset.is_remote
    assert dataset.content_digest == manifest.content_digest
    assert dataset.reader("train") is not None
    assert asked == [("read", MANIFEST)] * 2  # as nothing else tells whether it has come as it is stored
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
    """The calls per shard do not grow with the shards, and are few: more would take seconds."""
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
