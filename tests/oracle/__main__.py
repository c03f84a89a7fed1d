"""Walks and chains of device ops with fresh seeds: python -m tests.oracle [--seconds 1800] [--seed N]."""

import argparse
import logging
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"})

from tests.oracle.datasets import make_pool
from tests.oracle.device import by_torch, check_often
from tests.oracle.walks import FEEDS, walk_often

WALKS = 50  # of one seed, before the next


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=None, help="of a run to be repeated; by default a fresh one")
    parser.add_argument("--feeds", default=",".join(FEEDS))
    options = parser.parse_args()
    first = secrets.randbits(32) if options.seed is None else options.seed
    print(f"walks: seed {first}, {options.seconds:g} s, feeds {options.feeds}", flush=True)
    logging.getLogger("tpufeed").setLevel(logging.CRITICAL)
    counts: Counter[str] = Counter()
    failed: list[int] = []
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="tpufeed-oracle-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/labels"
        pool = make_pool(Path(folder))
        number = first
        while time.monotonic() < until:
            try:
                walk_often(pool, number, WALKS, options.feeds.split(","), counts)
                check_often(number, WALKS, by_torch)
            except Exception:  # noqa: BLE001  # whatever a walk comes upon
                print(f"walks: failed with --seed {number}\n{traceback.format_exc()}", flush=True)
                failed.append(number)
            number += 1
    print("walks:", ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())), flush=True)
    if failed:
        sys.exit(f"walks: {len(failed)} of {number - first} seeds failed: {failed}")


if __name__ == "__main__":
    main()
