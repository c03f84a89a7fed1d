"""All figures of README and docs, from this machine and this code: each benchmark in turn, then the pictures and pages.

Sets up the peers, runs the scripts one after another, saves their results, draws the pictures and writes the pages that
are made of results. It runs unattended: what fails or takes too long is named at the end and does not stop the others.
Give it an idle machine. Then change what README and pages say: their tests (`./scripts/test --repo`) compare.

    python benchmarks/run.py figures [NAME ...] [--list]
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.entry import PEERS, ROOT, command_of, make_parser

LOGS = ROOT / "build/figures"


class Figure(NamedTuple):
    """A run of a script: the minutes that it takes on 2 cores, and its options. It is stopped after twice as long.

    A peer whose Python runs it has a library that the script compares with.
    """

    name: str
    minutes: float
    options: str = ""
    peer: str = ""


FIGURES = (
    Figure("demo", 2),
    Figure("feed", 31.5, "--repeats 3 --seconds 2"),
    Figure("window", 3, "--repeats 3 --photos 1000"),
    Figure("coefficients", 3, "--repeats 5 --photos 300 --seconds 0.7"),
    Figure("bench-device", 4.5, "--repeats 3 --photos 2000"),
    Figure("shard", 3.5, "--repeats 3 --photos 10000"),
    Figure("dlio", 10, "--repeats 2 --photos 3200"),
    Figure("imread", 3, "--runs 3 --images 1000"),
    Figure("spdl", 6.5, "--repeats 2"),
    Figure("bands", 8, "--repeats 3 --seconds 3"),
    Figure("clips", 2.5, "--repeats 3 --seconds 2"),
    Figure("grain", 1, "--repeats 5"),
    Figure("gil", 5, "--repeats 3 --photos 2000"),
    Figure("stages", 1.5, "--repeats 2 --seconds 12"),
    Figure("doctor", 4, "--repeats 2 --seconds 12"),
    Figure("scale", 7),
    Figure("plan", 3),
    Figure("grown", 1.5, "--repeats 5"),
    Figure("views", 2.5, "--repeats 3"),
    Figure("mixture", 1.5),
    Figure("staging", 3, "--images 7200"),
    Figure("story", 3),
    Figure("ops", 1),
    Figure("pixels", 1, peer="spdl"),
    Figure("order", 0.5),
    Figure("clock", 1, "--repeats 5"),
    Figure("engines", 1.5, "--tasks 4000"),
)
NAMED = (Figure("soak", 62),)  # runs only where its name is given
# Results that are not measured again here: of 16 cores, written by hand, of other commands; or behind a decision.
ELSEWHERE = (
    "compiled-for-tpus",
    "feed-16",
    "scale-16-workers",
    "by-hand",
    "packages",
    "platforms",
)
DECIDED = ("busy-0", "busy-3", "busy-3-presized", "busy-3-raw", "busy-6", "busy-6-presized", "busy-6-raw")
PAGES = (
    Figure("plot", 1),
    Figure("scaling", 1, "--write"),
    Figure("scale-page", 1, "--write"),
    Figure("ran-page", 1, "--write"),
)


def main(arguments: Sequence[str]) -> int:
    parser = make_parser("figures", __doc__, save=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help="some, and the pictures and pages; soak, an hour")
    parser.add_argument("--list", action="store_true", help="print the commands with their minutes, and run nothing")
    options = parser.parse_args(arguments)
    names = [figure.name for figure in (*FIGURES, *NAMED)]
    if unknown := sorted(set(options.names) - set(names)):
        parser.error(f"there is no {', '.join(unknown)}; there are {' '.join(names)}")
    chosen = [figure for figure in (*FIGURES, *NAMED) if figure.name in options.names] or FIGURES
    if options.list:
        print("\n".join(f"{figure.minutes:4g} min  {' '.join(words(figure))}" for figure in (*chosen, *PAGES)))
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    subprocess.run([ROOT / "scripts/setup-peers"], check=False)  # says what it could not install; so do the tables
    failed = [said for figure in (*chosen, *PAGES) if (said := run(figure))]
    print("\n".join(failed) or "all results, pictures and pages are written")
    return int(bool(failed))


def words(figure: Figure) -> list[str]:
    """What follows `python benchmarks/run.py`."""
    save = [] if figure in PAGES else ["--save"]
    return [figure.name, *figure.options.split(), *save]


def run(figure: Figure) -> str:
    """Run it, with its output in a log. Return what went wrong, or nothing."""
    log, start = LOGS / f"{figure.name}.log", time.monotonic()
    peer = PEERS / figure.peer / "bin" / "python"
    command = command_of(*words(figure), python=peer if figure.peer and peer.exists() else sys.executable)
    with log.open("w") as file:
        try:
            code = subprocess.run(
                command, stdout=file, stderr=file, timeout=120 * figure.minutes, check=False, cwd=ROOT
            ).returncode
            said = f"exit status {code}" if code else ""
        except subprocess.TimeoutExpired:
            said = f"was stopped after {2 * figure.minutes:g} minutes"
    took = f"{(time.monotonic() - start) / 60:.1f} min, {figure.minutes:g} expected"
    print(f"{figure.name:13} {took}  {said or 'ok'}", flush=True)
    return f"{figure.name}: {said}, see {log.relative_to(ROOT)}" if said else ""
