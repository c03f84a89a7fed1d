"""Any bytes give a result or our own error: never a crash, a hang, or memory far beyond the size of the input.

Mutations of valid files find what random bytes never reach. Ordinary runs are the same each time; `long` ones go on.
"""

import copy
import io
import json
import math
import struct
import tarfile
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tpufeed
from tests.tfrecords import encode_features, encode_record
from tpufeed.adoption.scan import Keys, scan_shard
from tpufeed.builds.destination import Destination
from tpufeed.builds.plan import read_plan, read_task
from tpufeed.dataset.manifest import decode_manifest
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.schema import record_layout
from tpufeed.dataset.walk import Walker
from tpufeed.errors import ManifestError, RecordError, TpufeedError
from tpufeed.images.header import read_header
from tpufeed.sources.options import ShardOptions
from tpufeed.sources.source import Found, Place
from tpufeed.sources.table import TableSource
from tpufeed.sources.tars import TarSource
from tpufeed.storage.memory import MemoryStore
from tpufeed.tfrecord.example import Feature, decode_entries, decode_example, encode_entry
from tpufeed.tfrecord.framing import decode_records
from tpufeed.tfrecord.layout import FixedLayout, ScalarEntry

pytestmark = pytest.mark.timeout(1200)

MOST_BYTES = 64 << 20
LONG = 60

LAYOUT = FixedLayout("image/encoded", ["image/class/label", "image/height"])
SPECIAL = [struct.pack("<Q", value) for value in (0, 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1)]
SPECIAL += [
    b"\xff" * 10,
    b"\x80" * 12,
    b"\0" * 64,
    b"\n" * 9,
    b"{" * 50,
    b"[" * 2000,
    b"\xed\xa0\x80",
    b'"',
    b"\\u0000",
]

MUTATION = st.tuples(
    st.sampled_from(["flip", "write", "insert", "delete", "repeat", "cut"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 40),
    st.one_of(st.sampled_from(SPECIAL), st.binary(min_size=1, max_size=12)),
)


def mutate(data, mutations):
    for kind, place, length, given_bytes in mutations:
        at = int(place * len(data))
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ 1 << length % 8]) + data[at + 1 :]
        elif kind == "write":
            data = data[:at] + given_bytes + data[at + len(given_bytes) :]
        elif kind == "insert":
            data = data[:at] + given_bytes + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + length :]
        elif kind == "repeat":
            data = data[:at] + data[at : at + length] * (1 + length) + data[at:]
        elif kind == "cut":
            data = data[:at]
    return data


def damaged(*valid):
    """Bytes of any kind, valid ones, and mutations of these."""
    mutated = st.builds(mutate, st.sampled_from(valid), st.lists(MUTATION, min_size=1, max_size=4))
    return st.one_of(mutated, mutated, mutated, st.binary(max_size=200), st.sampled_from(valid))


ODD_VALUES = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        2**31,
        2**63,
        10**30,
        -(2**63),
        1.5,
        1e308,
        "",
        "..",
        "../x",
        "\0",
        "x" * 300,
        [],
        {},
        [[]],
        [-1],
    ]
)


def odd_json(document):
    """The document with a few of its values replaced, removed or doubled."""

    def change(changes):
        changed = json.loads(json.dumps(document))
        for steps, odd, remove in changes:
            value = copy.deepcopy(odd)
            holder, key = changed, None
            for step in steps:
                here = changed if key is None else holder[key]
                if not isinstance(here, dict | list) or not here:
                    break
                holder = here
                key = sorted(here)[step % len(here)] if isinstance(here, dict) else step % len(here)
            if key is None:
                continue
            if remove:
                del holder[key]
            elif isinstance(holder, list) and value == []:
                holder.append(holder[key])
            else:
                holder[key] = value
        return changed

    step = st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=7), ODD_VALUES, st.booleans())
    return st.lists(step, min_size=1, max_size=3).map(change)


