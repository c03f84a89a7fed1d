"""Groups that stay in one split: dealt by a stable hash, in the shares that they allow, and said."""

import csv
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpufeed
from tests.frameworks import lazy
from tests.sharding.listed import Listed
from tpufeed.builds.item import Item
from tpufeed.errors import OptionError, SourceError
from tpufeed.sharding.inventory import Inventory
from tpufeed.sources.options import ShardOptions

model_selection = lazy("sklearn.model_selection")
SHARES = "train=0.7,val=0.3"


def splits_of(items, **options):
    """The split of each item by its path, what is said of all, and the warnings."""
    has_splits = any(item.split is not None for item in items)
    with tempfile.TemporaryDirectory() as folder:
        source = Listed(items, splits=has_splits)
        source.splits_from = "a list"
        with closing(Inventory(Path(folder), source, ShardOptions(**options))) as inventory:
            found = {item.path: split for split in inventory.splits for item, _ in inventory.iter_inputs(split)}
            return found, inventory.listed.splits, inventory.listed.warnings


def items_of(groups, column="patient"):
    return [Item(f"{number}.jpg", 1, "1", values={column: group}) for number, group in enumerate(groups)]


@settings(max_examples=40, deadline=None)
@given(groups=st.lists(st.integers(0, 30), min_size=1, max_size=120), more=st.lists(st.integers(0, 60), max_size=60))
def test_a_group_is_in_one_split_and_stays_there(groups, more):
    before, _, _ = splits_of(items_of(groups), splits=SHARES, split_with="patient")
    after, _, _ = splits_of(items_of(groups + more), splits=SHARES, split_with="patient")
    split_of_group = {}
    for number, group in enumerate(groups + more):
        assert split_of_group.setdefault(group, after[f"{number}.jpg"]) == after[f"{number}.jpg"]
    assert after.items() >= before.items()


def test_shares_are_those_of_groups_and_of_scikit_learn():
    sizes = np.random.default_rng(0).integers(1, 8, 2000)
    groups = np.repeat(np.arange(2000), sizes).tolist()
    found, said, warnings = splits_of(items_of(groups), splits="train=0.8,val=0.2", split_with="patient")
    share = sum(split == "val" for split in found.values()) / len(groups)
    error = np.sqrt(0.2 * 0.8 * np.square(sizes / len(groups)).sum())
    assert abs(share - 0.2) < 4 * error
    theirs = model_selection.GroupShuffleSplit(50, test_size=0.2, random_state=0).split(groups, groups=groups)
    assert abs(share - np.mean([len(test) / len(groups) for _, test in theirs])) < 4 * error
    held = {group for number, group in enumerate(groups) if found[f"{number}.jpg"] == "val"}
    of_all = f"train {100 - 100 * share:.1f} %, val {100 * share:.1f} % of images"
    assert said == f"shares, by a hash of patient: {of_all}; {2000 - len(held):,} and {len(held)} values of patient"
    assert warnings == ("no labels",) or not warnings


def test_spellings_of_a_value_are_one_group():
    """As pandas, Parquet and JSON write the same number."""
    groups = [spelling for number in range(40) for spelling in (number, f"{number}", float(number), f"{number}.0")]
    found, said, _ = splits_of(items_of(groups), splits=SHARES, split_with="patient")
    for number in range(40):
        assert len({found[f"{4 * number + place}.jpg"] for place in range(4)}) == 1
    assert sum(map(int, said.partition("; ")[2].removesuffix(" values of patient").split(" and "))) == 40


def test_several_columns_name_a_group_together():
    items = [Item(f"{n}.jpg", 1, "1", values={"hospital": n % 3, "patient": n % 5}) for n in range(60)]
    found, said, _ = splits_of(items, splits=SHARES, split_with="hospital, patient")
    assert len({(n % 15, found[f"{n}.jpg"]) for n in range(60)}) == 15
    assert "values of hospital, patient" in said


def test_images_of_a_folder_stay_together(small_jpegs, tmp_path):
    for clip in range(12):
        for number, data in enumerate(small_jpegs):
            path = tmp_path / f"src/{'ab'[clip % 2]}/clip{clip}/{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    made = tpufeed.shard(tmp_path / "src", tmp_path / "d", splits=SHARES, split_with="folder", workers=1)
    dataset, clips = tpufeed.open_dataset(tmp_path / "d"), {}
    for split in dataset.manifest.splits:
        for example in dataset.iter_examples(split):
            name = bytes(example["image/filename"].values[0]).decode()
            assert clips.setdefault(name.rpartition("/")[0], split) == split
    assert len(clips) == 12
    assert "values of folder" in made.manifest.listed.splits


