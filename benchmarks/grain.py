"""CPU time an image of `tpufeed.grain_source` and of Grain over ArrayRecord, by the same Grain pipeline of two threads.

Both start from the same images; ArrayRecord's are decoded by simplejpeg and resized by cv2, which tpufeed uses too. The
two take turns in one process. CPU time of all threads counts: other work on the machine changes it less than rates.

    python benchmarks/run.py grain [--photos 2000] [--repeats 7] [--work FOLDER] [--only WORK] [--save]
"""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.entry import make_parser

os.environ["PEERS_WORK"] = "jpeg"  # crops of 8 to 100 % of the area

WAYS = ("tpufeed.grain_source", "ArrayRecord + simplejpeg + cv2")
WORK = {
    "jpeg": "JPEG 500x375, random-resized crop + flip",
    "presized": "JPEG presized to 256, random-resized crop + flip",
    "raw": "raw 224 cache",
}


def main(arguments: list[str]) -> None:
    parser = make_parser("grain", __doc__, repeats=7, photos=2000, keeps=True)
    parser.add_argument("--batches", type=int, default=8, help="of 128, a round")
    parser.add_argument("--only", choices=WORK, help="one kind of work")
    options = parser.parse_args(arguments)
    from benchmarks.harness import describe, machine, medians_of, print_table, rows_of, write_result
    from benchmarks.peers.sources import make_sources

    found = {}
    with tempfile.TemporaryDirectory(prefix="tpufeed-grain-") as temporary:
        sources = make_sources(options.work or Path(temporary), options.photos)
        for kind in [options.only] if options.only else WORK:
            rounds = measure(sources[kind], options.repeats, options.batches)
            found[kind] = {"medians": medians_of(rounds), "cpu_us_an_image": rounds}
            print_table(WORK[kind], ["source", "us", "lowest", "highest", "to the first"], rows_of(rounds))
    print(describe(machine()))
    if options.save:
        rows = [
            {"work": kind, "source": way, "median": each["medians"][way], "cpu_us_an_image": rounds}
            for kind, each in found.items()
            for way, rounds in each["cpu_us_an_image"].items()
        ]
        print(write_result(options.save, {"photos": options.photos, "batches": options.batches}, rows))


def measure(source: Any, repeats: int, batches: int) -> dict[str, list[float]]:
    """Microseconds of CPU an image, of each way one a round."""
    from benchmarks.harness import interleave
    from benchmarks.peers import BATCH, grain, ours
    from benchmarks.peers.measure import check, prepare

    prepare(grain, source)
    makers: tuple[Callable[[], Any], ...] = (
        partial(ours.batches, source, "grain_source"),
        partial(grain.batches, source, grain.SETTINGS[source.work]),
    )

    def once(make: Callable[[], Any]) -> float:
        iterator = make()
        check(next(iterator))
        start = time.process_time()
        for _ in range(batches):
            next(iterator)
        spent = time.process_time() - start
        iterator.close()
        return spent / (batches * BATCH) * 1e6

    return interleave({way: partial(once, make) for way, make in zip(WAYS, makers, strict=True)}, repeats)
