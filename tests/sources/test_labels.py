"""Labels become ids: sorted names, or numbers as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.dataset.naming import read_classes
from tpufeed.errors import OptionError, SourceError
from tpufeed.sources.labels import (
    are_renamed,
    bad_label,
    extend_classes,
    iter_class_warnings,
    join_names,
    make_classes,
)
from tpufeed.sources.table import to_label


def ids(labels, fixed=None, are_names=False):
    return dict(make_classes(labels, fixed, are_names).ids)


def test_names_are_sorted():
    classes = make_classes(["dog", "cat", None, "ant", "Zebra"], None, False)
    assert classes.names == ("Zebra", "ant", "cat", "dog")
    assert classes.ids == {"Zebra": 0, "ant": 1, "cat": 2, "dog": 3}


@given(st.permutations(["b", "a", None, "ü", "10", "9"]))
def test_their_order_does_not_matter(labels):
    assert make_classes(labels, None, False).names == ("10", "9", "a", "b", "ü")


@pytest.mark.parametrize("labels", [[0, 2], ["0", "2"], ["2.0", 0], ["+2", "0", 2, None], [2]], ids=str)
def test_whole_numbers_are_ids_as_they_stand(labels):
    classes = make_classes(labels, None, False)
    assert classes.names == ("0", "1", "2")
    assert classes.ids == {label: int(float(label)) for label in labels if label is not None}


def test_folders_called_by_numbers_are_names_in_the_order_of_numbers():
    assert ids(["10", "9", "1"], are_names=True) == {"1": 0, "9": 1, "10": 2}
    assert ids(["10", "9", "b1"], are_names=True) == {"10": 0, "9": 1, "b1": 2}


def test_one_name_among_numbers_makes_all_of_them_names():
    assert ids([1, "1", "10", "cat"]) == {1: 0, "1": 0, "10": 1, "cat": 2}


@pytest.mark.parametrize(
    ("known", "own", "names", "ids"),
    [
        (["a", "b"], ["b", "c", "a"], ("a", "b", "c"), {"a": 0, "b": 1, "c": 2}),
        (["a", "b"], ["z", "b", "y"], ("a", "b", "z", "y"), {"b": 1, "z": 2, "y": 3}),
        (["caf\u00e9"], ["x", "cafe\u0301"], ("caf\u00e9", "x"), {"cafe\u0301": 0, "x": 1}),
        (["0", "1"], ["3", "0"], ("0", "1", "2", "3"), {"3": 3, "0": 0}),
        (["1", "cat"], ["cat", "7"], ("1", "cat", "7"), {"cat": 1, "7": 2}),
    ],
)
def test_a_list_of_a_further_source_is_known_by_its_names(known, own, names, ids):
    classes = extend_classes([*ids, -1, 9, "not in the list"], known, are_names=False, own=own)
    assert (classes.names, classes.ids) == (names, ids)


@pytest.mark.parametrize(("known", "own"), [(["0", "1"], ["0", "a"]), (["a", "b"], ["0", "1"])])
def test_a_list_of_ids_is_none_of_names(known, own):
    with pytest.raises(SourceError, match="ids"):
        extend_classes([], known, are_names=False, own=own)


@pytest.mark.parametrize(
    ("known", "fixed", "joined"),
    [
        (["a", "b"], ["a", "b", "c"], ("a", "b", "c")),
        (["a", "b"], ["a"], ("a", "b")),
        (["caf\u00e9"], ["cafe\u0301", "b"], ("caf\u00e9", "b")),
    ],
)
def test_a_list_that_begins_as_the_dataset_s_names(known, fixed, joined):
    assert join_names(known, fixed) == joined


@pytest.mark.parametrize("fixed", [["b", "a"], ["a", "c", "b"], ["c"]])
def test_a_list_that_contradicts_the_dataset_s_names(fixed):
    with pytest.raises(OptionError, match="dataset"):
        join_names(["a", "b"], fixed)


@pytest.mark.parametrize(
    ("own", "given", "renamed"),
    [
        (["n01", "n02"], ["cat", "dog"], True),
        (["cat", "n02"], ["cat", "dog"], True),
        (["cat", "dog"], ["cat", "dog"], True),
        (["dog", "cat"], ["cat", "dog"], False),
        (["bird", "cat"], ["cat", "dog"], False),
    ],
)
def test_a_given_list_renames_or_orders(own, given, renamed):
    assert are_renamed(own, given) is renamed


@pytest.mark.parametrize("missing", ["nan", "NaN", "NA", "null", "None", "<NA>", "#N/A"])
def test_a_missing_value_among_ids_leaves_them_ids(missing):
    classes = make_classes([*map(str, range(12)), missing], None, False)
    assert classes.names == tuple(map(str, range(12)))
    assert classes.ids == {str(number): number for number in range(12)}
    reason, message = bad_label(missing, classes)
    assert reason == "bad_label"
    assert repr(missing) in message


def test_a_missing_value_among_names_is_no_class():
    """If labels are names, `none` and `NA` may be names as well."""
    assert ids(["dog", "nan", "cat", "none", "NA"]) == {"NA": 0, "cat": 1, "dog": 2, "none": 3}
    assert ids(["dog", "nan"], ("nan", "dog")) == {"nan": 0, "dog": 1}
    assert ids(["dog", "nan"], are_names=True) == {"dog": 0, "nan": 1}


def test_spellings_of_one_name_are_one_class():
    """As macOS (decomposed) and other systems (composed) write a letter with an accent."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    classes = make_classes([decomposed, "bar", composed], None, False)
    assert classes.names == ("bar", composed)
    assert classes.ids == {"bar": 0, composed: 1, decomposed: 1}
    assert make_classes([decomposed, "bar"], None, True).names == ("bar", decomposed)  # as it always is written
    assert ids([composed, decomposed], read_classes(["x", decomposed])) == {composed: 1, decomposed: 1}