@dataclass
class Checker:
    """Runs work on inputs and counts what came of it."""

    fixed: int = 0  # bytes that sound data takes, too
    results: int = 0
    errors: int = 0

    def __call__(self, size, work, *given_to_it):
        tracemalloc.start()  # around the work alone: hypothesis would take four times as long
        try:
            work(*given_to_it)
            self.results += 1
        except TpufeedError:
            self.errors += 1
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST_BYTES + self.fixed + size, f"{peak:,} bytes for an input of {size:,}"


def fuzz(examples, strategy, *works, size=len, fixed=0):
    """Each work on each input; both results and errors have to occur, or the inputs are no test."""
    checks = [Checker(fixed) for _ in works]

    @settings(max_examples=examples, derandomize=examples < 600, database=None, deadline=None)
    @given(strategy)
    def run(data: Any) -> None:
        for check, work in zip(checks, works, strict=True):
            check(size(data), work, data)

    run()
    return checks


def counts(ordinary):
    """So many examples, or `LONG` times as many in the long run."""
    return pytest.mark.parametrize("examples", [ordinary, pytest.param(ordinary * LONG, marks=pytest.mark.long)])


def an_example():
    rest = encode_entry("image/filename", Feature("bytes", (b"a.jpg",))) + encode_entry("w", Feature("float", (1.5,)))
    prefix, suffix = LAYOUT.encode(5, (3, 70), rest)
    return prefix + b"image" + suffix


EXAMPLES = [
    an_example(),
    encode_features(
        {
            "image/encoded": Feature("bytes", (b"xyz", b"")),
            "n": Feature("int64", (-1, 5)),
            "f": Feature("float", (0.1,)),
        }
    ),
    encode_features({}),
]


@pytest.mark.all
@counts(300)
def test_framing(examples):
    framed = b"".join(map(encode_record, EXAMPLES))
    store = MemoryStore("memory://fuzz/framing")

    def walk(data):
        store.put("x", data, store.stat("x"))
        problems = [walked.problem for walked in Walker(store, "x", len(data)).walk()]
        if any(problems):
            raise RecordError(problems[-1])

    checks = fuzz(
        examples, damaged(framed, encode_record(b"")), walk, lambda data: decode_records([memoryview(data)], str)
    )
    assert all(check.errors for check in checks)
    assert checks[0].results


