"""Tables of paths: CSV, TSV, JSON lines and Parquet, with further columns that become features."""

import datetime
import decimal
import json
import math
import re

import pyarrow as pa
import pytest
from pyarrow import parquet

import tpufeed
from tests.sharding.outputs import rejects_of, samples_of
from tests.sharding.previews import preview_shard
from tpufeed.errors import DatasetExistsError, NoInputsError, OptionError, SourceError
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.memory import MemoryStore


@pytest.fixture
def images(small_jpegs, tmp_path):
    """A folder with 0.jpg to 9.jpg."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, data in enumerate(small_jpegs[:10]):
        (folder / f"{number}.jpg").write_bytes(data)
    return folder


@pytest.fixture
def table(images):
    """`table(rows or text, suffix)`: a table beside the images."""

    def make(content, suffix="csv"):
        path = images / f"table.{suffix}"
        if suffix == "parquet":
            parquet.write_table(pa.Table.from_pylist(content) if isinstance(content, list) else content, path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, newline="")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        return path

    return make


def by_path(inputs):
    return {item.path: item for item in inputs}


ROWS = [
    {"path": "0.jpg", "label": "dog", "n": 1, "x": 0.5, "text": 'a, "b"\nc', "fold": "val"},
    {"path": "1.jpg", "label": "cat", "n": -2, "x": 2.0, "text": "größe", "fold": "train"},
    {"path": "2.jpg", "label": "dog", "n": 3, "x": 1e-3, "text": "猫", "fold": "train"},
]


def as_csv(rows, delimiter):
    quoted = [['"' + str(value).replace('"', '""') + '"' for value in row.values()] for row in rows]
    return "\r\n".join(delimiter.join(line) for line in [list(rows[0]), *quoted]) + "\r\n"


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "parquet", "CSV"])
def test_every_kind_of_table_makes_the_same_dataset(suffix, images, table, small_jpegs, tmp_path):
    rows = [row | {"text": row["text"].replace("\n", "\t")} for row in ROWS]  # no field of a TSV spans lines
    content = as_csv(rows, "\t" if suffix == "tsv" else ",") if suffix.lower() in ("csv", "tsv") else rows
    result = tpufeed.shard(table(content, suffix), tmp_path / "d", split_by="fold", workers=1)
    manifest = result.manifest
    assert {name: split.records for name, split in manifest.splits.items()} == {"train": 2, "val": 1}
    assert manifest.class_names == ("cat", "dog")
    assert [(f.name, f.dtype, f.shape) for f in manifest.features[-3:]] == [
        ("n", "int64", ()),
        ("x", "float32", ()),
        ("text", "string", ()),
    ]
    found = samples_of(result.url)
    for number, row in enumerate(rows):
        sample = found[row["path"]]
        assert sample["image/encoded"] == [small_jpegs[number]]
        assert sample["image/class/text"] == [row["label"].encode()]
        assert (sample["n"], sample["text"]) == ([row["n"]], [row["text"].encode()])
        assert sample["x"] == pytest.approx([row["x"]])
    assert tpufeed.verify(result.url).records == 3


def test_lists_missing_values_and_bytes(table, tmp_path):
    rows = [
        {"path": "0.jpg", "ids": [1, 2], "names": ["a", None], "raw": b"\0\xff", "x": float("nan"), "y": None},
        {"path": "1.jpg", "ids": [], "names": None, "raw": b"", "x": 1.5, "y": None},
    ]
    result = tpufeed.shard(table(rows, "parquet"), tmp_path / "d", workers=1)
    assert [(f.name, f.dtype, f.shape) for f in result.manifest.features[-5:]] == [
        ("ids", "int64", None),
        ("names", "string", None),
        ("raw", "bytes", ()),
        ("x", "float32", ()),
        ("y", "string", None),
    ]
    found = samples_of(result.url)
    assert (found["0.jpg"]["ids"], found["1.jpg"]["ids"]) == ([1, 2], [])
    assert (found["0.jpg"]["names"], found["1.jpg"]["names"]) == ([b"a", b""], [])
    assert (found["0.jpg"]["raw"], found["1.jpg"]["raw"]) == ([b"\0\xff"], [b""])
    assert math.isnan(found["0.jpg"]["x"][0])
    assert found["0.jpg"]["y"] == []
    assert tpufeed.verify(result.url).records == 2


@pytest.mark.first_cases(5)
@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        ("path,label\n0.jpg,a\n1.jpg\n", "csv", r"table\.csv, line 3"),
        ("path,x,x\n0.jpg,1,2\n", "csv", "path, x, x"),
        ('path,label\n"0.jpg,a\n', "csv", "line 2"),
        (
            'path,label\n0.jpg,a\n\n1.jpg,"5 inch\n' + "2.jpg,b\n" * 50,
            "csv",
            "line 4",
        ),
        ('path,label\n"1.jpg\n2.jpg"\n', "csv", "lines 2 to 3"),
        ("path,label\n0.jpg," + "y" * ((16 << 20) + 1) + "\n", "csv", "line 2"),
        ("path,label\n0.jpg,größe\n".encode("latin-1"), "csv", "line 2"),
        (b"path,label\n" + b"0.jpg,a\n" * 3000 + b"\xe9.jpg,a\n", "csv", "line 3002"),
        ("path,label\n0.jpg,a\n".encode("utf-16"), "csv", "UTF-16"),
        ("path\n0.jpg\n".encode("utf-16"), "tsv", "UTF-16"),
        ("path;label;x\n0.jpg;a;1,5\n", "csv", "';'"),
        ('{"path":"0.jpg"}\n[1]\n', "jsonl", "line 2"),
        ('{"path":"0.jpg"}\n{"path":\n', "jsonl", "line 2"),
        ('{"path":"0.jpg","x":' + "[" * 100_000 + "]" * 100_000 + "}\n", "jsonl", "line 1"),
        ('{"path":"0.jpg","x":' + "9" * 5000 + "}\n", "jsonl", "line 1"),
        (b'{"path":"0.jpg"}\n{"path":"\xff.jpg"}\n', "jsonl", "line 2"),
        (b"no parquet", "parquet", r"table\.parquet"),
    ],
)
def test_a_table_that_cannot_be_read(content, suffix, message, images, take):
    path = images / f"table.{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SourceError, match=message) as raised:
        take(path)
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_two_columns_of_one_name_in_parquet(table, take):
    columns = [pa.array(["0.jpg"]), pa.array([1]), pa.array([2])]
    with pytest.raises(SourceError, match="path, x, x"):
        take(table(pa.Table.from_arrays(columns, names=["path", "x", "x"]), "parquet"))


def test_types_of_parquet_that_no_feature_has_become_text(table, take):
    content = pa.table(
        {
            "path": ["0.jpg", "1.jpg"],
            "label": pa.array(["a", "b"]).dictionary_encode(),
            "day": [datetime.date(2020, 1, 2), None],
            "price": [decimal.Decimal("1.50"), decimal.Decimal(2)],
            "big": pa.array([2**64 - 1, 1], pa.uint64()),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "mixed": [[{"a": 1, "b": b"\xff"}], None],
        }
    )
    inventory, inputs = take(table(content, "parquet"))
    assert {f.dtype for f in inventory.schema} == {"string"}
    assert by_path(inputs)["0.jpg"].columns == (
        *(("2020-01-02",), ("1.50",), ("18446744073709551615",)),
        *(('["k", 1]',), ('{"a": 1, "b": {"base64": "/w=="}}',)),
    )


def test_times_of_nanoseconds_in_parquet(table, take):
    """pyarrow gives them to Python by way of pandas only."""
    ticks = [1_577_934_245_123_456_789, 1_577_934_245_123_456_000, 1_577_934_245_000_000_000, -1, None]
    content = pa.table(
        {
            "path": [f"{n}.jpg" for n in range(5)],
            "at": pa.array(ticks, pa.timestamp("ns")),
            "utc": pa.array(ticks, pa.timestamp("ns", "UTC")),
        }
    )
    found = by_path(take(table(content, "parquet"))[1])
    said = [
        "2020-01-02 03:04:05.123456789",
        "2020-01-02 03:04:05.123456000",
        "2020-01-02 03:04:05.000000000",
        "1969-12-31 23:59:59.999999999",
    ]
    assert [found[f"{n}.jpg"].columns[0] for n in range(5)] == [*((text,) for text in said), ()]
    assert [found[f"{n}.jpg"].columns[1] for n in range(5)] == [*((f"{text}Z",) for text in said), ()]


BEYOND = {
    "nanoseconds": (pa.timestamp("ns"), [1000, 0, 2_000_000_000]),
    "duration": (pa.duration("ns"), [90_061_000_000_001, -1, 2_000_000_000]),
    "time in a zone": (pa.timestamp("ns", "+01:30"), [1, -1, 2_000_000_000]),
    "year": (pa.timestamp("us"), [1 << 62, 0, 1]),
    "unknown zone": (pa.timestamp("us", "Mars/Base"), [1000, 0, 1]),
}
SAID = {
    "nanoseconds": ["1970-01-01 00:00:00.000001", "1970-01-01 00:00:00", "1970-01-01 00:00:02"],
    "duration": ["90061000000001 ns", "-1 ns", "2000000000 ns"],
    "time in a zone": [
        *("1970-01-01 00:00:00.000000001Z", "1969-12-31 23:59:59.999999999Z"),
        "1970-01-01 00:00:02.000000000Z",
    ],
    "year": ["<value out of range: 4611686018427387904>", "1970-01-01 00:00:00.000000", "1970-01-01 00:00:00.000001"],
    "unknown zone": [f"1970-01-01 00:00:00.{micros}Z" for micros in ("001000", "000000", "000001")],
}


@pytest.mark.parametrize("kind", BEYOND)
def test_times_that_python_has_no_type_for_are_text(kind, table, take):
    """They stop no build, as further columns or as labels."""
    arrow, values = BEYOND[kind]
    content = pa.table({"path": [f"{n}.jpg" for n in range(4)], "x": pa.array([*values, None], arrow)})
    found = by_path(take(table(content, "parquet"))[1])
    assert [found[f"{n}.jpg"].columns[0] for n in range(4)] == [*((text,) for text in SAID[kind]), ()]
    inventory, inputs = take(table(content, "parquet"), label="x")
    labels = [inventory.classes.names[item.label] for item in sorted(inputs, key=lambda item: item.path)[:3]]
    assert labels == SAID[kind]


@pytest.mark.parametrize(
    ("arrow", "values", "message"),
    [
        (pa.list_(pa.timestamp("ns")), [[1]], "nanoseconds"),
        (pa.struct([("a", pa.duration("ns"))]), [{"a": 1}], "nanoseconds"),
        (pa.list_(pa.timestamp("us")), [[1 << 62]], "Python"),
    ],
    ids=str,
)
def test_times_within_lists_that_python_has_no_type_for(arrow, values, message, table, take):
    with pytest.raises(SourceError, match=message):
        take(table(pa.table({"path": ["0.jpg"], "x": pa.array(values, arrow)}), "parquet"))


def test_paths_labels_and_splits_as_bytes_in_parquet(table, take):
    """Some writers leave out that a column is text."""
    rows = [{"path": b"0.jpg", "label": b"a", "fold": b"val"}, {"path": b"\xff.jpg", "label": b"b", "fold": b"train"}]
    inventory, inputs = take(table(rows, "parquet"), split_by="fold")
    assert inventory.splits == ("train", "val")
    assert sorted((item.path, item.problem is None) for item in inputs) == [("0.jpg", True), ("�.jpg", False)]


@pytest.mark.parametrize("damage", ["cut", "middle", "empty"])
def test_a_damaged_parquet_file(damage, table, take):
    path = table([{"path": f"{n % 10}.jpg", "x": f"{n:050d}"} for n in range(3000)], "parquet")
    data = bytearray(path.read_bytes())
    if damage == "middle":
        data[100:4000] = bytes(3900)
    path.write_bytes(b"" if damage == "empty" else data if damage == "middle" else data[: len(data) // 2])
    with pytest.raises(SourceError, match=r"table\.parquet"):
        take(path)


@pytest.mark.parametrize(
    ("content", "suffix"),
    [("", "csv"), ("path,label\n", "csv"), ("\n\n\n", "csv"), ("", "jsonl"), ("\n \n", "jsonl"), ([], "parquet")],
)
def test_a_table_without_rows(content, suffix, table, take):
    path = table(pa.table({"path": pa.array([], pa.string())}) if suffix == "parquet" else content, suffix)
    with pytest.raises(NoInputsError, match=r"table\.\w+"):
        take(path)


def test_one_of_several_tables_may_have_no_rows(images, take):
    for name, rows in (("a", ""), ("b", "0.jpg,cat\n"), ("c", "")):
        (images / f"{name}.csv").write_text(f"path,label\n{rows}")
    inventory, inputs = take(images / "*.csv")
    assert len(inputs) == 1
    assert any("a.csv, c.csv" in said for said in inventory.listed.warnings)
    (images / "b.csv").unlink()
    with pytest.raises(NoInputsError, match=r"c\.csv"):
        take(images / "*.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "nope"}, "'nope'"),
        ({"label": "nope"}, "'nope'"),
        ({"split_by": "nope"}, "'nope'"),
        ({"split_by": "folder"}, "folders"),
        ({"label": "empty"}, "'empty'"),
    ],
)
def test_columns_that_are_not_there(options, message, table, take):
    with pytest.raises(OptionError, match=message):
        take(table("path,kind,empty\n0.jpg,a,\n"), **options)


@pytest.mark.parametrize("header", ["a;path", "a\tpath", "a,photo"])
def test_no_column_is_like_one_of_images(header, table, take):
    with pytest.raises(OptionError, match="--image COLUMN"):
        take(table(f"{header}\n{header}\n"))


@pytest.mark.parametrize("column", ["path", "Image", "FILE", "filename", "file_name", "image_path", "url"])
def test_columns_are_found_by_their_names(column, table, take):
    inventory, (item,) = take(table(f"x,{column},Category\n1,0.jpg,cat\n"))
    assert (item.path, inventory.classes.names, [f.name for f in inventory.schema]) == ("0.jpg", ("cat",), ["x"])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sample", {}),
        ("mask", {}),
        ("image", {}),
        ("label", {"label": "kind"}),
    ],
)
def test_names_that_loaders_give_themselves(name, options, table, take):
    """Nobody could ask a loader for such a column, or would get something else."""
    rows = [{"path": f"{n % 10}.jpg", "kind": "a"} for n in range(3000)]
    last = {"path": "0.jpg", "kind": "b", name: 1}
    for some in ([last], [*rows, last]):
        with pytest.raises(SourceError, match=f"'{name}'"):
            take(table(some, "jsonl"), **options)


def test_names_that_loaders_give_themselves_are_no_trouble_where_they_mean_that(table, take):
    inventory, _ = take(table("image,label,height\n0.jpg,a,3\n"))
    assert [f.name for f in inventory.schema] == ["height"]
    inventory, _ = take(table("image,label\n0.jpg,a\n"), label="none")
    assert [f.name for f in inventory.schema] == ["label"]


def test_without_labels_the_column_is_a_further_one(table, take):
    inventory, (item,) = take(table('{"path":"0.jpg","label":[3,1]}\n', "jsonl"), label="none")
    assert (inventory.labelled, item.label, item.columns) == (False, -1, ((3, 1),))


def test_what_spreadsheets_and_pandas_write(table, take):
    """A byte order mark, an unnamed index, blank lines, ends of lines of all kinds, and ids that were made floats."""
    text = "\ufeff\r\n,path,label,code\r\n0,0.jpg,1.0,007\r\n\r\n1,1.jpg,,008\n2,2.jpg,0.0,\n"
    inventory, inputs = take(table(text.encode()))
    assert inventory.classes.names == ("0", "1")
    assert [(f.name, f.dtype, f.shape) for f in inventory.schema] == [
        ("column_0", "int64", ()),
        ("code", "string", None),
    ]
    found = by_path(inputs)
    assert [found[f"{n}.jpg"].label for n in range(3)] == [1, -1, 0]
    assert found["1.jpg"].problem[0] == "bad_label"
    assert [found[f"{n}.jpg"].columns for n in range(3)] == [((0,), ("007",)), ((1,), ("008",)), ((2,), ())]


def test_a_missing_value_among_ids_is_a_reject(table, take):
    """What pandas, NumPy and R write for one; the other ids stay as they are."""
    for missing in ("nan", "NA", ""):
        text = "path,label,fold\n" + "".join(f"{n % 10}.jpg,{n},0\n" for n in range(12)) + f"0.jpg,{missing},0\n"
        inventory, inputs = take(table(text))
        assert inventory.classes.names == tuple(map(str, range(12)))
        assert sorted(item.label for item in inputs) == [-1, *range(12)]
        assert ["2 images are in several rows" in said for said in inventory.listed.warnings] == [True]


def test_labels_that_are_several_or_written_in_several_ways_are_told(table, tmp_path):
    pairs = table([{"path": f"{n % 10}.jpg", "label": f"red,{n}"} for n in range(30)], "jsonl")
    said, repeated = preview_shard(pairs, tmp_path / "d").warnings
    assert "10 images are in several rows" in repeated
    assert "30 of 30 classes" in said
    assert "'red,0'" in said
    (said,) = tpufeed.shard(table("path,label\n0.jpg,1\n1.jpg,01\n"), tmp_path / "d", workers=1).warnings
    assert "'01', '1'" in said


def test_a_split_that_is_not_a_number_says_none(table, take):
    for content, suffix in (
        ("path,fold\n0.jpg,1\n1.jpg,nan\n", "csv"),
        ('{"path":"0.jpg","fold":1}\n{"path":"1.jpg","fold":NaN}\n', "jsonl"),
    ):
        with pytest.raises(SourceError, match=r"row 2: .*'fold'"):
            take(table(content, suffix), split_by="fold")


def test_ids_that_pandas_made_floats_stay_apart(table, tmp_path):
    text = "path,owner,x\n0.jpg,1234567891.0,1.5\n1.jpg,1234567892.0,2.0\n2.jpg,,1234567891.25\n"
    result = tpufeed.shard(table(text), tmp_path / "d", label="none", workers=1)
    found = samples_of(result.url)
    assert [found[f"{n}.jpg"]["owner"] for n in range(3)] == [[1234567891], [1234567892], []]
    assert [(f.name, f.dtype) for f in result.manifest.features[-2:]] == [("owner", "int64"), ("x", "float32")]
    (said,) = result.warnings
    assert "1234567891.25" in said
    assert preview_shard(tmp_path / "images/table.csv", tmp_path / "e", label="none").warnings == (said,)


def test_a_row_of_tsv_is_a_line(table, take):
    """A quote that begins a field would swallow rows up to the next one."""
    text = 'path\tnote\n0.jpg\ta\n1.jpg\t"5 inch\n2.jpg\tb\n3.jpg\tscreen"\n'
    for rest in ('screen"', "screen", '"6 inch'):
        with pytest.raises(SourceError, match="line 3"):
            take(table(text.replace('screen"', rest), "tsv"))
    _, inputs = take(table('path\tnote\n0.jpg\t"a ""b"" \tc"\n', "tsv"))
    assert by_path(inputs)["0.jpg"].columns == (('a "b" \tc',),)


def test_a_long_field_of_csv(table, take):
    """Such as the mask of an object as runs of pixels."""
    mask = "1 2 " * 100_000
    _, (item,) = take(table(f"path,mask_rle\n0.jpg,{mask}\n"))
    assert item.columns == ((mask,),)


@pytest.mark.parametrize("header", ["path,LABEL,label", "path,Path,label", "image,label,LABEL"])
def test_columns_that_differ_by_capitals_only(header, table, take):
    with pytest.raises(OptionError, match=r"--\w+ \w+"):
        take(table(f"{header}\n0.jpg,a,b\n"))


def test_columns_that_differ_by_capitals_and_are_named(table, take):
    inventory, _ = take(table("path,LABEL,Label\n0.jpg,a,b\n"), label="LABEL")
    assert (inventory.classes.names, [f.name for f in inventory.schema]) == (("a",), ["Label"])


def test_fields_of_objects_are_columns_in_json_lines_and_in_parquet(table, tmp_path):
    rows = [
        {"path": "0.jpg", "objects": {"bbox": [[1, 2, 3, 4], [2, 3, 4, 5]], "kind": {"name": ["a", "b"]}}, "n": 1},
        {"path": "1.jpg", "objects": None, "n": 2},
        {"path": "2.jpg", "objects": {"bbox": [], "kind": {"name": []}}, "n": 3},
    ]
    options = {"boxes": tpufeed.Boxes(column="objects.bbox", format="xywh"), "label": "objects.kind.name", "workers": 1}
    found = []
    for suffix in ("jsonl", "parquet"):
        result = tpufeed.shard(table(rows, suffix), tmp_path / suffix, **options)
        found.append(list(result.manifest.features))
        sample = samples_of(result.url)["0.jpg"]
        assert sample["objects.bbox"] == [1, 2, 4, 6, 2, 3, 6, 8]
        assert sample["image/class/text"] == [b"a", b"b"]
        assert samples_of(result.url)["1.jpg"]["objects.bbox"] == []
    assert found[0] == found[1]


def test_objects_whose_keys_are_data_stay_text(table, take):
    rows = [{"path": f"{n}.jpg", "seen": {f"id{n}-{key}": key for key in range(40)}} for n in range(2)]
    inventory, _ = take(table(rows, "jsonl"))
    assert [feature.name for feature in inventory.schema] == ["seen"]


def test_a_field_that_is_called_as_another_column(table, take):
    with pytest.raises(SourceError, match=r"a\.b"):
        take(table([{"path": "0.jpg", "a.b": 1, "a": {"b": 2}}], "jsonl"))


def test_objects_in_objects_without_end(table, take):
    text = '{"path":"0.jpg","a":' + '{"a":' * 400 + "1" + "}" * 400 + "}\n"
    assert len(take(table(text, "jsonl"))[0].schema) == 1


# Several rows of one image.


def boxes_csv(labels, header="path,class,xmin,ymin,xmax,ymax"):
    rows = [f"{n}.jpg,{label},1,1,9,{9 + at}" for n in range(3) for at, label in enumerate(labels)]
    return "\n".join([header, *rows]) + "\n"


@pytest.mark.parametrize("labels", [("cat", "cow"), ("cat", "cat")])
@pytest.mark.parametrize(
    "header", ["path,class,xmin,ymin,xmax,ymax", "image,class,XMin,YMin,XMax,YMax", "path,class,x1,y1,x2,y2"]
)
def test_a_row_for_each_box_is_said(labels, header, table, tmp_path):
    result = tpufeed.shard(table(boxes_csv(labels, header)), tmp_path / "d", workers=1)
    (said,) = (warning for warning in result.warnings if "rows" in warning and "box" in warning)
    assert "3 images" in said
    image, _, *sides = header.split(",")
    assert f"--group-by {image} --boxes {','.join(sides)}" in said


def test_a_box_as_a_list_in_each_row_is_said(table, tmp_path):
    rows = [{"path": f"{n % 3}.jpg", "bbox": [1, 2, 3, 4 + n]} for n in range(6)]
    result = tpufeed.shard(table(rows, "jsonl"), tmp_path / "d", workers=1)
    assert any(
        "3 images" in warning and "--group-by path --boxes bbox --box-format xywh" in warning
        for warning in result.warnings
    )


def test_rows_of_one_image_that_contradict_each_other_are_said(table, tmp_path):
    content = "path,label\n0.jpg,cat\n./0.jpg,cow\n1.jpg,cat\n1.jpg,cat\n2.jpg,cow\n"
    result = tpufeed.shard(table(content), tmp_path / "d", workers=1)
    (said,) = (warning for warning in result.warnings if "rows with different labels" in warning)
    assert "1 images" in said
    assert "0.jpg" in said


@pytest.mark.parametrize(
    "content",
    [
        "path,label\n0.jpg,cat\n0.jpg,cat\n1.jpg,cow\n",  # more often
        "path,text\n0.jpg,a\n0.jpg,b\n1.jpg,c\n",  # several descriptions
        "path,label,xmin,ymin,xmax,ymax\n0.jpg,cat,1,1,9,9\n1.jpg,cow,1,1,9,9\n",  # a box an image
    ],
)
def test_rows_of_which_there_is_nothing_to_say(content, table, tmp_path):
    result = tpufeed.shard(table(content), tmp_path / "d", workers=1, label="auto" if "label" in content else "none")
    assert not [warning for warning in result.warnings if "rows" in warning]


@pytest.mark.parametrize("label", ['{"a":1}', '[{"a":1}]'])
def test_a_label_that_is_an_object(label, table, take):
    with pytest.raises(SourceError, match="row 2"):
        take(table('{"path":"0.jpg","label":1}\n' + f'{{"path":"1.jpg","label":{label}}}\n', "jsonl"))


def test_paths_of_all_kinds(images, table, small_jpegs, tmp_path):
    """Each is an image or a reject with its reason, and names the row."""
    (images / "sub").mkdir()
    good = {
        "0.jpg": 0,
        "./1.jpg": 1,
        "sub/../2.jpg": 2,
        f"../{images.name}/3.jpg": 3,
        str(images / "4.jpg"): 4,
        f"file://{images}/5.jpg": 5,
        f"local://{images}/6.jpg": 6,
        f"memory://{tmp_path.name}/7.jpg": 7,
        "größe 猫\n.jpg": 8,
        "..8.jpg": 9,
    }
    MemoryStore(f"memory://{tmp_path.name}").put("7.jpg", small_jpegs[7])
    (images / "größe 猫\n.jpg").write_bytes(small_jpegs[8])
    (images / "..8.jpg").write_bytes(small_jpegs[9])
    (images / "broken.jpg").symlink_to("nowhere")
    bad = {
        "missing.jpg": "there is no such file; row 11 of .*table.jsonl names it",
        "/nowhere/x.jpg": "no such file",
        "../missing.jpg": "no such file",
        "broken.jpg": "no such file",
        "foo://host/x.jpg": "row 15 of .*: nothing opens foo://",
        "memory://nowhere/x.jpg": "no such file",
        "memory://host": "cannot name an object",
        "a\0b.jpg": "cannot name an object",
        "sub": "no such file",
        ".": "no such file",
        "/": "cannot name an object",
        "x" * 300 + ".jpg": "File name too long",
    }
    rows = [{"path": path, "n": n} for n, path in enumerate([*good, *bad])]
    rows += [{"path": path} for path in (None, "", 5, ["0.jpg"])] + [{"n": 0}]
    result = tpufeed.shard(table(rows, "jsonl"), tmp_path / "d", workers=1, max_rejects=len(bad) + 5)
    found = samples_of(result.url)
    assert {path: sample["image/encoded"] for path, sample in found.items()} == {
        path: [small_jpegs[number]] for path, number in good.items()
    }
    rejects = rejects_of(result.url)
    for path, message in bad.items():
        reason, said = rejects.pop(path)
        assert reason == "unreadable"
        assert re.search(message, said), said
    assert len(rejects) == 5
    kinds = sorted(said.partition(" has ")[2].split(" in its")[0] for _, said in rejects.values())
    assert kinds == ["a value of type int", "a value of type list (of which --frames makes a clip)", *["nothing"] * 3]


def test_a_path_that_is_not_utf8(table, take):
    with pytest.raises(SourceError, match=r"'\\ud800\.jpg'"):
        take(table('{"path":"\\ud800.jpg"}\n', "jsonl"))


def test_rows_may_stand_in_any_order(table, bytes_of, tmp_path):
    rows = [{"path": f"{n % 5}.jpg", "label": n % 2, "x": n} for n in range(10)]
    one = tpufeed.shard(table(rows, "jsonl"), tmp_path / "a", workers=1)
    other = tpufeed.shard(table(rows[::-1], "jsonl"), tmp_path / "b", workers=1)
    assert bytes_of(one.url) == bytes_of(other.url)
    assert one.manifest.input_digest == other.manifest.input_digest


@pytest.mark.parametrize(
    ("suffix", "separator", "remedy"),
    [
        ("csv", ";", ".tsv"),
        ("csv", "\t", ".tsv"),
        ("tsv", ",", ".csv"),
    ],
)
def test_another_separator_is_recognised(suffix, separator, remedy, table, take):
    path = table(f"path{separator}label\n0.jpg{separator}a\n", suffix)
    for options, problem in (({}, "columns"), ({"image": "path"}, "'path'")):
        with pytest.raises(OptionError) as raised:
            take(path, **options)
        assert problem in str(raised.value)
        assert repr(separator) in str(raised.value)
        assert remedy in str(raised.value)


def test_columns_without_labels_are_warned_of(table, tmp_path):
    """A run that continues warns too; a run without labels does not."""
    path = table("path,species,height_cm\n0.jpg,rose,1.5\n1.jpg,tulip,tall\n2.jpg,rose,2\n3.jpg,rose,3\n")
    unlabelled, text = preview_shard(path, tmp_path / "d").warnings
    assert "species, height_cm" in unlabelled
    assert "--label COLUMN" in unlabelled
    assert "row 2" in text
    assert "'tall'" in text
    result = tpufeed.shard(path, tmp_path / "d", workers=1)
    assert result.warnings == (unlabelled, text)
    (tmp_path / "d/manifest.json").unlink()
    again = tpufeed.shard(path, tmp_path / "d", workers=1)
    assert (again.warnings, again.manifest.content_digest) == ((unlabelled, text), result.manifest.content_digest)
    for options in ({"label": "none"}, {"label": "species"}):
        assert preview_shard(path, tmp_path / "e", **options).warnings == (text,)


def test_a_table_of_paths_alone_is_not_warned_of(table, tmp_path):
    assert preview_shard(table("path\n0.jpg\n"), tmp_path / "d").warnings == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["train", ""], "row 2"),
        (["train", "../x"], "'../x'"),
    ],
)
def test_splits_that_cannot_be(values, message, table, take):
    text = "path,fold\n" + "".join(f"{n}.jpg,{value}\n" for n, value in enumerate(values))
    with pytest.raises((SourceError, OptionError), match=message) as raised:
        take(table(text), split_by="fold")
    assert raised.value.exit_code == 2


def test_the_splits_column_is_no_feature(table, take):
    inventory, _ = take(table("path,fold,x\n0.jpg,1,5\n1.jpg,2,6\n"), split_by="fold")
    assert (inventory.splits, [f.name for f in inventory.schema]) == (("1", "2"), ["x"])


def test_several_tables_are_one_source(images, take):
    (images / "part-00.csv").write_text("path,label,x\n0.jpg,a,1\n")
    (images / "part-01.csv").write_text("path,label,y\n1.jpg,b,2\n")
    (images / "part-02.csv").write_text("path,label\n2.jpg,a\n")
    for pattern in ("part-*.csv", "part-{00..02}.csv", "part-0?.csv"):
        inventory, inputs = take(images / pattern)
        assert sorted(by_path(inputs)) == ["0.jpg", "1.jpg", "2.jpg"]
        assert [(f.name, f.shape) for f in inventory.schema] == [("x", None), ("y", None)]
    assert len(take(images / "part-{00..01}.csv")[1]) == 2


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("nope.csv", SourceError, r"nope\.csv"),
        ("nope-*.csv", NoInputsError, r"nope-\*\.csv"),
        ("part-{00..03}.csv", SourceError, "3 files"),
        ("part-{0..999999999}.csv", OptionError, "1,000,000,000 files"),
        ("table.csv.gz", SourceError, "gunzip"),
        ("table.jsonl.zst", SourceError, "unzstd"),
    ],
)
def test_tables_that_are_not_there(pattern, error, message, images, take):
    (images / "part-00.csv").write_text("path\n0.jpg\n")
    with pytest.raises(error, match=message):
        take(images / pattern)


@pytest.mark.parametrize("place", ["memory", "local"])
def test_a_table_elsewhere(place, small_jpegs, take, tmp_path):
    """Its paths are relative to it; absolute ones are this machine's."""
    url = f"memory://{tmp_path.name}/t" if place == "memory" else f"local://{tmp_path}/t"
    store = MemoryStore(url) if place == "memory" else FsspecStore(url)
    (tmp_path / "here.jpg").write_bytes(small_jpegs[3])
    above = MemoryStore(f"memory://{tmp_path.name}") if place == "memory" else FsspecStore(f"local://{tmp_path}")
    above.put("above/2.jpg", small_jpegs[2])
    store.put("0.jpg", small_jpegs[0])
    store.put("sub/1.jpg", small_jpegs[1])
    paths = ["0.jpg", "sub/1.jpg", "../above/2.jpg", f"{tmp_path}/here.jpg", "missing.jpg"]
    store.put(
        "table.csv", "".join(f"{line}\n" for line in ["path,n", *(f"{p},{n}" for n, p in enumerate(paths))]).encode()
    )
    result = tpufeed.shard(f"{url}/table.csv", tmp_path / "d", workers=1)
    found = samples_of(result.url)
    assert {path: sample["image/encoded"] for path, sample in found.items()} == {
        path: [small_jpegs[number]] for number, path in enumerate(paths[:4])
    }
    assert {path: reason for path, (reason, _) in rejects_of(result.url).items()} == {"missing.jpg": "unreadable"}


