"""JAX: the rows that a process holds, the sharding of each column, and the exchange between processes."""

import hashlib
import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, TypeAlias

import jax
import jax.experimental
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from tpufeed.adapters.jax.arrays import ARRAYS
from tpufeed.dataset.order import World
from tpufeed.errors import LoaderError, OptionError
from tpufeed.stream.columns import DEVICE_NUMBERS, IMAGE
from tpufeed.stream.mixing import BatchOps
from tpufeed.stream.rank_check import EpochSpec

# Without types in JAX, or elsewhere in each version. `enable_x64` holds for the current thread only.
_spec: Any = PartitionSpec
_experimental: Any = jax.experimental
enable_x64: Any = jax.enable_x64 if hasattr(jax, "enable_x64") else _experimental.enable_x64

_LOGGER = logging.getLogger(__name__)

RunOps: TypeAlias = Callable[[BatchOps, Mapping[str, Any]], dict[str, jax.Array]]

# Images that device ops follow travel as rows, (batch, height, width * channels). A TPU keeps rows as numpy does, but
# pixels in another order, so the host would have to transpose them. The device takes 128 images of 256x256 apart in
# its own memory, by the compilers of v4 and v5e. False sends pixels. `scripts/check-tpu` says which is faster.
SENDS_ROWS = True
_SLICE_SECONDS = 1.0  # of waiting at a time, as nothing interrupts the client's own waiting
_LATE = "DEADLINE_EXCEEDED"
_PLATFORM = "tpu"  # whose device ops are a kernel


