"""All inputs of a build in a file, in an order that follows from their paths."""

import hashlib
import sqlite3
import tempfile
import tracemalloc
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import tpufeed
from tests.sharding.listed import Listed
from tpufeed.builds.item import Item
from tpufeed.errors import BuildError, OptionError, SourceError
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.recipe import SizeEstimate, plan_shards
from tpufeed.sources.options import ShardOptions

ROWS = 6_000  # more than are taken from the source at once


@pytest.fixture
def make(tmp_path):
    """`make(rows, splits=False, **options)`: an inventory of rows."""
    with ExitStack() as stack:

        def make_one(rows, splits=False, **options):
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=tmp_path))
            source = Listed(rows, splits=splits)
            return stack.enter_context(closing(Inventory(Path(folder), source, ShardOptions(**options))))

        yield make_one


def test_totals_by_split(make):
    rows = [
        Item("a.jpg", 10, "1", split="val"),
        Item("bb.jpg", 20, "1", split="train"),
        Item("é.jpg", 30, "1", split="train", values={"x": 1}),
    ]
    inventory = make(rows, splits=True)
    assert inventory.count == 3
    assert inventory.totals == {"train": (2, 50, 6 + 6 + len('{"x": 1}')), "val": (1, 10, 5)}
    assert inventory.splits == ("train", "val")


def test_a_file_spelt_in_two_ways_is_in_one_split_and_listed_twice(small_jpegs, take, tmp_path):
    (tmp_path / "flat").mkdir()
    for number, data in enumerate(small_jpegs):
        (tmp_path / f"flat/{number}.jpg").write_bytes(data)
    ways = (
        "flat/{}.jpg",
        "./flat/{}.jpg",
        "flat/../flat//{}.jpg",
        f"{tmp_path}/flat/{{}}.jpg",
        f"file://{tmp_path}/flat/{{}}.jpg",
    )
    rows = [way.format(number) for number in range(len(small_jpegs)) for way in ways]
    (tmp_path / "t.csv").write_text("path\n" + "\n".join(rows))
    inventory, _ = take(tmp_path / "t.csv", splits="train=0.5,val=0.5")
    numbers = {split: [Path(item.path).stem for item, _ in inventory.iter_inputs(split)] for split in inventory.splits}
    assert not set(numbers["train"]) & set(numbers["val"])
    assert all(numbers.values())
    assert inventory.listed.listed_twice == len(small_jpegs) * (len(ways) - 1)


def test_a_sample_has_no_inputs_that_are_rejected_already(make):
    rows = [Item(f"{n}.jpg", n, "1", problem=("unreadable", "gone") if n % 2 else None) for n in range(40)]
    inventory = make(rows)
    assert len(inventory.sample(100)) == 20
    assert [item.path for item in inventory.sample(3)] == [
        item.path for item, _ in inventory.iter_inputs("train") if item.problem is None
    ][:3]


def test_what_a_row_says_comes_back(make):
    rows = [
        Item("x.jpg", 10, "7", "cat", None, "/else/where.tar", 512, {"b": b"\xff", "n": [1, 2]}),
        Item("y\n\0.jpg", 20, "8", "dog", problem=("unreadable", "no such file")),
        Item("z.jpg", 30, "9"),
    ]
    inventory = make(rows)
    found = {item.path: item for item, _ in inventory.iter_inputs("train")}
    x, y, z = found["x.jpg"], found["y\n\0.jpg"], found["z.jpg"]
    assert (x.bytes, x.version, x.label, x.file, x.offset) == (10, "7", 0, "/else/where.tar", 512)
    assert x.columns == (("/w==",), (1, 2))
    assert (y.label, y.problem) == (1, ("unreadable", "no such file"))
    assert (z.label, z.problem) == (-1, ("bad_label", "the sample has no label"))


@pytest.mark.parametrize("seed", [0, 1])
def test_paths_decide_the_order_alone(make, seed):
    rows = [Item(f"{n}.jpg", n, str(n), f"{n % 3}") for n in range(50)]
    others = [Item(f"{n}.jpg", 7, "1", values={"x": n}) for n in reversed(range(50))]

    def order(inventory):
        return [item.path for item, _ in inventory.iter_inputs("train")]

    assert order(make(rows, seed=seed)) == order(make(others, seed=seed))


def test_more_splits_than_anyone_means(make):
    with pytest.raises(OptionError, match="100 splits"):
        make([Item(f"{n}", 1, "1", split=str(n)) for n in range(101)], splits=True)


def test_a_column_of_labels_without_any(make):
    with pytest.raises(OptionError, match="'kind'"):
        make([Item("a", 1, "1")], label="kind")
    assert not make([Item("a", 1, "1")]).labelled
    assert make([Item("a", 1, "1")], classes=("x",)).labelled


@pytest.mark.parametrize(
    "row",
    [Item("\udcff", 1, "1"), Item("a", 1, "1", "\udcff"), Item("a", 1, "1", file="\ud800")],
    ids=["path", "label", "file"],
)
def test_what_is_not_utf8_is_named(make, row):
    with pytest.raises(SourceError, match=r"\\ud") as raised:
        make([row])
    str(raised.value).encode()


@pytest.mark.all
def test_memory_does_not_grow_with_the_rows(make, monkeypatch):
    monkeypatch.setattr("tpufeed.sharding.inventory._AT_ONCE", 256)

    def peak(count):
        rows = (Item(f"folder/{n:08d}.jpg", 1000, "1", f"c{n % 10}", values={"x": n}) for n in range(count))
        tracemalloc.start()
        try:
            inventory = make(rows)
            sum(1 for _ in inventory.iter_inputs("train"))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)
    assert peak(2_000) < 1.5 * peak(1_000)


def test_a_full_disk_for_temporary_files_is_named(photo_folder, monkeypatch, tmp_path):
    def fail(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Inventory, "_read", fail)
    with pytest.raises(BuildError, match="TMPDIR"):
        tpufeed.shard(photo_folder, tmp_path / "d", workers=1)
    assert not (tmp_path / "d").exists()


@pytest.fixture
def large(tmp_path):
    """Rows of which every 100th comes twice."""
    rows = [Item(f"class-{n % 7}/{n:05d}.jpg", n, "1", f"class-{n % 7}") for n in range(ROWS)]
    source = Listed(rows + rows[::100])
    with closing(Inventory(Path(tmp_path), source, ShardOptions())) as made:
        yield made


def test_inputs_come_in_the_order_of_their_keys(large):
    paths = [item.path for item, _ in large.iter_inputs("train")]
    keys = [hashlib.blake2b(f"0\0{path}".encode(), digest_size=16, person=b"order").digest() for path in paths]
    assert len(paths) == ROWS + ROWS // 100
    assert keys == sorted(keys)


def test_a_plan_sorts_all_inputs_once(large):
    """The shards need them by key. The digest, which needs them by path, is made with the inventory."""
    statements = []
    large.database.set_trace_callback(statements.append)
    draft = plan_shards(large, SizeEstimate(), "memory://s", {})
    list(draft.tasks)
    assert draft.header.listed.listed_twice == ROWS // 100
    whole = [statement for statement in statements if " ORDER BY " in statement and " LIMIT " not in statement]
    sorts = [statement.partition(" ORDER BY ")[2].partition(",")[0] for statement in whole]
    assert sorts == ["key"]
