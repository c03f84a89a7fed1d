"""Combinations of builds against a dict, with fixed seeds: each kind of source by itself."""

import logging

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.oracle.builds import machine, settings_of
from tests.oracle.sources import KINDS


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.all)])
@pytest.mark.parametrize("kind", KINDS)
def test_builds(kind, number, caplog):
    caplog.set_level(logging.CRITICAL, "tpufeed")
    seed = KINDS.index(kind) + number * len(KINDS)
    run_state_machine_as_test(machine([kind], seed), settings=settings_of(2, 4))  # the first one is the simplest
