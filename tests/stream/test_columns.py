"""What a batch of Loader holds, and how."""

import json
import shutil

import numpy as np
import pytest

import tpufeed
from tests.tfrecords import encode_features, encode_record
from tpufeed.errors import DatasetNotFoundError, OptionError, RecordError
from tpufeed.tfrecord.example import Feature


def first(url, split="val", **options):
    with tpufeed.Loader(url, split, **{"batch_size": 13, "shuffle": False, **options}) as loader:
        return next(iter(loader))


def test_columns_are_asked_for_by_short_names_and_by_their_own(dataset_url, stored, ops):
    names = ["sample", "filename", "image", "text", "height", "width", "channels", "format", "label", "image/height"]
    batch = dict(zip(names, first(dataset_url, columns=names, ops=ops), strict=True))
    expected = stored(dataset_url, "val")
    assert batch["sample"].tolist() == list(range(13))
    assert batch["filename"].tolist() == expected.texts("image/filename")[:13]
    assert all(type(value) is str for value in batch["filename"])
    assert batch["text"].tolist() == expected.texts("image/class/text")[:13]
    assert set(batch["format"]) == {"jpeg"}
    assert set(batch["channels"]) == {3}
    assert batch["label"].tolist() == expected.labels[:13].tolist()
    for name in ("height", "width"):
        assert batch[name].dtype == np.int64
        assert batch[name].tolist() == expected.column(f"image/{name}")[:13]
    assert set(batch["height"]) == {120, 160}
    assert batch["image/height"].tolist() == batch["height"].tolist()
    assert batch["image"].shape == (13, 64, 64, 3)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("processes", [0, 2])
def test_without_images_none_is_decoded_and_no_op_is_needed(processes, dataset_url, cache_url, stored, monkeypatch):
    for url in (dataset_url, cache_url):
        labels, samples = first(url, columns=["label", "sample"], processes=processes)
        np.testing.assert_array_equal(labels, stored(url, "val").labels[:13])
        assert samples.tolist() == list(range(13))
    monkeypatch.setattr("tpufeed.images.pipeline.decode", lambda *_: pytest.fail("an image was decoded"))
    with tpufeed.Loader(dataset_url, batch_size=13, columns=["label"], remainder="pad", processes=0) as loader:
        assert sum(int(mask.sum()) for _, mask in loader) == 70
    assert tpufeed.TFRecordImages(dataset_url, "val", columns=["label"])[3] == stored(dataset_url, "val").labels[3]


def test_an_unknown_column_is_an_error_that_names_the_known_ones(cache_url):
    with pytest.raises(OptionError, match="'lable'") as caught:
        tpufeed.Loader(cache_url, columns=["image", "lable"])
    for name in str(caught.value).partition(" has ")[2].split(", "):
        first(cache_url, columns=[name])  # each can be had


@pytest.fixture(scope="module")
def table(photo_folder, tmp_path_factory):
    """A dataset of a table whose columns are called as short names are; some have no value, or several."""
    folder = tmp_path_factory.mktemp("table")
    rows = [
        {"path": str(path), "class": path.parent.name, "height": n / 2, "width": n, "text": f"n {n}", "format": "x"}
        | {"channels": -n, "filename": f"{n}.tif", "ids": [n, n], "empty": None if n else 1.5, "note": "größe"}
        | {"one": [n], "mixed": [n, n] if n else n, "gaps": [n] * (n % 3 + 1) if n else None}
        for n, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))[::12])
    ]
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tpufeed.shard(folder / "table.jsonl", folder / "dataset", workers=1).url, rows


def test_a_table_s_own_columns_go_before_short_names(table, ops):
    url, rows = table
    names = ["image/filename", "height", "width", "text", "format", "channels", "filename", "note", "label"]
    names += ["image/height", "image/class/text"]
    batch = dict(zip(names, first(url, "train", columns=names, batch_size=8, ops=ops), strict=True))
    by_path = {row["path"]: row for row in rows}
    expected = [by_path[path] for path in batch["image/filename"]]
    for name in names[1:8]:
        assert batch[name].tolist() == [row[name] for row in expected]
    assert (batch["height"].dtype, batch["width"].dtype) == (np.float32, np.int64)
    assert batch["note"].dtype == object
    classes = tpufeed.open_dataset(url).manifest.class_names
    assert [classes[label] for label in batch["label"]] == [row["class"] for row in expected]
    assert batch["image/class/text"].tolist() == [row["class"] for row in expected]
    assert set(batch["image/height"]) <= {120, 160}
    with pytest.raises(OptionError, match="'x'") as raised:
        first(url, "train", columns=["x"])
    known = str(raised.value).partition(" has ")[2].split(", ")
    assert len(set(known)) == len(known)
    assert {"height", "image/height", "label", "ids"} < set(known)


