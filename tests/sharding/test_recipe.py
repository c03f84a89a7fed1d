"""Which input goes into which shard: a function of inventory and options."""

import itertools
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sharding.listed import Listed
from tpufeed import Images
from tpufeed.builds.item import Item
from tpufeed.builds.plan import iter_tasks, read_plan, read_task, write_plan
from tpufeed.dataset.naming import PLAN
from tpufeed.errors import OptionError
from tpufeed.sharding.inventory import Inventory, format_identity, split_of
from tpufeed.sharding.recipe import SizeEstimate, plan_shards
from tpufeed.sources.options import ShardOptions
from tpufeed.storage.local import LocalStore

SPLITS = st.sampled_from([{"train": 1.0}, {"train": 0.9, "val": 0.1}, {"a": 0.5, "b": 0.3, "c": 0.2}])
PATHS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1, max_size=12)
RECORD = SizeEstimate(1.0, 50)
few = settings(max_examples=20)


@st.composite
def listings(draw):
    names = draw(st.lists(PATHS, min_size=1, max_size=60, unique=True))
    return [
        Item(f"c{n % 3}/{name}.jpg", draw(st.integers(0, 1000)), f"v{n}", f"c{n % 3}") for n, name in enumerate(names)
    ]


def equal_rows(count, classes=3):
    return [Item(f"c{n % classes}/{n:06d}.jpg", 800 + 7 * n % 400, "1", f"c{n % classes}") for n in range(count)]


@contextmanager
def inventory_of(rows, options, ignored_files=()):
    source = Listed(rows, "memory://source", ignored_files=ignored_files, are_folders=True)
    with tempfile.TemporaryDirectory() as folder, closing(Inventory(Path(folder), source, options)) as inventory:
        yield inventory


def make_plan(rows, options, estimate=RECORD):
    with inventory_of(rows, options, {".txt": 2}) as inventory:
        draft = plan_shards(inventory, estimate, "memory://source", options.to_dict())
        return draft.header, list(draft.tasks)


def size_of(item):
    return item.bytes + 50 + len(item.path.encode())


@few
@given(listings(), SPLITS, st.integers(1150, 20_000), st.integers(0, 5))
def test_every_input_is_in_exactly_one_task_of_its_split(rows, splits, shard_bytes, seed):
    header, tasks = make_plan(rows, ShardOptions(shard_bytes=shard_bytes, splits=splits, seed=seed))
    dealt = [item for task in tasks for item in task.inputs]
    assert sorted((item.path, item.bytes, item.version, header.class_names[item.label]) for item in dealt) == sorted(
        (row.path, row.bytes, row.version, row.label_name) for row in rows
    )
    assert all(task.split == split_of(item.path, splits) for task in tasks for item in task.inputs)
    assert all(task.inputs for task in tasks)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    for split, shards in header.splits.items():
        of_split = [task for task in tasks if task.split == split]
        assert [(task.shard, task.shards) for task in of_split] == [(n, shards) for n in range(shards)]
    assert list(header.splits) == list(splits)
    names = list(itertools.chain.from_iterable(header.shard_names(task) for task in tasks))
    assert len(set(names)) == len(names)


@few
@given(listings(), SPLITS, st.integers(1150, 20_000))
def test_a_stored_plan_gives_back_its_tasks(rows, splits, shard_bytes):
    header, tasks = make_plan(rows, ShardOptions(shard_bytes=shard_bytes, splits=splits))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, PLAN)
        path.parent.mkdir()
        made = write_plan(path, header, iter(tasks))
        store = LocalStore(folder)
        plan = read_plan(store)
        assert plan == made
        assert plan.header == header
        assert [read_task(store, ref) for ref in plan.tasks] == list(iter_tasks(store, plan)) == tasks
        assert [ref.name for ref in plan.tasks] == [header.shard_names(task)[0] for task in tasks]


@few
@given(listings(), st.permutations(range(60)), SPLITS)
def test_the_order_of_a_listing_changes_nothing(rows, order, splits):
    shuffled = [rows[n] for n in order if n < len(rows)]
    options = ShardOptions(shard_bytes=5000, splits=splits)
    header, tasks = make_plan(rows, options)
    again, tasks_again = make_plan(shuffled, options)
    assert tasks_again == tasks
    assert again.input_digest == header.input_digest


