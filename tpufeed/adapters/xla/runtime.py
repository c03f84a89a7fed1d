"""The parts of torch_xla that tpufeed uses: devices, ranks, transfers, shardings. Only this file imports torch_xla."""

import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpufeed.dataset.order import World
from tpufeed.errors import MissingExtraError, OptionError, UsageError
from tpufeed.stream.columns import DEVICE_NUMBERS, IMAGE
from tpufeed.stream.rank_check import EpochSpec, Rendezvous

if "tensorflow.python._pywrap_tensorflow_internal" in sys.modules and "_XLAC" not in sys.modules:
    # It loads with RTLD_GLOBAL, and both contain LLVM with the same symbols: "Option ... registered more than once!"
    raise UsageError(
        "torch_xla cannot be imported after tensorflow: LLVM, which both contain, would abort the process. "
        "Import torch_xla first; in that order they get along"
    )

try:
    import torch
    import torch_xla
    from torch import distributed
    from torch_xla import runtime
    from torch_xla.core import xla_builder, xla_model, xla_op_registry
    from torch_xla.debug import profiler
    from torch_xla.distributed import parallel_loader
    from torch_xla.distributed.spmd import ShardingSpec
except ImportError as error:
    raise MissingExtraError("torch_xla (with torch 2.9)", "xla") from error

_LOGGER = logging.getLogger(__name__)

MpDeviceLoader = parallel_loader.MpDeviceLoader

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_SPEC_BYTES = 4096  # always this many: torch_xla compiles the exchange once, and ranks with other sizes would hang

# State of the module, as ranks that are threads share nothing else. It is empty except during an exchange.
_RENDEZVOUS = Rendezvous()


def default_device() -> Any:
    """Return the device of this thread. Starts the runtime, after which `torch_xla.launch` cannot start processes."""
    return torch_xla.device()


def xla_world() -> World:
    """Return the world of torch_xla's ranks. Under SPMD each process is one, and feeds all devices of its host."""
    if runtime.is_spmd():
        return World(runtime.process_index(), runtime.process_count())
    return World(runtime.global_ordinal(), runtime.world_size())


def spmd_devices() -> int | None:
    """Return how many devices this process feeds under SPMD. None without it."""
    return runtime.addressable_runtime_device_count() if runtime.is_spmd() else None


def exchange(spec: EpochSpec, world: World) -> Sequence[EpochSpec]:
    """Return the specs of all ranks, by rank. Every rank must call this, as often as the others."""
    payload = spec.packed(_SPEC_BYTES)
    if runtime.is_spmd():
        # None of torch_xla's collectives works between processes under SPMD.
        if not (distributed.is_available() and distributed.is_initialized()):
            _LOGGER.warning(
                "torch.distributed is not initialised, so nothing checks that all processes take the same steps"
            )
            return [spec]
        payloads: list[Any] = [b""] * world.size
        distributed.all_gather_object(payloads, payload)
    elif runtime.device_type() == "CPU":
        payloads = list(_RENDEZVOUS.exchange(payload, world.rank, world.size))
    else:
        # Not mesh_reduce: it unpickles by torch.load, which takes tensors only.
        payloads = xla_model.rendezvous("tpufeed", payload)
    return [EpochSpec.unpacked(item) for item in payloads]


def send(tensor: Any, device: Any, spec: Any) -> Any:
    """Return a tensor of the host on the device, or over the devices of a `ShardingSpec`. It may be an `Unsigned`."""
    transfer: Any = xla_model.send_cpu_data_to_device  # its annotation is wrong
    with torch.no_grad():
        sent = transfer([tensor], device, spec)[0]
    return Unsigned(sent, tensor.dtype, spec) if tensor.dtype in _UNSIGNED else sent


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A tensor that was sent, with the right bits, but with a signed type: torch_xla 2.9 sends no others."""

    sent: Any
    dtype: Any
    spec: Any

    def tensor(self) -> Any:
        """Return the tensor in its type. Call this where steps are traced, as it is a part of the next one."""
        tensor = self.sent.to(self.dtype)
        if self.spec is not None:
            self.spec.apply(tensor)
        return tensor


def _upper(numbers: Any) -> Any:
    """Clear the last 16 bits of float32. torch_xla's own `view` to another type takes tensors to the host."""
    types = xla_builder.Type
    kept: Any = xla_builder.Op.scalar(numbers.builder(), -(1 << 16), dtype=types.S32)
    return (numbers.bitcast(types.S32) & kept).bitcast(types.F32)


upper: Any = xla_op_registry.register("tpufeed_upper", _upper)


