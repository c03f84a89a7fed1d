"""Class 3: what arrives damaged is discarded and fetched again; what always does is an error, never another picture.

The service's hash header is the true one each time, as where a proxy or a cable flips a bit.
"""

import io
import re
import shutil
import tarfile

import pyarrow
import pytest
from pyarrow import parquet

import tpufeed
from tests.faults.remote import HURRY, WARM, epochs_of, met, names_of, objects, until_error
from tests.local_copies import wait_copied
from tpufeed import cache
from tpufeed.builds.destination import Destination
from tpufeed.builds.plan import read_plan
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DamageError, ManifestError, RecordError, ShardError, TpufeedError
from tpufeed.storage import reading
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.memory import MemoryStore
from tpufeed.storage.store import open_store

VICTIM = "train-v0-00001-of-00003.tfrecord"
IN_ORDER = {"shuffle": False, "lanes": 1}
BATCHES = {"columns": ["sample", "image"], "batch_size": 4, "prefetch": 1, "threads": 2}
DAMAGES = {
    "truncated": {"action": "truncate"},
    "cut to nothing": {"action": "truncate", "after_bytes": 0},
    "corrupt": {"action": "corrupt"},
}
few_damages = pytest.mark.parametrize(
    "damage", [DAMAGES["truncated"], DAMAGES["corrupt"]], ids=["truncated", "corrupt"]
)


def reads(server, name):
    return server.requests(operation="read", name=name)


def test_a_manifest_is_fetched_again(server, kept, command):
    server.fault("truncate", operation="read", name="*/cache/manifest.json")
    found = open_dataset(f"{kept}/cache")
    (hit,) = met(server)
    assert (hit.fault, len(reads(server, hit.name))) == ("truncate", 2)
    assert found.content_digest == open_dataset(f"{kept}/cache").content_digest
    server.clear_faults()
    server.fault("corrupt", operation="read", name="*/cache/manifest.json")
    done = command("info", f"{kept}/cache")
    assert done.exit_code == 0, done.output
    assert len(met(server)) == 2


@few_damages
def test_a_range_of_records_is_fetched_again(damage, server, kept, cache_url, caplog):
    server.fault(operation="read", name=f"*/{VICTIM}", **damage)
    expected = epochs_of(cache_url, **IN_ORDER)
    assert epochs_of(f"{kept}/cache", local_bytes=0, **IN_ORDER) == expected
    (hit,) = met(server)
    again = [record for record in reads(server, hit.name) if record.range == hit.range]
    if damage["action"] == "corrupt":
        assert len(again) == 2
        assert f"{VICTIM}, record " in caplog.text
    else:
        assert len(reads(server, hit.name)) == 1 + len(epochs_reads(server, kept))


def epochs_reads(server, kept):
    """The reads of an epoch that nothing disturbs."""
    before = len(reads(server, f"*/{VICTIM}"))
    epochs_of(f"{kept}/cache", local_bytes=0, **IN_ORDER)
    return reads(server, f"*/{VICTIM}")[before:]


@few_damages
def test_a_part_of_the_index_is_fetched_again(damage, server, kept, cache_url):
    server.fault(operation="read", name="*/train-v0.index.npy", **damage)
    expected = epochs_of(cache_url, **IN_ORDER)
    found = epochs_of(f"{kept}/cache", local_bytes=0, **IN_ORDER)
    (hit,) = met(server)
    assert found == expected
    assert len(reads(server, hit.name)) == 4  # three parts, one of them twice


