"""A user's own step: found, made, lowered for the devices of a TPU, compiled once, and refused in one line."""

import importlib.util
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks import lazy
from tests.measure.conftest import make_cost
from tpufeed.errors import OptionError, TpufeedError
from tpufeed.measure import step_cost, tpu_compiler
from tpufeed.measure.step_cost import _compile, cost_of_step

jax = lazy("jax")
HEAD = """
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

def shape(*lengths):
    return jax.ShapeDtypeStruct(lengths, jnp.float32)

"""
STEP = "def make_step(images):\n    return jax.jit(lambda x: (x @ x.T).sum()), (shape(images, 3),)\n"
MESH = """def make_step(images, mesh):
    split = NamedSharding(mesh, PartitionSpec("data"))
    step = jax.jit(lambda x, w, rate: x @ w * rate, in_shardings=(split, None, None))
    return step, (shape(images, 3), jnp.ones((3, 2)), 0.1)
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes train.py, and returns its step."""
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1" if name == "libtpu" else version(name))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "libtpu" else find_spec(name))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(text: str) -> str:
        file = tmp_path / "train_for_a_test.py"
        file.write_text(HEAD + text)
        return f"{file}:make_step"

    return write


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the programs that were compiled. CPUs stand for the devices of a TPU, whose compiler is not here."""
    programs = list[str]()

    def compile_for(tpu: str, program: Any) -> Any:
        programs.append(program.as_text())
        return make_cost()

    monkeypatch.setattr(tpu_compiler, "compile_for", compile_for)
    monkeypatch.setattr(step_cost, "tpu_mesh", lambda *_: jax.sharding.Mesh(jax.devices()[:1], ("data",)))
    return programs


@pytest.mark.uses("jax")
def test_a_step_is_lowered_for_its_images_and_compiled_once(train: Any, compiled: list[str]) -> None:
    step = train(STEP)
    assert _compile(step, "v5e-8", 16) == _compile(step, "v5e-8", 16) == make_cost()
    _compile(step, "v5e-8", 32)
    _compile(step, "v6e-8", 32)
    assert ["tensor<16x3xf32>" in text for text in compiled] == [True, False, False]
    assert ["tensor<32x3xf32>" in text for text in compiled] == [False, True, True]


@pytest.mark.uses("jax")
def test_a_step_takes_the_mesh_and_plain_functions_are_jitted(train: Any, compiled: list[str]) -> None:
    _compile(train(MESH), "v5e-8", 16)
    _compile(train(STEP.replace("jax.jit", "")), "v5e-8", 16)
    assert len(compiled) == 2
    assert '"data"' in compiled[0]


@pytest.mark.uses("jax")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import absent_package", "line 9: ModuleNotFoundError: No module named 'absent_package'"),
        ("def another(images): pass", "has no function make_step"),
        ("def make_step(): pass", "takes 0 parameters; expected the number of images"),
        ("def make_step(images): pass", "returns NoneType; expected"),
        ("def make_step(images):\n    return 1 / 0", "line 10: ZeroDivisionError: division by zero"),
        (STEP.replace("shape(images, 3)", "shape(7, 3)"), "no argument of the step has 16 images"),
        (STEP.replace("shape(images, 3)", "shape(None, 3)"), r"has the shape \(None, 3\)"),
        (STEP.replace("x.T", "x"), "line 10: TypeError: dot_general requires"),
    ],
)
def test_a_step_that_cannot_be_made(train: Any, compiled: list[str], text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        _compile(train(text), "v5e-8", 16)
    assert not compiled


@pytest.mark.parametrize("step", ["train.py", "train:make_step", "train.py:make-step", "/nowhere/train.py:make_step"])
def test_a_step_that_is_not_there(step: str) -> None:
    with pytest.raises(OptionError, match=r"FILE\.py:FUNCTION"):
        cost_of_step(step, "v5e-8")


@pytest.mark.uses("jax")
@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ("echo libtpu_lockfile is held >&2; exit 1", OptionError, "end that process"),
        ("echo Aborted >&2; exit 3", TpufeedError, "crashed with exit code 3: Aborted"),
        ("exit 3", TpufeedError, "it printed nothing"),
        ("kill -SEGV $$", TpufeedError, r"signal 11; .*'jax\[tpu\]=="),
        ('for last; do :; done; echo \'"it does not fit"\' > "$last"', OptionError, "^it does not fit$"),
    ],
)
def test_what_the_process_says_is_raised(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, error: type[Exception], said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    heard = list[str]()
    with pytest.raises(error, match=said):
        cost_of_step(train(STEP), "v5e-8", 16, heard.append)
    assert "compiled for v5e-8" in "".join(heard)


TORCH = """
import torch
from tpufeed.measure.step_cost import _lower_torch

arguments = torch.empty((16, 3), device="meta"), torch.empty((16,), dtype=torch.long, device="meta")
print(_lower_torch(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, arguments))
"""


@pytest.mark.uses("torch_xla")
@pytest.mark.all
def test_a_torch_module_becomes_its_loss_and_gradients() -> None:
    # In a process of its own, as the doctor does: torch_xla crashes beside TensorFlow.
    done = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tensor<16x3xf32>" in done.stdout
    assert done.stdout.count("stablehlo.dot") >= 2


COST = """
import msgspec, sys
from tpufeed.measure.step_cost import cost_of_step

print(*(msgspec.json.encode(cost_of_step(sys.argv[1], "v5e-8", 1024)).decode() for _ in range(2)), sep="\\n")
"""


@pytest.mark.long
def test_a_real_compiler_counts_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_with_libtpu: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(HEAD + STEP)
    command = [python_with_libtpu, "-c", COST, f"{tmp_path}/train.py:make_step"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    cost, again = map(json.loads, done.stdout.splitlines())
    assert cost["flops"] >= 2 * 3 * 1024**2
    assert again == cost
    (kept,) = (tmp_path / "cache/tpufeed-steps").glob("*.json")
    assert json.loads(kept.read_text()) == cost
