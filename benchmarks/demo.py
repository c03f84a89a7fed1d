"""The demo, see scripts/demo: real photos, made into shards and a cache, feed an emulated TPU v3-8 beside naive ways.

Every feed runs in a process of its own, so that no framework's threads disturb the next. With --gcs photos, shards and
cache are in a bucket of a local GCS server instead, and naive ways are left out.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.entry import RESULTS, ROOT, command_of
from benchmarks.harness import describe, figure, machine, print_table, write_result
from benchmarks.local_gcs import CONNECTION_MB_PER_SECOND, LATENCY_MS, serve
from tpufeed.measure.report import headline
from tpufeed.measure.results import BenchRun

PROFILE = "tpu-v3-8"
EMULATED = f"EMULATED {PROFILE}"
ON_CPU = "torch_xla on CPU, a real step"
_CACHE_OPTIONS = ("--size", "224", "--variants", "2", "--encode", "raw")
_WHOLE_OPTIONS = ("--op", "Resize(256)", "--op", "CenterCrop(256)", "--encode")
_DEVICE_OPS = ("--device-op", "RandomResizedCrop(224)", "--device-op", "HorizontalFlip")


@dataclass(frozen=True, slots=True)
class Feed:
    """One row: what train.py is called with, and what a person calls it."""

    label: str
    loader: str
    source: str  # a folder where the data is
    device: str = f"emulated:{PROFILE}"

    @property
    def emulated(self) -> bool:
        return self.device.startswith("emulated:")


def feeds(cores: int, with_xla: bool) -> list[Feed]:
    """The rows, from what people do to a warmed cache."""
    rows = [
        Feed("raw files, Pillow in one thread", "pil", "photos"),
        Feed(f"raw files, Pillow in {cores} processes", "pil-all-cores", "photos"),
        Feed("shards, tf.data as Kaggle's TPU guide writes it", "tfdata-guide", "shards"),
        Feed("shards, tpufeed.Loader.to_tf", "tf", "shards"),
        Feed("shards, tpufeed.Loader", "numpy", "shards"),
        Feed("cache, tpufeed.Loader.to_tf", "tf", "cache"),
        Feed("cache, tpufeed.Loader", "numpy", "cache"),
        Feed("cache of whole images, tpufeed.Loader, device_ops", "numpy", "whole"),
        Feed("cache of their DCT images, tpufeed.Loader, device_ops", "numpy", "coded"),
    ]
    if with_xla:
        rows += [
            Feed("shards, tpufeed.Loader.to_xla", "xla", "shards", "xla-cpu"),
            Feed("cache, tpufeed.Loader.to_xla", "xla", "cache", "xla-cpu"),
        ]
    return rows


def gcs_feeds() -> list[Feed]:
    """The rows of --gcs, in this order: the second finds what the first of its source has staged."""
    return [
        Feed("gs:// shards, tpufeed.Loader, nothing staged", "numpy", "shards"),
        Feed("gs:// cache, tpufeed.Loader, nothing staged", "numpy", "cache"),
        Feed("gs:// cache, tpufeed.Loader, all of it staged", "numpy", "cache"),
    ]


def main(arguments: list[str]) -> int:
    args = _parse(arguments)
    started = time.perf_counter()
    work = args.keep or Path(tempfile.mkdtemp(prefix="tpufeed-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    about = machine()
    print(f"on {describe(about)}\nin {work}")
    try:
        batch_size = fitting_batch(args.photos)
        with bucket(work) if args.gcs else nullcontext(str(work)) as root:
            seconds = prepare(work, root, args.photos)
            results = [
                {**run_feed(feed, root, batch_size, args.seconds), "label": feed.label}
                for feed in (gcs_feeds() if args.gcs else feeds(about["cores"], args.all))
            ]
        show(results, batch_size)
        facts = {"photos": args.photos, "seconds_a_feed": args.seconds, "prepare_seconds": seconds}
        path = write_result("demo-gcs" if args.gcs else "demo", facts, results, RESULTS if args.save else work)
    finally:
        if args.keep is None:
            for name in ("photos", "shards", "cache", "whole", "coded"):
                shutil.rmtree(work / name, ignore_errors=True)
            if not any(work.iterdir()):
                work.rmdir()
    print(f"all figures: {path}; took {time.perf_counter() - started:.0f} s")
    return 0


@contextmanager
def bucket(work: Path) -> Iterator[str]:
    """The URL of a bucket of a local GCS server, and a stage of its own: both go at the end."""
    parent = Path("/dev/shm") if Path("/dev/shm").is_dir() else work
    with tempfile.TemporaryDirectory(prefix="tpufeed-demo-", dir=parent) as copies, serve() as server:
        os.environ["TPUFEED_LOCAL_DIR"] = copies
        print(
            f"gs://bucket is at {server.url}: {LATENCY_MS} ms a request, {CONNECTION_MB_PER_SECOND} MB/s a connection"
        )
        yield "gs://bucket"


def prepare(work: Path, root: str, photos: int) -> dict[str, float]:
    """Photos in `work`, shards and cache at `root`, each made unless it is there; gives the seconds that each took."""
    tpufeed = str(Path(sys.executable).parent / "tpufeed")
    make_photos = [sys.executable, str(ROOT / "scripts" / "make_photos.py")]
    commands = {
        "photos": [*make_photos, str(work / "photos"), "--count", str(photos)],
        "shards": [tpufeed, "shard", f"{root}/photos", f"{root}/shards"],
        "cache": [tpufeed, "cache", "warmup", f"{root}/shards", f"{root}/cache", *_CACHE_OPTIONS],
        "whole": [tpufeed, "cache", "warmup", f"{root}/shards", f"{root}/whole", *_WHOLE_OPTIONS, "raw"],
        "coded": [tpufeed, "cache", "warmup", f"{root}/shards", f"{root}/coded", *_WHOLE_OPTIONS, "dct"],
    }
    remote = root != str(work)
    if remote:
        del commands["whole"], commands["coded"]  # --gcs has no row of them
        commands["check"] = [tpufeed, "verify", f"{root}/cache"]
    seconds = {}
    for name, command in commands.items():
        if not remote and (work / name / "manifest.json").exists():
            print(f"{name}: there already")
            continue
        print("$", shlex.join([Path(command[0]).name, *command[1:]]), flush=True)
        start = time.perf_counter()
        _run(command)
        if remote and name == "photos":
            upload(work / "photos", f"{root}/photos")
        seconds[name] = round(time.perf_counter() - start, 2)
    return seconds


def upload(folder: Path, url: str) -> None:
    """Copy the photos of a folder to a URL, many at once: what `gcloud storage cp -r` does otherwise."""
    from tpufeed.storage.store import open_store

    print(f"copying {folder} to {url}", flush=True)
    store = open_store(url)
    files = sorted(folder.rglob("*.jpg"))
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda path: store.put(path.relative_to(folder).as_posix(), path.read_bytes()), files))


def fitting_batch(photos: int) -> int:
    """128, or for a few photos the power of two that leaves several batches in an epoch."""
    return min(128, 1 << max(0, (photos // 3).bit_length() - 1))


def run_feed(feed: Feed, root: str, batch_size: int, seconds: float) -> dict[str, Any]:
    """The line of JSON of one run of train.py."""
    kind = "--photos" if feed.source == "photos" else "--data"
    command = command_of("train", "--json", "--loader", feed.loader)
    command += [kind, f"{root}/{feed.source}", "--device", feed.device]
    command += ["--batch", str(batch_size), "--seconds", str(seconds)]
    command += _DEVICE_OPS if feed.source in ("whole", "coded") else ()
    print(f"feeding {EMULATED if feed.emulated else ON_CPU} from {feed.label} ...", flush=True)
    found: dict[str, Any] = json.loads(_run(command, capture=True).splitlines()[-1])
    found.pop("machine")
    return found


def show(results: Sequence[dict[str, Any]], batch_size: int) -> None:
    """The table, and in one sentence what changed."""
    rows = [
        [_device(row), row["label"], figure(row["images_per_second"], 0), figure(row["idle_percent"])]
        for row in results
    ]
    print()
    print_table(f"{EMULATED}, batches of {batch_size}", ["device", "fed from", "img/s", "idle %"], rows, text_columns=2)
    if any(row["label"].endswith("device_ops") for row in results):
        print("device_ops cut new crops each epoch, on the device; the emulator does not count that work.")
    for sentence in closing_sentences(results):
        print(sentence)


def closing_sentences(results: Sequence[dict[str, Any]]) -> list[str]:
    """What improved, of rows that have a verdict, and why the others have none."""
    names = {field.name for field in fields(BenchRun)}
    runs = [BenchRun(**{name: value for name, value in row.items() if name in names}) for row in results]
    doubts = [
        f"{_device(row)}, {row['label']}: no verdict: {problem}" for row in results for problem in row["problems"]
    ]
    return [headline(runs), *doubts]


def _device(row: dict[str, Any]) -> str:
    return row["device"] if row["device"].startswith("EMULATED") else ON_CPU


def _run(command: Sequence[str], capture: bool = False) -> str:
    """Run `command`; what it prints is given back, or shown. A failure ends the demo with its exit code."""
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2")
    stdout = subprocess.PIPE if capture else None
    stderr = subprocess.PIPE if capture else None
    done = subprocess.run(command, stdout=stdout, stderr=stderr, text=True, env=environment, check=False)
    if done.returncode:
        print(done.stderr or "", file=sys.stderr)
        print(f"demo: this command failed with exit code {done.returncode}: {' '.join(command)}", file=sys.stderr)
        raise SystemExit(done.returncode)
    return done.stdout or ""


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.partition("\n")[0])
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--all", action="store_true", help="also feed torch_xla on CPU devices")
    kind.add_argument("--gcs", action="store_true", help="all in a bucket of a local GCS server")
    parser.add_argument("--photos", type=int, default=2000, metavar="N")
    parser.add_argument("--seconds", type=float, default=8.0, metavar="S", help="how long each feed is measured")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="work here and keep everything; default: a temporary folder"
    )
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/demo.json")
    args = parser.parse_args(arguments)
    if args.photos < 3 or args.seconds <= 0:
        parser.error("--photos is at least 3, and --seconds more than 0")
    return args
