"""The compiler of a TPU that is not here: what it counts, and what it refuses."""

import importlib.util
import json
import os
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.frameworks import lazy
from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.measure import tpu_compiler
from tpufeed.measure.tpu import TPUS
from tpufeed.measure.tpu_compiler import ENVIRONMENT, compile_for, compiler_version, tpu_mesh

jax = lazy("jax")
DESCRIBE = "jax.experimental.topologies.get_topology_desc"

REAL = """
import jax
from jax.sharding import NamedSharding, PartitionSpec
from tpufeed.errors import OptionError
from tpufeed.measure.tpu_compiler import compile_for, tpu_mesh

def lower(name, devices, side):
    images = NamedSharding(tpu_mesh(name, devices), PartitionSpec("data"))
    return jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((side, side), "bfloat16", sharding=images))

program = lower("v5e-8", 1, 1024)
for cost in (compile_for("v5e-8", program), compile_for("v5e-8", program.as_text())):
    assert (cost.devices, cost.layouts) == (1, ((0, 1),))
    assert cost.flops >= 2 * 1024**3 and cost.hbm_bytes >= 2 * 2 * 1024**2
    assert cost.least_seconds == max(cost.flops / 197e12, cost.hbm_bytes / 819e9)
assert compile_for("v4-8", lower("v4-8", 4, 1024)).devices == 4
for program in (lower("v5e-8", 1, 2**18), "module {"):
    try:
        compile_for("v5e-8", program)
    except OptionError as error:
        print(error)
"""


@pytest.mark.long
def test_the_compiler_counts_and_refuses(python_with_libtpu: Path) -> None:
    command, variables = [python_with_libtpu, "-c", REAL], os.environ | ENVIRONMENT
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    too_large, damaged = done.stdout.splitlines()
    assert "Ran out of memory" in too_large
    assert "cannot read this StableHLO" in damaged


@pytest.mark.long
def test_device_ops_cost_a_percent_of_a_step(python_with_libtpu: Path) -> None:
    program = Path(__file__).parents[2] / "scripts/proxies/programs/tpu_costs.py"
    command = [python_with_libtpu, program, "v5e-8", "64", "HorizontalFlip|crop and flip"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row["bandwidth_seconds"] == row["hbm_bytes"] / 819e9 for row in rows)
    found = {(row["program"], row["input"]): row for row in rows}
    floats = [("to_device_float", kind) for kind in ("rows", "pixels", "planes")]
    crop, of_coefficients = ("crop and flip", "rows"), ("crop and flip of coefficients", "coefficients")
    assert [*found] == [("HorizontalFlip", "rows"), crop, of_coefficients, *floats]
    assert found[crop]["layout"] == [0, 1, 2]
    for each in (crop, of_coefficients):
        assert found[each]["hbm_bytes"] <= 330e6 / 2
        assert found[each]["temporary_bytes"] <= 60e6 / 2


def test_each_tpu_has_a_topology() -> None:
    assert TPUS.keys() == tpu_compiler._TOPOLOGIES.keys()


@pytest.mark.parametrize("package", ["jax", "libtpu"])
def test_what_is_missing_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else name)
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed: .*tpu-compiler"):
        compiler_version()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1" if name == "libtpu" else version(name))


@pytest.mark.uses("jax")
@pytest.mark.usefixtures("installed")
def test_a_libtpu_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("UNIMPLEMENTED: PJRT API version mismatch\nmore")

    monkeypatch.setattr(DESCRIBE, fail)
    with pytest.raises(OptionError, match=r"\(PJRT API version mismatch\): install .* pip install 'jax\[tpu\]=="):
        tpu_mesh("v5e-8")
    with pytest.raises(OptionError, match="no TPU 'v9'"):
        tpu_mesh("v9")


@pytest.mark.uses("jax")
@pytest.mark.usefixtures("installed")
def test_more_devices_than_a_tpu_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DESCRIBE, lambda **_: SimpleNamespace(devices=[*range(4)]))
    with pytest.raises(OptionError, match="v4-8 has 4 devices, not 5"):
        tpu_mesh("v4-8", 5)


@pytest.mark.uses("jax")
def test_a_program_for_this_host_is_refused() -> None:
    program = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((4,), "float32"))
    with pytest.raises(OptionError, match="for devices of this host"):
        compile_for("v5e-8", program)


def test_the_compiler_s_own_words_are_short() -> None:
    class TooLarge:
        def compile(self) -> None:
            raise RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM.\nLargest allocations:\n1. 70 GB")

    program: Any = TooLarge()
    with pytest.raises(OptionError) as found:
        compile_for("v5e-8", program)
    assert str(found.value).endswith("for v5e-8: Ran out of memory on HBM; take a smaller batch")
