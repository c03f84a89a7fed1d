"""What decoding only the window of a JPEG with restart markers gains: a single thread, then whole loaders.

- windows: random windows of a share of the area, of photographs as they are (500x375, rewritten without loss) and of
  presized ones (256): the time to cut and decode them to the time to decode the whole image, with and without markers.
- crops: Loader over the same photographs, with markers and byte for byte, by the scale of RandomResizedCrop.
- large: 3000x2000, a random-resized crop to 224 with reduced decoding alone, with windows alone, and with both.

All in turns, medians of `--repeats` rounds. The page cache is warm.

    python benchmarks/run.py window [--photos 2000] [--repeats 5] [--work FOLDER] [--save]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import tpufeed
from benchmarks.entry import make_parser
from benchmarks.harness import describe, figure, flatten, interleave, machine, print_table, write_result
from scripts.make_photos import make_photos
from tpufeed.images import HorizontalFlip, RandomResizedCrop, pipeline
from tpufeed.images.decoding import decode
from tpufeed.images.header import read_jpeg_header
from tpufeed.images.markers import Box, find_segments, mark_jpeg
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.policy import Images, store_image

SHARES = 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0
SCALES = (0.05, 0.3), (0.08, 1.0), (0.35, 1.0), (1.0, 1.0)
IMAGES, LARGE_IMAGES = 100, 20


def main(arguments: list[str]) -> None:
    parser = make_parser("window", __doc__, repeats=5, photos=2000, keeps=True)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each run of a loader")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tpufeed-window-") as temporary:
        folder = args.work or Path(temporary)
        photos = folder / f"photos-{args.photos}"
        make_photos(photos, args.photos)
        files = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))]
        result = {
            "windows": measure_windows(files[:: max(1, len(files) // IMAGES)], args.repeats),
            "crops": measure_crops(photos, folder, args),
            "large": measure_large(files[:: max(1, len(files) // LARGE_IMAGES)], args.repeats),
        }
    report(result)
    print(describe(machine()))
    if args.save:
        windows = {kind: each["microseconds"] for kind, each in result["windows"].items()}
        rows = [
            *flatten({"windows": windows}, "measurement", "photos", "way", value="microseconds"),
            *flatten({"crops": result["crops"]}, "measurement", "scale", "way", value="images_per_second"),
            *flatten({"large": result["large"]}, "measurement", "way", value="milliseconds"),
        ]
        about = {"photos": args.photos, "growth": {kind: each["growth"] for kind, each in result["windows"].items()}}
        print(write_result(args.save, about, rows))


def measure_windows(files: list[bytes], repeats: int) -> dict[str, Any]:
    """Microseconds an image, by kind of photograph and share of the window."""
    kinds = {
        "500x375": (files, [mark_jpeg(file, read_jpeg_header(file)) for file in files]),
        "presized to 256": (
            [],
            [store_image(file, Images(presize=256)).data for file in files],
        ),
    }
    found: dict[str, Any] = {}
    for kind, (plain, marked) in kinds.items():
        ways: dict[str, Callable[[], float]] = {"whole": partial(time_whole, marked)}
        if plain:
            ways["whole, without markers"] = partial(time_whole, plain)
        ways |= {f"{share}": partial(time_windows, marked, share) for share in SHARES}
        rounds = interleave(ways, repeats)
        growth = sum(map(len, marked)) / sum(map(len, plain)) - 1 if plain else None
        found[kind] = {"growth": growth, "microseconds": {way: sorted(values) for way, values in rounds.items()}}
    return found


def time_whole(images: list[bytes]) -> float:
    memory = np.empty(1 << 22, np.uint8)
    start = time.perf_counter()
    for image in images:
        decode(image, buffer=lambda size: memory[:size], fast=True)
    return (time.perf_counter() - start) / len(images) * 1e6


def time_windows(images: list[bytes], share: float) -> float:
    """A window of this share of the area and the image's aspect, at a random place; cut, and decoded."""
    rng, memory = np.random.default_rng(0), np.empty(1 << 22, np.uint8)
    draws = rng.random((len(images), 2))
    start = time.perf_counter()
    for image, (y, x) in zip(images, draws, strict=True):
        segments = find_segments(memoryview(image), read_jpeg_header(image))
        cut = None
        if segments is not None:
            height, width = segments.size
            tall, wide = max(1, round(height * share**0.5)), max(1, round(width * share**0.5))
            top, left = int(y * (height - tall + 1)), int(x * (width - wide + 1))
            cut = segments.cut(Box(top, left, top + tall, left + wide))
        decode(image if cut is None else cut.data, buffer=lambda size: memory[:size], fast=True)
    return (time.perf_counter() - start) / len(images) * 1e6


