"""What each stage of feeding gives by itself, as `tpufeed doctor` measures it: full JPEGs, presized ones, a raw cache.

The three datasets are measured in turns, and the median of the repeats is kept. The page cache is warm.

    python benchmarks/bench_stages.py [--photos 2000] [--repeats 3] [--seconds 20] [--work FOLDER] [--save]
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts"), str(ROOT)]

TPU = "v3-8"
DATASETS = {"jpeg": "full JPEGs", "presized": "presized JPEGs", "raw": "raw cache"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each run of the doctor")
    parser.add_argument("--work", type=Path, help="keep photos and all that is made of them here (default: temporary)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/stages.json")
    args = parser.parse_args()
    from peers.sources import make_sources

    with tempfile.TemporaryDirectory(prefix="tpufeed-stages-bench-") as temporary:
        sources = make_sources(args.work or Path(temporary), args.photos)
        found: dict[str, list[Any]] = {work: [] for work in DATASETS}
        for _ in range(args.repeats):
            for work in DATASETS:
                found[work].append(examine_stages(str(sources[work].dataset), args.seconds))
    report({name: summary(found[work]) for work, name in DATASETS.items()}, args)


def examine_stages(url: str, seconds: float) -> Any:
    """The doctor's diagnosis. What JPEGs become is cropped and flipped; a cache comes as it is."""
    from tpufeed.measure.doctor import examine

    return examine(url, tpu=TPU, model="resnet50", seconds=seconds)


def summary(diagnoses: list[Any]) -> dict[str, Any]:
    """Rates of each stage, those of the repeats beside their median."""
    rates: dict[str, list[float]] = {}
    for diagnosis in diagnoses:
        for stage in diagnosis.stages:
            if stage.images_per_second is not None:
                rates.setdefault(stage.name, []).append(stage.images_per_second)
    return {
        "needed": list(diagnoses[0].needed),
        "binding": statistics.mode(diagnosis.binding for diagnosis in diagnoses),
        "idle_percent": [
            statistics.median(diagnosis.idle_percent[edge] for diagnosis in diagnoses if diagnosis.idle_percent)
            for edge in (0, 1)
        ],
        "stages": {
            name: {"median": statistics.median(values), "images_per_second": values} for name, values in rates.items()
        },
    }


def report(found: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    """The table, and the result file where asked for."""
    from harness import describe, figure, machine, print_table, write_result

    names = list(dict.fromkeys(stage for one in found.values() for stage in one["stages"]))
    rows = [
        [stage, *(figure(one["stages"].get(stage, {}).get("median"), 0) for one in found.values())] for stage in names
    ]
    rows.append(["binds", *(one["binding"] for one in found.values())])
    print_table("Images a second of each stage by itself", ["stage", *found], rows)
    print(describe(machine()))
    if args.save:
        print(write_result("stages", {"photos": args.photos, "tpu": TPU, "repeats": args.repeats, "datasets": found}))


if __name__ == "__main__":
    main()