@pytest.mark.parametrize(
    "text",
    [
        "image, label, note\n0.jpg, cat, x\n1.jpg, dog, \n",
        'image, label, note\n0.jpg, "cat", "x"\n1.jpg, "dog",\n',
        '"image", "label", "note"\n0.jpg,cat,x\n1.jpg,dog,\n',
        "image , label , note \n0.jpg  , cat   , x\n1.jpg  , dog   , \n",
        "\ufeff image,label\u00a0,note\r\n0.jpg,cat,x\r\n\r\n1.jpg,dog,\r\n",
        "image,label ,note\n0.jpg,cat,x\n1.jpg,dog,\n",
    ],
)
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_blanks_around_the_names_of_columns(delimiter, text, table, take):
    suffix = "csv" if delimiter == "," else "tsv"
    inventory, inputs = take(table(text.replace(",", delimiter).encode(), suffix), label="label")
    assert (inventory.classes.names, inventory.listed.warnings) == (("cat", "dog"), ())
    assert {name: item.columns for name, item in by_path(inputs).items()} == {"0.jpg": (("x",),), "1.jpg": ((),)}
    assert take(table(text.replace(",", delimiter).encode(), suffix))[0].classes.names == ("cat", "dog")


def test_blanks_in_a_table_whose_header_has_none_are_values_and_said(table, take):
    inventory, inputs = take(table("image,label\n0.jpg, cat\n1.jpg,cat\n"))
    assert inventory.classes.names == (" cat", "cat")
    assert any("spaces around their names, like ' cat'" in said for said in inventory.listed.warnings)
    assert len(by_path(inputs)) == 2


