"""Combinations of builds against a dict, with a fixed seed: each kind of source by itself."""

import logging

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.oracle.builds import machine, settings_of
from tests.oracle.sources import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_builds(kind, caplog):
    caplog.set_level(logging.CRITICAL, "tpufeed")
    run_state_machine_as_test(machine([kind], KINDS.index(kind)), settings=settings_of(2, 4))
