"""What a cache of DCT coefficients costs the host, beside raw pixels and JPEGs of the same photographs at 256x256.

- stored: bytes an image, PSNR to the pixels that were encoded, and what encoding takes.
- codec: unpacking the coefficients, decoding the JPEG, and decoding the coefficients to pixels on the host.
- loader: the CPU time an image of one thread of the Loader: reading, CRC, and what a batch needs of the host. Crop and
  flip run on the host, or are left to the device.

CPU times of this process, in turns, medians of `--repeats` rounds. The page cache is warm.

    python benchmarks/run.py coefficients [--photos 500] [--repeats 7] [--work FOLDER] [--save]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tpufeed
from benchmarks.entry import make_parser
from benchmarks.harness import describe, figure, interleave, machine, print_table, write_result
from scripts.make_photos import make_photos
from tests.images.dct_reference import decode_planes
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize
from tpufeed.images.coefficients import encode_coefficients, of_quality, unpack_into
from tpufeed.images.decoding import decode
from tpufeed.images.markers import encode_jpeg

SIDE, QUALITY, IMAGES = 256, 90, 100
CROP = (RandomResizedCrop(224), HorizontalFlip())
LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "JPEG, crop and flip on the host": ("jpeg", {"ops": CROP}),
    "raw, crop and flip on the host": ("raw", {"ops": CROP}),
    "raw, crop and flip on the device": ("raw", {"device_ops": CROP}),
    "dct, crop and flip on the device": ("dct", {"device_ops": CROP}),
    "dct, crop and flip on the host": ("dct", {"ops": CROP}),
}


def main(arguments: list[str]) -> None:
    parser = make_parser("coefficients", __doc__, repeats=7, photos=500, keeps=True)
    parser.add_argument("--seconds", type=float, default=1.0, help="of CPU for each run of a loader")
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tpufeed-coefficients-") as temporary:
        folder = args.work or Path(temporary)
        make_photos(folder / "photos", args.photos)
        tpufeed.shard(folder / "photos", folder / "dataset")
        whole, caches = [Resize(SIDE), CenterCrop(SIDE)], {}
        for encode in ("raw", "jpeg", "dct"):
            caches[encode] = str(folder / encode)
            tpufeed.cache.warmup(folder / "dataset", caches[encode], ops=whole, encode=encode, quality=QUALITY)
        rows = [*measure_codecs(caches["raw"], args.repeats), *measure_loaders(caches, args)]
    for title in ("stored", "codec", "loader"):
        shown = [row for row in rows if row["measurement"] == title]
        columns = [name for name in shown[0] if name not in ("measurement", "rounds")]
        cells = [[row["way"], *(figure(row[name], 2) for name in columns[1:])] for row in shown]
        print_table(title, columns, cells)
    print(describe(machine()))
    if args.save:
        about = {"photos": args.photos, "side": SIDE, "quality": QUALITY, "batch_size": args.batch}
        print(write_result(args.save, about, rows))


def measure_codecs(raw: str, repeats: int) -> list[dict[str, Any]]:
    """Rows of what is stored, and of what encoding and decoding take."""
    with tpufeed.Loader(raw, columns=["image"], shuffle=False, batch_size=IMAGES) as loader:
        images = np.array(next(iter(loader)))
    coefficients = of_quality((SIDE, SIDE), QUALITY)
    out, head = np.empty(coefficients.shape, np.int8), coefficients.head
    jpegs = [encode_jpeg(image, QUALITY) for image in images]
    coded = [encode_coefficients(image, QUALITY) for image in images]

    def unpacked(data: bytes) -> Any:
        unpack_into(memoryview(data), head, out)
        return out

    made = {
        "JPEG": np.stack([decode(data) for data in jpegs]),
        "dct": np.stack([decode_planes(unpacked(data), coefficients) for data in coded]),
    }
    takes: dict[str, Callable[[], float]] = {
        "encode JPEG": partial(cpu_us, encode_jpeg, images, QUALITY),
        "encode dct": partial(cpu_us, encode_coefficients, images, QUALITY),
        "decode JPEG": partial(cpu_us, partial(decode, fast=True), jpegs),
        "unpack dct": partial(cpu_us, unpacked, coded),
        "decode dct on the host": partial(cpu_us, decode, coded),
    }
    found = interleave(takes, repeats)
    rows: list[dict[str, Any]] = [{"measurement": "stored", "way": "raw", "bytes": SIDE * SIDE * 3, "psnr_db": None}]
    for way, data in (("JPEG", jpegs), ("dct", coded)):
        errors = [np.mean((one.astype(float) - image) ** 2) for one, image in zip(made[way], images, strict=True)]
        psnr = statistics.fmean(10 * np.log10(255**2 / error) for error in errors)
        rows.append({"measurement": "stored", "way": way, "bytes": statistics.fmean(map(len, data)), "psnr_db": psnr})
    for way, rounds in found.items():
        rows.append({"measurement": "codec", "way": way, "cpu_us": statistics.median(rounds), "rounds": rounds})
    return rows


def cpu_us(work: Callable[..., Any], items: Any, *more: Any) -> float:
    start = time.process_time()
    for item in items:
        work(item, *more)
    return (time.process_time() - start) / len(items) * 1e6


def measure_loaders(caches: dict[str, str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the CPU time an image, and its ratio to that of JPEGs in the same round."""

    def read(cache: str, ops: dict[str, Any]) -> float:
        options = {"processes": 0, "threads": 1, "repeat": True, "batch_size": args.batch}
        with (
            tpufeed.Loader(caches[cache], **options, **ops) as loader,
            closing(loader.stream.iterate(on_device=True)) as batches,
        ):
            for _ in range(4):
                next(batches)
            spent, count = time.process_time(), 0
            while time.process_time() - spent < args.seconds:
                next(batches)
                count += args.batch
            return (time.process_time() - spent) / count * 1e6

    found, rows = interleave({way: partial(read, *given) for way, given in LOADERS.items()}, args.repeats), []
    first = next(iter(found.values()))
    for way, rounds in found.items():
        ratio = statistics.median(us / of_jpeg for us, of_jpeg in zip(rounds, first, strict=True))
        middle = statistics.median(rounds)
        rows.append({"measurement": "loader", "way": way, "cpu_us": middle, "cpu_ratio": ratio, "rounds": rounds})
    return rows
