"""What sharding takes in memory: planning a million inputs, and the largest process of a build.

Planning goes from listing to the stored plan, in a process of its own. Its source is a folder of so many files of one
byte in a thousand class folders, made in `--work` (default: /dev/shm where there is one): a real listing, a stat of
every file. The builds are whole commands over photos of 90 KB and of 3000x2000.

    python benchmarks/run.py plan [--inputs 1000000] [--save]
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.entry import MEMORY, make_parser

CLASSES = 1000

PLAN = """
import json, resource, sys, time
from tpufeed.builds.destination import Destination
from tpufeed.builds.plan import write_plan
from tpufeed.sources.options import ShardOptions
from tpufeed.sharding.recipe import ShardRecipe
from tpufeed.storage.store import open_store
destination, recipe = Destination(open_store(sys.argv[2])), ShardRecipe(sys.argv[1], ShardOptions(shard_bytes="128KB"))
start = time.perf_counter()
destination.inspect(overwrite=False)
with destination.store.temporary_folder() as folder, recipe.draft(is_preview=False) as draft:
    plan = write_plan(folder / "plan", draft.header, draft.tasks)
    assert destination.put_plan(folder / "plan", plan)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "peak_mb": peak / 1e3, "tasks": len(plan.tasks)}))
"""


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3)
"""
BUILDS = {
    "photos of 90 KB, --check header": ((375, 500), 4000, ("--check", "header")),
    "photos of 90 KB, full check": ((375, 500), 4000, ()),
    "3000x2000, --presize 256": ((2000, 3000), 60, ("--presize", "256")),
    "3000x2000, --encode png": ((2000, 3000), 60, ("--encode", "png")),
}


def main(arguments: list[str]) -> None:
    parser = make_parser("plan", __doc__, work=MEMORY)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    from benchmarks.harness import describe, flatten, machine, print_table, write_result

    rows, found = [], {}
    for inputs in (options.inputs // 10, options.inputs):
        with tempfile.TemporaryDirectory(prefix="tpufeed-plan-", dir=options.work) as folder:
            made = found[str(inputs)] = plan(Path(folder), inputs)
        rows.append([f"{inputs:,}", f"{made['seconds']:.1f}", f"{made['peak_mb']:,.0f}", f"{made['tasks']:,}"])
    print_table("from listing to the stored plan", ["inputs", "seconds", "peak MB", "shards"], rows)
    builds = {}
    for name, (size, photos, flags) in BUILDS.items():
        with tempfile.TemporaryDirectory(prefix="tpufeed-plan-", dir=options.work) as folder:
            builds[name] = build(Path(folder), size, photos, flags)
    build_rows = [[name, f"{peak:,.0f}"] for name, peak in builds.items()]
    print_table("the largest process of a build", ["build", "peak MB"], build_rows)
    print(describe(machine()))
    if options.save:
        measured = [
            *flatten({"planning": found}, "measurement", "inputs"),
            *flatten({"build": builds}, "measurement", "build", value="process_mb"),
        ]
        print(write_result(options.save, {}, measured))


def plan(work: Path, inputs: int) -> dict[str, float]:
    """Seconds and peak memory of planning so many inputs."""
    start = time.perf_counter()
    for number in range(CLASSES):
        folder = work / "source" / f"class-{number:04d}"
        folder.mkdir(parents=True)
        for image in range(number, inputs, CLASSES):
            (folder / f"{image:08d}.jpg").write_bytes(b"x")
    print(f"made {inputs:,} files in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    command = [sys.executable, "-c", PLAN, str(work / "source"), str(work / "out")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def build(work: Path, size: tuple[int, int], photos: int, flags: tuple[str, ...]) -> float:
    """Peak MB of the largest process, launcher or worker, of `tpufeed shard`."""
    from scripts.make_photos import make_photos

    make_photos(work / "photos", photos, size=size)
    tpufeed = str(Path(sys.executable).with_name("tpufeed"))
    command = [sys.executable, "-c", MEASURE, tpufeed, "shard", str(work / "photos"), str(work / "out"), *flags]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