@few
@given(st.permutations(range(6)))
def test_the_order_of_rows_for_the_same_path_changes_nothing(order):
    rows = [Item("a.jpg", 10, "1", "cat", values={"x": n}) for n in range(3)]
    rows += [Item("a.jpg", 10, "1", label) for label in ("cat", "dog", None)]
    header, tasks = make_plan(rows, ShardOptions())
    again, tasks_again = make_plan([rows[n] for n in order], ShardOptions())
    assert (again.input_digest, tasks_again) == (header.input_digest, tasks)
    assert header.listed.listed_twice == 5


@few
@given(st.sets(PATHS, min_size=1), st.sets(PATHS), SPLITS)
def test_a_split_keeps_its_files_when_others_are_added(paths, more, splits):
    def dealt(names):
        rows = [Item(name, 10, "1") for name in sorted(names)]
        _, tasks = make_plan(rows, ShardOptions(shard_bytes=10_000, splits=splits))
        return {item.path: task.split for task in tasks for item in task.inputs}

    before, after = dealt(paths), dealt(paths | more)
    assert {path: after[path] for path in paths} == before


def test_a_splits_share_is_about_what_was_asked_for():
    splits = {"train": 0.8, "val": 0.15, "test": 0.05}
    found = [split_of(f"cat/{n}.jpg", splits) for n in range(20_000)]
    assert {name: found.count(name) / 20_000 for name in splits} == pytest.approx(splits, abs=0.01)


def test_splits_are_dealt_alike_on_every_machine():
    """The literal makes sure that a dataset built next year has the same validation set."""
    found = "".join(split_of(f"cat/{n}.jpg", {"t": 0.7, "v": 0.3}) for n in range(24))
    assert found == "ttttttttvvvtvttvttvtttvt"


def test_the_order_is_the_same_on_every_machine():
    _, tasks = make_plan(equal_rows(12), ShardOptions(shard_bytes=10**6))
    assert [int(item.path[3:9]) for item in tasks[0].inputs] == [11, 7, 10, 3, 5, 2, 1, 8, 4, 9, 6, 0]


@few
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_the_order_depends_on_the_seed(one, other):
    def order(seed):
        return [item.path for item in make_plan(equal_rows(40), ShardOptions(seed=seed))[1][0].inputs]

    assert order(one) == order(one)
    assert (order(one) == order(other)) == (one == other)


def test_the_order_depends_on_nothing_else():
    """Neither sizes of shards nor ways to store images change it: end to end, the shards hold the same sequence."""

    def order(options, estimate=RECORD):
        return [item.path for task in make_plan(equal_rows(200), options, estimate)[1] for item in task.inputs]

    first = order(ShardOptions(shard_bytes=10_000))
    assert first == order(ShardOptions(shard_bytes=10**6, images=Images(check="header", presize=64)))
    assert first == order(ShardOptions(shards=7), SizeEstimate(0.1, 5000))
    assert first == order(ShardOptions(shard_bytes=10_000, hosts=4))


def test_classes_are_spread_over_the_shards():
    """An ordered split would leave each shard with one class."""
    _, tasks = make_plan(equal_rows(600), ShardOptions(shard_bytes=60_000))
    assert len(tasks) > 5
    assert all(len({item.label for item in task.inputs}) == 3 for task in tasks)


@pytest.mark.all
@few
@given(
    st.integers(300, 2000), st.integers(25, 100), st.integers(0, 99), st.sampled_from([(1, 1), (80, 120), (90, 130)])
)
def test_shards_are_within_15_percent_of_one_another(count, a_shard, seed, spread):
    low, high = spread
    rows = [Item(f"{n}.jpg", 1000 * (low + 37 * n % (high - low + 1)), "1") for n in range(count)]
    mean = sum(row.bytes for row in rows) / count
    _, tasks = make_plan(rows, ShardOptions(shard_bytes=int(mean * a_shard), seed=seed))
    sizes = [sum(item.bytes for item in task.inputs) for task in tasks]
    assert max(sizes) <= 1.15 * min(sizes)
    assert max(sizes) <= 1.5 * mean * a_shard


def test_estimated_sizes_are_cut_evenly():
    """Records that take a tenth of their file and 500 bytes."""
    _, tasks = make_plan(equal_rows(1000), ShardOptions(shard_bytes=50_000), SizeEstimate(0.1, 500))
    sizes = [sum(0.1 * item.bytes + 500 + len(item.path) for item in task.inputs) for task in tasks]
    assert len(tasks) == round(sum(sizes) / 50_000)
    assert max(sizes) <= 1.15 * min(sizes)


