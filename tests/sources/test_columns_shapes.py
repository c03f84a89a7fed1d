"""Lists, tensors and labels of several classes: from a table to a batch."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.frameworks import lazy
from tests.tfrecords import encode_features
from tpufeed.cli.app import app
from tpufeed.dataset.record_check import RecordCheck
from tpufeed.dataset.schema import further_columns
from tpufeed.errors import OptionError, RecordError, TooManyRejectsError
from tpufeed.sources.columns import ColumnTypes, Declared, decode_values, encode_values
from tpufeed.tfrecord.example import Feature, decode_arrays, decode_example

tf = lazy("tensorflow")

DTYPES = ["uint8", "uint16", "bool", "int32", "int64", "float16", "float32"]
RESIZE = [tpufeed.images.Resize((16, 16))]


@pytest.fixture
def table(tmp_path, photos):
    """Make a dataset of a JSON lines table with these values beside each image."""

    def make(rows, **options):
        lines = [{"path": str(photos[number]), **row} for number, row in enumerate(rows)]
        (tmp_path / "table.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = tpufeed.shard(tmp_path / "table.jsonl", tmp_path / "dataset", workers=1, **options)
        return tpufeed.open_dataset(result.url)

    return make


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(len(MISFITS) + 1):
        Image.fromarray(random.integers(0, 255, (20, 24, 3), np.uint8)).save(folder / f"{number:02}.jpg")
    return sorted(folder.iterdir())


def batch_of(dataset, columns, **options):
    """All samples in the order of their files."""
    size = dataset.split("train").records
    names = ["filename", *columns]
    with tpufeed.Loader(dataset.url, columns=names, batch_size=size, processes=0, **options) as loader:
        batch = dict(zip(loader.stream.form.names, next(iter(loader)), strict=True))
    order = np.argsort(batch["filename"].astype(str))
    return {name: values[order] for name, values in batch.items()}


@pytest.mark.first_cases(12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["", "3", "2,3", "?", "?,2"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_values_come_back_as_they_were_declared(dtype, shape, data):
    declared = Declared.parse("x", f"{dtype}[{shape.replace('?', '')}]" if shape else dtype)
    sizes = [data.draw(st.integers(0, 4)) if part == "?" else int(part) for part in shape.split(",") if part]
    elements = st.floats(-60000, 60000, width=16) if dtype == "float16" else arrays.from_dtype(np.dtype(dtype))
    rows = data.draw(st.lists(arrays.arrays(dtype, tuple(sizes), elements=elements), min_size=1, max_size=3))
    types = ColumnTypes([declared])
    converted = []
    for row in rows:
        values, problem = types.learn({"x": row.tolist()})
        assert not problem
        converted.append(values)
    (spec,) = types.schema()
    assert (spec.dtype, spec.each if "?" in shape else spec.shape) == (dtype, tuple(sizes["?" in shape :]))
    for row, values in zip(rows, converted, strict=True):
        stored = json.loads(json.dumps(encode_values(msgspec.msgpack.decode(msgspec.msgpack.encode(values)), [spec])))
        features = decode_arrays(memoryview(encode_features(decode_values(stored, [spec]))))
        feature = features["x"]
        found = np.frombuffer(feature.values[0], f"<{np.dtype(dtype).str[1:]}") if spec.is_raw else feature.values
        np.testing.assert_array_equal(np.array(found).astype(dtype).reshape(row.shape), row)


def test_shapes_are_found_in_the_values(table):
    dataset = table(
        [
            {
                "vector": [n, n + 0.5],
                "grid": [[n, 1], [2, 3], [4, n]],
                "pairs": [[n, n]] * (n % 3),
                "mixed": [[1], [2, 3]],
            }
            for n in range(12)
        ]
    )
    assert further_columns(dataset.manifest.features) == {
        "vector": "float32[2]",
        "grid": "int64[3, 2]",
        "pairs": "int64[0 to 2, 2]",
        "mixed": "string[2]",
    }
    batch = batch_of(dataset, ["vector", "grid", "pairs"], fill={"pairs": -7})
    np.testing.assert_array_equal(batch["vector"], np.float32([[n, n + 0.5] for n in range(12)]))
    np.testing.assert_array_equal(batch["grid"], [[[n, 1], [2, 3], [4, n]] for n in range(12)])
    np.testing.assert_array_equal(batch["pairs_length"], [n % 3 for n in range(12)])
    assert batch["pairs"].shape == (12, 2, 2)
    assert batch["pairs"][4].tolist() == [[4, 4], [-7, -7]]
    assert tpufeed.verify(dataset.url).records == 12


def test_lists_of_very_many_axes_are_text(table):
    dataset = table([{"deep": json.loads("[" * 700 + "1" + "]" * 700)}] * 2)
    assert further_columns(dataset.manifest.features) == {"deep": "string[1]"}


@pytest.mark.parametrize("fill", [True, np.False_, 1])
def test_bools_are_filled_with_a_bool(fill, table):
    dataset = table([{"flags": [False] * (n % 3)} for n in range(6)], columns={"flags": "bool[]"})
    batch = batch_of(dataset, ["flags"], fill={"flags": fill})
    assert batch["flags"][:3].tolist() == [[fill] * 2, [False, fill], [False] * 2]


@pytest.mark.uses("tensorflow")
def test_tensorflow_reads_the_records(table):
    dataset = table(
        [{"vector": [n, n + 0.5], "bits": [n % 2] * 3, "half": [n, 0.5], "deep": 5000 * n} for n in range(12)],
        columns={"bits": "uint8[3]", "half": "float16[2]", "deep": "uint16"},
    )
    (shard,) = dataset.split("train").variants[0].shards
    spec = {
        "vector": tf.io.FixedLenFeature([2], tf.float32),
        "bits": tf.io.FixedLenFeature([], tf.string),
        "half": tf.io.FixedLenFeature([], tf.string),
        "deep": tf.io.FixedLenFeature([], tf.int64),
        "image/filename": tf.io.FixedLenFeature([], tf.string),
    }
    batch = batch_of(dataset, ["vector", "bits", "half", "deep"])
    assert [batch[name].dtype for name in ("bits", "half", "deep")] == [np.uint8, np.float16, np.uint16]
    for payload in tf.data.TFRecordDataset(f"{dataset.url}/{shard.name}"):
        found = tf.io.parse_single_example(payload, spec)
        row = batch["filename"].tolist().index(found["image/filename"].numpy().decode())
        np.testing.assert_array_equal(found["vector"], batch["vector"][row])
        assert found["deep"] == batch["deep"][row]
        np.testing.assert_array_equal(tf.io.decode_raw(found["bits"], tf.uint8), batch["bits"][row])
        np.testing.assert_array_equal(tf.io.decode_raw(found["half"], tf.float16), batch["half"][row])


# The type that is declared, a value that fits, one that does not, and what the message has of it.
MISFITS = [
    ("float32[2]", [1, 2], [1.0], r"shape \[1\]"),
    ("float32[2,2]", [[1, 2], [3, 4]], [[1.0], [1.0, 2.0]], ""),
    ("uint8[2]", [0, 255], [1, 256], "256"),
    ("int32", 7, 2**31, "2147483648"),
    ("int64[]", [1], [0.5], "0.5"),
    ("bool", 1, 2, "holds 2"),
    ("float16[1]", [1], [1e6], "1000000"),
    ("int64[2]", [1, 2], None, ""),
    ("int64[2]", [1, 2], "many", "'many'"),
    ("float32", 1, ["a"], ""),
    ("float32[,2]", [[1, 2]], [[1, 2, 3]], r"\[1, 3\]"),
    ("int64", 1, 2.0**63, "9.22"),
    ("int64", 1, "9223372036854775808", "9223372036854775808"),
    ("int64[]", [1], [2**63, -1], "9223372036854775808"),
    ("float32", 1, "1e400", "1e400"),
    ("bool", "true", "yes", "'yes'"),
    ("string", "a", ["a", "b"], "string"),
]


def test_a_value_that_does_not_fit_is_a_reject_that_names_it(table):
    """In row n, the column xn has the value that does not fit."""
    count = len(MISFITS)
    rows = [
        {f"x{at}": bad if at == row else good for at, (_, good, bad, _) in enumerate(MISFITS)}
        for row in range(count + 1)
    ]
    dataset = table(rows, columns={f"x{at}": declared for at, (declared, *_) in enumerate(MISFITS)}, max_rejects=count)
    assert dataset.manifest.rejects == {"bad_column": count}
    lines = Path(dataset.url, "rejects.jsonl").read_text().splitlines()
    rejects = {Path(each["path"]).stem: each for each in map(json.loads, lines)}
    for row, (*_, said) in enumerate(MISFITS):
        assert rejects[f"{row:02}"]["reason"] == "bad_column"
        assert re.search(f"'x{row}' .*{said}", rejects[f"{row:02}"]["message"])


def test_a_reject_says_nothing_about_types(table):
    """The types of the columns are those of the other rows."""
    rows = [{"x": n, "pair": [n, n], "speed": n / 2} for n in range(12)]
    rows[3] |= {"x": "no", "speed": "fast"}
    rows[5] |= {"pair": [1, "?", 3]}
    dataset = table(rows, columns={"x": "int64", "pair": "int64[]"})
    assert dataset.manifest.rejects == {"bad_column": 2}
    assert further_columns(dataset.manifest.features) == {"x": "int64", "pair": "int64[2]", "speed": "float32"}
    assert batch_of(dataset, ["x"])["x"].tolist() == [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]


def test_a_column_that_no_row_has_cannot_be_declared(table):
    for name in ("y", "path"):
        with pytest.raises(OptionError, match=f"'{name}'"):
            table([{"x": n} for n in range(12)], columns={name: "int64"})


@pytest.mark.parametrize(
    ("declared", "value", "becomes"),
    [
        ("int64", "9007199254740993", 9007199254740993),  # float64 has no such number
        ("int64", " 7.0 ", 7),
        ("int64[]", [9007199254740993, 1.0], [9007199254740993, 1]),
        ("int32[]", "[1, 2]", [1, 2]),
        ("int32[,2]", b"\1\0\0\0\2\0\0\0", [[1, 2]]),
        ("bool", "False", False),
        ("bool[2]", ["true", "0"], [True, False]),
        ("bool[2]", b"\1\0", [True, False]),
        ("float16[2]", b"\0\x3c\0\x40", [1.0, 2.0]),
        ("string", b"a", "a"),
        ("bytes", b"\xff", b"\xff"),
    ],
)
def test_values_in_other_forms_are_converted(declared, value, becomes):
    values, problem = ColumnTypes([Declared.parse("x", declared)]).learn({"x": value})
    assert (values, problem) == ({"x": becomes}, None)


@pytest.mark.parametrize(
    ("declared", "value"),
    [("bool[2]", b"\1\2"), ("uint8[2]", b"\1"), ("bytes", "a"), ("bytes", [b"a"]), ("string", b"\xff")],
)
def test_bytes_that_do_not_fit_are_no_value(declared, value):
    _, problem = ColumnTypes([Declared.parse("x", declared)]).learn({"x": value})
    assert problem is not None
    assert problem[0] == "bad_column"


def test_too_many_bad_values_fail_the_build(table):
    with pytest.raises(TooManyRejectsError, match="bad_column"):
        table([{"x": "no" if number % 2 else 1} for number in range(12)], columns={"x": "int64"}, max_rejects=2)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": "float64"}, "'float64'"),
        ({"x": "int64[0]"}, "size of 0"),
        ({"x": "string[3]"}, "string"),
        ({"x": "int64[a]"}, r"int64\[a\]"),
    ],
)
def test_a_declaration_that_is_none_says_how_to_write_one(columns, said, table):
    with pytest.raises(OptionError, match=said):
        table([{"x": 1}], columns=columns)


def test_the_command_declares_columns_and_info_shows_them(tmp_path, photos):
    lines = [f'{photo},"[{number}, 2, 3]"' for number, photo in enumerate(photos[:12])]
    (tmp_path / "table.csv").write_text("\n".join(["path,codes", *lines]))
    command = [
        "shard",
        str(tmp_path / "table.csv"),
        str(tmp_path / "out"),
        "--column",
        "codes:int32[3]",
        "--workers",
        "1",
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "codes int32[3]" in CliRunner().invoke(app, ["info", str(tmp_path / "out")]).output
    batch = batch_of(tpufeed.open_dataset(tmp_path / "out"), ["codes"])
    assert batch["codes"].tolist() == [[number, 2, 3] for number in range(12)]
    assert batch["codes"].dtype == np.int32


# Labels of several classes


TAGS = [["cat", "dog"], [], ["dog"], None, "bird", ["bird", "cat", "dog"]]


def test_labels_of_several_classes(table):
    dataset = table([{"tags": TAGS[number % 6]} for number in range(12)], label="tags")
    manifest = dataset.manifest
    assert manifest.class_names == ("bird", "cat", "dog")
    assert dataset.split("train").class_counts == (4, 4, 6)
    assert tpufeed.verify(dataset.url).records == 12
    hot = batch_of(dataset, ["label"], label_format="multi_hot")["label"]
    assert (hot.dtype, hot.shape) == (np.float32, (12, 3))
    assert hot[:6].tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0], [1, 1, 1]]
    batch = batch_of(dataset, ["label"])
    assert batch["label"][:3].tolist() == [[1, 2, -1], [-1, -1, -1], [2, -1, -1]]
    assert batch["label_length"][:6].tolist() == [2, 0, 1, 0, 1, 3]
    with tpufeed.Loader(dataset.url, batch_size=4, ops=RESIZE) as loader:
        assert loader.stream.form.names == ("image", "label", "label_length")
    assert "image/class/label int64[0 to 3]" in CliRunner().invoke(app, ["info", dataset.url]).output


def test_ids_and_fixed_classes(table, tmp_path):
    dataset = table([{"label": [number % 3, 2]} for number in range(12)], classes=["a", "b", "c", "d"])
    assert batch_of(dataset, ["label"], label_format="multi_hot")["label"][1].tolist() == [0, 1, 1, 0]
    assert dataset.split("train").class_counts == (4, 4, 12, 0)


def test_lists_of_at_most_one_label_are_lists(table):
    dataset = table([{"label": ["a"] if n % 2 else []} for n in range(12)])
    batch = batch_of(dataset, ["label"])
    assert batch["label"].tolist() == [[0] if n % 2 else [-1] for n in range(12)]
    assert batch["label_length"].tolist() == [n % 2 for n in range(12)]
    one_box = {"boxes": [[0, 0, 5, 5]], "label": ["a"]}
    none = {"boxes": [], "label": []}
    boxed = table([one_box if n % 2 else none for n in range(12)], boxes=tpufeed.Boxes(column="boxes"), overwrite=True)
    found = batch_of(boxed, ["boxes", "label"], ops=RESIZE)
    assert (found["boxes"].shape, found["label"].shape) == ((12, 1, 4), (12, 1))
    assert found["boxes_length"].tolist() == [n % 2 for n in range(12)]


def test_an_unknown_class_among_several_is_a_bad_label(table):
    dataset = table([{"label": ["a", "x" if n == 5 else "b"]} for n in range(12)], classes=["a", "b"])
    assert dataset.manifest.rejects == {"bad_label": 1}


def test_an_empty_label_among_several_is_a_bad_label(table):
    dataset = table([{"label": ["a", None if n == 5 else "b"]} for n in range(12)])
    assert dataset.manifest.rejects == {"bad_label": 1}
    assert "one of its 2 labels is missing" in Path(dataset.url, "rejects.jsonl").read_text()


@pytest.mark.uses("tensorflow")
def test_every_loader_gives_the_same_columns(table):
    dataset = table([{"label": TAGS[n % 6], "vector": [n, 1.0], "few": [n] * (n % 3)} for n in range(12)])
    options = {
        "columns": ["image", "label", "vector", "few"],
        "ops": RESIZE,
        "label_format": "multi_hot",
        "batch_size": 8,
    }
    with tpufeed.Loader(dataset.url, **options) as loader:
        expected = next(iter(loader))
    for adapter in ("to_torch", "to_jax"):
        with getattr(tpufeed.Loader(dataset.url, **options), adapter)() as loader:
            for one, other in zip(next(iter(loader)), expected, strict=True):
                np.testing.assert_array_equal(np.asarray(one), other)
    feed = tpufeed.Loader(dataset.url, **options).to_tf(deterministic=True)
    assert [tuple(spec.shape) for spec in feed.element_spec] == [array.shape for array in expected]
    for one, other in zip(next(iter(feed)), expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    one = tpufeed.TFRecordImages(dataset.url, columns=["label", "vector", "few"], label_format="multi_hot")[3]
    assert [tuple(value.shape) for value in one[:3]] == [(3,), (2,), (2,)]
    with pytest.raises(OptionError, match="direct=True"):
        tpufeed.Loader(dataset.url, **options).to_tf(direct=True)


def test_damage_in_lists_is_named(table, tmp_path):
    """A record whose list is longer than the manifest says, as another tool may write."""
    rows = [{"label": ["a"], "few": [n] * (1 + n % 2), "raw": [n, 1], "byte": n} for n in range(12)]
    dataset = table(rows, columns={"raw": "uint8[2]", "byte": "uint8"})
    (payload,) = dataset.reader("train").read_many([(0, 0)])
    check = RecordCheck(dataset.manifest)
    check.check(payload)
    whole = dict(decode_example(payload))
    for name, kind, values, said in (
        ("few", "int64", [1, 2, 3], "3 items"),
        ("image/class/label", "int64", [1], "label 1"),
        ("raw", "bytes", [b"123"], "3 bytes"),
        ("raw", "int64", [1, 2], "int64"),
        ("byte", "int64", [256], "256"),
    ):
        bad = encode_features(whole | {name: Feature(kind, values)})
        with pytest.raises(RecordError, match=said):
            check.check(memoryview(bad))
