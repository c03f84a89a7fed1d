"""What each stage of feeding gives by itself, as `tpufeed doctor` measures it: full JPEGs, presized ones, a raw cache.

The three datasets are measured in turns, and the median of the repeats is kept. The page cache is warm.

    python benchmarks/run.py stages [--photos 2000] [--repeats 3] [--seconds 20] [--work FOLDER] [--save]
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.entry import make_parser

TPU = "v3-8"
DATASETS = {"jpeg": "full JPEGs", "presized": "presized JPEGs", "raw": "raw cache"}


def main(arguments: list[str]) -> None:
    parser = make_parser("stages", __doc__, repeats=3, photos=2000, keeps=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each run of the doctor")
    args = parser.parse_args(arguments)
    from benchmarks.peers.sources import make_sources

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
    from benchmarks.harness import describe, figure, flatten, machine, print_table, write_result

    names = list(dict.fromkeys(stage for one in found.values() for stage in one["stages"]))
    rows = [
        [stage, *(figure(one["stages"].get(stage, {}).get("median"), 0) for one in found.values())] for stage in names
    ]
    rows.append(["binds", *(one["binding"] for one in found.values())])
    print_table("Images a second of each stage by itself", ["stage", *found], rows)
    print(describe(machine()))
    if args.save:
        about = {"photos": args.photos, "tpu": TPU, "repeats": args.repeats}
        print(write_result(args.save, about, flatten(found, "dataset")))