def test_a_part_of_the_index_that_is_damaged_each_time_is_no_other_sample(server, kept, cache_url):
    """Whether its damage is seen at once or by the CRCs of the records that it leads to."""
    (expected,) = epochs_of(cache_url, **IN_ORDER)
    server.fault(operation="read", name="*/train-v0.index.npy", **{**DAMAGES["corrupt"], "calls": None})
    with tpufeed.Loader(f"{kept}/cache", **BATCHES, local_bytes=0, **IN_ORDER) as loader:
        found, message = until_error(loader, DamageError)
    assert re.search(r"v0\.index\.npy: the offsets of train-v0-0000\d|train-v0-0000\d\S+, record \d+, byte", message)
    assert met(server)
    assert found == expected[: len(found)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("name", "damage"),
    [(VICTIM, DAMAGES["cut to nothing"]), (VICTIM, DAMAGES["corrupt"]), ("train-v0.index.npy", DAMAGES["corrupt"])],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_what_is_copied_is_fetched_again(name, damage, server, kept, cache_url, tmp_path):
    """Only what has passed its CRC is read."""
    url = f"{kept}/cache"
    server.fault(operation="read", name=f"*/{name}", **damage)
    (file,) = (file for file in open_dataset(url).split("train").variants[0].files if file.name == name)
    with LocalCopies(open_store(url), tmp_path) as copies:
        copies.fetch([RemoteShard(file.name, file.bytes, file.crc32c)])
        view = wait_copied(copies, RemoteShard(file.name, file.bytes, file.crc32c), 20)
        assert bytes(view) == server.get("bucket", f"kept/cache/{name}")
        del view
    assert len(met(server)) == 1
    assert [record.range for record in reads(server, f"*/{name}")][1:]
    assert epochs_of(url, local_dir=tmp_path) == epochs_of(cache_url)
    assert len(reads(server, f"*/{name}")) == 2


def test_a_loader_reads_on_by_ranges_while_a_shard_is_fetched_again(server, kept, cache_url, tmp_path):
    server.fault("corrupt", operation="read", name=f"*/{VICTIM}")
    server.fault("truncate", operation="read", name="*-v1-*.tfrecord", calls=(1, 2))
    assert epochs_of(f"{kept}/cache", 3, local_dir=tmp_path) == epochs_of(cache_url, 3)
    assert len(met(server)) == 3


def test_a_cache_is_made_of_what_was_sent(server, kept):
    server.fault("corrupt", operation="read", name="*/dataset/train-0000[25]*")
    server.fault("truncate", operation="read", name="c/_tpufeed/reports/*", calls=(5,))
    cache.warmup(f"{kept}/dataset", "gs://bucket/c", **WARM)
    assert len(met(server)) == 2
    assert objects(server, "c") == objects(server, "kept/cache")


def test_an_index_is_joined_of_what_was_sent(server, upload, dataset_url, photo_folder, tmp_path):
    """What the service says of the object says nothing of the bytes that it sends."""
    photo = next(photo_folder.glob("*/*.jpg"))
    (tmp_path / photo.parent.name).mkdir()
    shutil.copy(photo, tmp_path / photo.parent.name / "new.jpg")
    right, damaged = (upload(dataset_url, name) for name in ("right", "damaged"))
    tpufeed.append(tmp_path, right, workers=1)
    server.fault("corrupt", operation="read", name="damaged/train.index.npy", calls=(1,))
    server.fault("truncate", operation="read", name="damaged/part-00002/train.index.npy", calls=(1,))
    tpufeed.append(tmp_path, damaged, workers=1)
    assert {hit.fault for hit in met(server)} == {"corrupt", "truncate"}
    assert objects(server, "damaged") == objects(server, "right")
    assert open_dataset(damaged).content_digest == open_dataset(right).content_digest


@pytest.mark.all
def test_photographs_are_taken_as_they_were_sent(server, kept):
    """A bit of a JPEG's pixels is another picture to every decoder, and no error."""
    server.fault("corrupt", operation="read", name="*/photos/*.jpg", calls=(1, 17))
    server.fault("truncate", operation="read", name="*/photos/*.jpg", calls=(40,))
    result = tpufeed.shard(f"{kept}/photos", "gs://bucket/d", shard_bytes="30KB", workers=1)
    assert len(met(server)) == 3
    assert result.manifest.rejects == {}
    assert objects(server, "d") == objects(server, "kept/dataset")


@pytest.fixture
def begun(server, kept):
    """A build of the photographs in the bucket that has its plan, and nothing else."""
    server.put("bucket", "d/_tpufeed/plan.jsonl", server.get("bucket", "kept/dataset/_tpufeed/plan.jsonl"))
    return "gs://bucket/d"


@pytest.mark.all
def test_a_task_is_fetched_again(server, kept):
    """One digit of a label is another label, and no error to any parser."""
    header, line, *_ = server.get("bucket", "kept/dataset/_tpufeed/plan.jsonl").splitlines()
    after = re.search(rb'"label":[01]', line).end() - 1
    server.fault("corrupt", operation="read", name="d/_tpufeed/plan.jsonl", after_bytes=after)
    tpufeed.shard(f"{kept}/photos", "gs://bucket/d", shard_bytes="30KB", workers=1)
    (hit,) = met(server)
    assert hit.range.startswith(f"bytes={len(header) + 1}-")
    assert len([record for record in reads(server, hit.name) if record.range == hit.range]) == 2
    assert objects(server, "d") == objects(server, "kept/dataset")


def test_a_task_that_is_damaged_each_time_is_named(server, kept, command):
    server.fault("corrupt", operation="read", name="d/_tpufeed/plan.jsonl", calls=None)
    done = command("shard", f"{kept}/photos", "gs://bucket/d", "--shard-size", "30KB", "--workers", "1")
    assert done.exit_code == 1
    assert re.search(r"gs://bucket/d/_tpufeed/plan.jsonl: the task of train-00000\S+ at bytes \d+ to \d+", done.stderr)
    assert len(met(server)) == 3
    assert not [name for name in names_of(server, "d") if name.endswith((".tfrecord", "manifest.json"))]


@pytest.mark.all
def test_a_plan_is_fetched_again(server, kept, begun, monkeypatch):
    """It is read by ranges, none of which is the whole object, and each task once more before any is run."""
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 2000)
    server.fault("corrupt", operation="read", name="d/_tpufeed/plan.jsonl", calls=(1, 3))
    tpufeed.shard(f"{kept}/photos", begun, shard_bytes="30KB", workers=1)
    assert len(met(server)) == 2
    assert objects(server, "d") == objects(server, "kept/dataset")


