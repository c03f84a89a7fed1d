"""Combinations of loaders against the oracle: some of them, with fixed seeds; `python -m tests.oracle` goes on."""

import importlib.util

import pytest

from tests.oracle.datasets import make_pool
from tests.oracle.walks import FEEDS, walk_often

PACKAGES = {"torch": "torch", "device": "torch", "sampler": "torch", "jax": "jax", "tf": "tensorflow", "keras": "keras"}
INSTALLED = [feed for feed in FEEDS if feed == "numpy" or importlib.util.find_spec(PACKAGES[feed])]
WALKS = 80  # 10 to 25 seconds


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("labels")))
        yield make_pool(tmp_path_factory.mktemp("oracle"))


def test_walks(pool):
    walk_often(pool, 0, WALKS, [feed for feed in INSTALLED if feed not in ("tf", "keras")])


@pytest.mark.all
@pytest.mark.xdist_group("frameworks")
def test_walks_of_every_feed(pool):
    walk_often(pool, 1, WALKS, INSTALLED)
