"""Annotations that a stranger has prepared; `python -m tests.hostile` goes on where this ends."""

import random

import pytest

from tests.hostile.sources import SOURCES, SourceStep, take_source_step

SEED, STEPS = 43, 40

pytestmark = pytest.mark.timeout(300)


@pytest.mark.all
def test_forged_annotations_end_in_an_error_or_do_no_harm(tmp_path):
    draw = random.Random(SEED)
    for _ in range(STEPS):
        step = SourceStep(draw.choice(SOURCES), draw.getrandbits(32))
        try:
            take_source_step(step, tmp_path)
        except Exception as error:
            error.add_note(str(step))
            raise
