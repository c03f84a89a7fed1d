"""Who I am among the processes that share an epoch; asked when the first batch is, never at import."""

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
