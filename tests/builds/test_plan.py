"""A plan as it is stored, and how two of them differ; `tests/sharding/test_recipe.py` has plans of real listings."""

import msgspec
import pytest
from crc32c import crc32c

from tpufeed.builds.item import Item
from tpufeed.builds.plan import (
    Plan,
    PlanHeader,
    Task,
    check_same_plan,
    differing_options,
    iter_tasks,
    read_plan,
    read_run_id,
    read_task,
    with_access,
    write_plan,
)
from tpufeed.dataset.naming import PLAN
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import DuplicateWriterError, ManifestError, ManifestVersionError
from tpufeed.storage.memory import MemoryStore

TASKS = [
    Task(0, "train", 0, 2, (Item("a.jpg", 3, "1"), Item("b.jpg", 3, "1"))),
    Task(1, "train", 1, 2, (Item("c.jpg", 3, "1"),)),
    Task(2, "val", 0, 1, (Item("d.jpg", 3, "1"),)),
]


def a_header(**fields):
    given = {
        "kind": "shard",
        "source": "memory://source",
        "options": {"seed": 0},
        "run_id": "run",
        "input_digest": "",
        "splits": {"train": 2, "val": 1},
        "variants": None,
        "class_names": (),
        "features": (FeatureSpec("image/encoded", "bytes"),),
        "images": 4,
    }
    return PlanHeader(**given | fields)


@pytest.fixture
def stored(tmp_path):
    """Stores a plan; returns the store and the plan."""

    def store_plan(header, tasks):
        store = MemoryStore(f"memory://{tmp_path.name}-plan")
        plan = write_plan(tmp_path / "plan", header, tasks)
        store.put_file(PLAN, tmp_path / "plan")
        return store, plan

    return store_plan


def test_a_plan_gives_back_what_was_written(stored):
    store, plan = stored(a_header(), TASKS)
    assert read_plan(store) == plan
    assert read_run_id(store) == "run"
    assert [read_task(store, ref) for ref in plan.tasks] == list(iter_tasks(store, plan)) == TASKS


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (a_header(), ["train-00000-of-00002.tfrecord"]),
        (a_header(variants=2), ["train-v0-00000-of-00002.tfrecord", "train-v1-00000-of-00002.tfrecord"]),
        (a_header(options={"names": "kaggle"}), ["train00-*.tfrec"]),
    ],
)
def test_names_of_shards(header, names):
    assert header.shard_names(TASKS[0]) == names
    assert set(names) < header.output_names
    assert len(header.output_names) == len(names) * (3 + 2)  # shards, and an index for each split


def sealed(lines):
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return data + msgspec.json.encode({"crc32c": crc32c(data)}) + b"\n"


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda lines: lines[0].update(plan_version=2), ManifestVersionError, "plan version 2"),
        (lambda lines: lines[0].update(variants=0), ManifestError, "0 variants"),
        (lambda lines: lines[0].update(splits={"../x": 3}), ManifestError, "split"),
        (lambda lines: lines[0].update(splits={"train": 2, "val": -1}), ManifestError, "-1 shards"),
        (lambda lines: lines[0].update(splits={"train": 10**9}), ManifestError, "1,000,000,000 shards"),
        (lambda lines: lines[0].update(splits={"train": 2, "val": 9}), ManifestError, PLAN),
        (lambda lines: lines[2].update(shard=0), ManifestError, "shard 0 of 'train'"),
        (lambda lines: lines.pop(), ManifestError, PLAN),
    ],
)
def test_what_no_build_writes_is_refused(stored, change, kind, said):
    store, _ = stored(a_header(), TASKS)
    lines = [msgspec.json.decode(line) for line in store.read(PLAN).splitlines()[:-1]]
    change(lines)
    store.put(PLAN, sealed(lines), store.stat(PLAN))
    with pytest.raises(kind, match=said):
        read_plan(store)


def test_a_plan_that_is_damaged_or_cut_off_is_refused(stored):
    store, plan = stored(a_header(), TASKS)
    data = store.read(PLAN)
    store.put(PLAN, data.replace(b"b.jpg", b"x.jpg"), store.stat(PLAN))
    with pytest.raises(ManifestError, match="CRC-32C"):
        read_plan(store)
    with pytest.raises(ManifestError, match=r"train-00000-of-00002\.tfrecord"):
        read_task(store, plan.tasks[0])
    store.put(PLAN, data[: data.rindex(b"{")], store.stat(PLAN))
    with pytest.raises(ManifestError, match="3 tasks"):
        read_plan(store)


def test_no_secret_is_in_a_plan_and_a_later_run_brings_its_own(stored):
    source = "https://me:word@host/images/list.csv"
    base = source.rpartition("/")[0]
    store, plan = stored(a_header(source=source, base=base), TASKS)
    assert b"word" not in store.read(PLAN)
    assert plan.header.base == "https://***@host/images"
    assert with_access(plan, source).header.base == base
    assert with_access(plan, "https://me:word@elsewhere/x.csv") == plan


def test_another_build_is_refused_with_what_differs(stored):
    store, plan = stored(a_header(), TASKS)
    assert isinstance(plan, Plan)
    check_same_plan(store.url, plan.header, "shard", "memory://source", {"seed": 0})
    with pytest.raises(DuplicateWriterError, match="seed"):
        check_same_plan(store.url, plan.header, "shard", "memory://source", {"seed": 7})


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"b": "x"}, ['b is not set there and "x" here', "a is 1 there and not set here"]),
        (
            {"ops": [{"op": "Flip", "p": 0.5}]},
            {"ops": [{"op": "Flip", "p": 1.0}]},
            ["p of Flip (ops) is 0.5 there and 1.0 here"],
        ),
        (
            {"ops": [{"op": "Flip"}]},
            {"ops": [{"op": "Flip"}, {"op": "Crop", "version": 1, "size": 8}]},
            ["ops, number 2, is not set there and Crop(size=8) here"],
        ),
    ],
)
def test_options_that_differ_are_named(there, here, said):
    assert differing_options(there, here) == said
