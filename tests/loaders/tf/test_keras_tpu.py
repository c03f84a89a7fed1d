"""docs/examples/keras_tpu.py as users run it: on CPU devices to the end, without a TPU up to the resolver."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "docs/examples/keras_tpu.py"


def run(*arguments):
    environment = {name: value for name, value in os.environ.items() if name not in ("TPU_NAME", "XLA_FLAGS")}
    environment["http_proxy"] = "http://127.0.0.1:1"  # a TPU's name is looked up over the network; not in tests
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=150)


def test_on_cpu_devices_it_learns(dataset_url):
    options = ["--cpu", 2, "--size", 48, "--per-core", 4, "--epochs", 5, "--learning-rate", 0.1]
    done = run(dataset_url, *options)
    assert done.returncode == 0, done.stderr
    assert "2 cores, 8 steps of 8 an epoch" in done.stdout
    first, last = map(
        float, re.search(r"accuracy, training: (0\.\d+) .* first epoch, ([01]\.\d+)", done.stdout).groups()
    )
    assert last > max(first, 0.6)  # of three classes
    held = float(re.search(r"accuracy, held out: .* ([01]\.\d+) after the last", done.stdout)[1])
    assert held * 26 == pytest.approx(round(held * 26), abs=0.02)  # of 26 samples, none of the padding


def test_a_cache_has_its_size_and_crops(cache_url):
    """And steps_per_execution works, on one device."""
    done = run(cache_url, "--cpu", 1, "--epochs", 1, "--steps-per-execution", 2)
    assert done.returncode == 0, done.stderr
    assert "1 cores, 4 steps of 16 an epoch" in done.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], r"no TPU answers as 'local': TPUs not found in the cluster"),
        pytest.param(["--tpu", "my-tpu"], r"no TPU answers as 'my-tpu': \S", marks=pytest.mark.long),
    ],
    ids=["local", "named"],
)
def test_without_a_tpu_it_ends_with_what_to_do(options, reason, dataset_url):
    """The real resolver is asked, and nothing is trained on the CPU behind the user's back."""
    done = run(dataset_url, *options)
    assert done.returncode == 1
    assert re.search(reason, done.stderr)
    assert "To try this script without one: --cpu" in done.stderr
    assert "Traceback" not in done.stderr
    assert "cores" not in done.stdout
