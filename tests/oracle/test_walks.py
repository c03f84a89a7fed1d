"""Combinations of loaders against the oracle: some of them, with a fixed seed; `python -m tests.oracle` goes on."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracle.datasets import make_pool
from tests.oracle.walks import FEEDS, walk


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("labels")))
        yield make_pool(tmp_path_factory.mktemp("oracle"))


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_walks(pool, data):
    walk(pool, data, tuple(FEEDS))
