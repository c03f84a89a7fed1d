"""Writes to task-N.json what a loader gives a task of a Slurm step: `slurm_task.py none|world|jax`."""

import json
import logging
import os
import sys
from pathlib import Path

import tpufeed

kind = sys.argv[1]
warnings: list[str] = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger("tpufeed").addHandler(handler)
options = {"columns": ["image", "sample"]}
if kind == "world":
    options["world"] = (int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]))
if kind == "jax":
    import jax

    jax.distributed.initialize()
loader = tpufeed.Loader("flowers-64", "train", batch_size=4, **options)
samples = [int(sample) for _, batch in loader for sample in batch]
stats, world = loader.stats(), loader.world
seen = {
    "task": int(os.environ["SLURM_PROCID"]),
    "world": [world.rank, world.size],
    "cores": len(os.sched_getaffinity(0)),
    "processes": stats.processes,
    "threads": stats.threads,
    "samples": samples,
    "warnings": warnings,
}
Path(f"task-{seen['task']}.json").write_text(json.dumps(seen))
