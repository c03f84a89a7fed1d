"""Images of 13 bands and of 16 bits: `Loader` beside torch's DataLoader, and ways to store them.

- loader: images a second of batches with their bands and bits: `Loader` from shards, and a DataLoader with two workers
  over the files, by rasterio (all of a file or only the crop's window, as torchgeo reads) or OpenCV.
- storage: bytes of an image, and what its pixels or a crop of them take, as `.npy` and by lossless codecs.

Images are synthetic: smooth fields that the bands share, and noise of each band and pixel. Each loader is a process of
its own. They take turns, and medians are given, with the memory of a worker beside its batches.

    scripts/setup-peers bands
    python benchmarks/run.py bands [--repeats 5] [--seconds 4] [--work FOLDER] [--save]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.entry import PEERS, ROOT, command_of, make_parser

PYTHON = PEERS / "bands" / "bin" / "python"
CROP, WORKERS, ROWS = 224, 2, 32
# What a GeoTIFF says of its place: pixels of 10 m, and WGS 84 / UTM 32N.
GEO = (
    (33550, "d", 3, (10.0, 10.0, 0.0), True),
    (33922, "d", 6, (0.0, 0.0, 0.0, 500000.0, 4600000.0, 0.0), True),
    (34735, "H", 16, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32632), True),
)


class Work(NamedTuple):
    """Images that are loaded: how many, their shape, how a TIFF is written (None: PNG), and images in a batch."""

    count: int
    shape: tuple[int, int, int]
    tiff: dict[str, Any] | None
    batch: int


DEFLATE = {"compression": "zlib", "predictor": True, "tile": (256, 256)}
WORKS = {
    "13 bands of 64x64": Work(2000, (64, 64, 13), {}, 128),
    "13 bands of 512x512": Work(120, (512, 512, 13), {}, 32),
    "13 bands of 512x512, deflate": Work(120, (512, 512, 13), DEFLATE, 32),
    "X-ray of 1024x1024": Work(200, (1024, 1024, 1), None, 64),
}
OURS, RASTERIO, WINDOWS, OPENCV = "tpufeed.Loader", "rasterio", "rasterio, windows", "OpenCV"


def loaders_of(work: Work) -> list[str]:
    if work.tiff is None:
        return [OURS, OPENCV]
    return [OURS, RASTERIO, *([WINDOWS] if work.shape[0] > CROP else [])]


def main(arguments: list[str]) -> None:
    parser = make_parser("bands", __doc__, repeats=5, keeps=True)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, after a warm-up")
    parser.add_argument("--row", nargs=3, metavar=("LOADER", "WORK", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.row:
        loader, name, folder = options.row
        print(json.dumps(measure(loader, WORKS[name], Path(folder), options.seconds)))
        return
    if not PYTHON.exists():
        sys.exit(f"run.py bands: {PYTHON} is not there; run scripts/setup-peers bands")
    from benchmarks.harness import describe, interleave, machine, print_table, write_result

    with tempfile.TemporaryDirectory(prefix="tpufeed-bands-") as temporary:
        folder, rows = options.work or Path(temporary), list[dict[str, Any]]()
        for name, work in WORKS.items():
            make(work, folder / name)
            ways = {loader: partial(run, loader, name, folder / name, options.seconds) for loader in loaders_of(work)}
            for loader, found in interleave(ways, options.repeats, warm_up=0).items():
                rates, memory = zip(*found, strict=True)
                row = {"measurement": "loader", "work": name, "loader": loader, "worker_mb": max(memory)}
                rows.append(row | {"images_per_second": rates})
    medians = {(row["work"], row["loader"]): statistics.median(row["images_per_second"]) for row in rows}
    cells = []
    for row in rows:
        rate, ours = medians[row["work"], row["loader"]], medians[row["work"], OURS]
        cells.append([row["work"], row["loader"], f"{rate:,.0f}", f"{ours / rate:.2f}", f"{row['worker_mb']:.0f}"])
    print_table("loader", ("images", "loader", "images/s", "tpufeed to it", "MB of a worker"), cells, 2)
    stored = measure_storage(options.repeats)
    columns = ("images", "way", "kB", "us to read", "us to encode")
    shown = [[row["images"], row["way"], *(f"{row[key]:,.0f}" for key in list(row)[3:])] for row in stored]
    print_table("storage", columns, shown, 2)
    print(describe(machine()))
    if options.save:
        about = {"workers": WORKERS, "crop": CROP, "seconds": options.seconds}
        print(write_result(options.save, about, [*rows, *stored]))


def make_pixels(number: int, shape: tuple[int, int, int]) -> Any:
    """Reflectances (or grey levels in 12 bits): smooth fields of which each band has its own mixture, and noise."""
    random = np.random.default_rng(number)
    height, width, channels = shape
    y, x = np.mgrid[:height, :width] / 64
    fields = []
    for octave in range(6):
        ky, kx, phase = random.normal(0, 2 ** (octave / 2)), random.normal(0, 2 ** (octave / 2)), random.uniform(0, 7)
        fields.append(np.sin(ky * y + kx * x + phase) / (1 + octave))
    mixed = np.stack(fields, -1) @ (random.normal(0.3, 1, (6, 1)) + random.normal(0, 0.3, (6, channels)))
    levels = 1800 + 500 * mixed + random.normal(0, 25, shape)
    return np.clip(levels, 1, 4095 if channels == 1 else 10000).astype(np.uint16)


def make(work: Work, folder: Path) -> None:
    """Write the files and the dataset, unless they are there."""
    import cv2
    import tifffile

    if (folder / "shards/manifest.json").exists():
        return
    for number in range(work.count):
        path = folder / "files" / f"class{number % 8}" / f"{number:04d}.{'tif' if work.tiff is not None else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = make_pixels(number, work.shape)
        if work.tiff is None:
            cv2.imwrite(str(path), pixels)
        else:
            more = {"photometric": "minisblack", "planarconfig": "contig", "extratags": GEO}
            tifffile.imwrite(path, pixels, **more, **work.tiff)
    command = [str(Path(sys.executable).with_name("tpufeed")), "shard", str(folder / "files"), str(folder / "shards")]
    subprocess.run([*command, "--pixels", "keep"], check=True, capture_output=True)


def run(loader: str, name: str, folder: Path, seconds: float) -> list[float]:
    command = command_of("bands", "--seconds", seconds, "--row", loader, name, folder, python=PYTHON)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GDAL_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"run.py bands: {loader}, {name} failed: {done.stderr.strip()}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(loader: str, work: Work, folder: Path, seconds: float) -> list[float]:
    """Images a second after a warm-up, and MB of the largest worker."""
    batches = our_batches(work, folder) if loader == OURS else their_batches(loader, work, folder)
    for _ in range(2 * WORKERS + 1):
        next(batches)
    images, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        images += len(next(batches)[1])
    rate = images / (time.perf_counter() - start)
    return [rate, max(map(memory_of, workers_of(os.getpid())), default=0.0)]


def workers_of(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return children + [each for pid in children for each in workers_of(pid)]


def memory_of(process: int) -> float:
    """MB that a process shares with no other: batches are in shared memory."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3


