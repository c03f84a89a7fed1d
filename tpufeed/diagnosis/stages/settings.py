"""What loaders and builds are best told on this host: by the rules that they follow themselves."""

from typing import Any

from tpufeed.dataset.partition import World, default_lanes
from tpufeed.dataset.reader import Dataset
from tpufeed.diagnosis.stages.storing import stage_room
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.workers import plan_workers
from tpufeed.sharding.options import ShardOptions

_BATCH_OF_A_DEVICE = 128


def suggest_settings(dataset: Dataset | None, options: LoaderOptions, devices: int) -> dict[str, Any]:
    """By the names of the options. A stage is for remote datasets; local ones are read in place.

    Raises:
        OptionError: there is nowhere to stage.
    """
    found: dict[str, Any] = {
        "shard_bytes": ShardOptions().shard_bytes,
        "batch_size": _BATCH_OF_A_DEVICE * devices,
        "lanes": default_lanes(World()),
    }
    if dataset is None:
        return found
    workers = plan_workers(dataset, LoaderOptions(ops=options.ops))
    found |= {"processes": workers.processes, "threads": workers.threads}
    if dataset.is_remote:
        folder, room = stage_room(LoaderOptions(stage_dir=options.stage_dir))
        found |= {"stage_dir": str(folder.parent), "stage_bytes": room}
    return found
