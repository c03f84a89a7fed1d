"""Do large batches of a raw cache come at the rates of the next TPUs? Idle time of EMULATED ones, in turns.

`Loader` feeds them from 12,288 raw images of 224 pixels, in batches of 1,024 (154 MB each), as `tpufeed bench`
does. Idle time is taken from the second step on. So it has the first steps in it, in which the memory of batches is
made. The last device takes batches as fast as they come.

    python benchmarks/bench_rates.py [--repeats 5] [--seconds 8] [--work FOLDER] [--save]
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from harness import describe, figure, interleave, machine, medians_of, print_table, write_result  # noqa: E402

from tpufeed.measure.alternatives import write_sample  # noqa: E402
from tpufeed.measure.bench import BenchOptions, Measurement, measure_apart  # noqa: E402

BATCH, SIDE, IMAGES, SHARDS = 1024, 224, 12_288, 24
DEVICES = ("emulated:tpu-v5e-8-low", "emulated:tpu-v5e-8-high", "emulated:tpu-v6e-8-low", "none")
FIGURES = {"images_per_second": 0, "idle_percent": 1, "first_batch_seconds": 2, "wait_ms_p99": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--work", type=Path, help="keep the cache here (default: temporary)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/rates-SECONDS.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpufeed-rates-") as temporary:
        url = make_cache((options.work or Path(temporary)) / "raw")
        found = interleave({name: partial(measure, url, name, options.seconds) for name in DEVICES}, options.repeats)
    result = {name: {"demand": demand_of(name), **summary(runs)} for name, runs in found.items()}
    rows = [
        [
            name,
            figure(each["demand"], 0),
            *(figure(each[what]["median"], digits) for what, digits in FIGURES.items()),
            spread_of(each),
        ]
        for name, each in result.items()
    ]
    columns = ("device", "takes img/s", "got img/s", "idle %", "first batch s", "wait ms p99", "idle % of repeats")
    print_table(f"EMULATED: Loader, raw {SIDE}, batches of {BATCH}", columns, rows)
    print(describe(machine()))
    if options.save:
        print(
            write_result(f"rates-{options.seconds:g}", {"batch": BATCH, "seconds": options.seconds, "devices": result})
        )


def make_cache(folder: Path) -> str:
    """Write the cache, unless it is there; pixels are random and play no part."""
    if (folder / "manifest.json").exists():
        return str(folder)
    random = np.random.default_rng(0)
    images = [random.integers(0, 255, SIDE * SIDE * 3, np.uint8).tobytes() for _ in range(IMAGES)]
    return write_sample(folder, images, (SIDE, SIDE, 3), SHARDS, least_bytes=1)


def measure(url: str, device: str, seconds: float) -> dict[str, Any]:
    options = BenchOptions(device=device, batch_size=BATCH, seconds=seconds)
    run = measure_apart(Measurement(url=url, loader="numpy", options=options))
    return {name: getattr(run, name) for name in FIGURES} | {"problems": list(run.problems)}


def demand_of(device: str) -> float | None:
    profile = BenchOptions(device=device).choice.profile
    return None if profile is None else profile.images_per_second


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Each figure's median and repeats, and what stands against trusting them."""
    repeats = {name: [run[name] for run in runs] for name in FIGURES}
    medians = medians_of(repeats)
    figures = {name: {"median": medians[name], "repeats": values} for name, values in repeats.items()}
    return figures | {"problems": sorted({problem for run in runs for problem in run["problems"]})}


def spread_of(result: dict[str, Any]) -> str:
    known = [value for value in result["idle_percent"]["repeats"] if value is not None]
    return " ".join(map(figure, sorted(known))) or "n/a"


if __name__ == "__main__":
    main()
