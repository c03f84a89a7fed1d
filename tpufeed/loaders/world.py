"""Who I am among the processes that share an epoch; asked when the first batch is, never at import."""

import json
import os
import sys

from tpufeed.dataset.partition import World
from tpufeed.errors import OptionError

WorldLike = World | tuple[int, int]


def to_world(world: WorldLike) -> World:
    """A world that was given by hand, maybe as (rank, size)."""
    return world if isinstance(world, World) else World(*world)


def find_world() -> World:
    """What torch.distributed says, where it is initialised; else alone. Raises OptionError where it should be."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available():
        if distributed.is_initialized():
            return World(distributed.get_rank(), distributed.get_world_size())
        launched = os.environ.get("WORLD_SIZE", "1")
        if launched not in ("", "0", "1"):
            raise OptionError(
                f"this is one of {launched} processes by WORLD_SIZE, and torch.distributed is not initialised: each "
                "would read everything. Call init_process_group before the first batch, or give world=(rank, size)"
            )
    return World()


def find_tf_world() -> World:
    """What TF_CONFIG says, where it names several workers; else what torch.distributed says, or alone."""
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
            f"TF_CONFIG in the environment is no JSON of a cluster and a task: {error}; unset it, or give "
            "world=(rank, size)"
        ) from error
    if place in workers:
        return World(workers.index(place), len(workers))
    if len(workers) > 1 and place[0] != "evaluator":
        raise OptionError(
            f"TF_CONFIG in the environment has {len(workers)} workers, and its task, {place[0]} {place[1]}, is none of "
            "them: this process would read everything. Correct it, or give world=(rank, size)"
        )
    return find_world()
