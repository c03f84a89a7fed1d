"""Views: which samples they keep, by all ways to select, what they are called, and what is refused."""

import csv
import json
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tpufeed
from tests.tfrecords import encode_example, write_file
from tpufeed.dataset.folds import _FOLDS, _KEY
from tpufeed.dataset.order import random_words
from tpufeed.dataset.selection import Chosen, parse_selection
from tpufeed.errors import OptionError
from tpufeed.storage.memory import MemoryStore

NAMES = ["ant", "bee", "cow", "dog"]


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory):
    """Labels are kept here, and not in the home of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("xdg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def make_images(folder, first, count):
    """Classes of 16, 8, 4 and 2 in 30 samples."""
    for number in range(first, first + count):
        path = folder / NAMES[np.searchsorted([16, 24, 28, 30], number % 30, side="right")] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 8 + number % 3, 3), number, np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset with two splits that has grown once."""
    made = tmp_path_factory.mktemp("views")
    tpufeed.shard(make_images(made / "raw", 0, 90), made / "data", shards=3, splits="train=0.7,val=0.3", workers=1)
    tpufeed.append(make_images(made / "more", 90, 60), made / "data", workers=1)
    return made


@pytest.fixture(scope="module")
def dataset(folder):
    return tpufeed.open_dataset(folder / "data")


@pytest.fixture(scope="module")
def stored(dataset):
    """`(labels, filenames)` of the split train, by a parse of every record."""
    found = list(dataset.iter_examples("train"))
    names = [str(each["image/filename"].values[0], "utf-8") for each in found]
    return np.array([each["image/class/label"].values[0] for each in found]), np.array(names)


def ids_of(view, split="train"):
    return view.samples(split).tolist()


# Chosen


@st.composite
def subsets(draw):
    records = draw(st.sampled_from([0, 1, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1000, 5000]))
    share = draw(st.sampled_from([0.0, 0.001, 0.01, 0.02, 0.5, 0.99, 1.0]))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    kept = random.random(records) < share
    for edge in draw(st.lists(st.integers(0, max(0, records - 1)), max_size=4)) if records else []:
        kept[edge] = True
    return kept


@pytest.mark.all
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(subsets())
def test_the_chosen_are_those_of_a_plain_list(kept):
    expected = np.flatnonzero(kept)
    for chosen in (first := Chosen(expected, len(kept)), pickle.loads(pickle.dumps(first))):
        assert len(chosen) == len(expected)
        assert chosen.samples().dtype == np.int64
        assert chosen.samples().tolist() == expected.tolist()
        numbers = np.random.default_rng(0).permutation(len(expected))
        assert chosen.samples(numbers).tolist() == expected[numbers].tolist()
        places = np.arange(len(kept) + 1)
        assert chosen.count_before(places).tolist() == np.searchsorted(expected, places).tolist()


def test_a_bit_per_sample_at_most():
    rng = np.random.default_rng(0)
    for share in (0.001, 0.01, 0.1, 0.9):
        chosen = Chosen(np.flatnonzero(rng.random(100_000) < share), 100_000)
        assert len(pickle.dumps(chosen)) < 100_000 / 8 + 100_000 / 256 * 8 + 1000


# Folds


def test_folds_are_a_partition_and_stay_when_the_dataset_grows(folder, dataset):
    folds = [dataset.select(fold=(number, 5)) for number in range(5)]
    for split in ("train", "val"):
        records = dataset.split(split).records
        assert sorted(each for fold in folds for each in ids_of(fold, split)) == list(range(records))
        without = set(ids_of(dataset.select(without_fold=(2, 5)), split))
        assert without == set(range(records)) - set(ids_of(folds[2], split))
        for fold in folds:
            left_out = sorted(set(range(records)) - set(ids_of(fold, split)))
            with pytest.raises(OptionError, match="empty"):
                fold.select(samples=left_out, split=split)
    old = tpufeed.open_dataset(folder / "data", 1)
    for number, fold in enumerate(folds):
        before = old.select(fold=(number, 5))
        assert ids_of(fold)[: len(ids_of(before))] == ids_of(before)
        assert fold.past_digests == (before.content_digest,)
        assert fold.records_of(before.content_digest) == {name: len(ids_of(before, name)) for name in ("train", "val")}


def test_folds_are_of_about_equal_size():
    counts = np.bincount((random_words(100_000, _KEY, _FOLDS) % np.uint64(7)).astype(int), minlength=7)
    assert np.abs(counts - 100_000 / 7).max() < 5 * (100_000 / 7) ** 0.5


# Classes


