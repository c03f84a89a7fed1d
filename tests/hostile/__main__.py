"""Hostile folders and annotations with a fresh seed, for as long as asked.

python -m tests.hostile [--seconds 1800] [--seed N] [--only SourceStep]
"""

import argparse
import faulthandler
import logging
import os
import random
import resource
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"})

from tests.hostile.machine import MOST_SECONDS, Step, forged_step, link_steps, make_bases, take_step
from tests.hostile.sources import SOURCES, SourceStep, take_source_step

SHOWN = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=None, help="of a run to be repeated; by default a fresh one")
    parser.add_argument("--only", default="", help="steps whose text holds this")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"hostile: seed {seed}, {options.seconds:g} s", flush=True)
    logging.getLogger("tpufeed").setLevel(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # what asks for more shall fail here, not the machine
    draw, counts, failed = random.Random(seed), Counter[str](), Counter[str]()
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="tpufeed-hostile-") as folder:
        bases = make_bases(Path(folder))
        links = [step for step in link_steps(bases) if options.only in str(step)]
        draw.shuffle(links)
        while time.monotonic() < until:
            step: Step | SourceStep = links.pop() if links and draw.random() < 0.4 else forged_step(bases, draw)
            if draw.random() < 0.5:
                step = SourceStep(draw.choice(SOURCES), draw.getrandbits(32))
            if options.only not in str(step):
                continue
            faulthandler.dump_traceback_later(4 * MOST_SECONDS, exit=True)  # where no signal gets through
            try:
                is_source = isinstance(step, SourceStep)
                counts[take_source_step(step, bases.folder) if is_source else take_step(step, bases)] += 1
            except Exception as error:  # noqa: BLE001  # whatever a step comes upon
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__} in {last.filename}:{last.lineno}"
                failed[where] += 1
                if failed[where] == 1 and len(failed) <= SHOWN:
                    print(f"hostile: {step}\n{traceback.format_exc()}", flush=True)
    print(f"hostile: {counts.total()} steps held: {dict(counts)}; {failed.total()} failed: {dict(failed)}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