@pytest.mark.parametrize("processes", [0, 1])
def test_lists_are_tensors_or_padded_with_their_lengths_beside(processes, table, ops):
    url, rows = table
    names = ["image/filename", "ids", "one", "mixed", "gaps", "image", "empty"]
    options = {"columns": names, "batch_size": 8, "ops": ops, "processes": processes, "fill": {"empty": -1, "gaps": 9}}
    files, ids, one, mixed, mixed_length, gaps, gaps_length, _, empty = first(url, "train", **options)
    by_path = {row["path"]: row for row in rows}
    expected = [by_path[path] for path in files]
    assert ids.tolist() == [row["ids"] for row in expected]
    assert one.tolist() == [row["one"] for row in expected]
    lists = [row["mixed"] if isinstance(row["mixed"], list) else [row["mixed"]] for row in expected]
    assert mixed.tolist() == [[*found, 0, 0][:2] for found in lists]
    assert mixed_length.tolist() == [len(found) for found in lists]
    assert gaps.tolist() == [((row["gaps"] or []) + [9, 9, 9])[:3] for row in expected]
    assert gaps_length.tolist() == [len(row["gaps"] or []) for row in expected]
    assert empty.tolist() == [-1.0 if row["empty"] is None else row["empty"] for row in expected]
    assert [each.dtype for each in (ids, mixed_length, empty)] == [np.int64, np.int32, np.float32]
    short = first(url, "train", columns=["gaps"], batch_size=8, pad={"gaps": 2}, truncate=["gaps"])
    assert short[0].tolist() == [((row["gaps"] or []) + [0, 0])[:2] for row in expected]
    assert max(short[1]) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": ["empty"]}, r"fill=\{'empty': 0\}"),
        ({"columns": ["note"], "pad": {"note": 3}}, "pad"),
        ({"columns": ["ids"], "pad": {"other": 3}}, "'other'"),
        ({"columns": ["ids"], "pad": {"ids": 0}}, "pad"),
        ({"columns": ["gaps"], "fill": {"gaps": 0.5}}, "'gaps'.*0.5"),
        ({"columns": ["empty"], "fill": {"empty": "x"}}, "'empty'.*'x'"),
        ({"columns": ["gaps"], "fill": {"gaps": 10**400}}, "'gaps'.*int64"),
        ({"columns": ["empty"], "fill": {"empty": 10**400}}, "'empty'.*float32"),
        ({"columns": ["gaps"], "truncate": "gaps"}, "truncate"),
        ({"columns": ["label"], "label_format": "multi_hot"}, "labels"),
        ({"columns": ["ids", "ids"]}, "'ids'"),
        ({"columns": ["label"], "min_visibility": 2}, "min_visibility"),
        ({"columns": ["label"], "views": []}, "views"),
        ({"columns": ["label"], "views": [3]}, "views"),
    ],
)
def test_what_cannot_be_batched_is_refused_at_once(options, said, table):
    with pytest.raises(OptionError, match=said):
        tpufeed.Loader(table[0], "train", **options)


def test_a_list_that_is_too_long_is_an_error_that_names_it(table):
    with pytest.raises(RecordError, match=r"record \d+.*gaps has 3"):
        first(table[0], "train", columns=["gaps"], batch_size=8, pad={"gaps": 2})


def test_a_dataset_that_does_not_say_how_long_its_lists_are(table, tmp_path, ops):
    shutil.copytree(table[0], tmp_path / "older")
    manifest = tmp_path / "older/manifest.json"
    document = json.loads(manifest.read_text())
    for feature in document["features"]:
        feature.pop("lengths", None)
    manifest.write_text(json.dumps(document))
    with pytest.raises(OptionError, match=r"pad=\{'ids': 64\}"):
        tpufeed.Loader(tmp_path / "older", "train", columns=["image", "ids"], ops=ops)
    ids, length = first(tmp_path / "older", "train", columns=["ids"], pad={"ids": 3}, batch_size=8)
    assert (ids.shape, set(length)) == ((8, 3), {2})
    digests = {tpufeed.open_dataset(url).manifest.content_digest for url in (table[0], tmp_path / "older")}
    assert len(digests) == 1


def test_adopted_records_with_missing_values_are_bad_records(photo_folder, tmp_path, ops):
    """They may be skipped; nobody can fill them in."""
    photos = sorted(photo_folder.glob("*/*.jpg"))[::12]
    examples = [
        {"image": Feature("bytes", [path.read_bytes()]), "mask": Feature("int64", [7])}
        | {"always": Feature("int64", [n]), "height": Feature("float", [n / 2])}
        | ({"seldom": Feature("int64", [n])} if n == 2 else {})
        for n, path in enumerate(photos)
    ]
    (tmp_path / "train-00000-of-00001.tfrecord").write_bytes(
        b"".join(map(encode_record, map(encode_features, examples)))
    )
    tpufeed.adopt(tmp_path, label_key="none")
    batch = first(tmp_path, "train", columns=["always", "height"], batch_size=8, ops=ops)
    assert [values.tolist() for values in batch] == [list(range(8)), [n / 2 for n in range(8)]]
    with pytest.raises(RecordError, match=r"record 0.*'seldom'"):
        first(tmp_path, "train", columns=["image", "seldom"], batch_size=8, ops=ops)
    batch = first(tmp_path, "train", columns=["mask"], batch_size=5, remainder="pad")
    assert [values.tolist() for values in batch] == [[7] * 5, [True] * 5]
    with tpufeed.Loader(tmp_path, "train", columns=["mask"], batch_size=5, remainder="pad") as loader:
        assert loader.stream.form.names == ("mask", "sample_mask")


def test_images_that_differ_in_size_need_an_op_that_fixes_it(dataset_url):
    with pytest.raises(OptionError, match="RandomResizedCrop"):
        tpufeed.Loader(dataset_url)
    with pytest.raises(OptionError, match="differ in size"):
        tpufeed.Loader(dataset_url, ops=[tpufeed.images.Resize(64)])


def test_what_is_not_there_is_named(cache_url, tmp_path):
    with pytest.raises(OptionError, match=r"'test'.*train, val"):
        tpufeed.Loader(cache_url, "test")
    with pytest.raises(DatasetNotFoundError, match="tpufeed shard"):
        tpufeed.Loader(tmp_path)
