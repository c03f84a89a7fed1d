"""What `import tpufeed` costs above a bare interpreter, in milliseconds.

    .venv/bin/python benchmarks/bench_import.py [--repeats 30] [--save]

A fresh interpreter a run, the two sides by turns, so that what else the machine does meets both alike; medians are
compared. The other lines say what the first use of some names costs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

from harness import describe, figure, machine, print_table, write_result

BARE = "pass"
PROGRAMS = {
    "bare interpreter": BARE,
    "import tpufeed": "import tpufeed",
    "tpufeed.errors": "import tpufeed; tpufeed.errors",
    "tpufeed.open_dataset": "import tpufeed; tpufeed.open_dataset",
    "tpufeed.numpy_loader": "import tpufeed; tpufeed.numpy_loader",
}
LIMIT_MS = 20.0  # design.md section 4


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/import.json")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error("--repeats is at least 1")

    times = measure(args.repeats)
    medians = {name: statistics.median(values) for name, values in times.items()}
    bare = medians["bare interpreter"]
    rows = [
        [name, figure(medians[name]), figure(min(values)), figure(max(values)), figure(medians[name] - bare)]
        for name, values in times.items()
    ]
    print_table(
        f"start of a process, ms, {args.repeats} runs by turns", ("", "median", "low", "high", "above bare"), rows
    )
    found = machine()
    print(describe(found))
    cost = medians["import tpufeed"] - bare
    print(f"import tpufeed: {cost:.1f} ms above the interpreter (the design allows {LIMIT_MS:.0f})")
    result = {"repeats": args.repeats, "cost_ms": cost, "limit_ms": LIMIT_MS, "times_ms": times}
    print(json.dumps({"cost_ms": round(cost, 2), "medians_ms": {name: round(ms, 2) for name, ms in medians.items()}}))
    if args.save:
        print(f"written: {write_result('import', result)}")
    return 0


def measure(repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each program's runs; a first round, which fills the page cache, is left out."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for repeat in range(repeats + 1):
        for name, program in PROGRAMS.items():
            milliseconds = run(program)
            if repeat:
                times[name].append(milliseconds)
    return times


def run(program: str) -> float:
    """Milliseconds that a fresh interpreter takes for `program`, from its start to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    sys.exit(main())
