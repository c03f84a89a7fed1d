"""Layouts as people have them against what they mean, with fixed seeds; `python -m tests.oracle.intent` goes on."""

import logging

import pytest

from tests.oracle.intent import settle_often

LAYOUTS = 50  # 15 to 20 seconds


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.all), pytest.param(2, marks=pytest.mark.all)])
def test_intent(number, caplog):
    caplog.set_level(logging.CRITICAL, "tpufeed")
    settle_often(number * LAYOUTS, LAYOUTS)
