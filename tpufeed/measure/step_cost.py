"""Compile a user's own training step for a TPU that is not here: `tpufeed doctor --step train.py:make_step`.

The step is imported and compiled in a process of its own, `python -m tpufeed.measure.step_cost`, whose environment and
compiler leave this process as it is. Costs are kept in the user's cache folder, by a hash of the program.
"""

import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tpufeed.errors import OptionError, TpufeedError, install_command
from tpufeed.measure.tpu import find_tpu
from tpufeed.measure.tpu_compiler import ENVIRONMENT, ProgramCost, compiler_version, cost_for, how_to_fit, tpu_mesh
from tpufeed.options import Count, checked
from tpufeed.text import format_error, shorten

_ANSWER: msgspec.json.Decoder[ProgramCost | str] = msgspec.json.Decoder(ProgramCost | str)
_TAKES = "the number of images on a device or, with a second parameter, the number on all devices and their mesh"
_RETURNS = "(step, arguments) for JAX, or (module, loss, arguments) for torch, with arguments in a tuple"


@checked()
def cost_of_step(
    step: str, tpu: str, batch_size: Count = 128, listener: Callable[[str], None] | None = None
) -> ProgramCost:
    """Return what a training step costs on each device of a TPU: a lower bound of its time.

    Args:
        step: "FILE.py:FUNCTION". The function takes the number of images on a device and returns (step, arguments):
            a JAX function and its arguments, of which shapes are enough. With a second parameter it takes the number of
            images on all devices and a `jax.sharding.Mesh` of them, with the axis "data". For torch it returns
            (module, loss, arguments), and `loss(module(arguments[0]), *arguments[1:])` is compiled with its gradients.
        tpu: the TPU: "v5e-8".
        batch_size: number of images on each device.
        listener: called each second with a description of the work.

    Raises:
        OptionError: the step cannot be found, made, or compiled for this TPU, or does not fit in its memory.
        MissingExtraError: JAX or libtpu is not installed.
        TpufeedError: the compiler crashed.
    """
    check_step(step)
    tpu = find_tpu(tpu).name
    # With -P and PYTHONPATH the child finds the same modules as this process, never those in the current folder.
    variables = ENVIRONMENT | {"PJRT_DEVICE": "CPU", "PYTHONPATH": os.pathsep.join(each or "." for each in sys.path)}
    with tempfile.TemporaryDirectory(prefix="tpufeed-step-") as scratch:
        result, log, begin = Path(scratch, "result.json"), Path(scratch, "log"), time.monotonic()
        command = [sys.executable, "-P", "-m", __name__, step, tpu, str(batch_size), str(result)]
        with log.open("wb") as file:
            child = subprocess.Popen(
                command, env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        try:
            done = False
            while not done:
                if listener is not None:
                    listener(f"{step}, compiled for {tpu}, {time.monotonic() - begin:.0f} s so far")
                with suppress(subprocess.TimeoutExpired):
                    child.wait(1)
                    done = True
        finally:
            child.kill()
            child.wait()
        if result.exists():
            found = _ANSWER.decode(result.read_bytes())
            if isinstance(found, str):
                raise OptionError(found)
            return found
        said = log.read_text("utf-8", "replace").strip()
    if "libtpu_lockfile" in said:
        raise OptionError("another process holds libtpu's lock, /tmp/libtpu_lockfile: end that process and try again")
    if child.returncode < 0:
        died = f"died by signal {-child.returncode}; if that happens with each step, {how_to_fit()}"
    else:
        last = shorten(said.rpartition("\n")[2], 300) or "it printed nothing"
        died = f"crashed with exit code {child.returncode}: {last}"
    raise TpufeedError(f"{step}: the compiler for {tpu} {died}")


def check_step(step: str) -> None:
    """Check that there is such a file, and a compiler. Raises OptionError, MissingExtraError."""
    path, _, name = step.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise OptionError(f"{step!r} is not FILE.py:FUNCTION, like train.py:make_step")
    if not Path(path).is_file():
        raise OptionError(f"there is no file {path}; give FILE.py:FUNCTION, like train.py:make_step")
    compiler_version()


def _compile(step: str, tpu: str, batch_size: int) -> ProgramCost:
    """Compile a step in this process."""
    file, _, name = step.rpartition(":")
    with _blamed(step, file):
        sys.path.insert(0, str(Path(file).resolve().parent))  # as `python FILE` does
        spec: Any = importlib.util.spec_from_file_location(Path(file).stem, Path(file).absolute())
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    make = getattr(module, name, None)
    if not callable(make):
        raise OptionError(f"{file} has no function {name}")
    parameters = len(inspect.signature(make).parameters)
    if parameters not in (1, 2):
        raise OptionError(f"{step} takes {parameters} parameters; expected {_TAKES}")
    mesh = tpu_mesh(tpu, find_tpu(tpu).devices if parameters == 2 else 1)
    images = batch_size * mesh.size
    with _blamed(step, file):
        made = make(images, mesh) if parameters == 2 else make(images)
        if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[-1], tuple):
            raise OptionError(f"{step} returns {type(made).__name__}; expected {_RETURNS}")
        program = _lower_torch(*made) if len(made) == 3 else _lower_jax(made[0], made[-1], images, mesh)
    return cost_for(tpu, program)


