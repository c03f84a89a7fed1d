"""Columns of lists: they keep their places, from each kind of source, and a dataset that grows takes all lengths."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import tpufeed
from tests.frameworks import lazy
from tests.sharding.outputs import rejects_of, samples_of
from tests.sharding.written import embed, encode_tar, hub_table, save_to_disk
from tpufeed.errors import OptionError, TooManyRejectsError
from tpufeed.images import Custom, Resize

tf = lazy("tensorflow")

ROWS = 24
OPS = [Resize((8, 8))]


@pytest.fixture
def photos(tmp_path):
    """PNGs of one colour each."""
    (tmp_path / "photos").mkdir()
    for number in range(ROWS):
        Image.fromarray(np.full((12, 12, 3), number, np.uint8)).save(tmp_path / f"photos/{number:02}.png")
    return sorted((tmp_path / "photos").iterdir())


@pytest.fixture
def write_table(photos, tmp_path):
    """`write_table(name, numbers, make)`: JSON lines with the row `make(number)` beside each of these images."""

    def write(name, numbers, make):
        lines = [{"path": str(photos[number]), "label": "ab"[number % 2], **make(number)} for number in numbers]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / f"{name}.jsonl"

    return write


def batch_of(url, columns, make_loader=tpufeed.Loader, **options):
    """All samples of a dataset as arrays, in the order of their values."""
    options = {"batch_size": ROWS, "ops": OPS, "shuffle": False, "processes": 0, **options}
    with make_loader(url, columns=columns, **options) as loader:
        (batch,) = loader
        return [np.asarray(each) for each in batch]


# The value of row n of each column; a dataset of the first 12 rows grows by the others.
GROWING = [
    lambda n: ["a", "b"][: n % 3],
    lambda n: [[1], [2, n]],
    lambda n: [n] * (n % 2),
    lambda n: [n],
    lambda n: ["a", str(n)] if n % 4 == 1 else None,
    lambda n: [{"k": n}],
    lambda n: [n] * (n % 3),
    lambda n: [[n, 1], [2, 3]],
    lambda n: [n, 1, 2] if n < 12 else [n] * (n % 3),
    lambda n: n if n < 12 else [n, 1],
    lambda n: [n, 1] if n < 12 else n,
    lambda n: "text" if n < 12 else ["more", "text"],
    lambda n: n if n < 12 or n % 2 else None,
    lambda n: n if n > 12 else None,
    lambda n: [] if n < 12 else [n + 0.5] * (n % 3),
    lambda n: [n] * (n % 3) if n < 12 else [],
    lambda n: None if n < 12 else [[n, 1], [2, n]],
    lambda n: [[n, 1]] if n < 12 else None,
    lambda n: [n + 0.5, None],
    lambda _: ["a", "", None],
]


def test_a_dataset_that_has_grown_is_as_one_that_was_built_at_once(write_table, tmp_path):
    names = [f"x{place}" for place in range(len(GROWING))]

    def row(number):
        return {name: make(number) for name, make in zip(names, GROWING, strict=True)}

    whole = tpufeed.shard(write_table("whole", range(ROWS), row), tmp_path / "whole", workers=1).manifest
    tpufeed.shard(write_table("first", range(12), row), tmp_path / "grown", workers=1)
    grown = tpufeed.append(write_table("second", range(12, ROWS), row), tmp_path / "grown", workers=1).manifest
    assert grown.features == whole.features
    tpufeed.verify(tmp_path / "grown")
    one, other = samples_of(tmp_path / "whole"), samples_of(tmp_path / "grown")
    assert one.keys() == other.keys()
    for sample in one:
        for name in names:
            assert str(other[sample][name]) == str(one[sample][name]), (sample, name)
    batched = [spec.name for spec in whole.features if spec.name in names and spec.dtype not in ("string", "bytes")]
    assert len(batched) > 10
    options = {"columns": ["filename", *batched], "fill": dict.fromkeys(batched, -1)}
    ours, theirs = batch_of(tmp_path / "grown", **options), batch_of(tmp_path / "whole", **options)
    for mine, expected in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(mine[np.argsort(ours[0])], expected[np.argsort(theirs[0])])


@pytest.mark.uses("tensorflow", "torch")
def test_all_feeds_give_old_and_new_rows_one_shape(write_table, tmp_path):
    def row(number):
        return {"x": [number, 1, 2] if number < 12 else [number] * (number % 3)}

    tpufeed.shard(write_table("first", range(12), row), tmp_path / "d", workers=1)
    tpufeed.cache.warmup(tmp_path / "d", tmp_path / "cache", size=8, workers=1)
    tpufeed.append(write_table("second", range(12, ROWS), row), tmp_path / "d", workers=1)
    options = {"columns": ["x"], "batch_size": ROWS, "shuffle": False}
    expected = batch_of(tmp_path / "d", ["x"])
    assert [each.shape for each in expected] == [(ROWS, 3), (ROWS,)]
    with tpufeed.Loader(str(tmp_path / "d"), ops=OPS, processes=0, **options).to_torch() as loader:
        (ours,) = loader
    (theirs,) = tpufeed.Loader(str(tmp_path / "d"), ops=OPS, **options).to_tf()
    tpufeed.cache.warmup(tmp_path / "d", tmp_path / "cache", size=8, workers=1)
    cached = batch_of(tmp_path / "cache", ["x"], ops=None)
    for batch in (ours, theirs, cached):
        for found, wanted in zip(batch, expected, strict=True):
            assert np.asarray(found).dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_values_for_each_box_grow_with_images_of_one_box(write_table, tmp_path):
    def row(number):
        count = 1 if number < 12 else 2
        return {"label": ["a"] * count, "boxes": [[1, 1, 5, 5]] * count, "hidden": [number % 2] * count}

    options = {"boxes": tpufeed.Boxes(column="boxes", columns=["hidden"])}
    tpufeed.shard(write_table("first", range(12), row), tmp_path / "d", workers=1, **options)
    result = tpufeed.append(write_table("second", range(12, ROWS), row), tmp_path / "d", workers=1)
    assert {spec.name: spec.lengths for spec in result.manifest.features if spec.name in ("boxes", "hidden")} == {
        "boxes": (1, 2),
        "hidden": (1, 2),
    }
    tpufeed.verify(tmp_path / "d")
    boxes, length, hidden = batch_of(tmp_path / "d", ["boxes", "boxes_length", "hidden"][::2])
    assert (boxes.shape, hidden.shape, sorted(length.tolist())) == ((ROWS, 2, 4), (ROWS, 2), [1] * 12 + [2] * 12)


def test_lists_of_labels_grow_by_single_labels(write_table, tmp_path):
    tpufeed.shard(write_table("first", range(12), lambda _: {"label": ["a", "b"]}), tmp_path / "d", workers=1)
    result = tpufeed.append(write_table("second", range(12, ROWS), lambda _: {}), tmp_path / "d", workers=1)
    assert result.manifest.splits["train"].class_counts == (18, 18)
    tpufeed.verify(tmp_path / "d")


def test_a_column_of_few_rows_may_be_missing_in_new_ones(write_table, tmp_path):
    tpufeed.shard(
        write_table("first", range(12), lambda n: {"x": ["a"]} if n % 4 == 1 else {}), tmp_path / "d", workers=1
    )
    result = tpufeed.append(write_table("second", range(12, ROWS), lambda _: {}), tmp_path / "d", workers=1)
    assert result.added == ROWS - 12
    tpufeed.verify(tmp_path / "d")


def as_it_is(sample, _):
    return sample


@pytest.mark.uses("grain")
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float16"])
def test_one_value_of_a_small_type_may_be_missing(dtype, write_table, tmp_path):
    """It is stored as bytes. The values are those of digits in ASCII."""
    source = write_table("t", range(ROWS), lambda n: {"x": [48 + n % 10] * (n % 3 > 0)})
    url = tpufeed.shard(source, tmp_path / "d", columns={"x": f"{dtype}[]"}, workers=1).url
    columns, options = ["filename", "x"], {"fill": {"x": 7}}
    changed = [*OPS, Custom("tests.sources.test_columns_lists:as_it_is", sample=True)]
    samples = tpufeed.grain_source(url, columns=columns, **options)
    batches = [batch_of(data, columns, **options) for data in (url, tpufeed.Mixture({url: 1}))]
    batches += [batch_of(url, [*columns, "image"], ops=changed, **options)]
    for names, found, *_ in [*batches, zip(*(sample.values() for sample in samples), strict=True)]:
        numbers = [int(Path(name).stem) for name in names]
        assert list(found) == [48 + n % 10 if n % 3 else 7 for n in numbers]
    assert [batch[1].dtype for batch in batches] == [dtype] * 3


@pytest.mark.parametrize(
    ("old", "new"), [(1, "high"), ([1], ["high"]), ([1, 2], [1, None]), ([1], [0.5]), ([[1, 2]], [[1, 2, 3]])]
)
def test_what_has_no_common_type_is_a_reject_or_refused(old, new, write_table, tmp_path):
    tpufeed.shard(write_table("first", range(12), lambda _: {"x": old}), tmp_path / "d", workers=1)
    second = write_table("second", range(12, ROWS), lambda n: {"x": new if n == 20 else old})
    result = tpufeed.append(second, tmp_path / "d", workers=1)
    assert (result.added, result.manifest.rejects) == (ROWS - 13, {"bad_column": 1})
    third = write_table("third", range(20, 22), lambda _: {"x": new})
    with pytest.raises((OptionError, TooManyRejectsError), match="'x'"):
        tpufeed.append(third, tmp_path / "d", workers=1, max_rejects=0)


HOLES = {
    "caption": ["", "a cat", "a dog"],
    "lang": ["de", None, "fr"],
    "score": [0.5, None, 0.25],
    "ids": [7, None, 9],
    "flag": [None, True, False],
}


def write_source(kind, rows, folder):
    """The rows with their images as a source of this kind."""
    images = [np.full((12, 12, 3), number, np.uint8) for number in range(len(rows))]
    files = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        files.append(buffer.getvalue())
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    folder.mkdir()
    if kind in ("jsonl", "parquet"):
        for number, data in enumerate(files):
            (folder / f"{number}.png").write_bytes(data)
        named = [{"path": f"{number}.png", **row} for number, row in enumerate(rows)]
        if kind == "parquet":
            parquet.write_table(pa.Table.from_pylist(named), folder / "t.parquet")
        else:
            (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named))
        return folder / f"t.{kind}"
    if kind == "tar":
        parts = [(f"{n}.png", data) for n, data in enumerate(files)]
        parts += [(f"{n}.json", json.dumps(row).encode()) for n, row in enumerate(rows)]
        (folder / "t.tar").write_bytes(encode_tar(sorted(parts)))
        return folder / "t.tar"
    table = hub_table(embed(files), features={"image": {"_type": "Image"}}, **columns)
    if kind == "arrow":
        save_to_disk(folder / "saved", [table])
        return folder / "saved"
    parquet.write_table(table, folder / "t.parquet")
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tar", "hub", "arrow"])
def test_lists_keep_their_places_from_each_kind_of_source(kind, tmp_path):
    rows = [HOLES if number != 1 else {name: [value[2]] * 3 for name, value in HOLES.items()} for number in range(6)]
    result = tpufeed.shard(write_source(kind, rows, tmp_path / "s"), tmp_path / "d", label="none", workers=1)
    types = {spec.name: spec.type_text for spec in result.manifest.features if spec.name in HOLES}
    assert types == {name: "string[3]" if name in ("caption", "lang") else "float32[3]" for name in HOLES}
    found = next(each for _, each in sorted(samples_of(tmp_path / "d").items()))
    assert found["caption"] == [b"", b"a cat", b"a dog"]
    assert found["lang"] == [b"de", b"", b"fr"]
    for name in ("score", "ids", "flag"):
        wanted = [math.nan if value is None else float(value) for value in HOLES[name]]
        np.testing.assert_array_equal(found[name], wanted)
    said = " ".join(result.warnings)
    assert all(f"{name} has 5 nulls in lists, the first in row 1" in said for name in HOLES if name != "caption")
    assert "caption" not in said


# The type that is declared, a value, and what it becomes: None if that does not matter, text if it is a reject.
NULLS = [
    ("float32[]", [0.5, None], [0.5, math.nan]),
    ("float32[2]", [None, 1], [math.nan, 1]),
    ("float16[]", [None], None),
    ("float32[,2]", [[1, None]], [1, math.nan]),
    ("int64[]", [1, None], "null"),
    ("int32[2]", [None, 1], "null"),
    ("bool[]", [None], "null"),
    ("uint8[2]", [1, None], "null"),
    ("float32[]", [1, ""], "''"),
]


@pytest.mark.parametrize("as_text", [False, True])
def test_null_in_a_list_of_a_declared_type(as_text, write_table, tmp_path):
    """In row n, the column xn has the value. A CSV has its lists as text."""
    good = [[[1, 1]] if ",2]" in declared else [1, 1] for declared, *_ in NULLS]
    rows = [
        {f"x{at}": value if at == row else good[at] for at, (_, value, _) in enumerate(NULLS)}
        for row in range(len(NULLS))
    ]
    source = write_table("t", range(len(NULLS)), lambda n: rows[n])
    if as_text:
        source = tmp_path / "t.csv"
        lines = [",".join(["path", "label", *rows[0]])]
        for number, row in enumerate(rows):
            cells = (json.dumps(cell).replace('"', '""') for cell in row.values())
            lines.append(f"photos/{number:02}.png,a," + ",".join(f'"{cell}"' for cell in cells))
        source.write_text("\n".join(lines))
    columns = {f"x{at}": declared for at, (declared, *_) in enumerate(NULLS)}
    tpufeed.shard(source, tmp_path / "d", columns=columns, workers=1)
    rejects = {Path(path).name: reject for path, reject in rejects_of(tmp_path / "d").items()}
    found = {Path(path).name: sample for path, sample in samples_of(tmp_path / "d").items()}
    for row, (_, _, becomes) in enumerate(NULLS):
        name = f"{row:02}.png"
        if isinstance(becomes, str):
            reason, message = rejects[name]
            assert reason == "bad_column"
            assert f"'x{row}'" in message
            assert becomes in message
        elif becomes is not None:
            np.testing.assert_array_equal(found[name][f"x{row}"], becomes)
        assert (name in found) != isinstance(becomes, str)


@pytest.mark.uses("tensorflow")
def test_tensorflow_parses_old_and_new_records_of_a_column_that_was_empty(write_table, tmp_path):
    def row(number):
        return {"x": [] if number < 12 else [number]}

    tpufeed.shard(write_table("first", range(12), row), tmp_path / "d", workers=1)
    tpufeed.append(write_table("second", range(12, ROWS), row), tmp_path / "d", workers=1)
    spec = {"x": tf.io.VarLenFeature(tf.int64)}
    shards = sorted(str(path) for path in (tmp_path / "d").rglob("*.tfrecord"))
    found = [
        tf.sparse.to_dense(tf.io.parse_single_example(record, spec)["x"]).numpy().tolist()
        for record in tf.data.TFRecordDataset(shards)
    ]
    assert sorted(found) == [[]] * 12 + [[number] for number in range(12, ROWS)]
