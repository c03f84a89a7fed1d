"""Combinations of loaders against the oracle."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracle.datasets import make_pool
from tests.oracle.walks import walk


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    return make_pool(tmp_path_factory.mktemp("oracle"))


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_walks(pool, data):
    walk(pool, data)