def _lower_jax(step: Any, arguments: tuple[Any, ...], images: int, mesh: Any) -> Any:
    """Lower a JAX function for the devices of a mesh. Arguments without a sharding are split by images, or copied."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    describe: Any = jax.ShapeDtypeStruct
    batched = False

    def place(leaf: Any) -> Any:
        nonlocal batched
        shape = getattr(leaf, "shape", None)
        if shape is None:  # a number
            return leaf
        if not all(isinstance(length, int) for length in shape):
            raise OptionError(f"an argument has the shape {shape}; a TPU compiles whole numbers only")
        batched |= shape[:1] == (images,)
        given = leaf.sharding if isinstance(leaf, describe) else None
        axes = ("data",) if shape[:1] == (images,) else ()
        return describe(shape, leaf.dtype, sharding=given or NamedSharding(mesh, PartitionSpec(*axes)))  # type: ignore[no-untyped-call]

    placed = jax.tree.map(place, arguments)
    if not batched:
        raise OptionError(f"no argument of the step has {images} images; use the number that the function takes")
    return (step if hasattr(step, "lower") else jax.jit(step)).lower(*placed)


def _lower_torch(module: Any, loss: Any, arguments: tuple[Any, ...]) -> str:
    """Return the StableHLO of a module's loss and gradients, as torch_xla traces them."""
    try:
        import torch
        import torch_xla
        from torch_xla.core import xla_model
    except ImportError as error:
        raise OptionError(f"torch_xla turns torch modules into programs for TPUs: {install_command('xla')}") from error
    device = torch_xla.device()
    module = module.to(device)
    first, *others = (torch.zeros_like(each, device=device) for each in arguments)
    torch_xla.sync()  # what made the weights is no part of the step
    value = loss(module(first), *others)
    value.backward()
    text: str = xla_model.get_stablehlo([value, *(p.grad for p in module.parameters() if p.grad is not None)])
    return text


@contextmanager
def _blamed(step: str, file: str) -> Iterator[None]:
    """Turn errors of the user's code into OptionError, with their line."""
    try:
        yield
    except TpufeedError as error:
        raise OptionError(str(error) if str(error).startswith(step) else f"{step}: {error}") from error
    except Exception as error:
        frames, place = traceback.extract_tb(error.__traceback__), str(Path(file).absolute())
        line = next((f"{file}, line {each.lineno}: " for each in reversed(frames) if each.filename == place), "")
        said = f"{line}{type(error).__name__}: {shorten(format_error(error).splitlines()[0], 300)}"
        others = "devices" in said or "sharding" in said
        mesh = "; it is for other devices: take their mesh as a second parameter" if others else ""
        raise OptionError(f"{step} cannot be prepared for a TPU: {said}{mesh}") from error


if __name__ == "__main__":
    try:
        _answer: ProgramCost | str = _compile(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except TpufeedError as _error:
        _answer = str(_error)
    Path(sys.argv[4]).write_bytes(msgspec.json.encode(_answer))
