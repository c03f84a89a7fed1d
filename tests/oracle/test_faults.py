"""Chains of commands through a store that damages what is read, with fixed seeds."""

import logging

import pytest

from tests.oracle.faults import KINDS, walk


@pytest.mark.parametrize("more", [False, pytest.param(True, marks=pytest.mark.all)])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_wrong_is_published_or_given(kind, more, tmp_path, caplog):
    """Of 18 more seeds each kind of source has a third: a seed damages the same reads of all."""
    caplog.set_level(logging.CRITICAL, "tpufeed")
    for seed in range(3 + KINDS.index(kind), 21, len(KINDS)) if more else [0]:
        walk(kind, seed, tmp_path)