def our_batches(work: Work, folder: Path) -> Iterator[Any]:
    import tpufeed
    from tpufeed.images import CenterCrop, RandomCrop

    size = work.shape[:2]
    ops = [RandomCrop(CROP)] if size[0] > CROP else [CenterCrop(size)]
    return iter(tpufeed.Loader(folder / "shards", batch_size=work.batch, ops=ops, repeat=True, processes=WORKERS))


def their_batches(loader: str, work: Work, folder: Path) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader

    files = Files(loader, folder / "files")
    epochs = torch.utils.data.RandomSampler(files, num_samples=1000 * len(files))  # type: ignore[arg-type]
    batches: Any = DataLoader(files, work.batch, sampler=epochs, num_workers=WORKERS)  # type: ignore[arg-type]
    return iter(batches)


class Files:
    """Files that are read when they are asked for, as tensors (channels, height, width) of their own type."""

    def __init__(self, loader: str, folder: Path) -> None:
        self.loader = loader
        self.files = [(str(path), int(path.parent.name[5:])) for path in sorted(folder.rglob("*.*"))]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        import torch

        path, label = self.files[index]
        if self.loader == OPENCV:
            import cv2

            pixels = cv2.imread(path, cv2.IMREAD_UNCHANGED)[None]
        else:
            import rasterio
            from rasterio.windows import Window

            with rasterio.open(path) as file:
                window = None
                if self.loader == WINDOWS:
                    window = Window(*(int(torch.randint(side - CROP + 1, ())) for side in file.shape[::-1]), CROP, CROP)
                pixels = file.read(window=window)
        if pixels.shape[1] > CROP:
            top, left = (int(torch.randint(side - CROP + 1, ())) for side in pixels.shape[1:])
            pixels = np.ascontiguousarray(pixels[:, top : top + CROP, left : left + CROP])
        return torch.from_numpy(pixels), label


