"""Chains of commands through a store that damages what is read, with fixed seeds."""

import logging

import pytest

from tests.oracle.faults import KINDS, walk


@pytest.mark.parametrize("first", [0, pytest.param(3, marks=pytest.mark.all), pytest.param(12, marks=pytest.mark.all)])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_wrong_is_published_or_given(kind, first, tmp_path, caplog):
    caplog.set_level(logging.CRITICAL, "tpufeed")
    for seed in range(first, first + (9 if first else 1)):
        walk(kind, seed, tmp_path)