def test_names_of_columns_that_are_one_without_their_blanks(table, take):
    with pytest.raises(SourceError, match="image, label, label"):
        take(table("image,label, label\n0.jpg,a,b\n"))
    with pytest.raises(OptionError, match="label"):
        take(table('{"image":"0.jpg","label":1," label":2}\n', "jsonl"))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_blanks_around_a_key_do_not_hide_the_labels(suffix, table, take):
    inventory, _ = take(table([{" image": "0.jpg", "label ": "cat"}], suffix))
    assert inventory.classes.names == ("cat",)


KAGGLE = [
    ("image_id", ("train_images",), ".jpg"),
    ("image_id", ("train_images",), ""),
    ("train_images", ("train_images",), ""),
    ("train_images/{}.jpg", ("train_images",), ""),
    ("train_images/{image_id}", ("train_images",), ""),
    ("image_id", ("part_1", "part_2"), ""),  # HAM10000
    ("image_id", ("part_1", "part_2"), ".jpg"),
]


@pytest.mark.parametrize(("image", "folders", "suffix"), KAGGLE)
def test_a_table_of_names_beside_folders_of_images(image, folders, suffix, small_jpegs, tmp_path):
    source = tmp_path / "source"
    lines = ["image_id,label"]
    for number, data in enumerate(small_jpegs[:6]):
        path = source / folders[number % len(folders)] / f"{1000 + number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        lines.append(f"{1000 + number}{suffix},{number % 3}")
    (source / "train.csv").write_text("\n".join(lines) + "\n")
    result = tpufeed.shard(source / "train.csv", tmp_path / "d", image=image, workers=1)
    names = {f"{folders[number % len(folders)]}/{1000 + number}.jpg" for number in range(6)}
    assert samples_of(tmp_path / "d").keys() == names
    assert len(result.warnings) == (image == "image_id")  # it says where the images are
    lines.append(f"1005{suffix},0")
    (source / "train.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DatasetExistsError):
        tpufeed.shard(source / "train.csv", tmp_path / "d", image=image, workers=1)


@pytest.mark.parametrize(
    ("image", "images", "said"),
    [
        ("image_id", ["x/2000.jpg"], "--image 'FOLDER/{}.jpg'"),
        ("image_id", ["x/a/1000.jpg", "x/b/1000.jpg"], "two images are called 1000"),
        ("x", ["x/2000.jpg"], "x has no images"),
        ("y", ["x/1000.jpg"], "no column 'y'"),
        ("x/{name}.jpg", ["x/1000.jpg"], "no column 'name'"),
    ],
)
def test_names_whose_images_are_not_certain(image, images, said, small_jpegs, tmp_path):
    for path in images:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(small_jpegs[0])
    (tmp_path / "train.csv").write_text("image_id,label\n1000,0\n")
    with pytest.raises(OptionError, match=re.escape(said)):
        tpufeed.shard(tmp_path / "train.csv", tmp_path / "d", image=image, workers=1)


def test_notes_on_a_sample_submission(table, images):
    """The names of images are not kept, and labels that are no classes are."""
    path = table("image_id,label\n3,0\n7,0\n")
    names, labels = preview_shard(path, images.parent / "d", label="none", image="image_id").warnings
    assert "filename, with the path, is kept instead of image_id" in names
    assert "label is kept as a column" in labels
    tpufeed.shard(path, images.parent / "d", label="none", image="image_id", workers=1)
    loader = tpufeed.Loader(images.parent / "d", batch_size=2, columns=["filename", "label"], processes=0)
    (filenames, labels), *_ = loader
    assert sorted(filenames) == ["3.jpg", "7.jpg"]
    assert labels.tolist() == [0, 0]