def warnings(counts, fixed=None, are_names=False):
    classes = make_classes(counts, fixed, are_names)
    return list(iter_class_warnings(counts, classes, are_names or fixed is not None))


@pytest.mark.parametrize(
    "counts", [{"0": 9, "1": 9, "nan": 1}, {"1": 9, "2.0": 9, 2: 8}, {"cat": 5, "7": 4}, {"cat": 9, None: 9}], ids=str
)
def test_labels_that_nothing_is_said_of(counts):
    assert warnings(counts) == []


def test_names_among_numbers_are_told():
    (said,) = warnings({"9": 6, "10": 6, "cat": 1, None: 90, "nan": 90})
    assert "'cat'" in said
    assert "12 of 13" in said
    assert "--classes FILE" in said
    (said,) = warnings({"9": 6, "10": 6, "9.5": 1})  # which no list of classes makes ids of
    assert "--label-type number" in said
    assert "--classes" not in said
    assert warnings({"9": 6, "cat": 6}, fixed=("cat",)) == warnings({"9": 6, "10": 6, "cat": 6}, are_names=True) == []


def test_numbers_that_are_one_class_are_told():
    (said,) = warnings({"01": 6, "1": 6, "001": 6, "2": 6, "02.0": 6, "3": 6, "3.0": 6})
    assert "'001', '01', '1'" in said
    assert "--classes" in said
    assert warnings({"01": 6, "1": 6, "001": 6}, fixed=("01", "1", "001")) == []


def test_classes_of_few_images_are_told():
    names = [f"{number:02d}" for number in range(30)]
    many = {name: 9 for name in names[:15]}
    assert warnings({**many, **dict.fromkeys(names[15:], 4)}, are_names=True) == []
    (said,) = warnings({**many, "last": 3, **dict.fromkeys(names[15:], 4)}, are_names=True)
    assert "16 of 31 classes" in said
    assert "'last'" in said
    (said,) = warnings({f"red,{name}": 2 for name in names})
    assert "30 of 30 classes" in said
    assert "'red,00'" in said
    assert "--label-separator ','" in said


