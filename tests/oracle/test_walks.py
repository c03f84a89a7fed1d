"""Combinations of loaders against the oracle: some of them, with fixed seeds; `python -m tests.oracle` goes on."""

import importlib.util

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.oracle.datasets import make_pool
from tests.oracle.walks import FEEDS, walk

PACKAGES = {"torch": "torch", "device": "torch", "sampler": "torch", "jax": "jax", "tf": "tensorflow", "keras": "keras"}
INSTALLED = [feed for feed in FEEDS if feed == "numpy" or importlib.util.find_spec(PACKAGES[feed])]
WALKS = 80  # some 20 seconds


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("labels")))
        yield make_pool(tmp_path_factory.mktemp("oracle"))


def walk_often(pool, number, feeds):
    @seed(number)
    @settings(
        max_examples=WALKS,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def walks(data):
        walk(pool, data, tuple(feeds))

    walks()


def test_walks(pool):
    walk_often(pool, 0, [feed for feed in INSTALLED if feed not in ("tf", "keras")])


@pytest.mark.all
@pytest.mark.xdist_group("frameworks")
def test_walks_of_every_feed(pool):
    walk_often(pool, 1, INSTALLED)
