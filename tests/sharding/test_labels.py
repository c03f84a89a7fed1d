"""Labels become ids: names sorted, or numbers as they stand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.errors import OptionError, SourceError
from tpufeed.sharding.labels import bad_label, make_classes, read_classes
from tpufeed.sharding.tables import to_label


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


def test_folders_called_by_numbers_are_names():
    """tf.keras and torchvision sort them as text, too."""
    assert ids(["10", "9", "1"], are_names=True) == {"1": 0, "10": 1, "9": 2}


def test_one_name_among_numbers_makes_all_of_them_names():
    assert ids([1, "1", "10", "cat"]) == {1: 0, "1": 0, "10": 1, "cat": 2}


def test_negative_numbers_are_no_ids():
    classes = make_classes([-1, 0, "1"], None, False)
    assert (classes.names, classes.ids) == (("0", "1"), {0: 0, "1": 1})
    assert bad_label(-1, classes) == ("bad_label", "the label -1 is none of the 2 classes")
    assert make_classes(["-1"], None, False).names == ()


def test_no_labels():
    assert make_classes([None], None, False).names == ()
    assert bad_label(None, make_classes([None], None, False)) == ("bad_label", "the sample has no label")


def test_given_classes_fix_the_ids():
    assert ids(["dog", "bird", None, "cat"], ("dog", "cat")) == {"dog": 0, "cat": 1}


def test_numbers_are_places_among_given_classes():
    assert ids([1, "0", 2, -1, "7"], ("dog", "cat")) == {1: 1, "0": 0}


def test_a_given_name_goes_before_a_place():
    assert ids(["1", "0"], ("1", "0")) == {"1": 0, "0": 1}


@pytest.mark.parametrize(
    "label", [2_000_000, 1 << 40, "9" * 30, "9" * 5000, "1" + "0" * 400 + ".0"], ids=lambda label: str(label)[:9]
)
def test_ids_that_nobody_can_count_up_to(label):
    with pytest.raises(
        SourceError, match=f"the label {str(label)[:20]}.* would make more than 2,000,000 classes; .*--classes"
    ):
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


@pytest.mark.parametrize("value", [[1, 2], [], {"a": 1}, (1,)], ids=str)
def test_several_labels_are_none(value):
    with pytest.raises(SourceError, match=r"is no label: a sample has one class.*--label none"):
        to_label(value)


def test_a_file_of_classes(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_bytes("\ufeffcat\r\n\r\n  sea lion \r\nü\r\n".encode())
    assert read_classes(path) == read_classes(str(path)) == ("cat", "sea lion", "ü")
    assert read_classes(["b", "a"]) == ("b", "a")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"no classes in .*classes\.txt; expected a name a line"),
        (b" \n\n", "no classes"),
        (b"a\nb\na\n", r"the class 'a' stands twice in .*classes\.txt"),
        (b"a\xff\n", "cannot be read: .*codec"),
        (None, "cannot be read: .*No such file"),
    ],
    ids=["empty", "blank", "twice", "not UTF-8", "missing"],
)
def test_a_file_that_does_not_hold_classes(data, message, tmp_path):
    if data is not None:
        (tmp_path / "classes.txt").write_bytes(data)
    with pytest.raises(OptionError, match=message):
        read_classes(tmp_path / "classes.txt")


def test_a_list_that_does_not_hold_classes(tmp_path):
    with pytest.raises(OptionError, match="the class 'a' stands twice in the list of classes"):
        read_classes(["a", "a"])
    with pytest.raises(OptionError, match=r"the class 'a\\udcff' in the list of classes is not UTF-8"):
        read_classes(["a\udcff"])
    with pytest.raises(OptionError, match=r"cannot be read: .*directory"):
        read_classes(tmp_path)
