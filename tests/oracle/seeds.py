"""What the commands of oracles share: they try one seed after another for as long as is asked for."""

import argparse
import logging
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable


def make_parser(description: str | None, seconds: float = 1800.0) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seed", type=int, default=None, help="of a run to be repeated; by default a fresh one")
    return parser


def try_seeds(
    name: str, options: argparse.Namespace, counts: Counter[str], take: Callable[[int], object], drawn: str = ""
) -> None:
    """Call `take` with seed after seed; print those that fail, and `drawn`, the options that a repetition needs."""
    first = secrets.randbits(32) if options.seed is None else options.seed
    print(f"{name}: seed {first}, {options.seconds:g} s{drawn}", flush=True)
    logging.getLogger("tpufeed").setLevel(logging.CRITICAL)
    failed: list[int] = []
    until, number = time.monotonic() + options.seconds, first
    while time.monotonic() < until:
        try:
            take(number)
        except Exception:  # noqa: BLE001  # whatever a seed comes upon
            failed.append(number)
            print(f"{name}: failed with --seed {number}{drawn}\n{traceback.format_exc()}", flush=True)
        number += 1
    print(f"{name}:", ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())), flush=True)
    if failed:
        sys.exit(f"{name}: {len(failed)} of {number - first} seeds failed: {failed}")
