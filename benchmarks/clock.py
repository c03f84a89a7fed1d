"""What the step clock and MetricsLogger cost a step, and how its idle figure agrees with one computed beside it.

    python benchmarks/run.py clock [--steps 200000] [--repeats 7] [--save]

Cost: a loop over the same batch again and again, through the clock and without it; the difference a step, in the best
of the repeats. Agreement: a loader that takes `delay` for a batch and a step that takes 10 ms, both asleep; the loader
adds up its own time and the loop takes its own from the end of the first step to the end of the last.
"""

import itertools
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.entry import make_parser
from benchmarks.harness import describe, figure, flatten, machine, print_table, write_result
from tpufeed.adapters.metrics_logger import MetricsLogger
from tpufeed.measure.clock import StepClock
from tpufeed.stream.host import LoaderStats

STEP_SECONDS = 0.01
DELAYS_MS = (0.1, 1.0, 3.0, 10.0, 30.0)


class SlowLoader:
    """Sleeps for each batch, and counts how long that really took."""

    def __init__(self, delay: float, steps: int) -> None:
        self.delay, self.steps = delay, steps
        self.taken: list[float] = []

    def __iter__(self) -> Iterator[int]:
        for number in range(self.steps):
            begin = time.perf_counter()
            time.sleep(self.delay)
            self.taken.append(time.perf_counter() - begin)
            yield number


def ns_a_step(batch: Any, steps: int, repeats: int) -> float:
    """The clock's own share."""
    bare = min(_seconds(lambda: itertools.repeat(batch, steps)) for _ in range(repeats))
    clocked = min(_seconds(lambda: StepClock()(itertools.repeat(batch, steps))) for _ in range(repeats))
    return (clocked - bare) / steps * 1e9


def _seconds(loop: Callable[[], Iterator[Any]]) -> float:
    batches = loop()
    begin = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - begin


def agreement(delay_ms: float, seconds: float) -> tuple[float, float]:
    """Idle percent: (the clock's, the independent one)."""
    steps = max(10, round(seconds / (STEP_SECONDS + delay_ms / 1e3)))
    loader, clock = SlowLoader(delay_ms / 1e3, steps), StepClock()
    first_over = 0.0
    for number in clock(loader):
        time.sleep(STEP_SECONDS)
        if number == 0:
            first_over = time.perf_counter()
    wall = time.perf_counter() - first_over
    idle = clock.report(1).idle_percent
    assert idle is not None
    return idle, 100 * sum(loader.taken[1:]) / wall


def logger_us(repeats: int) -> dict[str, float]:
    """Microseconds of a step without a report, and of a report, to nowhere and to a SummaryWriter; medians."""
    found: dict[str, Callable[[dict[str, float], int], Any] | Any] = {"report": lambda *_: None}
    with tempfile.TemporaryDirectory() as folder:
        try:
            from torch.utils.tensorboard import SummaryWriter

            found["report to TensorBoard"] = SummaryWriter(folder)
        except ImportError:
            pass
        costs = {}
        for name, target in found.items():
            logger = MetricsLogger(_Counting(), target, every_steps=1 << 60)
            logger.step()
            costs["step"] = 1e6 * min(timeit.repeat(logger.step, number=100_000, repeat=repeats)) / 100_000

            def report(logger: MetricsLogger = logger) -> None:
                logger.step()
                logger.report()

            costs[name] = 1e6 * statistics.median(timeit.repeat(report, number=200, repeat=repeats)) / 200
    return costs


class _Counting:
    """A loader's counts, as one has them that feeds."""

    def stats(self) -> LoaderStats:
        return replace(LoaderStats(processes=2, threads=2, prefetch=4, buffer_bytes=1 << 20), samples=128)


def batches() -> dict[str, Any]:
    """By name."""
    image, label = np.zeros((128, 224, 224, 3), np.uint8), np.zeros(128, np.int64)
    found: dict[str, Any] = {"int": 1, "numpy tuple": (image, label), "numpy dict": {"image": image, "label": label}}
    try:
        import torch

        found["torch tuple"] = torch.from_numpy(image), torch.from_numpy(label)
    except ImportError:
        pass
    return found


def main(arguments: list[str]) -> None:
    parser = make_parser("clock", __doc__, repeats=7)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each agreement run")
    args = parser.parse_args(arguments)

    costs = {name: ns_a_step(batch, args.steps, args.repeats) for name, batch in batches().items()}
    print(describe(machine()))
    print_table("cost of the clock", ["batch", "ns a step"], [[name, figure(cost, 0)] for name, cost in costs.items()])
    logger = logger_us(args.repeats)
    print_table("cost of MetricsLogger", ["call", "us"], [[name, figure(cost, 2)] for name, cost in logger.items()])
    rows = []
    for delay in DELAYS_MS:
        runs = [agreement(delay, args.seconds) for _ in range(3)]
        clock, other = (statistics.median(values) for values in zip(*runs, strict=True))
        worst = max(abs(mine - theirs) for mine, theirs in runs)
        rows.append({"delay_ms": delay, "clock_idle": clock, "independent_idle": other, "largest_difference": worst})
    print_table(
        "idle percent, medians of 3 runs",
        ["delay", "clock", "independent", "largest difference, points"],
        [
            [f"{row['delay_ms']} ms", *(figure(value, 2) for name, value in row.items() if name != "delay_ms")]
            for row in rows
        ],
    )
    if args.save:
        settings = {"steps": args.steps, "repeats": args.repeats}
        measured = [
            *flatten({"clock": costs}, "measurement", "batch", value="ns_a_step"),
            *flatten({"MetricsLogger": logger}, "measurement", "call", value="us"),
            *({"measurement": "idle", **row} for row in rows),
        ]
        print(write_result(args.save, settings, measured))
