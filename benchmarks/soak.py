"""Feed for an hour with faults: are samples those of a quiet run, and do memory, descriptors and threads stay flat?

One process feeds from a cache at a local GCS server: raw pixels, two worker processes, and a stage that holds a third
of the cache, so that shards come and go all the time. Steps are slow at random. Every few seconds a worker process is
killed (SIGKILL), and the same loader goes on from the state of the last batch. In the first third of the time the
feeding process is killed instead, and a new one goes on from the state that it has left.

For each batch the feeding process writes a line: the state, and a CRC of the batch's samples and pixels. At the end the
CRCs are compared, one by one, with those of a loader over local files that nobody disturbs. Memory (anonymous, with the
worker processes'), descriptors and threads of the process that lived longest are taken each second. Flat: the ninth
decile of the last quarter of its time is that of the second quarter, plus 5 % and 8 MB, 2 descriptors and 2 threads at
the most. (Not the median: while workers start again, which other work beside makes slow, memory is low.)

    python benchmarks/run.py soak [--seconds 3600] [--save]
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.entry import command_of, make_parser

IMAGES, BATCH, SIDE = 3_000, 16, 32
SLOWEST_STEP_SECONDS = 0.04
SLACK = {"memory_mb": 8.0, "descriptors": 2.0, "threads": 2.0}
OPTIONS: dict[str, Any] = {"batch_size": BATCH, "seed": 7, "repeat": True, "columns": ["image", "sample"]}


def main(arguments: list[str]) -> int:
    parser = make_parser("soak", __doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--fault-seconds", type=float, default=6.0, help="between faults, on average (default: 6)")
    parser.add_argument("--feed", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.feed:
        feed(options.feed)
        return 0
    with tempfile.TemporaryDirectory(prefix="tpufeed-soak-") as folder:
        result = soak(Path(folder), options)
    print(json.dumps({name: value for name, value in result.items() if name != "measured"}, indent=1))
    if options.save:
        from benchmarks.harness import write_result

        about = {name: value for name, value in result.items() if name not in ("measured", "wrong")}
        about["wrong"] = result["wrong"]
        print(write_result(options.save, about, result["measured"]))
    return len(result["wrong"])


def soak(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Feed, disturb and judge; `wrong` says in words what was not as it should be."""
    import numpy as np

    from tests.gcs_server import GcsServer
    from tpufeed.measure.alternatives import write_sample

    draw_pixels = np.random.default_rng(0)
    pixels = [draw_pixels.integers(0, 255, SIDE * SIDE * 3, np.uint8).tobytes() for _ in range(IMAGES)]
    write_sample(folder / "bucket/cache", pixels, (SIDE, SIDE, 3), 24, least_bytes=1)
    with GcsServer(process=True) as server:
        for file in (folder / "bucket/cache").iterdir():
            server.put("bucket", f"cache/{file.name}", file.read_bytes())
        kills = disturb(folder, options, {**os.environ, **server.environment()})
    lines = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    wrong = compare(folder / "bucket/cache", [line["crc"] for line in lines])
    lives = [json.loads(line) for line in (folder / "measured.jsonl").read_text().splitlines()]
    processes = [each["process"] for each in lives]
    measured = [each for each in lives if each["process"] == max(set(processes), key=processes.count)]
    wrong += [f"{name} grew from {first:.1f} to {last:.1f}" for name, first, last in find_growth(measured)]
    return {"seconds": options.seconds, "batches": len(lines), **kills, "wrong": wrong, "measured": measured}


def disturb(folder: Path, options: argparse.Namespace, environment: dict[str, str]) -> dict[str, int]:
    """Run feeding processes, one after the other, and kill them or their workers; return how often."""
    chance = random.Random(1)
    began = time.monotonic()
    killed_feeds = killed_workers = written = 0
    log = folder / "batches.jsonl"
    command = command_of("soak", "--feed", folder)
    feeding = subprocess.Popen(command, env=environment)
    try:
        while time.monotonic() - began < options.seconds or not killed_workers:
            time.sleep(chance.uniform(0.5, 1.5) * options.fault_seconds)
            if feeding.poll() is not None:
                raise RuntimeError(f"the feeding process has ended with {feeding.returncode}")
            if not log.exists() or log.stat().st_size == written:  # a fault before a batch has come shows nothing
                continue
            written, workers = log.stat().st_size, workers_of(feeding.pid)
            if time.monotonic() - began < options.seconds / 3 or not killed_feeds:
                feeding.kill()
                feeding.wait()
                killed_feeds += 1
                feeding = subprocess.Popen(command, env=environment)
            elif workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed_workers += 1
        (folder / "stop").touch()
        feeding.wait(60)
    finally:
        feeding.kill()
        feeding.wait()
    return {"killed_feeds": killed_feeds, "killed_workers": killed_workers}


