"""What each engine costs a task: milliseconds of tasks that do nothing, beyond starting the engine.

The start is that of a first run, of one task. A second run of one task is taken off a third one of `--tasks` more: what
is left is theirs. Two tasks at a time, engines in turns. Ray is a cluster of one node on this host that is up before it
is timed, Beam its direct runner; on a service like Dataflow the start takes minutes instead of seconds.

    python benchmarks/run.py engines [--tasks 500] [--repeats 5] [--engines serial processes ray beam] [--save]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.entry import ROOT, make_parser
from tpufeed.engines.choice import SerialEngine
from tpufeed.engines.engine import Done, Engine, Job
from tpufeed.engines.processes import ProcessEngine

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

JOB = Job("tests.engines.engine_tasks:nothing", None)
WORKERS = 2


def make_ray() -> Engine:
    from tpufeed.engines.ray import RayEngine

    return RayEngine(workers=WORKERS)


def make_beam() -> Engine:
    from tpufeed.engines.beam import BeamEngine

    several = ["--direct_running_mode=multi_threading", f"--direct_num_workers={WORKERS}"]
    return BeamEngine(["--runner=DirectRunner", *several])


ENGINES: dict[str, Callable[[], Engine]] = {
    "serial": SerialEngine,
    "processes": lambda: ProcessEngine(WORKERS),
    "ray": make_ray,
    "beam": make_beam,
}


def main(arguments: list[str]) -> None:
    parser = make_parser("engines", __doc__, repeats=5)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    options = parser.parse_args(arguments)
    with cluster("ray" in options.engines):
        found = rounds(options.engines, options.tasks, options.repeats)
    report(found, options)


@contextmanager
def cluster(wanted: bool) -> Iterator[None]:
    """A Ray of this host, for as long as it takes."""
    if not wanted:
        yield
        return
    import ray

    with tempfile.TemporaryDirectory(prefix="tf", dir="/tmp") as folder:  # sockets want a short path
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR", "_temp_dir": folder}
        ray.init(address="local", num_cpus=WORKERS, **options)
        try:
            yield
        finally:
            ray.shutdown()


def rounds(names: list[str], tasks: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of the start and milliseconds of a task, one figure a round; a first round warms the machine up."""
    found: dict[str, dict[str, list[float]]] = {name: {"start_seconds": [], "task_ms": []} for name in names}
    for number in range(repeats + 1):
        for name in names:
            engine = ENGINES[name]()
            begun = time.perf_counter()
            with engine.prepare(JOB.entry):
                timed(engine, 1)
                start = time.perf_counter() - begun
                one, all_of_them = timed(engine, 1), timed(engine, tasks + 1)
            if number:
                found[name]["start_seconds"].append(start)
                found[name]["task_ms"].append((all_of_them - one) / tasks * 1e3)
    return found


def timed(engine: Engine, tasks: int) -> float:
    start = time.perf_counter()
    done = sum(isinstance(event, Done) for event in engine.run(JOB, range(tasks)))
    seconds = time.perf_counter() - start
    assert done == tasks
    return seconds


def report(found: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> None:
    """The table, and the result file where asked for."""
    from benchmarks.harness import describe, machine, print_table, write_result

    rows = [
        [name, f"{statistics.median(each['start_seconds']):.2f}", f"{statistics.median(each['task_ms']):.2f}"]
        + [f"{edge(each['task_ms']):.2f}" for edge in (min, max)]
        for name, each in found.items()
    ]
    print_table("empty tasks, two at a time", ["engine", "start, s", "ms a task", "lowest", "highest"], rows)
    print(describe(machine()))
    if options.save:
        measured = [
            {"engine": name, **each, "median_task_ms": statistics.median(each["task_ms"])}
            for name, each in found.items()
        ]
        print(write_result(options.save, {"tasks": options.tasks, "workers": WORKERS}, measured))