def test_classes_by_name_or_id_in_the_given_order(dataset, stored):
    labels, _ = stored
    for classes in (["dog", "bee"], [3, 1], np.array([3, 1]), ("3", "bee")):
        view = dataset.select(classes=classes)
        assert ids_of(view) == np.flatnonzero(np.isin(labels, [3, 1])).tolist()
        assert view.class_names == ("dog", "bee")
        assert view.class_counts("train") == (np.sum(labels == 3), np.sum(labels == 1))
        assert sum(
            view.class_weights("train")[label] * count for label, count in enumerate(view.class_counts("train"))
        ) == (pytest.approx(len(ids_of(view))))
    kept = dataset.select(classes=["dog", "bee"], keep_ids=True)
    assert kept.class_names == tuple(NAMES)
    assert kept.class_counts("train") == (0, np.sum(labels == 1), 0, np.sum(labels == 3))
    assert kept.content_digest != dataset.select(classes=["dog", "bee"]).content_digest


def test_lists_of_labels_keep_their_ids(tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    rows = [["a.png", tags] for tags in ("p q", "q", "", "r p p", "s")]
    for number, row in enumerate(rows):
        row[0] = f"{number}.png"
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / row[0])
    lines = [json.dumps({"image": name, "tags": sorted(set(tags.split()))}) for name, tags in rows]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    tpufeed.shard(tmp_path / "t.jsonl", tmp_path / "data", label="tags", workers=1)
    dataset = tpufeed.open_dataset(tmp_path / "data")
    view = dataset.select(classes=["p", "s"])
    found = {str(each["image/filename"].values[0], "utf-8") for each in view.iter_examples("train")}
    assert found == {"0.png", "3.png", "4.png"}
    assert view.class_names == dataset.class_names
    counts = dict(zip(view.class_names, view.class_counts("train"), strict=True))
    assert counts == {"p": 2, "q": 1, "r": 1, "s": 1}
    with pytest.raises(OptionError, match="several labels"):
        dataset.select(classes=["p"], keep_ids=False)
    with pytest.raises(OptionError, match="several labels"):
        tpufeed.Mixture.by_class(dataset)
    lengths = dataset.select(
        where=lambda found: np.array([len(each) == 1 for each in found["label"]]), columns=["label"]
    )
    assert lengths.split("train").records == 2


# Samples


def test_samples_by_array_list_and_files(dataset, stored, tmp_path):
    _, names = stored
    wanted = [40, 3, 17]
    np.save(tmp_path / "ids.npy", np.array(wanted, np.uint16))
    np.save(tmp_path / "names.NPY", names[wanted])
    (tmp_path / "ids 100%.txt").write_text("\n40\n 3 \n\n17\n")
    (tmp_path / "names.txt").write_text("\ufeff" + "\r\n".join(names[wanted]), encoding="utf-8")
    for name, header, rows in (
        ("ids.csv", ["score", "sample"], [[1, each] for each in wanted]),
        ("names.csv", ["Filename", "x"], [[names[each], ""] for each in wanted]),
        ("keep.csv", ["sample", "keep"], [[each, each in wanted] for each in range(60)]),
    ):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    store = MemoryStore("memory://views/lists")
    store.put("ids.txt", b"40\n3\n17")
    files = sorted(path for path in tmp_path.iterdir())
    ways = [wanted, np.array(wanted), tuple(wanted), list(map(str, wanted)), names[wanted], list(names[wanted])]
    for way in [*ways, *files, *map(str, files), f"{store.url}/ids.txt"]:
        view = dataset.select(samples=way, split="train")
        assert ids_of(view) == sorted(wanted)
        assert view.split("val") == dataset.split("val")
        assert view.content_digest == dataset.select(samples=wanted, split="train").content_digest
        if "keep" not in str(way):
            others = dataset.select(drop=way, split="train")
            assert ids_of(others) == [each for each in ids_of(dataset) if each not in wanted]


def test_names_of_files_that_are_lists(dataset, tmp_path):
    """As other tools may write them: the first one counts."""
    photo = bytes(next(dataset.iter_examples("train"))["image/encoded"].values[0])
    names = [[b"a.png", b"b.png"], [b"c.png"], []]
    write_file(
        tmp_path / "train.tfrecord",
        [encode_example({"image": photo, "label": 0, "filename": each}) for each in names],
    )
    tpufeed.adopt(tmp_path)
    adopted = tpufeed.open_dataset(tmp_path)
    assert ids_of(adopted.select(samples=["c.png", "a.png"], split="train")) == [0, 1]
    assert ids_of(adopted.select(drop=["a.png"], split="train")) == [1, 2]