def test_a_plan_that_is_damaged_each_time_is_named(server, kept, begun, monkeypatch):
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 2000)
    server.fault("corrupt", operation="read", name="d/_tpufeed/plan.jsonl", calls=None)
    with pytest.raises(ManifestError, match=r"gs://bucket/d/_tpufeed/plan.jsonl: not a readable plan"):
        tpufeed.shard(f"{kept}/photos", begun, shard_bytes="30KB", workers=1)
    assert met(server)
    assert names_of(server, "d") == {"_tpufeed/plan.jsonl"}


def test_a_host_looks_again_at_a_plan_of_another_run(server, begun, monkeypatch):
    """Before it says that it sees another destination than the others."""
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 2000)
    store = open_store(begun)
    run_id = read_plan(store).header.run_id
    header = server.get("bucket", "d/_tpufeed/plan.jsonl")
    server.fault("corrupt", operation="read", name="d/_tpufeed/plan.jsonl", after_bytes=header.index(run_id.encode()))
    server.fault("corrupt", operation="read", name="d/_tpufeed/plan.jsonl", after_bytes=0, calls=(2,))
    assert Destination(store).see(run_id) == {f"{begun}/_tpufeed/plan.jsonl": run_id}
    assert len(met(server)) == 2


def test_a_report_without_a_checksum_of_the_service_is_fetched_again(server, kept):
    """As through fsspec: its own checksum tells."""
    source = open_store(f"{kept}/dataset")
    (ref, *_) = read_plan(source).tasks
    run_id = read_plan(source).header.run_id
    sound = Destination(source).read_report(ref, run_id)
    data = source.read("_tpufeed/reports/000000.json")

    class Damaging(MemoryStore):
        reads = 0

        def read(self, name, version=""):
            self.reads += 1
            return super().read(name, version).replace(b'"crc32c":', b'"crc32c":1' if self.reads == 1 else b'"crc32c":')

    store = Damaging("memory://faults/reports")
    store.put("_tpufeed/reports/000000.json", data)
    assert Destination(store).read_report(ref, run_id) == sound
    assert store.reads == 2


@pytest.mark.parametrize("copied", [True, False], ids=["copies", "ranges"])
def test_a_shard_that_is_damaged_each_time_is_named_with_its_record(
    copied, server, kept, cache_url, patience, tmp_path
):
    (expected,) = epochs_of(cache_url, **IN_ORDER)
    server.fault("corrupt", operation="read", name=f"*/{VICTIM}", calls=None, after_bytes=2000)
    options = {"local_dir": tmp_path} if copied else {"local_bytes": 0}
    patience(HURRY)
    with tpufeed.Loader(f"{kept}/cache", **options, **BATCHES, **IN_ORDER) as loader:
        found, message = until_error(loader, RecordError)
    assert re.search(rf"{kept}/cache/{VICTIM}, record \d+, byte \d+", message)
    assert found == expected[: len(found)]
    assert 1 <= len(found) <= 4
    assert len(met(server)) >= 3
    assert not list(tmp_path.glob("*/*.part"))