class Placement:
    """Placement of a batch's rows over the devices of all processes.

    The sharding splits the first axis into blocks of rows. Processes that hold the same blocks, such as those along a
    model axis, are one rank. Ranks are numbered by their first block, so the mesh may have its devices in any order.

    Args:
        given: a `NamedSharding`, a `Mesh` over whose first axis rows are split, or None for the mesh that
            `jax.set_mesh` has set when the sharding is first asked for, or else for all devices.

    Raises:
        OptionError: `given` is something else.
    """

    def __init__(self, given: Any) -> None:
        mesh = given.mesh if isinstance(given, NamedSharding) else given  # an AbstractMesh has no devices
        if not (mesh is None or isinstance(mesh, Mesh | SingleDeviceSharding)):
            raise OptionError(
                f"sharding is a NamedSharding over a Mesh of devices, such a Mesh itself, or None for all devices, not "
                f"{type(given).__name__}; give NamedSharding(mesh, PartitionSpec('data'))"
            )
        if isinstance(mesh, Mesh) and not mesh.axis_names:
            raise OptionError("the mesh has no axis to split rows over; give Mesh(jax.devices(), ('data',))")
        self._given = given
        self._fitted: dict[int, Sharding] = {}
        self._run_ops: RunOps | None = None

    @cached_property
    def sharding(self) -> Sharding:
        """Sharding of the images. Starts JAX's backend if nothing was given."""
        given = self._given
        if isinstance(given, Sharding):
            return given
        mesh = _find_mesh() if given is None else given
        if mesh is None:
            mesh = Mesh(np.array(jax.devices()), ("data",))
        return NamedSharding(mesh, _spec(mesh.axis_names[0]))

    def over_mesh_now(self) -> "Placement":
        """Return a placement over the mesh that is set now, or this one if no mesh is set, or a sharding was given."""
        mesh = _find_mesh() if self._given is None else None
        sharding = self.sharding
        return self if mesh is None or sharding == NamedSharding(mesh, _spec(mesh.axis_names[0])) else Placement(None)

    @property
    def splits_images(self) -> bool:
        """True if the sharding splits images themselves, not only their rows. Does not start JAX's backend."""
        return isinstance(self._given, NamedSharding) and any(axis is not None for axis in self._given.spec[1:])

    @cached_property
    def blocks(self) -> dict[Any, int]:
        """The number of the block of rows that each device holds."""
        sharding = self.fit(1)
        devices = len(sharding.device_set)
        rows = sharding.shard_shape((devices,))[0]  # each axis of the mesh divides it, so all blocks are equal
        found = sharding.devices_indices_map((devices,))
        return {device: (block.start or 0) // rows for device, (block, *_) in found.items()}

    @cached_property
    def held(self) -> dict[int, frozenset[int]]:
        """The numbers of the blocks that each process holds, by process."""
        held = dict[int, set[int]]()
        for device, block in self.blocks.items():
            held.setdefault(device.process_index, set()).add(block)
        return {process: frozenset(held[process]) for process in sorted(held)}

    @cached_property
    def ranks(self) -> list[frozenset[int]]:
        """The numbers of the blocks of each rank.

        Raises:
            OptionError: the blocks of two processes overlap in part, or differ in number.
        """
        ranks = sorted(set(self.held.values()), key=min)
        if len({len(blocks) for blocks in ranks}) > 1 or sum(map(len, ranks)) > len(frozenset().union(*ranks)):
            found = "; ".join(f"process {process}: {sorted(blocks)}" for process, blocks in self.held.items())
            raise OptionError(
                f"two processes must hold the same blocks of rows, or entirely different ones, and equally many; here "
                f"they overlap in part or differ in number ({found}). Give a mesh whose rows go to whole processes, "
                "like Mesh(jax.devices(), ('data',))"
            )
        return ranks

    @property
    def own(self) -> frozenset[int]:
        """The numbers of this process's blocks. Raises OptionError if none of the devices is its own."""
        process = jax.process_index()
        if process not in self.held:
            raise OptionError(
                f"the sharding has devices of processes {list(self.held)}, but none of this one, which is process "
                f"{process}; iterate the loader in those processes alone, or give a mesh of all devices"
            )
        return self.held[process]

    def world(self) -> World:
        """Return the rank of this process, and the number of ranks."""
        return World(self.ranks.index(self.own), len(self.ranks))

    def check(self, batch_size: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise OptionError for anything that would fail in every batch.

        Args:
            batch_size: batch size of this process.
            shapes: for each column the shape of a sample.
        """
        blocks = len(self.own)
        if batch_size % blocks:
            less = batch_size - batch_size % blocks
            fits = f"{less} or {less + blocks}" if less else str(blocks)
            raise OptionError(
                f"a batch of {batch_size} cannot be split into the {blocks} blocks of rows that the devices of this "
                f"process hold; give a batch_size that {blocks} divides, such as {fits}"
            )
        rows = batch_size * len(self.ranks)
        for name, shape in shapes.items():
            sharding = self.fit(1 + len(shape))
            try:
                sharding.shard_shape((rows, *shape))
            except ValueError as error:
                raise OptionError(
                    f"the column {name!r}, of shape {shape} per sample, cannot be split as the sharding says: {error}"
                ) from error

    def fit(self, axes: int) -> Sharding:
        """Return the sharding of arrays with this number of axes: surplus axes of the spec are left out."""
        if axes not in self._fitted:
            sharding = self.sharding
            if isinstance(sharding, NamedSharding) and len(sharding.spec) > axes:
                spec = _spec(*sharding.spec[:axes])
                sharding = NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
            self._fitted[axes] = sharding
        return self._fitted[axes]

    def put(self, name: str, array: npt.NDArray[Any]) -> jax.Array:
        """Return the global array of a column, from the rows that this process read.

        Raises:
            LoaderError: JAX would cut integers to 32 bits, and one of them does not fit.
        """
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
        if array.dtype.kind == "i" and dtype != array.dtype and (array.astype(dtype) != array).any():
            worst = array.flat[np.argmax(np.abs(array))]
            raise LoaderError(
                f"the column {name!r} holds {worst}, which JAX would cut to {dtype}; set jax_enable_x64, or leave the "
                "column out"
            )
        make: Any = jax.make_array_from_process_local_data
        array_of_all: jax.Array = make(self.fit(array.ndim), array, (len(array) * len(self.ranks), *array.shape[1:]))
        return array_of_all

    def run(self, ops: BatchOps, columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, jax.Array]:
        """Return the global arrays of the columns that device ops make of this process's rows.

        Args:
            ops: the device ops.
            columns: the columns of a batch by name.
        """
        if self._run_ops is None:
            # Over the devices of this process alone: programs over those of several would have to start in the same
            # order in all of them, and the training loop starts its own in another thread.
            blocks = dict[int, list[Any]]()
            for device, block in self.blocks.items():
                if device.process_index == jax.process_index():
                    blocks.setdefault(block, []).append(device)
            mesh = Mesh(np.array([blocks[block] for block in sorted(blocks)]), ("rows", "copies"))
            self._run_ops = compile_ops(NamedSharding(mesh, _spec("rows")))
        made, result = self._run_ops(ops, columns), dict[str, jax.Array]()
        for name, array in made.items():
            shape = (len(array) * len(self.ranks), *array.shape[1:])
            shards = [shard.data for shard in array.addressable_shards]
            result[name] = jax.make_array_from_single_device_arrays(shape, self.fit(array.ndim), shards)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return Placement, (self._given,)

    def __str__(self) -> str:
        """Return the same text in all processes that have the same placement."""
        sharding = self.sharding
        if not isinstance(sharding, NamedSharding):
            return str(sharding)
        devices = zlib.crc32(str([device.id for device in sharding.mesh.devices.flat]).encode())
        return f"{sharding.spec} over {dict(sharding.mesh.shape)} of devices {devices:08x}"


def compile_ops(rows: NamedSharding | None = None) -> RunOps:
    """Return a function of device ops and a batch's columns on the host, that returns the columns that the ops make.

    It compiles once for the same ops: a state may bring a loader other classes, and so other ops. The columns are split
    over devices as `rows` says. Without it they are on JAX's default device.
    """
    split, set_mesh = (getattr(jax, name, None) for name in ("shard_map", "set_mesh"))  # since JAX 0.7

    def in_kernel() -> bool:
        device = jax.devices()[0] if rows is None else rows.mesh.devices.flat[0]
        return device.platform == _PLATFORM and (rows is None or None not in (split, set_mesh))

    def run_ops(ops: BatchOps, columns: Mapping[str, Any]) -> dict[str, jax.Array]:
        if ops.ops.coefficients is None:
            columns = {**columns, IMAGE: columns[IMAGE].reshape(-1, *ops.ops.pixels.shape(ops.ops.size))}
        if not in_kernel():
            return ops.run(columns, ARRAYS)
        from tpufeed.adapters.jax.kernel import ON_TPU  # takes a second to import

        run = partial(ops.run, arrays=ON_TPU)
        if split is not None and rows is not None:  # XLA does not split a kernel
            run = split(run, mesh=rows.mesh, in_specs=rows.spec, out_specs=rows.spec, check_vma=False)
        return run(columns)

    run = jax.jit(run_ops, static_argnums=0, out_shardings=rows)

    def run_columns(ops: BatchOps, columns: Mapping[str, Any]) -> dict[str, jax.Array]:
        if SENDS_ROWS and ops.ops.coefficients is None:
            images = columns[IMAGE]
            columns = {**columns, IMAGE: images.reshape(*images.shape[:2], -1)}
        given = {name: jax.device_put(columns[name], rows) for name in (*ops.names, DEVICE_NUMBERS)}
        # The training loop may have set another mesh, which would be refused.
        with set_mesh(rows.mesh) if set_mesh is not None and rows is not None and in_kernel() else nullcontext():
            made: dict[str, jax.Array] = run(ops, given)
        return made

    return run_columns


def _find_mesh() -> Mesh | None:
    """Return the mesh that `jax.set_mesh` has set in this thread. None if there is none, or JAX is too old for it."""
    mesh = jax.sharding.get_mesh() if hasattr(jax.sharding, "get_mesh") else None
    return mesh if isinstance(mesh, Mesh) and mesh.axis_names else None


def find_exchange(processes: Sequence[int], patience_seconds: float) -> Callable[[EpochSpec], list[EpochSpec]] | None:
    """Return how these processes exchange specs. None for one alone, or if jax.distributed is not initialised."""
    if len(processes) == 1:
        return None
    from jax._src import distributed  # there is no public way. Orbax does the same

    client = distributed.global_state.client
    if client is None:
        _LOGGER.warning("jax.distributed is not initialised, so nothing checks that all processes take the same steps")
        return None
    return partial(_exchange, client, processes, patience_seconds)


def _exchange(client: Any, processes: Sequence[int], patience_seconds: float, spec: EpochSpec) -> list[EpochSpec]:
    """Return the specs of all processes, in their order. Every process must call this, as often as the others.

    Specs go through the store at which the processes met, not through a collective: a collective would use devices,
    could mix with those of the training loop, and would wait in silence for a process that never comes.
    """
    me, group = jax.process_index(), hashlib.blake2b(str(list(processes)).encode(), digest_size=8).hexdigest()
    folder, count = f"tpufeed/{group}", f"tpufeed/{group}/count/{me}"
    # The store counts, as all loaders over these processes share one series of numbers. For a folder that does not
    # exist it returns no values at once. Asking for a key would wait for it.
    number = 1 + sum(int(value) for _, value in client.key_value_dir_get(f"{count}/"))
    client.key_value_set(f"{count}/number", str(number), allow_overwrite=True)
    if number > 2:  # all have begun the last exchange, so they are done with the one before it
        client.key_value_delete(f"{folder}/{number - 2}/{me}")
    client.key_value_set(f"{folder}/{number}/{me}", spec.packed().decode())
    deadline, specs = time.monotonic() + patience_seconds, list[EpochSpec]()
    while len(specs) < len(processes):
        process = processes[len(specs)]
        left = max(0.01, min(_SLICE_SECONDS, deadline - time.monotonic()))
        try:
            found = client.blocking_key_value_get(f"{folder}/{number}/{process}", int(left * 1000))
            specs.append(EpochSpec.unpacked(found))
        except RuntimeError as error:  # its class differs from version to version of JAX
            if _LATE not in str(error):
                raise LoaderError(f"the processes cannot meet to begin an epoch: {error}") from error
            if time.monotonic() > deadline:
                raise LoaderError(
                    f"process {process} of {list(processes)} has begun no epoch within {patience_seconds:g} s of this "
                    f"process, {me}. Iterate the loader in all processes of its mesh; for a single process, give a "
                    "mesh of its own devices"
                ) from None
    return specs
