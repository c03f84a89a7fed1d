"""What a build puts, finds and removes at its destination; the tests of `shard` show the same with builds."""

import msgspec
import pytest
from crc32c import crc32c

from tpufeed.builds.destination import Destination, Owner, Report, ShardReport
from tpufeed.builds.plan import PlanHeader, Task, write_plan
from tpufeed.dataset.manifest import IndexFile, Manifest, Shard, Split, Variant
from tpufeed.dataset.naming import PLAN, removals_name, report_name
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import BuildError, DuplicateWriterError
from tpufeed.storage.memory import MemoryStore

OWN = "train-00000-of-00001.tfrecord"


@pytest.fixture
def store(tmp_path):
    return MemoryStore(f"memory://{tmp_path.name}-commit")


def a_header(run_id="new", **options):
    return PlanHeader(
        kind="shard",
        source="memory://source",
        options=options,
        run_id=run_id,
        input_digest="",
        splits={"train": 1},
        variants=None,
        class_names=(),
        features=(FeatureSpec("image/encoded", "bytes"),),
        images=3,
    )


def a_manifest(*files, run_id="new"):
    shards = tuple(Shard(name, len(data), crc32c(data), 1) for name, data in files[1:])
    index, data = files[0]
    split = Split(len(shards), (), (Variant(shards, IndexFile(index, len(data), crc32c(data))),))
    nothing = {"options": {}, "input_digest": "", "rejects": {}, "images": {}, "odd": {}, "class_names": ()}
    return Manifest(run_id=run_id, tool_version="0", splits={"train": split}, features=a_header().features, **nothing)


def begin(store, tmp_path, header, old=(), foreign=()):
    destination = Destination(store)
    destination.old, destination.foreign = [*old], {*foreign}
    assert destination.put_plan(tmp_path / "plan", write_plan(tmp_path / "plan", header, [Task(0, "train", 0, 1)]))
    return destination


def names(store):
    return {info.name for info in store.iter_objects()}


def old_build(store, tmp_path):
    """Put the files of an old build with the same names, a stranger's file, and the plan of a run that overwrites."""
    begin(store, tmp_path, a_header("old"))
    for name in (OWN, "train.index.npy", "rejects.jsonl", "_tpufeed/reports/000000.json", "notes.txt"):
        store.put(name, b"old")
    store.put("manifest.json", msgspec.json.encode({"run_id": "old"}))
    found = [info for info in store.iter_objects() if info.name not in ("notes.txt", "manifest.json")]
    manifest = store.stat("manifest.json")
    return begin(store, tmp_path, a_header(), [manifest, *found], {"notes.txt"})


def test_what_is_in_the_way_is_removed_and_nothing_else(store, tmp_path):
    destination = old_build(store, tmp_path)
    destination.remove_leftovers()
    note = removals_name("new")
    assert names(store) == {PLAN, "notes.txt", note}
    destination.put(OWN, b"new")
    store.put("manifest.json", msgspec.json.encode({"run_id": "new"}))  # by a twin of this run
    store.put("train.index.npy", b"newer")  # of a later version than the one that was noted
    destination.remove_leftovers()  # as a twin does, or the same command run again
    assert names(store) == {PLAN, "notes.txt", note, OWN, "manifest.json", "train.index.npy"}
    destination.remove_leftovers(a_manifest(("train.index.npy", b"newer"), (OWN, b"new")))
    assert names(store) == {PLAN, "notes.txt", OWN, "manifest.json", "train.index.npy"}


def test_a_store_without_conditions_is_cleared_once(store, tmp_path, monkeypatch):
    destination = old_build(store, tmp_path)
    monkeypatch.setattr(MemoryStore, "conditional", False)
    destination.remove_leftovers()
    assert names(store) == {PLAN, "notes.txt"}
    destination.put(OWN, b"new")
    destination.remove_leftovers()
    assert names(store) == {PLAN, "notes.txt", OWN}