def test_a_function_of_columns(dataset, stored):
    labels, names = stored
    seen = []

    def wide_bees(found):
        seen.append({name: (values.dtype.kind, values.shape) for name, values in found.items()})
        return (found["label"] == 1) & (found["width"] > 8) & (found["sample"] % 2 == 0)

    view = dataset.select(where=wide_bees, columns=["label", "width", "sample", "text"])
    widths = np.array([8 + int(name[-7:-4]) % 3 for name in names])
    assert ids_of(view) == np.flatnonzero((labels == 1) & (widths > 8) & (np.arange(len(labels)) % 2 == 0)).tolist()
    assert len(seen) == 2, "once for each split"
    assert seen[0] == {
        name: (kind, (len(labels),)) for name, kind in zip(("sample", "label", "width", "text"), "iiiU", strict=True)
    }
    assert ids_of(dataset.select(where=lambda found: found["sample"] < 5, columns=["sample"])) == [0, 1, 2, 3, 4]


def test_views_of_views_and_several_ways_are_joined_by_and(dataset, stored):
    labels, _ = stored
    joined = dataset.select(classes=["bee", "ant"], without_fold=(0, 3), drop=[1, 2, 3], split="train")
    steps = dataset.select(classes=["bee", "ant"], split="train")
    steps = steps.select(without_fold=(0, 3), split="train").select(drop=[1, 2, 3], split="train")
    assert ids_of(joined) == ids_of(steps)
    assert joined.content_digest == steps.content_digest
    again = steps.select(classes=["ant"], split="train")
    assert again.class_names == ("ant",)
    assert set(labels[again.samples("train")]) == {0}
    assert ids_of(steps.select(classes=[1], split="train")) == ids_of(again), "ids are those of the view"


def test_pickles_are_the_same_view_and_share_one_dataset(dataset):
    views = [dataset.select(classes=[name]) for name in NAMES]
    again = pickle.loads(pickle.dumps(views))
    assert [view.content_digest for view in again] == [view.content_digest for view in views]
    assert {id(view.manifest) for view in again} == {id(again[0].manifest)}
    assert [ids_of(view) for view in again] == [ids_of(view) for view in views]


# The labels that are kept


def test_labels_are_read_once_per_machine(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    view = tpufeed.open_dataset(folder / "data").select(classes=["bee"])
    files = sorted((tmp_path / "kept").rglob("*"))
    assert [file.suffix for file in files if file.is_file()] == [".npz", ".npz"]

    def no_reader(*_, **__):
        raise AssertionError("records were read again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpufeed.dataset.reader.Dataset.reader", no_reader)
        assert tpufeed.open_dataset(folder / "data").select(classes=["bee"]).content_digest == view.content_digest
    good = files[-1].read_bytes()
    places = np.random.default_rng(0).integers(0, len(good), 60).tolist()
    for damaged in [b"", b"PK", *(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :] for at in places), good[:-9]]:
        files[-1].write_bytes(damaged)
        assert tpufeed.open_dataset(folder / "data").select(classes=["bee"]).content_digest == view.content_digest
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").write_text("a file instead of a folder")
    assert tpufeed.open_dataset(folder / "data").select(classes=["bee"]).content_digest == view.content_digest


