"""Whether the doctor's predictions hold: predicted idle beside that of an EMULATED accelerator which is really fed.

Four set-ups. For each, a plain loop over the loader says about what it gives, and the accelerator's rate is a multiple
of that, fixed below: the doctor has no part in it. Then the doctor predicts, and the loader feeds an accelerator of
that rate, in turns. At the end an action: what the doctor says presizing would give, having seen the full-size JPEGs
alone, beside what the presized dataset gives. The page cache is warm.

    python benchmarks/run.py doctor [--photos 4000] [--repeats 3] [--work FOLDER] [--only NAME] [--save]
"""

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tpufeed
from benchmarks.entry import make_parser
from tpufeed.images import Custom, HorizontalFlip, RandomResizedCrop

TPU, HIGH_SHARE_FLOPS = "v3-8", 4 * 123e12 * 0.375  # the FLOPs that a v3-8 does a second at the doctor's high rate
TARGET_POINTS = 10
FEWEST_BATCHES, WARM_UP_BATCHES = 40, 8


@dataclass(frozen=True)
class SetUp:
    """Data and ops of a set-up, and how many times as fast as the loader the accelerator is."""

    data: str
    times: float
    ops: tuple[Any, ...] | None = (RandomResizedCrop(224), HorizontalFlip())
    batch_size: int = 128


SET_UPS = {
    "JPEG": SetUp("jpeg", 1.6),
    "JPEG, heavy ops": SetUp(
        "jpeg", 3.0, (RandomResizedCrop(224), HorizontalFlip(), Custom("benchmarks.slow_ops:heavy")), batch_size=32
    ),
    "presized": SetUp("presized", 1.3),
    "raw cache": SetUp("raw", 2.0, None),
}