@pytest.mark.all
@counts(300)
def test_examples(examples):
    scalar = ScalarEntry("n", "int64")
    checks = fuzz(
        examples,
        damaged(*EXAMPLES),
        decode_example,
        decode_entries,
        lambda data: LAYOUT.decode(memoryview(data)),
        lambda data: LAYOUT.split(memoryview(data)),
        lambda data: scalar.read(data, len(data) // 3),
    )
    assert all(check.results for check in checks)
    assert all(check.errors for check in checks[:3])


@counts(80)
def test_sound_records_of_damaged_payloads_in_shards_to_adopt(examples):
    def scan(payload):
        data = encode_record(EXAMPLES[0]) + encode_record(payload)
        store = MemoryStore("memory://fuzz/scan")
        store.put("x.tfrecord", data, store.stat("x.tfrecord"))
        info = store.stat("x.tfrecord")
        scan_shard(store, Keys("image/encoded", "image/class/label", "image/class/text"), 10, info)

    (check,) = fuzz(examples, damaged(*EXAMPLES), scan)
    assert check.results
    assert check.errors


@pytest.mark.all
@counts(150)
def test_manifests(examples, cache_url, dataset_url):
    texts = [Path(url, "manifest.json").read_bytes() for url in (cache_url, dataset_url)]

    def read(data):
        manifest = decode_manifest(data if isinstance(data, bytes) else json.dumps(data).encode(), "here")
        record_layout(manifest.features)
        assert len(manifest.content_digest) == 32
        assert isinstance(manifest.draws_seed(1), int)
        shape = manifest.tensor_shape
        assert shape is None or math.prod(shape) < 2**31

    documents = [odd_json(json.loads(text)) for text in texts]
    (check,) = fuzz(
        examples, st.one_of(damaged(*texts), *documents, *documents), read, size=lambda data: len(str(data))
    )
    assert check.results
    assert check.errors


@pytest.mark.all
@counts(40)
def test_datasets_of_odd_manifests_and_indexes(examples, cache_url, tmp_path):
    """All the way to batches, in place and by ranges."""
    folder = tmp_path / "c"
    folder.mkdir()
    files = {path.name: path.read_bytes() for path in Path(cache_url).glob("*.*")}
    store = MemoryStore(f"memory://{tmp_path}/c")
    for name, data in files.items():
        (folder / name).write_bytes(data)
        store.put(name, data)

    def load(changed):
        name, data = changed
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        try:
            (folder / name).write_bytes(data)
            store.put(name, data, store.stat(name))
            for url in (folder, store.url):
                open_dataset(url)
                with tpufeed.Loader(url, batch_size=8, threads=1, prefetch=1) as loader:
                    for _batch in loader:
                        pass
        finally:
            (folder / name).write_bytes(files[name])
            store.put(name, files[name], store.stat(name))

    index = "train-v0.index.npy"
    manifest = odd_json(json.loads(files["manifest.json"]))
    strategy = st.one_of(
        st.tuples(st.just(index), damaged(files[index])), st.tuples(st.just("manifest.json"), manifest)
    )
    load((index, files[index]))  # what is imported and cached
    tracemalloc.start()
    load((index, files[index]))
    fixed = tracemalloc.get_traced_memory()[1]  # buffers of local copies, above all
    tracemalloc.stop()
    (check,) = fuzz(examples, strategy, load, size=lambda changed: len(str(changed[1])), fixed=fixed)
    assert check.results
    assert check.errors


@pytest.mark.all
@counts(150)
def test_plans(examples, dataset_url, cache_url, tmp_path):
    plans = [Path(url, "_tpufeed/plan.jsonl").read_bytes() for url in (dataset_url, cache_url)]
    store = MemoryStore("memory://fuzz/plan")

    def seal(lines):
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        return body + b'{"crc32c":%d}\n' % crc32c(body)

    def read(data):
        data = data if isinstance(data, bytes) else seal(data)
        store.put("_tpufeed/plan.jsonl", data, store.stat("_tpufeed/plan.jsonl"))
        plan = read_plan(store)
        for ref in plan.tasks:
            read_task(store, ref)

    lines = [odd_json([json.loads(line) for line in plan.splitlines()[:-1]]) for plan in plans]
    (check,) = fuzz(examples, st.one_of(damaged(*plans), *lines, *lines), read, size=lambda data: len(str(data)))
    assert check.results
    assert check.errors


@pytest.mark.all
@counts(150)
def test_reports(examples, dataset_url):
    """One that cannot be read is as good as none: its task runs again."""
    report = Path(dataset_url, "_tpufeed/reports/000000.json").read_bytes()
    store = MemoryStore("memory://fuzz/report")
    name = "_tpufeed/reports/000000.json"
    store.put(
        "_tpufeed/plan.jsonl", Path(dataset_url, "_tpufeed/plan.jsonl").read_bytes(), store.stat("_tpufeed/plan.jsonl")
    )
    plan = read_plan(store)
    (ref, *_) = plan.tasks

    def read(data):
        store.put(name, data if isinstance(data, bytes) else json.dumps(data).encode(), store.stat(name))
        found = Destination(store).read_report(ref, plan.header.run_id)
        if found is not None:
            stored = [Destination(store).is_stored(shard.name, shard.bytes, shard.crc32c) for shard in found.shards]
            assert not stored or not all(stored)

    strategy = st.one_of(damaged(report), odd_json(json.loads(report)))
    (check,) = fuzz(examples, strategy, read, size=lambda data: len(str(data)))
    assert check.results


DEEP = b'{"x":' * 100_000


@pytest.mark.parametrize("kind", ["manifest", "plan", "task", "report"])
def test_json_that_is_nested_too_deep(kind, dataset_url):
    """Where an unknown field is skipped, the parser goes down into it."""
    store = MemoryStore("memory://fuzz/deep")
    plan = Path(dataset_url, "_tpufeed/plan.jsonl").read_bytes()
    store.put("_tpufeed/plan.jsonl", plan, store.stat("_tpufeed/plan.jsonl"))
    (ref, *_) = read_plan(store).tasks
    if kind == "manifest":
        with pytest.raises(ManifestError):
            decode_manifest(DEEP, "here")
    elif kind == "report":
        store.put("_tpufeed/reports/000000.json", DEEP, store.stat("_tpufeed/reports/000000.json"))
        assert Destination(store).read_report(ref, read_plan(store).header.run_id) is None
    else:
        header = plan.splitlines(keepends=True)[0] if kind == "task" else b""
        store.put("_tpufeed/plan.jsonl", header + DEEP + b"\n", store.stat("_tpufeed/plan.jsonl"))
        with pytest.raises(ManifestError):
            read_plan(store)
        with pytest.raises(ManifestError):
            read_task(store, ref._replace(start=len(header), stop=len(header) + len(DEEP)))


@pytest.mark.parametrize("variants", [0, -1, 1 << 40])
def test_a_plan_of_impossibly_many_variants(variants, cache_url):
    """It is sealed by its CRC, which is known only at its end."""
    store = MemoryStore("memory://fuzz/variants")
    lines = Path(cache_url, "_tpufeed/plan.jsonl").read_bytes().splitlines()
    header = json.dumps({**json.loads(lines[0]), "variants": variants}).encode()
    body = b"\n".join([header, *lines[1:-1]]) + b"\n"
    store.put("_tpufeed/plan.jsonl", body, store.stat("_tpufeed/plan.jsonl"))
    tracemalloc.start()
    try:
        with pytest.raises(ManifestError):
            read_plan(store)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def images():
    rng = np.random.default_rng(0)
    pixels = Image.fromarray(rng.integers(0, 255, (9, 12, 3), np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    found = {}
    for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        buffer = io.BytesIO()
        pixels.save(buffer, name, **({"exif": turned} if name in ("JPEG", "PNG", "WEBP") else {}))
        found[name] = buffer.getvalue()
    return found


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("kind", images())
@counts(100)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's of what it makes of a TIFF
def test_headers_of_images(examples, kind):
    (check,) = fuzz(examples, damaged(images()[kind]), read_header)
    assert check.results
    assert check.errors


def a_tar():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (
            ("a.jpg", b"x" * 600),
            ("a.cls", b"3"),
            ("b" * 120 + ".jpg", b"y"),
            ("é.json", b'{"a": 1}'),
            ("é.png", b""),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def fuzz_source(examples, valid, name, read):
    store = MemoryStore("memory://fuzz/source")

    def work(data):
        store.put(name, data, store.stat(name))
        read(store)

    (check,) = fuzz(examples, damaged(valid), work)
    assert check.results
    assert check.errors


def items_of(kind, name):
    """Return what reads the items of a file at a store."""
    return lambda store: list(kind(Place(store, [store.stat(name)]), ShardOptions()).iter_items(Found()))


@pytest.mark.all
@counts(150)
def test_tars(examples):
    fuzz_source(examples, a_tar(), "x.tar", items_of(TarSource, "x.tar"))


TABLES = {
    "t.csv": 'path,label,"a ""b"""\nx.jpg,1,"1\n2"\ny.jpg,é,\n'.encode(),
    "t.tsv": b"path\tlabel\nx.jpg\t1\n\ny.jpg\t2\n",
    "t.jsonl": b'{"path": "x.jpg", "label": 1, "v": [1.5, 2]}\n\n{"path": "y.jpg", "label": "\\u00e9", "z": null}\n',
}


@pytest.mark.all
@pytest.mark.parametrize("name", TABLES)
@counts(100)
def test_tables(examples, name):
    fuzz_source(examples, TABLES[name], name, items_of(TableSource, name))


@counts(10)
def test_parquet(examples):
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({"path": ["x.jpg", "y.jpg"], "label": [1, 2]}), buffer)
    fuzz_source(examples, buffer.getvalue(), "t.parquet", items_of(TableSource, "t.parquet"))
