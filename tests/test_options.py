import inspect
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import OptionError
from tpufeed.options import Count, Names, Number, Whole, above, at_least, between, check_fields, checked, rule_of


@checked({"batch_size": "give it to the DataLoader"})
def load(url: str, *, processes: Number = 1, shuffle: bool = False, ops: Any = None) -> tuple[Any, ...]:
    """Load."""
    return url, processes, shuffle


def test_what_it_has_is_passed_on_and_its_signature_stays():
    assert load("x", processes=2) == ("x", 2, False)
    assert list(inspect.signature(load).parameters) == ["url", "processes", "shuffle", "ops"]
    assert (load.__name__, load.__doc__) == ("load", "Load.")
    with pytest.raises(TypeError, match="2 were given"):
        load("x", 3)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("num_workers", "load has no option 'num_workers'; use processes"),  # torch's
        ("transform", "load has no option 'transform'; use ops"),
        ("batch_size", "load has no option 'batch_size'; give it to the DataLoader"),
        ("image_size", "load has no option 'image_size'; use ops"),
        ("shufle", "load has no option 'shufle'; use shuffle"),
        ("zzz", "load has no option 'zzz'; the options are url, processes, shuffle, ops"),
    ],
)
def test_an_unknown_keyword_is_refused_by_the_right_name(keyword, message):
    with pytest.raises(OptionError) as error:
        load("x", **{keyword: 1})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("call", "keyword", "name"),
    [
        (tpufeed.shard, "num_workers", "workers"),
        (tpufeed.shard, "max_shard_size", "shard_bytes"),
        (tpufeed.cache.warmup, "transform", "ops"),
        (tpufeed.adopt, "image", "image_key"),
        (tpufeed.adopt, "label", "label_key"),
    ],
)
def test_the_words_of_others_name_ours(call, keyword, name):
    with pytest.raises(OptionError, match=rf"'{keyword}'.* {name}$"):
        call("src", "dst", **{keyword: "train"})


ALLOWED = [
    (bool, [(True, True), (np.bool_(False), False)]),
    (Whole, [(-3, -3), (np.int8(5), 5)]),
    (Count, [(1, 1), (np.uint64(7), 7)]),
    (Number | None, [(None, None), (0, 0)]),
    (Annotated[int, between(1, 100)], [(1, 1), (100, 100)]),
    (Annotated[float, between(0.0, 1.0)], [(0, 0.0), (np.float32(0.5), 0.5), (-0.0, 0.0)]),
    (Annotated[float, above(0)], [(3, 3.0), (float("inf"), float("inf"))]),
    (Literal["a", "b"] | None, [(None, None), (np.str_("b"), "b")]),
    (Names | bool, [(["a"], ["a"]), (True, True), ((), ())]),
]


@pytest.mark.parametrize(("annotation", "pairs"), ALLOWED, ids=str)
def test_what_is_allowed_has_one_form(annotation, pairs):
    for given, wanted in pairs:
        found = rule_of(annotation).check("x", given)
        assert (repr(found), type(found)) == (repr(wanted), type(wanted))


@pytest.mark.parametrize(
    ("annotation", "values", "said"),
    [
        (bool, [1, 0, "no", None, np.array([True])], "True or False"),
        (Whole, [1.0, True, "1", None, np.array([1])], "a whole number"),
        (Count, [0, -1, 2.5, True, np.True_, None, float("nan")], "a whole number, at least 1"),
        (Number | None, [-1, "0"], "a whole number, at least 0"),
        (Annotated[int, between(1, 100)], [0, 101, 5.0], "a whole number between 1 and 100"),
        (Annotated[float, between(0.0, 1.0)], [-0.1, 1.5, float("nan"), "0", True, 1j], "a number between 0 and 1"),
        (Annotated[float, above(0, 9000)], [0, 9001, float("inf"), None], "a number above 0, at most 9,000"),
        (Literal["a", "b", "c"], ["d", None, ["a"], np.array(["a", "b"])], "'a', 'b' or 'c'"),
        (Literal["a"] | None, ["b"], "'a'"),
        (bool | Names, ["image", 3], "True or False, or a list of names, like ['image', 'label']"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_said_with_what_is(annotation, values, said):
    for value in values:
        with pytest.raises(OptionError) as error:
            rule_of(annotation).check("x", value)
        assert str(error.value) == f"x is {said}, not {value!r}"


@pytest.mark.parametrize("annotation", [int, str, Any, "int", str | int, str | None, Count | str, Annotated[int, "of"]])
def test_what_declares_nothing_is_not_checked(annotation):
    assert rule_of(annotation) is None


@dataclass(frozen=True, slots=True)
class Options:
    count: Count = 1
    name: str = ""
    steps: Annotated[int, at_least(2)] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "Options: ")


def test_fields_are_checked_and_brought_to_one_form():
    assert type(Options(np.int64(3)).count) is int
    with pytest.raises(OptionError, match=r"^Options: steps is .*2, not 1$"):
        Options(steps=1)


def test_arguments_are_checked_by_place_and_by_name():
    @checked()
    def keep(count: Count, *, dry: bool = False) -> tuple[int, bool]:
        return count, dry

    assert keep(np.int64(2), dry=np.True_) == (2, True)
    with pytest.raises(OptionError, match="count is"):
        keep(0)
    with pytest.raises(OptionError, match="dry is"):
        keep(1, dry="no")
