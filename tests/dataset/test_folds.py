"""Folds by class and by group: never split, in the shares of scikit-learn's, and stable where they are said to be."""

import csv
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tpufeed
from tests.frameworks import lazy
from tpufeed.dataset.folds import stratify_groups
from tpufeed.dataset.selection import parse_selection
from tpufeed.errors import OptionError

model_selection = lazy("sklearn.model_selection")
WAYS = [
    {"stratify": True},
    {"group": "patient"},
    {"group": ["patient", "side"]},
    {"stratify": True, "group": "patient"},
]


def write(folder, first, count):
    """Samples of 40 patients, most of whose samples have one class. Every 50th has no visit."""
    folder.mkdir(exist_ok=True)
    with (folder / f"{first}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "patient", "side", "visit"])
        for number in range(first, first + count):
            Image.fromarray(np.full((4, 4, 3), number % 256, np.uint8)).save(folder / f"{number}.png")
            patient = number * 7 % 40
            kind = "abc"[(patient % 3) if number % 4 else number % 3]
            rows.writerow([f"{number}.png", kind, f"p{patient}", number % 2, number % 50 or ""])
    return folder / f"{first}.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset that has grown once."""
    made = tmp_path_factory.mktemp("folds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(made))
        tpufeed.shard(write(made / "raw", 0, 200), made / "data", workers=1)
        tpufeed.append(write(made / "raw", 200, 100), made / "data", workers=1)
        yield made


@pytest.fixture(scope="module")
def dataset(folder):
    return tpufeed.open_dataset(folder / "data")


def columns_of(dataset):
    found = [(each["image/class/label"], each["patient"], each["side"]) for each in dataset.iter_examples("train")]
    texts = [[bytes(each.values[0]) if each.kind == "bytes" else each.values[0] for each in row] for row in found]
    return [np.array(column) for column in zip(*texts, strict=True)]


def folds_of(dataset, count=5, **how):
    """The fold of each sample. They are a partition, and `without_fold` is the rest of each."""
    found = np.full(dataset.split("train").records, -1)
    for number in range(count):
        samples = dataset.select(fold=(number, count), **how).samples("train")
        assert (found[samples] == -1).all()
        found[samples] = number
        rest = dataset.select(without_fold=(number, count), **how).samples("train")
        assert {*rest.tolist()} == {*range(len(found))} - {*samples.tolist()}
    assert (found >= 0).all()
    return found


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_folds_are_a_partition_that_splits_no_group(dataset, how):
    labels, patients, sides = columns_of(dataset)
    folds = folds_of(dataset, **how)
    group = how.get("group", ())
    if group:
        keys = zip(patients.tolist(), sides.tolist() if "side" in group else [0] * len(patients), folds, strict=True)
        assert len({*keys}) == (
            40 if "side" not in group else len({*zip(patients.tolist(), sides.tolist(), strict=True)})
        )
    elif how.get("stratify"):
        each = np.stack([np.bincount(labels[folds == number], minlength=3) for number in range(5)])
        assert (np.ptp(each, axis=0) <= 1).all()  # as even as whole samples are
        assert [folds[np.argmax(labels == number)] for number in range(3)] == [0, 2, 1]  # this never changes


@pytest.mark.parametrize("how", WAYS[:3], ids=str)
def test_a_sample_stays_in_its_fold_when_the_dataset_grows(folder, dataset, how):
    old = tpufeed.open_dataset(folder / "data", 1)
    before, after = folds_of(old, **how), folds_of(dataset, **how)
    assert before.tolist() == after[: len(before)].tolist()
    fold = dataset.select(fold=(1, 5), **how)
    assert fold.past_digests == (old.select(fold=(1, 5), **how).content_digest,)


@pytest.mark.parametrize("added", ["b", ""])
def test_a_sample_stays_in_its_fold_when_a_class_gets_its_first_sample(added, tmp_path):
    """Or when samples without a class come."""
    for name, labels in (("old", "acd" * 4), ("new", [added] * 4)):
        rows = [f"{name}{number}.png,{label}" for number, label in enumerate(labels)]
        for number in range(len(rows)):
            Image.new("RGB", (4, 4), (number, len(rows), 0)).save(tmp_path / f"{name}{number}.png")
        (tmp_path / f"{name}.csv").write_text("\n".join(["path,label", *rows]))
    tpufeed.shard(tmp_path / "old.csv", tmp_path / "d", classes=[*"abcd"], unlabelled="keep", workers=1)
    before = folds_of(tpufeed.open_dataset(tmp_path / "d"), 4, stratify=True)
    tpufeed.append(tmp_path / "new.csv", tmp_path / "d", workers=1)
    after = folds_of(tpufeed.open_dataset(tmp_path / "d"), 4, stratify=True)
    assert before.tolist() == after[:12].tolist()
    assert sorted(after[12:].tolist()) == [0, 1, 2, 3]


def test_a_split_without_samples_has_folds_without_samples(tmp_path):
    folder = write(tmp_path, 0, 12).parent
    tpufeed.shard(folder / "0.csv", tmp_path / "d", splits="train=0.999999,val=0.000001", workers=1)
    fold = tpufeed.open_dataset(tmp_path / "d").select(fold=(0, 2), stratify=True)
    assert [len(fold.samples(split)) for split in ("train", "val")] == [6, 0]


def test_both_together_are_the_folds_of_scikit_learn(dataset, caplog):
    labels, patients, _ = columns_of(dataset)
    _, patients = np.unique(patients, return_inverse=True)
    folds = folds_of(dataset, 4, stratify=True, group="patient")
    wanted = model_selection.StratifiedGroupKFold(4).split(patients, labels, patients)
    for number, (_, test) in enumerate(wanted):
        assert np.flatnonzero(folds == number).tolist() == test.tolist()
    (said,) = [record.getMessage() for record in caplog.records]  # once, however often it is asked for
    samples = ", ".join(map(str, np.bincount(folds)))
    assert f"folds of {samples} samples, with " in said
    assert said.endswith("values of patient")


@st.composite
def dealt(draw):
    count = draw(st.integers(2, 6))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    samples = draw(st.integers(4 * count, 200))
    groups, classes = (random.integers(0, draw(st.integers(least, 50)), samples) for least in (2 * count, 1))
    return count, *(np.unique(each, return_inverse=True)[1] for each in (groups, classes))


@pytest.mark.all
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(dealt())
def test_any_groups_are_dealt_as_by_scikit_learn(given):
    count, groups, classes = given
    if np.bincount(classes).max() < count or groups.max() + 1 < count:
        return
    found = stratify_groups(classes, groups, count)[groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = list(model_selection.StratifiedGroupKFold(count).split(groups, classes, groups))
    for number, (_, test) in enumerate(wanted):
        assert np.flatnonzero(found == number).tolist() == test.tolist()


def test_a_command_selects_as_the_function_does(dataset):
    view = dataset.select(**parse_selection(["fold=0/5", "group=patient,side", "stratify=yes"]))
    same = dataset.select(fold=(0, 5), group=["patient", "side"], stratify=True)
    assert view.content_digest == same.content_digest
    assert view.selection.text == "fold=0/5 stratified by patient,side"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"fold": (0, 41), "group": "patient"},
            r"split 'train': patient has 40 values, like 'p0', too few for 41 folds",
        ),
        (
            {"fold": (0, 200), "stratify": True},
            r"each class has fewer samples than the 200 folds, like 0 \(\d+ samples\)",
        ),
        ({"fold": (0, 5), "group": "visit"}, r"sample \d+ has \[\] in the column 'visit'. A group is one value"),
        ({"fold": (0, 5), "group": "person"}, "no column 'person'"),
        ({"group": "patient"}, r"Give fold=\(0, 5\)"),
        ({"classes": ["a"], "stratify": True}, r"Give fold=\(0, 5\)"),
    ],
)
def test_folds_that_cannot_be(dataset, how, message):
    with pytest.raises(OptionError, match=message):
        dataset.select(**how)


def test_classes_that_are_too_few_are_told(folder, caplog):
    few = tpufeed.open_dataset(folder / "data")
    few.select(fold=(0, 101), stratify=True)
    assert "classes have fewer samples than 101 folds, like" in caplog.text


def test_lists_of_labels_are_not_stratified(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "t.jsonl").write_text('{"path": "a.png", "label": ["x", "y"]}')
    tpufeed.shard(tmp_path / "t.jsonl", tmp_path / "d", workers=1)
    with pytest.raises(OptionError, match="several labels, so folds cannot be stratified"):
        tpufeed.open_dataset(tmp_path / "d").select(fold=(0, 2), stratify=True)