def end_step() -> None:
    """Have the last step traced, compiled and run, as torch_xla's own loaders do, unless `StepTrace` has done so."""
    if profiler.get_tracer_marked_step():
        profiler.set_tracer_marked_step(False)
    else:
        torch_xla.sync()


class Shardings:
    """`torch_xla.distributed.spmd.ShardingSpec`s under SPMD: one for each column, or one that is fitted to all columns.

    torch_xla applies a spec only to tensors with the same number of axes, and silently replicates all others, such as
    labels. Here a single spec serves tensors with any number of axes: surplus axes of the spec are left out, surplus
    axes of a tensor are not split. A vector is not split if the mesh has axes besides those of the spec: every device
    holds it whole. In a dict each spec must fit. None stands for a tensor that every device holds whole.
    """

    def __init__(self, given: Any) -> None:
        for spec in given.values() if isinstance(given, Mapping) else [given]:
            if not (spec is None or isinstance(spec, ShardingSpec)):
                raise OptionError(f"sharding is a ShardingSpec, or a dict of one for each column, not {spec!r}")
        self._given = given
        self._fitted: dict[tuple[str, int], Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that have a spec of their own."""
        return tuple(self._given) if isinstance(self._given, Mapping) else ()

    def check(self, names: Iterable[str], batch_size: int | None, devices: int, processes: int) -> None:
        """Raise OptionError for anything that would fail in every batch.

        Args:
            names: names of the columns, as far as they are known.
            batch_size: batch size of this process, if known.
            devices: number of devices of this process.
            processes: number of processes that read samples of their own.
        """
        for name in names:
            self._find(name)
        specs = list(self._given.values()) if isinstance(self._given, Mapping) else [self._given]
        split = [spec for spec in specs if spec is not None and spec.minibatch]
        if split and batch_size is not None and batch_size % devices:
            raise OptionError(
                f"a batch of {batch_size} cannot be split over the {devices} devices of this process; give a "
                f"batch_size that {devices} divides"
            )
        partial = next((spec for spec in split if _count_parts(spec) != spec.mesh.size()), None)
        if partial is not None:
            raise OptionError(
                f"with minibatch=True torch_xla splits rows over all devices, and {tuple(partial.partition_spec)} "
                f"makes {_count_parts(partial)} parts for {partial.mesh.size()} devices: name all axes of the mesh in "
                "a tuple, like (('data', 'model'), None, None, None)"
            )
        if processes > 1 and len(split) < len(specs):
            raise OptionError(
                f"{processes} processes read samples of their own, so each holds only a part of the global batch: "
                "give every ShardingSpec minibatch=True"
            )

    def fit(self, name: str, tensor: Any) -> Any:
        """Return the spec of a tensor of column `name`. None replicates it."""
        key = name, tensor.ndim
        if key not in self._fitted:
            self._fitted[key] = self._fit(name, tuple(tensor.shape))
        return self._fitted[key]

    def _fit(self, name: str, shape: tuple[int, ...]) -> Any:
        spec, own = self._find(name), isinstance(self._given, Mapping) and name != DEVICE_NUMBERS
        if spec is None:
            return None
        axes = tuple(spec.partition_spec)
        if own and len(axes) != len(shape):
            raise OptionError(
                f"the ShardingSpec of {name!r} has {len(axes)} axes, {axes}, but its tensors have {len(shape)}: {shape}"
            )
        if not shape:
            return None
        if len(axes) != len(shape):
            spec = ShardingSpec(spec.mesh, (*axes, *(None for _ in shape))[: len(shape)], spec.minibatch)
        # torch_xla 2.9 raises IndexError for a vector of which several devices hold the same part.
        if len(shape) == 1 and 1 < _count_parts(spec) < spec.mesh.size():
            if own:
                raise OptionError(
                    f"torch_xla cannot split {name!r}, which has one axis, over only some axes of the mesh, {axes}: "
                    "give None, and every device holds it whole"
                )
            return None
        return spec

    def _find(self, name: str) -> Any:
        if not isinstance(self._given, Mapping):
            return self._given
        name = IMAGE if name == DEVICE_NUMBERS else name  # split over the same rows
        if name not in self._given:
            raise OptionError(
                f"sharding has no ShardingSpec for the column {name!r}, only for {', '.join(map(repr, self._given))}; "
                "give None for one that every device holds whole"
            )
        return self._given[name]


def _count_parts(spec: Any) -> int:
    """Return into how many parts a spec splits a tensor. If the mesh has more devices, several hold the same part."""
    sizes = dict(enumerate(spec.mesh.mesh_shape)) | dict(spec.mesh.shape())
    axes = (axis for part in spec.partition_spec for axis in (part if isinstance(part, tuple | list) else (part,)))
    return math.prod(sizes[axis] for axis in axes if axis is not None)