def test_an_object_that_is_damaged_where_it_stands_is_named(server, kept, command, tmp_path):
    """By another program, which has given it another generation: its CRC-32C is not the manifest's."""
    for name in names_of(server, "kept/cache"):
        server.put("bucket", f"c/{name}", server.get("bucket", f"kept/cache/{name}"))
    data = bytearray(server.get("bucket", f"c/{VICTIM}"))
    data[20_000] ^= 1
    server.put("bucket", f"c/{VICTIM}", bytes(data))
    for options in ({"local_bytes": 0}, {"local_dir": tmp_path}):
        with pytest.raises(ShardError, match=rf"gs://bucket/c/{VICTIM} has \d+ bytes of CRC-32C"):
            epochs_of("gs://bucket/c", **options)
    done = command("verify", "gs://bucket/c")
    assert done.exit_code == 1
    assert VICTIM in done.output
    with pytest.raises(TpufeedError, match=VICTIM):
        cache.warmup("gs://bucket/c", "gs://bucket/e", size=24, workers=1, allow_augmented=True)
    assert "manifest.json" not in names_of(server, "e")


# Sources: tars and tables, and ranges of them.


@pytest.fixture
def source(server, photo_folder):
    """`source(count)`: the URL of a tar of so many photographs and their labels in the bucket."""

    def put(count, change=lambda data: data):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for number, photo in enumerate(sorted(photo_folder.glob("*/*.jpg"))[:count]):
                for ending, data in (("cls", b"%d" % (number % 2)), ("jpg", photo.read_bytes())):
                    member = tarfile.TarInfo(f"{number:04d}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        server.put("bucket", "source/a.tar", change(buffer.getvalue()))
        return "gs://bucket/source/a.tar"

    return put


def offset_of(server, name, within=0):
    with tarfile.open(fileobj=io.BytesIO(server.get("bucket", "source/a.tar"))) as tar:
        return tar.getmember(name).offset_data + within


def test_a_member_of_a_tar_that_arrives_damaged_is_read_again(server, source):
    url = source(20)
    server.fault("corrupt", operation="read", name="*/a.tar", calls=(7,), after_bytes=0)
    result = tpufeed.shard(url, "gs://bucket/d", workers=1)
    assert len(met(server)) == 1
    assert (result.manifest.rejects, result.manifest.splits["train"].records) == ({}, 20)
    assert len(reads(server, "*/a.tar")) == 1 + 20 + 2  # the list, each member, and that one until two are equal
    server.clear_faults()
    tpufeed.shard(url, "gs://bucket/e", workers=1)
    assert objects(server, "d") == objects(server, "e")


def test_a_member_that_is_damaged_in_the_tar_is_a_reject(server, source):
    url = source(20)
    data = bytearray(server.get("bucket", "source/a.tar"))
    data[offset_of(server, "0007.jpg")] ^= 1
    server.put("bucket", "source/a.tar", bytes(data))
    server.clear_log()
    result = tpufeed.shard(url, "gs://bucket/d", workers=1)
    assert result.manifest.rejects == {"not_an_image": 1}
    assert len(reads(server, "*/a.tar")) == 1 + 20 + 1  # the list, each member, and that one again


def test_a_member_that_arrives_otherwise_each_time_is_an_error_and_no_reject(server, source):
    url = source(1)
    for call in (2, 3, 4):
        server.fault("corrupt", operation="read", name="*/a.tar", calls=(call,), after_bytes=call)
    with pytest.raises(TpufeedError, match=r"a\.tar, byte \d+: 3 reads returned 3 different results"):
        tpufeed.shard(url, "gs://bucket/d", workers=1)
    assert len(met(server)) >= 3
    assert "manifest.json" not in names_of(server, "d")


@pytest.fixture
def small_blocks(monkeypatch):
    """Tars are read in many requests: one that brings the whole object is compared by the store."""
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 20_000)


def damage_list(server, member, within, times=1):
    """Flip a bit in what the first lists of the tar read of it; its requests are those of the build before."""
    place = offset_of(server, member, within)
    spans = [tuple(map(int, re.findall(r"\d+", record.range))) for record in reads(server, "*/a.tar")]
    number, start = next((number, first) for number, (first, last) in enumerate(spans, 1) if first <= place <= last)
    listed = len(spans) - 20  # each photograph is one more
    assert listed > number > 1
    calls = tuple(number + listed * time for time in range(times))
    server.fault("corrupt", operation="read", name="*/a.tar", after_bytes=place - start, calls=calls)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("member", "within"), [("0004.cls", 0), ("0011.jpg", 30)], ids=str)
