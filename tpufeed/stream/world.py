"""Find this process among the ranks that share an epoch.

This runs at the first batch, never at import. It imports and starts nothing: only a framework that the program has
loaded can have split it into ranks.
"""

import json
import logging
import os
import sys
from traceback import walk_stack
from typing import Any

from tpufeed.dataset.order import World
from tpufeed.errors import OptionError
from tpufeed.options import is_whole

_logger = logging.getLogger(__name__)

WorldLike = World | tuple[int, int]

_BY_HAND = "world=(rank, size)"
_RANKS_THREAD = "torch_xla._internal.pjrt", "_thread_fn"  # the function in which torch_xla runs a rank


def to_world(world: Any) -> World:
    """Return a world that was given by hand, maybe as (rank, size) or TensorFlow's InputContext. Raises OptionError."""
    if isinstance(world, World):
        return world
    if hasattr(world, "num_input_pipelines"):
        return World(world.input_pipeline_id, world.num_input_pipelines)
    if not (isinstance(world, tuple | list) and len(world) == 2 and all(map(is_whole, world))):
        raise OptionError(f"world is (rank, size), like (0, 8), not {world!r}")
    return World(*world)


def find_world(by_hand: str = _BY_HAND, in_rank: bool = False) -> World:
    """Return the world of torch_xla, torch.distributed or JAX if it has several ranks, else the world of one rank.

    Args:
        by_hand: how to give the world by hand, for messages.
        in_rank: True if this thread is known to be one of torch_xla's ranks.

    Raises:
        OptionError: frameworks have different numbers of ranks; or this process was launched as one of several ranks,
            and the framework does not know it yet; or ranks are threads, and this thread is not a rank.
    """
    xla = _started_xla()
    if xla is not None and not in_rank and _ranks_are_threads(xla):
        raise OptionError(
            "torch_xla's ranks are threads of this process, and this was made outside of them, so it cannot tell which "
            f"rank it belongs to: make it in the function that torch_xla.launch runs, or give {by_hand}"
        )
    worlds = _worlds(xla)
    if len({world.size for world in worlds.values()}) > 1:
        said = " and ".join(f"{name} has {world.size}" for name, world in worlds.items())
        raise OptionError(
            f"{said} ranks: it is not clear which ranks share the samples of an epoch; make the frameworks agree, or "
            f"give {by_hand}"
        )
    if worlds:
        return next(iter(worlds.values()))
    distributed, size = sys.modules.get("torch.distributed"), os.environ.get("WORLD_SIZE", "1")
    uninitialised = distributed is not None and distributed.is_available() and not distributed.is_initialized()
    if uninitialised and size not in ("", "0", "1"):
        raise OptionError(
            f"this is one of {size} processes by WORLD_SIZE, and torch.distributed is not initialised: each "
            f"would read everything. Call init_process_group before the first batch, or give {by_hand}"
        )
    processes = os.environ.get("PJRT_LOCAL_PROCESS_COUNT", "1")
    several = f"one of {processes} processes by PJRT_LOCAL_PROCESS_COUNT" if processes not in ("", "0", "1") else ""
    unstarted = sys.modules.get("torch_xla") is not None and xla is None
    if unstarted and (several or os.environ.get("XLA_USE_SPMD") == "1"):
        raise OptionError(
            f"this is {several or 'a program under SPMD, maybe one of several'}, and torch_xla's runtime is not "
            f"started: each would read everything. Call torch_xla.device() before the first batch, or give {by_hand}"
        )
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")  # set by srun, but not for a batch script
    if tasks not in ("", "0", "1"):  # no error: the tasks may have nothing to do with one another
        _logger.warning(
            "task %s of %s of this Slurm step reads everything, as no framework knows of several ranks. If all train "
            "one model, call jax.distributed.initialize() or init_process_group before the first batch, or give %s",
            *(os.environ.get("SLURM_PROCID", "?"), tasks, by_hand),
        )
    return World()


def thread_world(by_hand: str = _BY_HAND) -> World | None:
    """Return the world of this thread if torch_xla's ranks are threads, and this is one of them, else None.

    Call it in the thread that makes a loader: the threads in which torch_xla iterates later belong to no rank. Raises
    OptionError as `find_world` does.
    """
    # torch_xla takes any other thread for the rank of its first device.
    frames = (frame for frame, _ in walk_stack(None))
    if not any((frame.f_globals.get("__name__"), frame.f_code.co_name) == _RANKS_THREAD for frame in frames):
        return None
    xla = _started_xla()
    return find_world(by_hand, in_rank=True) if xla is not None and _ranks_are_threads(xla) else None


def count_ranks() -> int:
    """Return the number of ranks of this program that are processes, even in a forked worker of a DataLoader."""
    xla = _started_xla()
    if xla is not None and _ranks_are_threads(xla):
        return 1
    return max((world.size for world in _worlds(xla).values()), default=1)


def find_tf_world() -> World:
    """Return the world of TF_CONFIG if it names several workers, else that of `find_world`."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return find_world()
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        workers = [
            (kind, number) for kind in ("chief", "master", "worker") for number in range(len(cluster.get(kind, ())))
        ]
        place = str(task.get("type")), int(task["index"] if task else -1)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise OptionError(
            f"TF_CONFIG in the environment is not JSON of a cluster and a task: {error}; unset it, or give "
            "world=(rank, size)"
        ) from error
    if place in workers:
        return World(workers.index(place), len(workers))
    if len(workers) > 1 and place[0] != "evaluator":
        raise OptionError(
            f"TF_CONFIG in the environment has {len(workers)} workers, and its task, {place[0]} {place[1]}, is not "
            "one of them: this process would read everything. Correct it, or give world=(rank, size)"
        )
    return find_world()


def _worlds(xla: Any) -> dict[str, World]:
    """Return the worlds that have several ranks, by framework: of this process, or of this thread if it is a rank."""
    worlds: dict[str, World] = {}
    # torch_xla comes first: its loaders compare its own world with that of a host loader.
    if xla is not None and xla.runtime.is_spmd():
        worlds["torch_xla"] = World(xla.runtime.process_index(), xla.runtime.process_count())
    # Before ranks are launched, `world_size()` would remember forever that there are none.
    elif xla is not None and xla._XLAC._xla_get_replication_devices_count():
        worlds["torch_xla"] = World(xla.runtime.global_ordinal(), xla.runtime.world_size())
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        worlds["torch.distributed"] = World(distributed.get_rank(), distributed.get_world_size())
    jax = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    bridge = sys.modules.get("jax._src.xla_bridge")
    if jax is not None and jax.client is not None:
        worlds["JAX"] = World(jax.process_id, jax.num_processes)
    # Without jax.distributed the backends know the hosts of a TPU pod.
    elif bridge is not None and bridge.backends_are_initialized():
        worlds["JAX"] = World(bridge.process_index(), bridge.process_count())
    return {name: world for name, world in worlds.items() if world.size > 1}


def _ranks_are_threads(xla: Any) -> bool:
    """Return whether torch_xla runs a rank for each of several devices in this process: CPU devices, TPU v2 and v3."""
    if xla.runtime.is_spmd() or not xla._XLAC._xla_get_replication_devices_count():
        return False
    return bool(xla._XLAC._xla_num_devices() > 1)


def _started_xla() -> Any:
    """Return torch_xla if its runtime has started, else None. Asking it anything starts it, and bars `launch`."""
    xla = sys.modules.get("torch_xla")
    library = getattr(xla, "_XLAC", None)
    return xla if library is not None and library._xla_runtime_is_initialized() else None