# Bad input


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({}, "needs"),
        ({"classes": []}, "classes is a list"),
        ({"classes": "bee"}, "classes is a list"),
        ({"classes": {"bee"}}, "classes is a list"),
        ({"classes": 1}, "classes is a list"),
        ({"classes": ["bees"]}, "'bees'; did you mean bee"),
        ({"classes": [4]}, "no class 4; it has 4"),
        ({"classes": [-1]}, "no class -1"),
        ({"classes": [True]}, "no class True"),
        ({"classes": ["bee", 1]}, "twice"),
        ({"classes": ["9" * 5000]}, "no class '999"),
        ({"samples": [1]}, "give split='train'"),
        ({"samples": [1], "split": "test"}, "no split 'test'. It has train, val"),
        ({"samples": [], "split": "train"}, "whole numbers"),
        ({"samples": [1.5], "split": "train"}, "float64"),
        ({"samples": [[1]], "split": "train"}, "shape"),
        ({"samples": [[1, 2], [3]], "split": "train"}, "shape"),
        ({"samples": np.ones(9, bool), "split": "train"}, "bool"),
        ({"samples": [5, 7, 5], "split": "train"}, "5 twice, in place 0 and place 2"),
        ({"samples": [5, 9999], "split": "train"}, "no sample 9999"),
        ({"samples": [-1], "split": "train"}, "no sample -1"),
        ({"drop": ["none.png"], "split": "train"}, "'none.png'"),
        ({"samples": ["5", "x"], "split": "train"}, "'x' is no id"),
        ({"samples": "no/such.txt", "split": "train"}, "no/such.txt"),
        ({"fold": (5, 5)}, "0 to 4"),
        ({"fold": (0, 1)}, r"\(0, 1\)"),
        ({"without_fold": 5}, "without_fold"),
        ({"fold": (0.0, 5)}, "fold"),
        ({"fold": (0, 10**30)}, r"fold is \(number, folds\)"),
        ({"fold": (0, 5), "group": 3}, "no column '3'"),
        ({"fold": (0, 5), "group": [["text"]]}, "no column"),
        ({"where": lambda found: found["label"], "columns": ["label"]}, "int64"),
        ({"where": lambda _: True, "columns": ["label"]}, "one bool each"),
        ({"where": lambda found: found["label"] > 9, "columns": ["label"]}, "empty"),
        ({"where": lambda found: found["label"] > 9}, "columns"),
        ({"where": 5, "columns": ["label"]}, "function"),
        ({"where": lambda found: found["depth"] > 9, "columns": ["depth"]}, "no column 'depth'. It has label"),
        ({"where": lambda found: found["image"] > 9, "columns": ["image"]}, "no column 'image'"),
        ({"columns": ["label"]}, "where"),
    ],
)
def test_what_cannot_be_selected_is_named(dataset, ways, message):
    with pytest.raises(OptionError, match=message):
        dataset.select(**ways)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", "sample,keep\n1,1\n2,maybe\n", "a.csv, line 3: keep is 'maybe'"),
        ("a.csv", "a,b\n1,2\n", r"\(a, b\)"),
        ("a.csv", "id,why\n3,blurred\n", r"\(id, why\)"),  # of the user's own table
        ("a.csv", "sample\n1,2\n", "a.csv, line 2: 2 values"),
        ("a.csv", "", "a.csv"),
        ("a.csv", "sample\n1\n\n1\n", "1 twice, in line 2 and line 4"),
        ("a.csv", "sample\n1\n9999\n", "a.csv, line 3: there is no sample 9999"),
        ("a.csv", "filename\n00001\n", "a.csv, line 2: 1 of its names .*'00001'"),
        ("a.txt", "1\n\nx\n", "a.txt, line 3: 'x'"),
        ("a.txt", "1\n99999999999999999999\n", "a.txt, line 2: '99999999999999999999'"),
        ("a.txt", b"\xff\xfe1", "UTF-8"),
        ("a.npy", b"", "a.npy is not an array"),
        ("a.npy", b"PK\x03\x04 and no more", "a.npy is not an array"),
        ("a.npy", b"1\n2\n", "a.npy is not an array"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(dataset, tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(OptionError, match=message):
        dataset.select(samples=tmp_path / name, split="train")


def test_a_table_of_what_to_keep_is_not_one_of_what_to_drop(dataset, tmp_path):
    (tmp_path / "a.csv").write_text("sample,keep\n1,1\n2,0\n")
    with pytest.raises(OptionError, match="samples instead of drop"):
        dataset.select(drop=tmp_path / "a.csv", split="train")


def test_renumbered_classes_are_those_of_all_splits(dataset):
    view = dataset.select(classes=["bee", "cow"], split="train")
    for split in ("train", "val"):
        assert view.samples(split).tolist() == dataset.select(classes=["bee", "cow"]).samples(split).tolist()
    kept = dataset.select(classes=["bee", "cow"], split="train", keep_ids=True)
    assert kept.samples("val").tolist() == dataset.samples("val").tolist()
    again = view.select(classes=["bee"], split="train", keep_ids=True)
    assert again.class_counts("train")[1] == 0
    assert again.samples("val").tolist() == view.samples("val").tolist()


@pytest.mark.parametrize(
    "texts", [["classes"], ["classes="], ["class=a"], ["fold=0/5", "fold=1/5"], ["stratify=maybe"]]
)
def test_texts_that_select_nothing_are_refused(texts):
    with pytest.raises(OptionError, match="--select"):
        parse_selection(texts)


def test_texts_select_as_arguments_do(dataset):
    with pytest.raises(OptionError, match="fold is"):
        dataset.select(**parse_selection(["fold=0/" + "9" * 5000]))
    given = parse_selection(["classes=bee, cow", "ids=kept", "without_fold=0/3"])
    view = dataset.select(classes=["bee", "cow"], keep_ids=True, without_fold=(0, 3))
    assert dataset.select(**given).content_digest == view.content_digest