def main(arguments: list[str]) -> None:
    parser = make_parser("doctor", __doc__, repeats=3, photos=4000, keeps=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each run of the doctor")
    parser.add_argument("--feed-seconds", type=float, default=8.0, help="at least, for each run of the accelerator")
    parser.add_argument("--only", choices=[*SET_UPS, "action"], help="one of the set-ups")
    args = parser.parse_args(arguments)
    from benchmarks.peers.sources import make_sources

    with tempfile.TemporaryDirectory(prefix="tpufeed-doctor-bench-") as temporary:
        sources = make_sources(args.work or Path(temporary), args.photos)
        urls = {work: str(source.dataset) for work, source in sources.items()}
        found = {}
        for name, set_up in SET_UPS.items():
            if args.only in (None, name):
                found[name] = measure(urls[set_up.data], set_up, args)
        if args.only in (None, "action"):
            found["action: presize the JPEGs"] = measure_action(urls, args)
    report(found, args)


def measure(url: str, set_up: SetUp, args: argparse.Namespace) -> dict[str, Any]:
    """Predicted and measured idle, in turns."""
    given = drain_plainly(url, set_up)
    rate, seconds = set_up.times * given, _feed_seconds(given, set_up, args)
    predicted, measured, fed, problems = [], [], [], set[str]()
    for _ in range(args.repeats):
        diagnosis = _diagnose(url, set_up, rate, args)
        run = _feed(url, set_up, rate, seconds)
        predicted.append(diagnosis.idle_percent[1])
        measured.append(run.idle_percent)
        fed.append((diagnosis.fed, run.images_per_second))
        problems.update(run.problems)
    return _outcome(rate, predicted, measured, {"binding": diagnosis.binding, "fed": fed, "problems": sorted(problems)})


def measure_action(urls: dict[str, str], args: argparse.Namespace) -> dict[str, Any]:
    """Idle that the doctor predicts of presizing, from JPEGs alone, and that of the presized dataset."""
    set_up = SET_UPS["JPEG"]
    given = drain_plainly(urls["presized"], set_up)
    rate, seconds = 1.5 * given, _feed_seconds(given, set_up, args)
    predicted, measured, fed, problems = [], [], [], set[str]()
    for _ in range(args.repeats):
        diagnosis = _diagnose(urls["jpeg"], set_up, rate, args)
        (action,) = (action for action in diagnosis.actions if action.do.startswith("presize"))
        run = _feed(urls["presized"], set_up, rate, seconds)
        predicted.append(action.idle_percent[1])
        measured.append(run.idle_percent)
        fed.append((action.images_per_second, run.images_per_second))
        problems.update(run.problems)
    return _outcome(rate, predicted, measured, {"binding": diagnosis.binding, "fed": fed, "problems": sorted(problems)})


def drain_plainly(url: str, set_up: SetUp, seconds: float = 4.0) -> float:
    """Images a second of a plain loop, once the loader is under way; by none of the doctor's code."""
    with _open(url, set_up) as loader, closing(iter(loader)) as batches:
        for _ in range(6):
            next(batches)
        start, images = time.perf_counter(), 0
        while time.perf_counter() - start < seconds or not images:
            images += len(next(batches)[0])
        return images / (time.perf_counter() - start)


def report(found: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    """The table, and the result file where asked for."""
    from benchmarks.harness import describe, figure, flatten, machine, print_table, write_result

    rows = [
        [
            name,
            one["binding"],
            figure(one["accelerator_images_per_second"], 0),
            figure(one["predicted_idle_percent"]),
            figure(one["measured_idle_percent"]),
            figure(one["error_points"]),
        ]
        for name, one in found.items()
    ]
    columns = ["set-up", "binds", "accelerator img/s", "predicted idle %", "EMULATED idle %", "error, points"]
    print_table("Predicted idle and that of an EMULATED accelerator", columns, rows, text_columns=2)
    worst = max(one["error_points"] for one in found.values())
    between = sum(20 <= one["measured_idle_percent"] <= 80 for name, one in found.items() if name in SET_UPS)
    print(f"largest error: {worst:.1f} points, target: under {TARGET_POINTS}; between 20 and 80 % idle: {between}")
    for name, one in found.items():
        for problem in one["problems"]:
            print(f"  {name}: {problem}")
    print(describe(machine()))
    if args.save:
        about = {"target_points": TARGET_POINTS, "largest_error_points": worst}
        print(write_result(args.save, about, flatten(found, "set_up")))


def _outcome(rate: float, predicted: list[float], measured: list[float], rest: dict[str, Any]) -> dict[str, Any]:
    middle = statistics.median(predicted), statistics.median(measured)
    return {
        "accelerator_images_per_second": rate,
        "predicted_idle_percent": middle[0],
        "measured_idle_percent": middle[1],
        "error_points": abs(middle[0] - middle[1]),
        "predictions": predicted,
        "measurements": measured,
        **rest,
    }


def _open(url: str, set_up: SetUp) -> Any:
    return tpufeed.Loader(url, repeat=True, ops=set_up.ops, batch_size=set_up.batch_size)


def _diagnose(url: str, set_up: SetUp, rate: float, args: argparse.Namespace) -> Any:
    from tpufeed.measure.doctor import examine

    return examine(
        url,
        tpu=TPU,
        flops_per_sample=HIGH_SHARE_FLOPS / rate,
        batch_size=set_up.batch_size,
        ops=set_up.ops,
        seconds=args.seconds,
    )


def _feed_seconds(given: float, set_up: SetUp, args: argparse.Namespace) -> float:
    """Long enough for the batch that each run begins and ends with to weigh little."""
    return max(args.feed_seconds, FEWEST_BATCHES * set_up.batch_size / given)


def _feed(url: str, set_up: SetUp, rate: float, seconds: float) -> Any:
    """Feed an EMULATED accelerator of that rate, once all of the loader is at work."""
    from tpufeed.measure.accelerator import EmulatedAccelerator
    from tpufeed.measure.tpu import AcceleratorProfile

    device = EmulatedAccelerator(AcceleratorProfile(f"{rate:.0f} images a second", rate), set_up.batch_size)
    with _open(url, set_up) as loader, closing(iter(loader)) as batches:
        for _ in range(WARM_UP_BATCHES):
            next(batches)
        return device.run(batches, None, seconds)
