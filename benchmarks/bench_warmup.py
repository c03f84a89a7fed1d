"""How fast a cache is warmed, beside decoding alone: ratios in one run, the destination in memory.

- rates: RandomResizedCrop and flip to raw 224 pixels, K = 1 and K = 4 variants in shards of 128 MB, beside simplejpeg
  alone in a process a core over bytes in memory, and beside the same with as many bytes written as K = 1 writes: what
  the pages of a new file cost is the machine's.
- slow ops: 50 ms of sleep, and 50 ms of computing, an image: what an image takes of a worker, with one and with two,
  above what the same command takes without the op and above what the op itself says that it took; from the seconds that
  the command reports, without its start.

What `tpufeed` takes is that of the whole command. A first round warms memory up and is left out.

    python benchmarks/bench_warmup.py [--photos 4000] [--repeats 5] [--save]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "scripts")]

import slow_ops  # noqa: E402

SLOW_PHOTOS = 240
DECODE_AND_WRITE = """
import os, sys, tempfile, time
from pathlib import Path
import simplejpeg
images = [Path(name).read_bytes() for name in sys.stdin.read().splitlines()]
print("ready", flush=True)
with tempfile.TemporaryFile(dir=sys.argv[1], buffering=0) as out:
    start = time.perf_counter()
    for data in images:
        out.write(simplejpeg.decode_jpeg(data).reshape(-1)[:224 * 224 * 3])
    print(len(images) / (time.perf_counter() - start))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"))
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/warmup.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpufeed-warmup-", dir=options.work) as folder:
        work = Path(folder)
        found = {"rates": rates(work, options.photos, options.repeats), "slow": slow(work, options.repeats)}
    report(found, options)


def rates(work: Path, photos: int, repeats: int) -> dict[str, list[float]]:
    """Images a second of the source, one figure a round; the ways take turns."""
    from bench_shard import decode
    from harness import interleave
    from make_photos import make_photos

    make_photos(work / "photos", photos)
    files = sorted((work / "photos").rglob("*.jpg"))
    command("shard", work / "photos", work / "shards", "--check", "header")
    shards, raw, out = work / "shards", work / "photos", work / "out"
    ways = {
        "decoding alone, a process a core": lambda: decode(files),
        "decoding, and writing as many bytes": lambda: decode(files, DECODE_AND_WRITE, work),
        "warmup, K = 1": lambda: photos / warm(shards, out, "--variants", 1),
        "warmup, K = 4": lambda: photos / warm(shards, out, "--variants", 4),
        "warmup from the raw photos, K = 1": lambda: photos / warm(raw, out, "--variants", 1),
    }
    return interleave(ways, repeats)


def slow(work: Path, repeats: int) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By op and number of workers: milliseconds of one worker an image, and those of the op by its own account.

    What the same command takes for the same photos without the slow op is taken off.
    """
    from make_photos import make_photos

    make_photos(work / "few", SLOW_PHOTOS)
    command("shard", work / "few", work / "slow", "--check", "header")
    found: dict[str, dict[str, list[float]]] = {}
    crop = ("--op", "RandomResizedCrop(224)", "--shard-size", "3MB")
    for _ in range(max(1, repeats // 2)):
        for op in ("sleep_50ms", "compute_50ms"):
            for workers in (1, 2):
                flags = (*crop, "--workers", workers)
                base = reported(work / "slow", work / "out", *flags)
                took = reported(work / "slow", work / "out", *flags, "--op", f"slow_ops:{op}", log=work / "log")
                milliseconds = (took - base) * workers / SLOW_PHOTOS * 1e3
                own = statistics.fmean(map(float, (work / "log").read_text().split()))
                (work / "log").unlink()
                found.setdefault(op, {}).setdefault(str(workers), []).append((milliseconds, own))
    return found


def warm(source: Path, out: Path, *flags: object) -> float:
    """Seconds of the command."""
    start = time.perf_counter()
    command("cache", "warmup", source, out, "--shard-size", "128MB", *flags)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return seconds


def reported(source: Path, out: Path, *flags: object, log: Path | None = None) -> float:
    """Seconds of the build as the command reports them, from its plan on; `log` is told those of the op."""
    report = json.loads(command("cache", "warmup", source, out, "--json", *flags, log=log))
    shutil.rmtree(out)
    return float(report["seconds"])


def command(*arguments: object, log: Path | None = None) -> str:
    """Run `tpufeed`, with slow_ops.py where its workers find it."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    if log is not None:
        environment[slow_ops.LOG] = str(log)
    tpufeed = str(Path(sys.executable).with_name("tpufeed"))
    done = subprocess.run([tpufeed, *map(str, arguments)], check=True, capture_output=True, env=environment, text=True)
    return done.stdout


def report(found: dict, options: argparse.Namespace) -> None:
    """The tables, and the result file where asked for."""
    from harness import describe, machine, medians_of, print_table, rows_of, write_result

    medians = medians_of(found["rates"])
    columns = ["way", "img/s", "lowest", "highest", "to decoding"]
    print_table(f"{options.photos} photos of 90 KB", columns, rows_of(found["rates"]))
    print(f"K = 4 takes {medians['warmup, K = 1'] / medians['warmup, K = 4']:.2f} times the time of K = 1")
    slow_rows = []
    for op, by_workers in found["slow"].items():
        for workers, values in by_workers.items():
            took, own = (statistics.median(column) for column in zip(*values, strict=True))
            above = statistics.median(each - op_alone for each, op_alone in values)
            slow_rows.append([op, workers, f"{took:.1f}", f"{own:.1f}", f"{above:+.2f}"])
    print_table("slow ops", ["op", "workers", "ms of a worker an image", "the op itself", "above it"], slow_rows)
    print(describe(machine()))
    if options.save:
        print(write_result("warmup", {"photos": options.photos, **found, "medians": medians}))


if __name__ == "__main__":
    main()
