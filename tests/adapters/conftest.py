"""The datasets of `tests/stream`, and programs of frameworks that run in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stream.conftest import (
    broken_url,
    cache_url,
    damage,
    dataset_url,
    flat_url,
    ops,
    photo_folder,
    stored,
)

__all__ = ["broken_url", "cache_url", "damage", "dataset_url", "flat_url", "ops", "photo_folder", "stored"]


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    """`run_script(name, *arguments, devices=1)` runs a script below this folder on CPU devices of torch_xla."""

    def run(name: str, *arguments: object, devices: int = 1, seconds: float = 280) -> str:
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "PYTHONFAULTHANDLER": "1"}
        command = [sys.executable, str(Path(__file__).parent / name), *map(str, arguments)]
        with subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                pytest.fail(f"{name} hangs after:\n{process.communicate()[0]}")
        assert process.returncode == 0, output
        return output

    return run


@pytest.fixture(scope="session")
def run_forks() -> Callable[..., list[tuple[int, str, str]]]:
    """`run_forks(modules, runs, folder, **variables)` runs forks.py: `(status, stdout, stderr)` of each program."""

    def run(modules: str, runs: list[dict[str, Any]], folder: Path, **variables: str) -> list[tuple[int, str, str]]:
        command = [sys.executable, str(Path(__file__).with_name("forks.py")), modules, json.dumps(runs), str(folder)]
        environment = os.environ | {"TPUFEED_PROCESSES": "0"} | variables
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=280 * (1 + len(runs)), check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        statuses = json.loads(done.stdout.splitlines()[-1])
        texts = [[(folder / f"{n}.{name}").read_text() for name in ("out", "err")] for n in range(len(statuses))]
        return [(status, *each) for status, each in zip(statuses, texts, strict=True)]

    return run


@pytest.fixture
def lightning_without_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning tries to import torch_xla, which aborts the process after the tensorflow of other tests."""
    monkeypatch.setattr("lightning.fabric.accelerators.xla._XLA_AVAILABLE", False)
