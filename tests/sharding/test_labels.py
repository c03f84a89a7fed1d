"""Labels as they come: columns of 0 and 1, numbers, nested folders, none at all, and columns with new names."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import tpufeed
from tests.sharding.outputs import rejects_of, samples_of
from tests.sharding.previews import preview_shard
from tpufeed.cli.app import app
from tpufeed.errors import OptionError, SourceError
from tpufeed.images import CenterCrop, MixUp, RandomResizedCrop

CROP = {"ops": [CenterCrop(8)], "processes": 0, "shuffle": False}


@pytest.fixture
def table(small_jpegs, tmp_path):
    """`table(rows, name)`: a table of JSON lines, with an image for each row."""

    def make(rows, name="t.jsonl"):
        (tmp_path / "src").mkdir(exist_ok=True)
        rows = [{"path": f"{number}.jpg", **row} for number, row in enumerate(rows)]
        for number, row in enumerate(rows):
            (tmp_path / "src" / row["path"]).write_bytes(small_jpegs[number % len(small_jpegs)])
        (tmp_path / "src" / name).write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / "src" / name

    return make


@pytest.fixture
def folders(small_jpegs, tmp_path):
    """`folders(names)`: a folder with an image of each name."""

    def make(*names):
        for number, name in enumerate(names):
            path = tmp_path / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(small_jpegs[number % len(small_jpegs)])
        return tmp_path / "photos"

    return make


def shard(source, to, *flags):
    """Build through the command line, whose flags are then those of the docs."""
    done = CliRunner().invoke(app, ["shard", str(source), str(to), *flags, "--workers", "1"], env={"COLUMNS": "200"})
    assert not done.exit_code, done.stderr
    return tpufeed.open_dataset(to), done.stdout


def labels_of(url):
    return {path: values["image/class/label"] for path, values in samples_of(url).items()}


PLANTS = [{"rust": 1, "scab": 0}, {"rust": "1", "scab": 1.0}, {"rust": False, "scab": True}, {"rust": 0, "scab": None}]


def test_columns_of_0_and_1_are_several_labels(table, tmp_path):
    dataset, said = shard(table(PLANTS), tmp_path / "d", "--label", "scab,rust")
    assert dataset.class_names == ("scab", "rust")
    assert labels_of(tmp_path / "d") == {"0.jpg": [1], "1.jpg": [0, 1], "2.jpg": [0], "3.jpg": []}
    assert "labels: the columns scab, rust, with 0 or 1, several for a sample: 2 classes: scab 2, rust 2" in said
    options = {"batch_size": 4, "label_format": "multi_hot", "columns": "default", **CROP}
    with tpufeed.Loader(dataset, "train", **options) as loader:
        _, labels = next(iter(loader))
    assert sorted(labels.tolist()) == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_one_hot_columns_are_one_label(table, tmp_path):
    dataset, _ = shard(table([PLANTS[0], PLANTS[2]] * 2), tmp_path / "d", "--label", "scab,rust")
    assert [spec.type_text for spec in dataset.manifest.features if spec.name == "image/class/label"] == ["int64"]
    assert dataset.class_counts("train") == (2, 2)


def test_columns_of_0_and_1_without_labels_are_told(table, tmp_path):
    said = preview_shard(table([{**row, "age": 2, "note": 1} for row in PLANTS]), tmp_path / "d").listed.warnings
    assert any("--label rust,scab" in each for each in said)
    said = preview_shard(table([{"rust": number} for number in range(3)]), tmp_path / "d").listed.warnings
    assert not any("0 and 1" in each for each in said)


def test_a_flag_that_is_neither_0_nor_1_is_named(table, tmp_path):
    with pytest.raises(SourceError, match=r"t\.jsonl, row 2: the column 'scab' has -1\. .*leave the column out"):
        tpufeed.shard(table([{"rust": 0, "scab": 1}, {"rust": 0, "scab": -1}]), tmp_path / "d", label="rust,scab")
    with pytest.raises(OptionError, match=r"no column 'mould' for the label"):
        tpufeed.shard(table(PLANTS), tmp_path / "d", label="rust,mould")


@pytest.mark.parametrize("options", [{"label_type": "number"}, {"label_separator": " "}])
def test_columns_of_0_and_1_are_no_numbers_and_have_no_separator(table, tmp_path, options):
    with pytest.raises(OptionError, match="--label rust,scab names a column for each class"):
        tpufeed.shard(table(PLANTS), tmp_path / "d", label="rust,scab", **options)


def test_a_column_called_label_beside_columns_of_0_and_1_is_refused(table, tmp_path):
    with pytest.raises(SourceError, match="a column is called 'label', but 'rust,scab' is taken as the label"):
        tpufeed.shard(table([{**row, "label": "a"} for row in PLANTS]), tmp_path / "d", label="rust,scab")


def test_unlabelled_samples_are_not_kept_beside_lists(table, tmp_path):
    with pytest.raises(OptionError, match="one without labels would be of no class"):
        tpufeed.shard(table([{"label": ["a"]}, {"label": None}]), tmp_path / "d", unlabelled="keep")


def test_a_separator_that_no_label_has_is_named(table, tmp_path):
    with pytest.raises(OptionError, match=r"no label has the separator '\|', like 'a;b'"):
        tpufeed.shard(table([{"label": "a;b"}, {"label": "a"}]), tmp_path / "d", label_separator="|")


def test_a_number_is_float32_without_classes(table, tmp_path):
    rows = [{"age": 20 + number / 4, "note": number} for number in range(7)] + [{"age": "old"}, {"age": None}]
    flags = ("--label", "age", "--label-type", "number", "--max-rejects", "2")
    dataset, said = shard(table(rows), tmp_path / "d", *flags)
    assert (dataset.class_names, dataset.manifest.labelled) == ((), False)
    assert "labels: the column age, as numbers (float32)" in said
    found = {path: values["label"] for path, values in samples_of(tmp_path / "d").items()}
    assert found == {f"{number}.jpg": [20 + number / 4] for number in range(7)}
    reasons = rejects_of(tmp_path / "d")
    assert reasons["7.jpg"] == ("bad_column", "the column 'label' is 'old'. It was declared as float32")
    assert reasons["8.jpg"][0] == "bad_label"
    with tpufeed.Loader(dataset, "train", batch_size=7, columns="default", **CROP) as loader:
        _, labels = next(iter(loader))
    assert (labels.dtype, sorted(labels.tolist())) == (np.float32, [20 + number / 4 for number in range(7)])
    grown = tpufeed.append(table([*rows, {"age": 3}]), tmp_path / "d", workers=1)
    assert samples_of(grown.url)["9.jpg"]["label"] == [3.0]


def test_folders_of_numbers(folders, tmp_path):
    source = folders("10/a.jpg", "9/b.jpg", "1/c.jpg")
    dataset, _ = shard(source, tmp_path / "d")
    assert dataset.class_names == ("1", "9", "10")
    shard(source, tmp_path / "e", "--label-type", "number")
    assert samples_of(tmp_path / "e")["9/b.jpg"]["label"] == [9.0]


def test_names_of_classes_are_no_numbers(folders, tmp_path):
    with pytest.raises(OptionError, match=r"the class 'cat', and --label-type number is for numbers\. Leave it out"):
        tpufeed.shard(folders("1/a.jpg", "cat/b.jpg"), tmp_path / "d", label_type="number")


@pytest.mark.parametrize(("level", "names"), [(1, ("x", "y")), (2, ("a", "b")), (-1, ("a", "b")), (-2, ("x", "y"))])
def test_one_of_nested_folders_is_the_class(folders, tmp_path, level, names):
    dataset, said = shard(folders("x/a/1.jpg", "x/b/2.jpg", "y/a/3.jpg"), tmp_path / "d", "--class-level", str(level))
    assert dataset.class_names == names
    assert {1: "the first", 2: "the second", -1: "the innermost", -2: "the -2."}[level] in said


def test_folders_of_splits_do_not_count(folders, tmp_path):
    source = folders("train/x/a/1.jpg", "train/x/b/2.jpg", "val/y/a/3.jpg", "val/y/b/4.jpg")
    dataset, said = shard(source, tmp_path / "d", "--class-level", "2")
    assert (dataset.class_names, set(dataset.manifest.splits)) == (("a", "b"), {"train", "val"})
    assert "the third folders" in said


def test_an_image_that_lies_too_high_is_named(folders, tmp_path):
    with pytest.raises(SourceError, match=r"photos: y/2\.jpg is in 1 folder, so it has none of level 2"):
        tpufeed.shard(folders("x/a/1.jpg", "y/2.jpg"), tmp_path / "d", class_level=2)


def test_a_table_has_no_class_folders(table, tmp_path):
    with pytest.raises(OptionError, match="class_level is for class folders"):
        tpufeed.shard(table([{"label": 1}]), tmp_path / "d", class_level=2)


@pytest.mark.parametrize("none", [None, -1, "-1", "nan"])
def test_unlabelled_rows_beside_labelled_ones(table, tmp_path, none):
    label = 2 if none in (-1, "-1") else "cat"
    rows = [{"label": label}, {"label": none}, {"label": label}, {"label": none}]
    tpufeed.shard(table(rows), tmp_path / "e", max_rejects=2, workers=1)
    assert {path: reason for path, (reason, _) in rejects_of(tmp_path / "e").items()} == {
        "1.jpg": "bad_label",
        "3.jpg": "bad_label",
    }
    dataset, said = shard(table(rows), tmp_path / "d", "--unlabelled", "keep")
    number = dataset.class_names.index(str(label))
    assert labels_of(tmp_path / "d") == {"0.jpg": [number], "1.jpg": [-1], "2.jpg": [number], "3.jpg": [-1]}
    assert samples_of(tmp_path / "d")["1.jpg"]["image/class/text"] == [b""]
    assert tpufeed.verify(tmp_path / "d", "all").records == 4  # nothing is damaged
    assert (dataset.class_counts("train")[number], sum(dataset.class_counts("train"))) == (2, 2)
    assert ("none for some (-1)" in said) == (none is None)
    unlabelled = dataset.select(where=lambda columns: columns["label"] < 0, columns=["label"])
    assert (unlabelled.split("train").records, sum(unlabelled.class_counts("train"))) == (2, 0)
    assert dataset.select(classes=[str(label)]).split("train").records == 2
    with tpufeed.Loader(unlabelled, "train", batch_size=2, **CROP) as loader:
        assert next(iter(loader))[1].tolist() == [-1, -1]


def test_images_beside_class_folders_are_unlabelled(folders, tmp_path):
    source = folders("cat/1.jpg", "dog/2.jpg", "3.jpg")
    with pytest.raises(SourceError, match="--unlabelled keep"):
        tpufeed.shard(source, tmp_path / "d")
    dataset, _ = shard(source, tmp_path / "d", "--unlabelled", "keep")
    assert dataset.class_names == ("cat", "dog")
    assert labels_of(tmp_path / "d") == {"cat/1.jpg": [0], "dog/2.jpg": [1], "3.jpg": [-1]}


def test_a_labelled_dataset_grows_by_unlabelled_images_alone(folders, table, tmp_path):
    shard(folders("cat/1.jpg", "dog/2.jpg"), tmp_path / "d", "--unlabelled", "keep")
    (tmp_path / "photos").rename(tmp_path / "older")
    assert tpufeed.append(folders("3.jpg", "4.jpg"), tmp_path / "d", workers=1).added == 2
    assert labels_of(tmp_path / "d") == {"cat/1.jpg": [0], "dog/2.jpg": [1], "3.jpg": [-1], "4.jpg": [-1]}
    rows = [{"kind": "a"}, {"kind": None}]
    shard(table(rows), tmp_path / "e", "--unlabelled", "keep", "--label", "kind")
    tpufeed.append(table([{"kind": None}] * 3), tmp_path / "e", workers=1)
    assert labels_of(tmp_path / "e") == {"0.jpg": [0], "1.jpg": [-1], "2.jpg": [-1]}


def test_a_number_that_is_missing_is_nan(table, tmp_path):
    shard(table([{"label": 1.5}, {"label": None}]), tmp_path / "d", "--unlabelled", "keep", "--label-type", "number")
    found = samples_of(tmp_path / "d")
    assert found["0.jpg"]["label"] == [1.5]
    assert np.isnan(found["1.jpg"]["label"][0])


def test_numbers_are_no_classes(table, tmp_path):
    tpufeed.shard(table([{"label": number / 2} for number in range(4)]), tmp_path / "d", label_type="number", workers=1)
    with pytest.raises(OptionError, match="numbers as labels, and no classes"):
        tpufeed.open_dataset(tmp_path / "d").select(fold=(0, 2), stratify=True)
    with pytest.raises(OptionError, match="multi_hot"):
        tpufeed.Loader(tmp_path / "d", "train", batch_size=2, label_format="multi_hot", **CROP)
    with pytest.raises(OptionError, match="one class per sample"):
        tpufeed.Loader(tmp_path / "d", "train", batch_size=2, device_ops=[RandomResizedCrop(8), MixUp(0.2)])


def test_groups_of_a_column_with_a_new_name(table, tmp_path):
    rows = [{"patient": number // 4} for number in range(40)]
    options = {"rename": {"patient": "who"}, "split_with": "patient", "splits": "train=0.5,val=0.5"}
    made = tpufeed.shard(table(rows), tmp_path / "d", workers=1, **options)
    assert made.images == 40


def test_columns_get_new_names(table, tmp_path):
    rows = [{"objects": {"bbox": [[1, 2, 5, 6]], "kind": ["a"]}, "years": number} for number in range(3)]
    flags = ("--boxes", "objects.bbox", "--label", "objects.kind", "--column", "years:float32")
    dataset, said = shard(
        table(rows), tmp_path / "d", *flags, "--rename", "objects.bbox=boxes", "--rename", "years=age"
    )
    types = {spec.name: spec.type_text for spec in dataset.manifest.features}
    assert (types["boxes"], types["age"]) == ("float32[1, 4] boxes", "float32")
    assert "boxes: boxes, as left, top, right, bottom in pixels" in said
    grown = tpufeed.append(table([*rows, rows[0]]), tmp_path / "d", workers=1)
    assert grown.added == 1
    assert samples_of(grown.url)["3.jpg"]["age"] == [0.0]


def test_new_names_that_cannot_be(table, tmp_path):
    source = table([{"label": "a", "b": 1, "c": 2}])
    with pytest.raises(OptionError, match=r"0\.jpg has columns 'b' and 'c': --rename b=c would join them"):
        tpufeed.shard(source, tmp_path / "d", rename={"b": "c"})
    with pytest.raises(OptionError, match=r"--rename x: no sample has such a column\. The further columns are b, c"):
        tpufeed.shard(source, tmp_path / "d", rename={"x": "y"})
    for name in ("image", "sample", "mask", "sample_mask", "source", "window"):
        with pytest.raises(OptionError, match=f"the name '{name}', which loaders use"):
            tpufeed.shard(source, tmp_path / "d", rename={"b": name})


def test_a_column_of_a_name_that_loaders_use_is_refused(table, tmp_path):
    for name in ("sample_mask", "window"):
        with pytest.raises(SourceError, match=f"a column is called '{name}', .*--rename {name}={name}_column"):
            tpufeed.shard(table([{"label": "a", name: 1}]), tmp_path / "d")


def test_a_new_name_frees_one_that_loaders_use(table, tmp_path):
    dataset, _ = shard(table([{"kind": "a", "sample": 7}]), tmp_path / "d", "--label", "kind", "--rename", "sample=id")
    assert [spec.name for spec in dataset.manifest.features][-1] == "id"
