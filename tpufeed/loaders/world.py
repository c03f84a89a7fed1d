"""Who I am among the processes that share an epoch; asked when the first batch is, never at import."""

import sys

from tpufeed.dataset.partition import World

WorldLike = World | tuple[int, int]


def to_world(world: WorldLike) -> World:
    """A world that was given by hand, maybe as (rank, size)."""
    return world if isinstance(world, World) else World(*world)


def find_world() -> World:
    """What torch.distributed says, where it is initialised; else alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return World(distributed.get_rank(), distributed.get_world_size())
    return World()