def measure_crops(photos: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Images a second of Loader, by the scale of the crop and by what it reads."""
    datasets = {}
    for name, encode in (("with markers", "keep"), ("byte for byte", "exact")):
        datasets[name] = folder / f"window-{encode}-{args.photos}"
        tpufeed.shard(photos, datasets[name], images=tpufeed.Images(encode=encode, check="header"))
    ways = {
        (scale, name): partial(feed, url, scale, args.seconds) for scale in SCALES for name, url in datasets.items()
    }
    rounds = interleave(ways, args.repeats)
    found: dict[str, Any] = {}
    for (scale, name), rates in rounds.items():
        found.setdefault(f"{scale[0]:g} to {scale[1]:g}", {})[name] = sorted(rates)
    return found


def feed(url: Path, scale: tuple[float, float], seconds: float) -> float:
    ops = [RandomResizedCrop(224, scale=scale), HorizontalFlip()]
    with closing(tpufeed.Loader(url, batch_size=128, ops=ops, repeat=True)) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            next(batches)
            count += 128
        return count / (time.perf_counter() - start)


def measure_large(files: list[bytes], repeats: int) -> dict[str, Any]:
    """Milliseconds an image of 3000x2000 for a random-resized crop to 224, by what is spared."""
    images = []
    for file in files:
        pixels = cv2.resize(cv2.imdecode(np.frombuffer(file, np.uint8), 1), (3000, 2000), interpolation=cv2.INTER_CUBIC)
        noise = np.random.default_rng(len(images)).integers(0, 12, pixels.shape, np.uint8)
        image = cv2.imencode(".jpg", cv2.add(pixels, noise), [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
        images.append(mark_jpeg(image, read_jpeg_header(image)))
    ways = {
        "neither": partial(time_crops, images, False, False),
        "reduced decoding": partial(time_crops, images, True, False),
        "windows": partial(time_crops, images, False, True),
        "both": partial(time_crops, images, True, True),
    }
    return {way: sorted(values) for way, values in interleave(ways, repeats).items()}


def time_crops(images: list[bytes], reduces: bool, cuts: bool) -> float:
    """Run the default ops of a training; what is not wanted is taken out of the pipeline for that time."""
    pipe = Pipeline([RandomResizedCrop(224), HorizontalFlip()], 0, fast=True)
    draws = pipe.draw(0, np.arange(len(images)))
    whole = pipeline.find_segments, pipeline.reduction
    memory, out = np.empty(1 << 25, np.uint8), np.empty((224, 224, 3), np.uint8)
    if not cuts:
        pipeline.find_segments = lambda data, header: None  # noqa: ARG005
    if not reduces:
        pipeline.reduction = lambda *sides: 1  # noqa: ARG005
    try:
        start = time.perf_counter()
        for number, image in enumerate(images):
            pipe.run_stored(
                memoryview(image), None, [drawn[number] for drawn in draws], out, lambda size: memory[:size]
            )
        return (time.perf_counter() - start) / len(images) * 1e3
    finally:
        pipeline.find_segments, pipeline.reduction = whole


def report(result: Mapping[str, Any]) -> None:
    for kind, found in result["windows"].items():
        medians = {way: statistics.median(values) for way, values in found["microseconds"].items()}
        rows = [[way, figure(value, 0), figure(medians["whole"] / value, 2)] for way, value in medians.items()]
        grown = "" if found["growth"] is None else f", markers add {100 * found['growth']:.2f} %"
        print_table(f"decoding, {kind}{grown}", ["share of the area", "us an image", "times whole"], rows)
    rows = []
    for scale, found in result["crops"].items():
        marked, exact = statistics.median(found["with markers"]), statistics.median(found["byte for byte"])
        rows.append([scale, figure(marked, 0), figure(exact, 0), figure(marked / exact, 2)])
    print_table("Loader, img/s", ["scale of the crop", "with markers", "byte for byte", "ratio"], rows)
    medians = {way: statistics.median(values) for way, values in result["large"].items()}
    rows = [[way, figure(value, 1), figure(medians["reduced decoding"] / value, 2)] for way, value in medians.items()]
    print_table("3000x2000, random-resized crop to 224", ["spared by", "ms an image", "times reduced decoding"], rows)