@few
@given(
    st.integers(1, 200),
    st.integers(1, 9),
    st.one_of(st.integers(1000, 60_000).map(lambda size: {"shard_bytes": size}), st.just({})),
    st.integers(1, 12),
    SPLITS,
)
def test_all_hosts_read_equally_many_shards(count, hosts, size, times, splits):
    sizing = size or {"shards": hosts * times}
    if "shard_bytes" in sizing:
        sizing = {"shard_bytes": sizing["shard_bytes"] + 1300}
    header, tasks = make_plan(equal_rows(count), ShardOptions(hosts=hosts, splits=splits, **sizing))
    inputs = {name: sum(len(task.inputs) for task in tasks if task.split == name) for name in splits}
    assert sum(inputs.values()) == count
    for name, shards in header.splits.items():
        assert shards % hosts == 0 or shards == inputs[name] < hosts
    assert all(task.inputs for task in tasks)


@few
@given(st.integers(1, 6), st.integers(0, 99))
def test_as_many_shards_as_asked_for(shards, seed):
    header, tasks = make_plan(equal_rows(300), ShardOptions(shards=shards, seed=seed))
    assert header.splits == {"train": shards}
    sizes = [sum(map(size_of, task.inputs)) for task in tasks]
    assert max(sizes) <= 1.15 * min(sizes)


def test_as_many_shards_as_asked_for_in_the_largest_split():
    header, _ = make_plan(equal_rows(1000), ShardOptions(shards=20, splits={"val": 0.1, "train": 0.9}))
    assert header.splits["train"] == 20
    assert 1 <= header.splits["val"] <= 3


def test_no_more_shards_than_inputs():
    assert make_plan(equal_rows(3), ShardOptions(shards=8))[0].splits == {"train": 3}
    assert make_plan(equal_rows(11), ShardOptions(shards=12, hosts=4))[0].splits == {"train": 8}
    assert make_plan(equal_rows(3), ShardOptions(shards=8, hosts=8))[0].splits == {"train": 3}


@pytest.mark.parametrize("shard_bytes", [1, 1058])
def test_a_shard_holds_at_least_one_record(shard_bytes):
    rows = [Item("small.jpg", 10, "1"), Item("large.jpg", 1000, "1")]
    with pytest.raises(OptionError, match=r"large\.jpg"):
        make_plan(rows, ShardOptions(shard_bytes=shard_bytes))
    make_plan(rows, ShardOptions(shard_bytes=1059))
    make_plan(rows, ShardOptions(shards=2))


def test_the_header_says_what_was_listed():
    header, _ = make_plan(equal_rows(10), ShardOptions())
    assert (header.kind, header.source, header.base) == ("shard", "memory://source", "memory://source")
    assert header.class_names == ("c0", "c1", "c2")
    assert (header.images, header.listed.listed_twice) == (10, 0)
    assert header.listed.ignored_files == {".txt": 2}
    assert [feature.name for feature in header.features][:2] == ["image/encoded", "image/class/label"]


def test_further_columns_are_features_behind_all_others():
    rows = [Item("a.jpg", 10, "1", values={"x": 1, "y": "é"}), Item("b.jpg", 10, "1", values={"y": "z"})]
    header, tasks = make_plan(rows, ShardOptions())
    assert [(f.name, f.dtype, f.shape) for f in header.features[-2:]] == [("x", "int64", None), ("y", "string", ())]
    assert {item.path: item.columns for item in tasks[0].inputs} == {"a.jpg": ((1,), ("é",)), "b.jpg": ((), ("z",))}


@pytest.mark.parametrize(
    "change",
    [
        {"path": "x"},
        {"bytes": 6},
        {"version": "2"},
        {"label": 1},
        {"file": "b.tar"},
        {"file": "b.tar", "offset": 512},
        {"columns": ((1,),)},
        {"problem": ("unreadable", "gone")},
    ],
    ids=str,
)
def test_the_input_digest_tells_every_change(change):
    item = Item("a", 5, "1", label=0)
    changed = Item(**{"path": "a", "bytes": 5, "version": "1", "label": 0, **change})
    assert format_identity(item) != format_identity(changed)