def test_negative_numbers_are_no_ids():
    classes = make_classes([-1, 0, "1"], None, False)
    assert (classes.names, classes.ids) == (("0", "1"), {0: 0, "1": 1})
    assert bad_label(-1, classes)[0] == "bad_label"
    assert make_classes(["-1"], None, False).names == ()


def test_given_classes_fix_the_ids():
    assert ids(["dog", "bird", None, "cat"], ("dog", "cat")) == {"dog": 0, "cat": 1}


def test_numbers_are_places_among_given_classes():
    assert ids([1, "0", 2, -1, "7"], ("dog", "cat")) == {1: 1, "0": 0}


def test_numbers_are_no_places_where_a_given_class_is_called_by_one():
    assert ids(["0", "1", 2, "3.0", "03", "4"], ("1", "2", "3")) == {"1": 0, 2: 1, "3.0": 2, "03": 2}
    assert ids(["0", "911", "beetle"], ("beetle", "911")) == {"911": 1, "beetle": 0}


@pytest.mark.parametrize(
    "label", [2_000_000, 1 << 40, "9" * 30, "9" * 5000, "1" + "0" * 400 + ".0"], ids=lambda label: str(label)[:9]
)
def test_ids_that_nobody_can_count_up_to(label):
    with pytest.raises(SourceError, match="2,000,000"):
        make_classes([label, 1], None, False)
    assert ids([label, 1], ("a", "b")) == {1: 1}


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (None, None),
        ("", None),
        (float("nan"), None),
        ("cat", "cat"),
        (3, 3),
        (3.0, 3),
        (1.5, "1.5"),
        (float("inf"), "inf"),
        (True, "True"),
        (b"caf\xc3\xa9", "café"),
        (1 << 70, str(1 << 70)),
        (1e300, str(int(1e300))),
        (-(1 << 63), -(1 << 63)),
    ],
    ids=str,
)
def test_values_of_all_types_as_labels(value, label):
    found = to_label(value)
    assert (found, type(found)) == (label, type(label))


@pytest.mark.parametrize("value", [{"a": 1}, [{"a": 1}], [["a"], "b"]], ids=str)
def test_an_object_is_no_label(value):
    with pytest.raises(SourceError, match="--label none"):
        to_label(value)


@pytest.mark.parametrize(
    ("value", "labels"), [([1, 2.0], (1, 2)), ([], ()), (["a", None, ""], ("a", None, None))], ids=str
)
def test_several_labels(value, labels):
    assert to_label(value) == labels


def test_a_file_of_classes(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_bytes("\ufeffcat\r\n  sea\u2028lion \r\nü\r\n \r\n\r\n".encode())
    assert read_classes(path) == read_classes(str(path)) == ("cat", "sea\u2028lion", "ü")
    assert read_classes(["b", "a"]) == ("b", "a")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"classes\.txt"),
        (b" \n\n", r"classes\.txt"),
        (b"a\nb\na\n", "'a'"),
        ("caf\u00e9\ncafe\u0301\n".encode(), "'caf\u00e9'"),
        (b"a\n\nb\n", "line 2"),
        (b"a\xff\n", "codec"),
        (None, "No such file"),
    ],
    ids=["empty", "blank", "twice", "twice to the eye", "blank between", "not UTF-8", "missing"],
)
def test_a_file_that_does_not_hold_classes(data, message, tmp_path):
    if data is not None:
        (tmp_path / "classes.txt").write_bytes(data)
    with pytest.raises(OptionError, match=message):
        read_classes(tmp_path / "classes.txt")


def test_a_list_that_does_not_hold_classes(tmp_path):
    with pytest.raises(OptionError, match="'a'"):
        read_classes(["a", "a"])
    with pytest.raises(OptionError, match=r"'a\\udcff'"):
        read_classes(["a\udcff"])
    with pytest.raises(OptionError, match="directory"):
        read_classes(tmp_path)
