"""examples/heavy_augment_cache.py: a model learns from the cache, and its op repeats itself."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

RUNS = {"examples/README.md": "heavy_augment_cache[.]py"}

EXAMPLES = Path(__file__).parents[3] / "examples"
QUIET = {"NO_ALBUMENTATIONS_UPDATE": "1"}


@pytest.fixture(scope="module")
def example():
    """As workers import it, by name."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("heavy_augment_cache")
    finally:
        sys.path.remove(str(EXAMPLES))
        sys.modules.pop("heavy_augment_cache")


def test_it_learns_from_the_cache(flowers, run_example, page_arguments, tmp_path):
    given = [*page_arguments("heavy_augment_cache.py"), "--data", flowers.url, "--cache", tmp_path / "heavy"]
    output = run_example("heavy_augment_cache.py", *given, "--workers", 2, "--seconds", 0.3, folder=tmp_path, **QUIET)
    assert output.losses[-1] < 0.75 * output.losses[0], output.losses  # 0.32 to 0.50 with four seeds
    figures = r"[\d,]+ images/s, idle \d+\.\d %"
    for what in ("augmented live", "from the cache"):
        assert re.search(rf"^EMULATED tpu-v3-8, {what}: {figures}$", output.text, re.MULTILINE), output.text
    assert len(re.findall(rf"^epoch \d: loss \S+, {figures}$", output.text, re.MULTILINE)) == 4
    assert float(re.search(r"^accuracy, held out: (\d\.\d+) of 43$", output.text, re.MULTILINE)[1]) > 0.4


def test_the_op_takes_all_its_randomness_from_the_generator(example):
    image = np.random.default_rng(0).integers(0, 256, (48, 40, 3), np.uint8)
    first, again, other = (example.augment(image.copy(), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