def test_a_note_that_was_forged_removes_no_stranger(store, tmp_path):
    destination = begin(store, tmp_path, a_header())
    info = store.put("notes.txt", b"mine")
    store.put(removals_name("new"), msgspec.json.encode({"notes.txt": info.version}))
    destination.remove_leftovers()
    assert store.read("notes.txt") == b"mine"


def test_a_shard_with_another_count_is_removed_at_the_end(store, tmp_path):
    destination = begin(store, tmp_path, a_header(names="kaggle"))
    for name in ("train00-7.tfrec", "train00-9.tfrec", "val00-9.tfrec"):
        store.put(name, b"x")
    store.put("train.index.npy", b"i")
    destination.remove_leftovers()
    assert "train00-7.tfrec" in names(store)
    destination.remove_leftovers(a_manifest(("train.index.npy", b"i"), ("train00-9.tfrec", b"x")))
    assert names(store) == {PLAN, "train.index.npy", "train00-9.tfrec", "val00-9.tfrec"}


def test_an_object_with_the_same_bytes_stays_and_another_is_replaced(store, tmp_path):
    destination = begin(store, tmp_path, a_header())
    first = destination.put(OWN, b"one")
    assert destination.put(OWN, b"one").version == first.version
    assert destination.put(OWN, b"two").version != first.version
    assert store.read(OWN) == b"two"


def test_a_run_that_has_lost_the_destination_puts_nothing(store, tmp_path):
    destination = begin(store, tmp_path, a_header())
    begin(store, tmp_path, a_header("other"), [store.stat(PLAN)])
    with pytest.raises(BuildError, match="--overwrite"):
        destination.put(OWN, b"one")
    assert store.stat(OWN) is None


def test_a_report_is_read_by_its_run_alone_and_not_if_it_is_damaged(store, tmp_path):
    destination = begin(store, tmp_path, a_header())
    (ref,), name = destination.plan.tasks, report_name(0)
    assert destination.read_report(ref, "new") is None
    destination.put_report(Report(0, (ShardReport(OWN, 3, 7, (3,)),), (), {}, ()))
    found = destination.read_report(ref, "new")
    assert found.shards == (ShardReport(OWN, 3, 7, (3,)),)
    assert destination.read_report(ref, "old") is None
    destination.discard_report(msgspec.structs.replace(found, retries=1))  # not the one that is there
    assert destination.read_report(ref, "new") == found
    store.put(name, store.read(name).replace(b'"task":0', b'"task":1'), store.stat(name))
    assert destination.read_report(ref, "new") is None
    assert store.stat(name) is None  # its task runs again


def test_room_and_names_are_checked_before_a_plan_is_put(store, monkeypatch):
    destination = Destination(store)
    assert not destination.inspect(overwrite=False)
    destination.check_fits(a_header(), 10**15)  # nobody knows the room
    monkeypatch.setattr(MemoryStore, "free_bytes", lambda _: 10**6)
    destination.check_fits(a_header(), 10**6)
    with pytest.raises(BuildError, match=r"2\.0 MB"):
        destination.check_fits(a_header(), 2 * 10**6)
    destination.old = [store.put("train.index.npy", bytes(10**6))]
    destination.check_fits(a_header(), 2 * 10**6)  # it will be removed
    store.put(OWN, b"mine")
    destination.inspect(overwrite=False)
    with pytest.raises(DuplicateWriterError, match=OWN):
        destination.check_fits(a_header(), 0)


@pytest.mark.parametrize(("size", "lost"), [(3, None), (4, OWN)])
def test_the_first_file_that_is_lost_is_named(store, size, lost):
    store.put("train.index.npy", b"i")
    store.put(OWN, bytes(size))
    destination, manifest = Destination(store), a_manifest(("train.index.npy", b"i"), (OWN, bytes(3)))
    assert next(destination.iter_lost(manifest), None) == lost
    store.delete("train.index.npy")
    assert next(destination.iter_lost(manifest)) in ("train.index.npy", OWN)


def test_an_owner_is_known_by_its_run_where_versions_differ(store, tmp_path):
    destination = begin(store, tmp_path, a_header())
    Destination(store, Owner(destination.owner.run_id, "another host's version")).put(OWN, b"one")
    assert store.read(OWN) == b"one"
