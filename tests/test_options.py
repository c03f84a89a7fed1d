import inspect

import pytest

import tpufeed
from tpufeed.errors import OptionError
from tpufeed.options import named_options


@named_options({"num_workers": "processes", "transform": "give the ops to ops=[...]"})
def load(url: str, *, processes: int = 1, shuffle: bool = False) -> tuple[str, int, bool]:
    """Load."""
    return url, processes, shuffle


def test_what_it_has_is_passed_on_and_its_signature_stays():
    assert load("x", processes=2) == ("x", 2, False)
    assert list(inspect.signature(load).parameters) == ["url", "processes", "shuffle"]
    assert (load.__name__, load.__doc__) == ("load", "Load.")


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("num_workers", "load has no option 'num_workers'; use processes"),
        ("transform", "load has no option 'transform'; give the ops to ops=[...]"),
        ("shufle", "load has no option 'shufle'; use shuffle"),
        ("zzz", "load has no option 'zzz'; the options are url, processes, shuffle"),
    ],
)
def test_an_unknown_keyword_is_refused_by_the_right_name(keyword, message):
    with pytest.raises(OptionError) as error:
        load("x", **{keyword: 1})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("call", "keyword", "name"),
    [
        (tpufeed.shard, "split", "shares"),
        (tpufeed.cache.warmup, "split", "shares"),
        (tpufeed.adopt, "image", "image_key"),
        (tpufeed.adopt, "label", "label_key"),
    ],
)
def test_former_keywords_name_the_present_one(call, keyword, name):
    with pytest.raises(OptionError, match=rf"has no option '{keyword}'; use {name}$"):
        call("src", "dst", **{keyword: "train"})