def test_the_splits_of_a_source_are_checked():
    items = [Item(f"{n}.jpg", 1, "1", split="ab"[n % 2], values={"patient": n % 4}) for n in range(20)]
    assert (
        splits_of(items, split_with="patient")[1] == "a list: a 50.0 %, b 50.0 % of images; 2 and 2 values of patient"
    )
    items.append(Item("z.jpg", 1, "1", split="a", values={"patient": 3}))
    with pytest.raises(SourceError, match=r"patient '3' is in the splits a \(z\.jpg\) and b \(11\.jpg\)\. .*--splits"):
        splits_of(items, split_with="patient")


def test_groups_that_no_share_fits_are_named():
    _, _, warnings = splits_of(items_of([7] * 8 + [1, 2]), splits=SHARES, split_with="patient")
    assert any("patient '7' has 8 of 10 images, more than the share of val" in each for each in warnings)
    _, _, warnings = splits_of(items_of([7] * 8), splits=SHARES, split_with="patient")
    assert any("has no images, as few groups" in each and "--split-by" in each for each in warnings)


def test_a_reject_needs_no_group():
    bad = Item("z.jpg", 1, "1", problem=("unreadable", "gone"))
    assert len(splits_of([*items_of([1, 2]), bad], splits=SHARES, split_with="patient")[0]) == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"1\.jpg has nothing in the column 'patient'"),
        ("nan", r"'nan' in the column 'patient'. .*fill it in"),
        ([1, 2], r"\[1, 2\] in the column"),
    ],
)
def test_a_sample_without_one_group_is_named(value, message):
    with pytest.raises(SourceError, match=message):
        splits_of(items_of([1, value]), splits=SHARES, split_with="patient")


def test_groups_that_are_nowhere():
    with pytest.raises(SourceError, match=r"nothing in the column 'person', and has the columns patient"):
        splits_of(items_of([1]), splits=SHARES, split_with="person")


@pytest.fixture
def table(small_jpegs, tmp_path):
    """`table(patients)`: a table with an image of each."""

    def make(patients):
        (tmp_path / "src").mkdir(exist_ok=True)
        with (tmp_path / "src/t.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "label", "patient"])
            for number, patient in enumerate(patients):
                (tmp_path / f"src/{number}.jpg").write_bytes(small_jpegs[number % len(small_jpegs)])
                rows.writerow([f"{number}.jpg", "ab"[number % 2], patient])
        return tmp_path / "src/t.csv"

    return make


def test_an_append_keeps_a_group_in_its_split(table, tmp_path):
    patients = [f"p{number % 9}" for number in range(18)]
    tpufeed.shard(table(patients), tmp_path / "d", splits=SHARES, split_with="patient", workers=1)
    grown = tpufeed.append(table(patients * 2), tmp_path / "d", workers=1)
    assert grown.added == 18
    found = {}
    for split in grown.manifest.splits:
        for example in tpufeed.open_dataset(tmp_path / "d").iter_examples(split):
            patient = bytes(example["patient"].values[0]).decode()
            assert found.setdefault(patient, split) == split
    assert {*found.values()} == {"train", "val"}
    assert grown.manifest.options["split_with"] == "patient"


def test_an_append_of_a_table_that_divides_a_group_is_refused(table, tmp_path):
    """Also if the rows of one of its splits are in the dataset already."""
    options = {"split_by": "label", "label": "none", "split_with": "patient"}
    tpufeed.shard(table(["p0", "p1"]), tmp_path / "d", **options, workers=1)
    with pytest.raises(SourceError, match=r"patient 'p1' is in the splits a \(2\.jpg\) and b \(1\.jpg\)"):
        tpufeed.append(table(["p0", "p1", "p1"]), tmp_path / "d", workers=1)


def test_a_row_of_a_table_is_named(table, tmp_path):
    source = table(["p0", "p1", ""])
    with pytest.raises(SourceError, match=r"t\.csv, row 3: has nothing in the column 'patient'. .*fill it in"):
        tpufeed.shard(source, tmp_path / "d", splits=SHARES, split_with="patient", workers=1)
    with pytest.raises(OptionError, match=r"no column 'person' for the groups of its splits. It has path, label"):
        tpufeed.shard(source, tmp_path / "d", splits=SHARES, split_with="person", workers=1)
    with pytest.raises(OptionError, match=r"--splits train=0\.8"):
        tpufeed.shard(source, tmp_path / "d", split_with="patient", workers=1)
    with pytest.raises(OptionError, match="--split-with label is its column of"):
        tpufeed.shard(source, tmp_path / "d", splits=SHARES, split_with="label", workers=1)


@pytest.mark.parametrize("none", ["", " ,"])
def test_no_column_keeps_nothing_together(tmp_path, none):
    with pytest.raises(OptionError, match="names none"):
        tpufeed.shard(tmp_path, tmp_path / "d", splits=SHARES, split_with=none)
