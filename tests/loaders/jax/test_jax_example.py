"""docs/examples/jax_train.py and the programs of docs/jax.md, as they stand, on 8 CPU devices."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(arguments, folder)`: what a program prints."""
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled"))}
    compiled["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

    def run(arguments, folder):
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "JAX_PLATFORMS": "cpu"}
        environment |= compiled | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def test_the_example_learns_and_goes_on_where_it_was(run, dataset_url, tmp_path):
    def train(steps, checkpoint):
        small = ["--batch-size", 16, "--size", 32, "--every", 8, "--processes", 0]
        script = ROOT / "docs/examples/jax_train.py"
        lines = run([script, dataset_url, "--steps", steps, "--checkpoint", checkpoint, *small], tmp_path).splitlines()
        steps = [re.fullmatch(r"step (\d+)  loss (\S+)  idle (\S+) %", line) for line in lines]
        return lines, [(int(step[1]), float(step[2]), float(step[3])) for step in steps if step]

    _, whole = train(24, "whole")
    assert [number for number, *_ in whole] == [8, 16, 24]
    losses = [loss for _, loss, _ in whole]
    assert losses[-1] < 0.7 * losses[0]
    assert all(0 <= idle <= 100 for *_, idle in whole)

    _, first = train(10, "parts")
    lines, rest = train(24, "parts")
    assert lines[0] == "goes on after step 10, in epoch 2"  # 4 batches of 16 are an epoch of 70
    assert [number for number, *_ in first + rest] == [8, 10, 16, 24]
    assert [first[0][1], rest[-1][1]] == pytest.approx([losses[0], losses[-1]], rel=1e-3)


def test_the_programs_of_the_page_run_as_they_stand(run, dataset_url, tmp_path):
    (tmp_path / "flowers").symlink_to(dataset_url)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/jax.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    (tmp_path / "program.py").write_text("\n".join(blocks))
    lines = run(["program.py"], tmp_path).splitlines()
    assert re.fullmatch(r"loss \d\.\d+; \d+\.\d+ s waited; \d+ bytes sent", lines[0])
    assert re.fullmatch(r"P\w*\('data', None, 'model'\) P\w*\('data',\) \(4, 64, 32, 3\)", lines[1])
    assert re.fullmatch(r"loss \d\.\d+", lines[2])
