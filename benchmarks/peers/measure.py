"""One measurement, in a process of its own under the Python of the loader: `feed.py` starts it.

    python -m benchmarks.peers.measure MODULE SETTING WORK DATASET FILES FOLDER PLAIN --seconds S

It prints the setting, images_per_second and cpu_us_per_image as JSON. With --seconds 0 the loader's format is made, and
one batch looked at. SETTING "" is the file's own for that work.
"""

import argparse
import importlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import BATCH, SIZE, Source

WARM_UP_BATCHES = 8
WARM_UP_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("setting")
    parser.add_argument("work")
    for folder in ("dataset", "files", "folder", "plain"):
        parser.add_argument(folder, type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    source = Source(options.work, options.dataset, options.files, options.folder, options.plain)
    print(json.dumps(run(importlib.import_module(f"benchmarks.peers.{options.module}"), source, options)), flush=True)


def run(loader: Any, source: Source, options: argparse.Namespace) -> dict[str, Any]:
    if source.work not in loader.SETTINGS:
        return {"why_not": f"not measured: it does no {source.work} work"}
    setting = options.setting or loader.SETTINGS[source.work]
    if not options.seconds:
        prepare(loader, source)
    batches = loader.batches(source, setting)
    check(next(batches))
    rate, cpu = measure(batches, options.seconds) if options.seconds else (None, None)
    return {"setting": setting, "images_per_second": rate, "cpu_us_per_image": cpu}


def prepare(loader: Any, source: Source) -> None:
    """The loader's format, once."""
    shutil.rmtree(source.folder, ignore_errors=True)  # what an earlier run did not finish
    source.folder.mkdir(parents=True)
    if hasattr(loader, "prepare"):
        loader.prepare(source)
    (source.folder / ".prepared").touch()


def check(batch: Any) -> None:
    """Raises ValueError where a batch is not what every loader is to hand over."""
    images, labels = np.asarray(batch[0]), np.asarray(batch[1])
    found = f"{images.dtype} {images.shape}, labels {labels.dtype} {labels.shape}"
    if images.dtype == np.int8 and len(images) == BATCH:
        return  # coefficients
    if images.shape != (BATCH, SIZE, SIZE, 3) or images.dtype != np.uint8 or not images.flags.c_contiguous:
        raise ValueError(f"not {BATCH} contiguous uint8 images of {SIZE}x{SIZE}x3: {found}")
    if labels.size != BATCH or labels.dtype.kind not in "iu" or len(np.unique(labels)) < 2:
        raise ValueError(f"no labels of shuffled classes: {found}")
    if images.reshape(BATCH, -1).std(axis=1).mean() < 10:
        raise ValueError("the images are not photographs")


def measure(batches: Iterator[Any], seconds: float) -> tuple[float, float]:
    """Images a second after a warm-up, and the CPU time an image of all processes of this session."""
    warm_up, start = 0, time.perf_counter()
    while warm_up < WARM_UP_BATCHES or time.perf_counter() - start < WARM_UP_SECONDS:
        next(batches)
        warm_up += 1
    images, spent, start = 0, cpu_seconds(), time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        images += len(next(batches)[0])
    return images / elapsed, (cpu_seconds() - spent) / images * 1e6


def cpu_seconds() -> float:
    """CPU time of the processes of this session: `feed.py` starts one for each measurement."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[3]) == os.getsid(0):
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
