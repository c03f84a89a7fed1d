"""Compile a program with the TPU's own compiler, on a machine without a TPU, and count what it costs there.

libtpu has the compiler. Call this in a process of its own that was started with `ENVIRONMENT`, for example:

    mesh = tpu_mesh("v5e-8")  # one device; `devices=8` for all of them
    batch = jax.ShapeDtypeStruct((128, 224, 224, 3), "uint8", sharding=NamedSharding(mesh, PartitionSpec()))
    cost = compile_for("v5e-8", jax.jit(step).lower(batch))
"""

import hashlib
import importlib.util
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tpufeed.errors import MissingExtraError, OptionError, StoreError
from tpufeed.measure.files import write_file
from tpufeed.measure.hlo import count_hbm_bytes
from tpufeed.measure.tpu import find_tpu
from tpufeed.storage.copies_folder import user_cache
from tpufeed.text import shorten

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.stages import Lowered

# JAX itself runs on the CPU. libtpu asks no metadata server, and takes no lock that another process may hold.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
EXTRA = "tpu-compiler"
_FOLDER = "tpufeed-steps"  # in the user's cache
# Topologies of one host. A v4 is compiled as its hosts run it: both TensorCores of a chip are one device.
_TOPOLOGIES: dict[str, tuple[str, dict[str, str]]] = {
    "v2-8": ("v2:2x2", {}),
    "v3-8": ("v3:2x2", {}),
    "v4-8": ("v4:2x2x1", {"chip_config_name": "megacore"}),
    "v5e-8": ("v5e:2x4", {}),
    "v5p-8": ("v5p:2x2x1", {}),
    "v6e-8": ("v6e:2x4", {}),
    "v7x-4": ("tpu7x:2x2x1", {}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCost:
    """The cost of running a program once on one device, by the compiler's own estimate: it was compiled, not run.

    Attributes:
        devices: number of devices that share the program.
        hbm_bytes: bytes that it reads from HBM and writes to it, at least.
        accessed_bytes: bytes that its ops read and write, also within the chip's own memory.
        temporary_bytes: HBM for values between its ops.
        bandwidth_seconds: bytes / bandwidth.
        peak_seconds: FLOPs / peak.
        compile_seconds: processor time of the compiler.
        layouts: the axes of each used argument in its memory on the TPU, the slowest first: numpy's is (0, 1, 2, 3).
        compiler: version of libtpu.
    """

    tpu: str
    devices: int
    hbm_bytes: float
    accessed_bytes: float
    flops: float
    temporary_bytes: int
    bandwidth_seconds: float
    peak_seconds: float
    compile_seconds: float
    layouts: tuple[tuple[int, ...], ...]
    compiler: str

    @property
    def least_seconds(self) -> float:
        """Lower bound of its time."""
        return max(self.bandwidth_seconds, self.peak_seconds)

    @property
    def bound(self) -> Literal["bandwidth", "FLOPs"]:
        """The larger of the two: it sets the lower bound."""
        return "bandwidth" if self.bandwidth_seconds >= self.peak_seconds else "FLOPs"


_KEPT = msgspec.json.Decoder(ProgramCost)


def compiler_version() -> str:
    """Return the version of libtpu. Raises MissingExtraError if JAX or libtpu is not installed."""
    for package in ("jax", "libtpu"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, EXTRA)
    return metadata.version("libtpu")


def how_to_fit() -> str:
    """Return the command that installs the libtpu for this JAX."""
    return f"install the libtpu of JAX {metadata.version('jax')}: pip install 'jax[tpu]=={metadata.version('jax')}'"


def tpu_mesh(tpu: str, devices: int = 1) -> "Mesh":
    """Return a mesh with the axis "data" over the first devices of a TPU that is not here.

    Raises:
        OptionError: there is no such TPU, it has fewer devices, or libtpu does not know it or fails.
        MissingExtraError: JAX or libtpu is not installed.
    """
    version, name = compiler_version(), find_tpu(tpu).name
    from jax.experimental.topologies import get_topology_desc
    from jax.sharding import Mesh

    topology, options = _TOPOLOGIES[name]
    try:
        found = get_topology_desc(platform="tpu", topology_name=topology, **options).devices
    except (RuntimeError, NotImplementedError, ValueError, AttributeError) as error:
        raise OptionError(
            f"libtpu {version} cannot compile for {name} ({_first_line(error)}): {how_to_fit()}"
        ) from error
    if devices > len(found):
        raise OptionError(f"{name} has {len(found)} devices, not {devices}")
    return Mesh(found[:devices], ("data",))


def cost_for(tpu: str, program: "Lowered | str") -> ProgramCost:
    """Return what `compile_for` does, or the cost that it gave for the same program once: the user's cache keeps it."""
    text = program if isinstance(program, str) else program.as_text()
    parts = (*map(metadata.version, ("libtpu", "jax")), find_tpu(tpu).name, text)
    folder = user_cache()
    if folder is None:
        return compile_for(tpu, program)
    kept = folder / _FOLDER / f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()}.json"
    with suppress(OSError, msgspec.DecodeError):
        return _KEPT.decode(kept.read_bytes())
    cost = compile_for(tpu, program)
    with suppress(OSError, StoreError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, msgspec.json.encode(cost))
    return cost


def compile_for(tpu: str, program: "Lowered | str") -> ProgramCost:
    """Compile a program that was lowered for the devices of `tpu_mesh`, or StableHLO text for one of them.

    Raises:
        OptionError: the program does not fit in the TPU's memory, or the compiler rejects it.
        MissingExtraError: as `tpu_mesh` raises.
    """
    one, begin = find_tpu(tpu), time.process_time()
    try:
        executable, devices = _compile_text(tpu, program) if isinstance(program, str) else _compile_lowered(program)
    except RuntimeError as error:  # XLA's errors
        raise OptionError(
            f"the compiler rejects this program for {one.name}: {_first_line(error)}"
            + ("; take a smaller batch" if "RESOURCE_EXHAUSTED" in str(error) else "")
        ) from error
    seconds, costs = time.process_time() - begin, executable.cost_analysis()
    # Not its "optimal_seconds", which is below 0 for some programs.
    accessed_bytes, flops = float(costs.get("bytes accessed", 0)), float(costs.get("flops", 0))
    hbm_bytes = min(accessed_bytes, float(sum(count_hbm_bytes(each.to_string()) for each in executable.hlo_modules())))
    share = one.chips / one.devices
    orders = (re.match(r"\{([\d,]*)", str(layout)) for layout in executable.get_parameter_layouts())
    return ProgramCost(
        tpu=one.name,
        devices=devices,
        hbm_bytes=hbm_bytes,
        accessed_bytes=accessed_bytes,
        flops=flops,
        temporary_bytes=executable.get_compiled_memory_stats().temp_size_in_bytes,
        bandwidth_seconds=hbm_bytes / (one.bandwidth_gbps * 1e9 * share),
        peak_seconds=flops / (one.peak_tflops * 1e12 * share),
        compile_seconds=seconds,
        layouts=tuple(tuple(map(int, re.findall(r"\d+", order[1])))[::-1] if order else () for order in orders),
        compiler=metadata.version("libtpu"),
    )


def _compile_lowered(program: "Lowered") -> tuple[Any, int]:
    """Return the executable of a lowered program, and how many devices share it."""
    import jax

    compiled = program.compile()
    sharding: Any = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))[0]
    if any(device.platform != "tpu" for device in sharding.device_set):
        raise OptionError("the program is for devices of this host: give it the mesh of the TPU's, a second parameter")
    return compiled.runtime_executable(), len(sharding.device_set)


def _compile_text(tpu: str, text: str) -> tuple[Any, int]:
    """Return the executable of StableHLO text for one device."""
    import numpy as np
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    (device,) = tpu_mesh(tpu).devices.flat
    options: Any = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    options.executable_build_options.device_assignment = assignment
    with make_ir_context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise OptionError(f"JAX cannot read this StableHLO: {_first_line(error)}") from error
        return device.client.compile(module, xla_client.DeviceList((device,)), options), 1


def _first_line(error: Exception) -> str:
    """Return what the compiler says, without the name of its status and the lists that follow."""
    return shorten(re.sub(r"^[A-Z_]+: ", "", str(error).strip()).partition("\n")[0].rstrip("."), 300)