def measure_storage(repeats: int) -> list[dict[str, Any]]:
    """Bytes and microseconds of one thread: all of 64x64x13, and a crop of 224 out of 512x512x13."""
    from benchmarks.harness import interleave

    rows = []
    for side, part, count in ((64, 64, 40), (512, CROP, 6)):
        images = [make_pixels(number, (side, side, 13)) for number in range(count)]
        start = (side - part) // 2 + (part < side)  # on no boundary of rows that are stored together
        box = start, start, start + part, start + part
        stored, encoding = dict[str, list[Any]](), dict[str, float]()
        for way, (encode, read) in codecs().items():
            begin = time.perf_counter()
            stored[way] = [encode(image) for image in images]
            encoding[way] = (time.perf_counter() - begin) / count * 1e6
            for data, image in zip(stored[way], images, strict=True):
                assert np.array_equal(read(data, box), image[start : start + part, start : start + part]), way
        found = interleave({way: partial(time_reads, codecs()[way][1], stored[way], box) for way in stored}, repeats)
        for way, times in found.items():
            size = sum(len(each) for data in stored[way] for each in (data if isinstance(data, list) else [data]))
            row = {"measurement": "storage", "images": f"{part}x{part} of {side}x{side}x13", "way": way}
            row |= {"kilobytes": size / count / 1e3, "read_us": statistics.median(times)}
            rows.append(row | {"encoding_us": encoding[way]})
    return rows


def time_reads(read: Callable[..., Any], stored: list[Any], box: tuple[int, ...]) -> float:
    """Microseconds of one read, the copy into an array of its own included."""
    times, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < 0.2:
        for data in stored:
            np.ascontiguousarray(read(data, box))
        times += len(stored)
    return elapsed / times * 1e6


def codecs() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """By name: what encodes an image, and what reads the part within (top, left, bottom, right)."""
    import io

    import imagecodecs
    import tifffile

    from tpufeed.images.tensors import encode_npy, npy_view

    def cut(image: Any, box: tuple[int, ...]) -> Any:
        return image[box[0] : box[2], box[1] : box[3]]

    def shuffled(image: Any, **how: Any) -> bytes:
        return bytes(imagecodecs.blosc2_encode(image.tobytes(), typesize=2, shuffle="shuffle", numthreads=1, **how))

    def unpacked(data: bytes, rows: int) -> Any:
        return np.frombuffer(imagecodecs.blosc2_decode(data, numthreads=1), np.uint16).reshape(rows, -1, 13)

    def in_rows(image: Any) -> list[bytes]:
        return [shuffled(image[top : top + ROWS], level=5, compressor="lz4") for top in range(0, len(image), ROWS)]

    def from_rows(data: list[bytes], box: tuple[int, ...]) -> Any:
        first, last = box[0] // ROWS, -(-box[2] // ROWS)
        rows = np.concatenate([unpacked(each, ROWS) for each in data[first:last]])
        return cut(rows, (box[0] - first * ROWS, box[1], box[2] - first * ROWS, box[3]))

    def tiff(image: Any) -> bytes:
        file, more = io.BytesIO(), {"compression": "zlib", "predictor": True, "tile": (64, 64)}
        tifffile.imwrite(file, image, photometric="minisblack", planarconfig="contig", **more)
        return file.getvalue()

    def square(data: bytes) -> Any:
        array = np.frombuffer(imagecodecs.blosc2_decode(data, numthreads=1), np.uint16)
        return array.reshape(side := round((array.size / 13) ** 0.5), side, 13)

    return {
        ".npy": (encode_npy, lambda data, box: cut(npy_view(data), box)),
        ".npy in zstd": (
            lambda image: imagecodecs.zstd_encode(encode_npy(image), level=3),
            lambda data, box: cut(npy_view(imagecodecs.zstd_decode(data)), box),
        ),
        "blosc2, LZ4": (
            partial(shuffled, level=5, compressor="lz4"),
            lambda data, box: cut(square(data), box),
        ),
        "blosc2, zstd": (
            partial(shuffled, level=3, compressor="zstd"),
            lambda data, box: cut(square(data), box),
        ),
        f"blosc2, LZ4, by {ROWS} rows": (in_rows, from_rows),
        "TIFF, deflate, tiles of 64": (tiff, lambda data, box: cut(tifffile.imread(io.BytesIO(data)), box)),
        "LERC": (
            lambda image: imagecodecs.lerc_encode(image, planar=False),
            lambda data, box: cut(imagecodecs.lerc_decode(data), box),
        ),
    }