def feed(folder: Path) -> None:
    """Feed until the file `stop` is there, from the last line of batches.jsonl on."""
    import tpufeed
    from tpufeed.errors import LoaderError

    threading.Thread(target=measure, args=[folder], daemon=True).start()
    chance = random.Random(os.getpid())
    log = folder / "batches.jsonl"
    whole = log.read_bytes() if log.exists() else b""
    whole = whole[: whole.rfind(b"\n") + 1]  # a kill may have cut the last line
    copies = {"local_dir": folder / "stage", "local_bytes": IMAGES * SIDE * SIDE * 3 // 3}
    with log.open("r+b" if log.exists() else "wb", buffering=0) as file:
        file.truncate(len(whole))
        file.seek(len(whole))
        state = json.loads(whole.splitlines()[-1])["state"] if whole else None
        with tpufeed.Loader("gs://bucket/cache", "train", processes=2, threads=1, **OPTIONS, **copies) as loader:
            while not (folder / "stop").exists():
                if state is not None:
                    loader.load_state_dict(state)
                try:
                    for images, samples in loader:
                        state = loader.state_dict()
                        file.write(json.dumps({"crc": crc_of(images, samples), "state": state}).encode() + b"\n")
                        time.sleep(chance.uniform(0, SLOWEST_STEP_SECONDS))
                        if (folder / "stop").exists():
                            return
                except LoaderError as error:
                    if "iterate the loader again" not in str(error):
                        raise


def measure(folder: Path) -> None:
    """Write a line each second: what this process and its workers hold."""
    began = time.monotonic()
    with (folder / "measured.jsonl").open("a", buffering=1) as file:
        while True:
            time.sleep(0.25 if time.monotonic() - began < 60 else 1.0)
            memory = 0.0
            for process in [os.getpid(), *workers_of(os.getpid())]:
                try:
                    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                except OSError:  # it was killed meanwhile
                    continue
                # The share of each in what they share: workers are forks of one process.
                memory += sum(int(line.split()[1]) / 1e3 for line in lines if line.startswith("Pss_Anon:"))
            line = {
                "process": os.getpid(),
                "seconds": round(time.monotonic() - began, 2),
                "memory_mb": round(memory, 1),
                "descriptors": len(os.listdir("/proc/self/fd")),
                "threads": threading.active_count(),
            }
            file.write(json.dumps(line) + "\n")


def compare(url: Path, crcs: Sequence[int]) -> list[str]:
    """Return what is wrong with the batches: they are to be those of a loader that nobody disturbs."""
    import tpufeed

    def undisturbed() -> Iterator[int]:
        with tpufeed.Loader(url, "train", processes=0, threads=2, **OPTIONS) as loader:
            yield from (crc_of(images, samples) for images, samples in loader)

    expected = list(islice(undisturbed(), len(crcs)))
    differ = [number for number, pair in enumerate(zip(crcs, expected, strict=True)) if pair[0] != pair[1]]
    return [f"batch {differ[0]} and {len(differ) - 1} more of {len(crcs)} differ"] if differ else []


def find_growth(measured: Sequence[dict[str, float]]) -> list[tuple[str, float, float]]:
    """Return what has grown, with its ninth deciles in the second and in the last quarter."""
    quarter = len(measured) // 4
    grown = []
    for name, slack in SLACK.items():
        first = statistics.quantiles((each[name] for each in measured[quarter : 2 * quarter]), n=10)[-1]
        last = statistics.quantiles((each[name] for each in measured[-quarter:]), n=10)[-1]
        if last > first + slack + (0.05 * first if name == "memory_mb" else 0):
            grown.append((name, first, last))
    return grown


def crc_of(images: Any, samples: Any) -> int:
    return zlib.crc32(images.tobytes(), zlib.crc32(samples.tobytes()))


def workers_of(process: int) -> list[int]:
    """Its worker processes, and what they are forks of."""
    try:
        children = [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []
    return children + [worker for child in children for worker in workers_of(child)]