def test_a_list_of_a_tar_that_arrives_damaged_is_made_again(member, within, server, source, small_blocks, caplog):
    """A label, and pixels that the list does not look at, but that tell that it was damaged."""
    url = source(20)
    tpufeed.shard(url, "gs://bucket/e", workers=1)
    damage_list(server, member, within)
    tpufeed.shard(url, "gs://bucket/d", workers=1)
    assert len(met(server)) == 1
    assert "Listing the source again" in caplog.text
    assert objects(server, "d") == objects(server, "e")


@pytest.fixture(params=["csv", "parquet"])
def table(request, server, kept):
    """The URL of a table of all photographs, each with a label."""
    names = sorted(name.removeprefix("kept/") for name in server.names("bucket") if name.startswith("kept/photos/"))
    rows = [{"path": f"../kept/{name}", "label": f"class{number % 2}"} for number, name in enumerate(names)]
    if request.param == "csv":
        data = "\n".join(["path,label", *(f"{row['path']},{row['label']}" for row in rows)]).encode()
    else:
        buffer = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(rows), buffer, compression="none", use_dictionary=False)
        data = buffer.getvalue()
    server.put("bucket", f"tables/t.{request.param}", data)
    return f"gs://bucket/tables/t.{request.param}", data.rindex(b"class1") + 5


@pytest.mark.all
def test_a_table_that_arrives_damaged_is_fetched_again(server, table):
    url, place = table
    tpufeed.shard(url, "gs://bucket/e", workers=1)
    server.fault("corrupt", operation="read", name="tables/*", after_bytes=place)
    tpufeed.shard(url, "gs://bucket/d", workers=1)
    assert len(met(server)) == 1
    assert objects(server, "d") == objects(server, "e")


# Reading all of a dataset: what is called damaged came twice.


@pytest.fixture
def small_chunks(monkeypatch):
    """Shards are verified in many requests: one that brings a whole shard is compared by the store."""
    monkeypatch.setattr("tpufeed.dataset.walk.REMOTE_CHUNK_BYTES", 8_000)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("name", "call", "place"), [*((VICTIM, 1, 4), (VICTIM, 3, 90), ("train-v0.index.npy", 2, 4))])
def test_verify_reads_again_before_it_calls_a_file_damaged(name, call, place, server, kept, command):
    server.fault("corrupt", operation="read", name=f"*/cache/{name}", calls=(call,), after_bytes=place)
    done = command("verify", f"{kept}/cache")
    assert len(met(server)) == 1
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.usefixtures("small_chunks")
def test_damage_that_a_shard_arrives_with_each_time_is_its_own_to_verify(server, kept, command):
    server.fault("corrupt", operation="read", name=f"*/cache/{VICTIM}", calls=None)
    done = command("verify", f"{kept}/cache")
    assert len(met(server)) > 2
    assert (done.exit_code, "is damaged" in done.stderr, VICTIM in done.stdout) == (1, True, True)


@pytest.mark.all
@pytest.mark.parametrize(("place", "call"), [(4, 1), (1000, 2)], ids=["length", "payload"])
def test_adopt_fetches_a_damaged_range_again(place, call, server, kept, command):
    """The first request looks at the first record only; the others read it all."""
    shard = next(name for name in names_of(server, "kept/dataset") if name.endswith(".tfrecord"))
    data = server.get("bucket", f"kept/dataset/{shard}")
    server.put("bucket", "foreign/train.tfrecord", data * (20_000_000 // len(data)))
    server.fault("corrupt", operation="read", name="foreign/*", calls=(call,), after_bytes=place)
    done = command("adopt", "gs://bucket/foreign", "--to", "gs://bucket/d")
    assert done.exit_code == 0, done.output
    assert len(met(server)) == 1
    server.clear_faults()
    assert command("verify", "gs://bucket/d").exit_code == 0


def test_adopt_says_what_is_damaged_where_it_stands(server, kept, command):
    shard = next(name for name in names_of(server, "kept/dataset") if name.endswith(".tfrecord"))
    data = bytearray(server.get("bucket", f"kept/dataset/{shard}"))
    data[1000] ^= 1
    server.put("bucket", "foreign/train.tfrecord", bytes(data))
    done = command("adopt", "gs://bucket/foreign", "--to", "gs://bucket/d")
    assert done.exit_code == 1
    assert "foreign/train.tfrecord, record 0, byte 0: the CRC of the payload" in done.stderr
    assert names_of(server, "d") == set()
