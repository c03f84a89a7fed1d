"""How cost grows: with the images of a build, with the shards of a dataset, with worker processes.

    python benchmarks/run.py scale [PART ...] [--most 1000000] [--repeats 3] [--processes N] [--work FOLDER] [--save]

Parts, all of them if none is named; each has a result file of its own, and `plot` draws them:

- plan: from so many listed entries to the stored plan. Entries are made up, no file is looked at.
- build: `tpufeed shard --check header` of so many images of 8x8 pixels, 1 KB each: 1,000 files under other names.
- workers: images a second by worker processes, of `tpufeed.shard` with its full check and of `Loader`, from
  photos of 90 KB.
- datasets: the first batch and the memory of datasets of 1,000 to 100,000 shards. They are made up: one shard of 1,000
  raw images of 8x8 pixels under as many names as there are to be shards, with a manifest and an index of full size.
  Each figure is of a new process whose files are in the page cache. Memory is what the process and its children have
  (the sum of their Pss: shared pages count once) above one with numpy imported.

`--most` leaves out larger plans and builds. In seconds of the CPU, all processes together, a busy machine counts less.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.entry import command_of, make_parser

RECORDS = 1_000
SHARDS = 1_000, 10_000, 100_000
_LINKS = 10_000  # of one file; ext4 allows 65,000
_BATCHES = 200


def main(arguments: list[str]) -> None:
    parser = make_parser("scale", __doc__, repeats=3, work=Path(tempfile.gettempdir()))
    parser.add_argument("parts", nargs="*", metavar="PART", help="plan, build, workers, datasets")
    parser.add_argument("--most", type=int, default=1_000_000, metavar="IMAGES")
    parser.add_argument("--processes", type=int, help="passed to Loader; left out where this is")
    parser.add_argument("--child", nargs=2, metavar=("URL", "OPTIONS"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        print(json.dumps(measure(args.child[0], json.loads(args.child[1]))))
        return
    from benchmarks import curves
    from benchmarks.harness import describe, machine, write_result

    for part in args.parts or (*curves.CURVES, "datasets"):
        with tempfile.TemporaryDirectory(prefix="tpufeed-scale-", dir=args.work) as folder:
            if part == "datasets":
                options = {} if args.processes is None else {"processes": args.processes}
                result = run(Path(folder), args.repeats, options)
                show(result)
            else:
                result = curves.CURVES[part](Path(folder), args.repeats, args.most)
                curves.show(part, result)
        print(describe(machine()))
        if args.save:
            name = args.save if part == "datasets" else f"{args.save}-{part}"
            print(write_result(name, result, result.pop("rows")))


def run(folder: Path, repeats: int, options: dict[str, Any]) -> dict[str, Any]:
    """Datasets, each of them measured `repeats` times."""
    one = make_shard(folder)
    rows = []
    for shards in SHARDS:
        url = multiply(one, folder / str(shards), shards)
        runs = [_child(url, options) for _ in range(repeats + 1)][1:]  # the first one fills the page cache
        rows.append({
            "records": shards * RECORDS,
            "index_mb": (url / "train.index.npy").stat().st_size / 1e6,
            "manifest_mb": (url / "manifest.json").stat().st_size / 1e6,
            **{key: statistics.median(each[key] for each in runs) for key in runs[0]},
            **{f"{key}_{name}": pick(each[key] for each in runs)
               for key in ("open_dataset_seconds", "first_batch_seconds", "memory_mb")
               for name, pick in (("low", min), ("high", max))},
        })  # fmt: skip
    return {"repeats": repeats, "options": options, "records_of_shard": RECORDS, "rows": rows}


def make_shard(folder: Path) -> Path:
    """A raw cache of one shard, built as any other."""
    import cv2

    import tpufeed
    from tpufeed.images import Resize

    rng = np.random.default_rng(0)
    for number in range(RECORDS):
        path = folder / f"images/{number % 10}/{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 256, (8, 8, 3), np.uint8))
    tpufeed.shard(folder / "images", folder / "dataset", workers=1)
    tpufeed.cache.warmup(folder / "dataset", folder / "one", ops=[Resize((8, 8))], variants=1, workers=1)
    return folder / "one"


def multiply(one: Path, folder: Path, shards: int) -> Path:
    """A dataset whose shards are all that of `one`."""
    import msgspec

    from tpufeed.dataset.manifest import IndexFile, decode_manifest, encode_manifest
    from tpufeed.dataset.naming import shard_name

    manifest = decode_manifest((one / "manifest.json").read_bytes(), str(one))
    split = manifest.splits["train"]
    (variant,) = split.variants
    (shard,) = variant.shards
    folder.mkdir()
    names = [shard_name("train", None, number, shards) for number in range(shards)]
    for number, name in enumerate(names):
        if number % _LINKS == 0:
            origin = folder / name
            origin.write_bytes((one / shard.name).read_bytes())
        else:
            os.link(origin, folder / name)
    offsets = np.load(one / variant.index.name)
    index = np.lib.format.open_memmap(folder / "train.index.npy", "w+", np.uint64, (shards * len(offsets),))
    index.reshape(shards, -1)[:] = offsets
    index.flush()
    replace = msgspec.structs.replace
    many = replace(
        variant,
        shards=tuple(replace(shard, name=name) for name in names),
        index=IndexFile("train.index.npy", (folder / "train.index.npy").stat().st_size, 0),
    )
    counts = tuple(count * shards for count in split.class_counts)
    whole = replace(split, records=split.records * shards, class_counts=counts, variants=(many,))
    (folder / "manifest.json").write_bytes(encode_manifest(replace(manifest, splits={"train": whole})))
    return folder


def _child(url: Path, options: dict[str, Any]) -> dict[str, float]:
    command = command_of("scale", "--child", url, json.dumps(options))
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(url: str, options: dict[str, Any]) -> dict[str, float]:
    """In a process that has imported numpy and nothing of tpufeed."""
    before = memory(url)
    started = time.perf_counter()
    import tpufeed

    imported = time.perf_counter()
    loader = tpufeed.Loader(url, batch_size=128, **options)
    opened = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter()
    at_first = memory(url)
    for _ in range(_BATCHES):
        next(batches)
    later = memory(url)
    loader.close()
    return {
        "import_seconds": imported - started,
        "open_seconds": opened - imported,
        "first_batch_seconds": first - imported,
        "memory_mb": at_first["pss"] - before["pss"],
        "memory_later_mb": later["pss"] - before["pss"],
        "anonymous_mb": later["anonymous"] - before["anonymous"],
        "index_resident_mb": later["index"],
        "index_copied_mb": later["index_private_dirty"],
        "processes": later["processes"],
        **time_parts(url),
    }


def time_parts(url: str) -> dict[str, float]:
    """Seconds that the parts take by themselves."""
    import tpufeed
    from tpufeed.dataset.manifest import decode_manifest
    from tpufeed.dataset.order import EpochOrder

    _, open_seconds = _timed(lambda: tpufeed.open_dataset(url))
    data = (Path(url) / "manifest.json").read_bytes()
    manifest, decode_seconds = _timed(lambda: decode_manifest(data, url))
    _, digest_seconds = _timed(lambda: manifest.content_digest)
    shards = [shard.records for shard in manifest.splits["train"].variants[0].shards]
    order, order_seconds = _timed(lambda: EpochOrder(shards, 0, 0, 16))
    _, due_seconds = _timed(lambda: order.due_shards(range(16)))
    _, places_seconds = _timed(
        lambda: [order.places_at(np.arange(first, first + 1024)) for first in range(0, 102_400, 1024)]
    )
    return {
        "open_dataset_seconds": open_seconds,
        "decode_manifest_seconds": decode_seconds,
        "content_digest_seconds": digest_seconds,
        "order_seconds": order_seconds,
        "due_shards_seconds": due_seconds,
        "place_seconds": places_seconds / 102_400,
    }


def _timed(run: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    result = run()
    return result, time.perf_counter() - started


def memory(url: str) -> dict[str, float]:
    """MB of this process and its descendants: Pss, anonymous memory, and what they map of the dataset's index."""
    found = dict.fromkeys(("pss", "anonymous", "index", "index_private_dirty", "processes"), 0.0)
    for pid in _tree(os.getpid()):
        found["processes"] += 1
        mapped = ""
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            key, *rest = line.split()
            if not key.endswith(":"):
                mapped = line
                continue
            if not rest[0].isdigit():
                continue
            mb = int(rest[0]) / 1024
            found["pss"] += mb * (key == "Pss:")
            found["anonymous"] += mb * (key == "Anonymous:")
            if mapped.endswith(f"{url}/train.index.npy"):
                found["index"] += mb * (key == "Pss:")
                found["index_private_dirty"] += mb * (key == "Private_Dirty:")
    return found


def _tree(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(found for child in children for found in _tree(child))]


def show(result: dict[str, Any]) -> None:
    from benchmarks.harness import figure, print_table

    rows = []
    measured = result["rows"]
    for key in list(measured[0])[1:]:
        unit, scale, digits = ("us", 1e6, 2) if key == "place_seconds" else ("", 1, 3 if key.endswith("seconds") else 1)
        rows.append([f"{key} {unit and f'({unit})'}", *(figure(each[key] * scale, digits) for each in measured)])
    print_table("Datasets of so many records", ["", *(f"{each['records']:,}" for each in measured)], rows)
