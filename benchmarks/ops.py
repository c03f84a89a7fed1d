"""What each op costs at 224x224: time an image on one thread, what two threads gain, and how much holds the GIL.

python benchmarks/run.py ops [--images N] [--repeats N] [--save]

A photograph of 224x224 pixels (of 375x500 for the ops that change the size) through `Pipeline.run` into one output,
with new draws for each image; every op is made to happen. "us" is the CPU time of one thread; "held" the same at 8x8
pixels, where next to nothing is left but Python and OpenCV's way in: about the time that holds the GIL. "two threads"
is the rate of two against one, by wall clock, in turns; on a machine with other work (see its load) it falls short of
what two free cores give, and the row of zlib.crc32, which holds no GIL, is what can be reached at that time.
OpenCV's own threads are off. JPEG decoding of such a photograph and the default pipeline are there to compare with.
"""

import argparse
import statistics
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.entry import make_parser
from benchmarks.harness import describe, figure, machine, print_table, write_result
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Custom,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
    VerticalFlip,
)
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Op, WindowOp

_SIDE, _SMALL = 224, 8
_FULL = (500, 375)  # width and height
_DEFAULT = (RandomResizedCrop(_SIDE), HorizontalFlip())


def ops(side: int) -> dict[str, Op]:
    """What is measured, with windows of `side`."""
    custom = "benchmarks.ops:unchanged"
    return {
        "Resize": Resize((side, side)),
        "CenterCrop": CenterCrop(side),
        "RandomResizedCrop": RandomResizedCrop(side),
        "RandomCrop(padding=32)": RandomCrop(side, 32 * side // _SIDE),
        "HorizontalFlip": HorizontalFlip(1.0),
        "VerticalFlip": VerticalFlip(1.0),
        "Rotate(30)": Rotate(30),
        "ColorJitter(brightness=0.4)": ColorJitter(brightness=0.4),
        "ColorJitter(contrast=0.4)": ColorJitter(contrast=0.4),
        "ColorJitter(saturation=0.4)": ColorJitter(saturation=0.4),
        "ColorJitter(hue=0.1)": ColorJitter(hue=0.1),
        "ColorJitter(0.4, 0.4, 0.4, 0.1)": ColorJitter(0.4, 0.4, 0.4, 0.1),
        "Grayscale": Grayscale(1.0),
        "GaussianBlur": GaussianBlur(p=1.0),
        "RandomErasing": RandomErasing(1.0),
        "RandomErasing(value='random')": RandomErasing(1.0, value="random"),
        "RandAugment": RandAugment(),
        "Custom, returns its image": Custom(custom),
    }


def unchanged(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001  # what Custom calls
    return image


def main(arguments: list[str]) -> None:
    parser = make_parser("ops", __doc__, repeats=9)
    parser.add_argument("--images", type=int, default=256, metavar="N")
    args = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    photo = _photo()
    large, small = ops(_SIDE), ops(_SMALL)
    rows = []
    for name, op in large.items():
        image, tiny = (photo, cv2.resize(photo, (13, 18))) if isinstance(op, WindowOp) else (_at(photo, _SIDE), None)
        tiny = _at(photo, _SMALL) if tiny is None else tiny
        run = partial(_run, (op,), image, _SIDE, args.images)
        rows.append({"op": name, **measure(run, partial(_run, (small[name],), tiny, _SMALL, args.images), args)})
    rows += [{"op": name, **measure(run, None, args)} for name, run in _yardsticks(photo, args.images).items()]
    _print(rows)
    print(describe(machine()))
    if args.save:
        about = {"images": args.images, "repeats": args.repeats, "side_px": _SIDE}
        print(write_result(args.save, about, rows))


def measure(run: Callable[[], None], small: Callable[[], None] | None, args: argparse.Namespace) -> dict[str, Any]:
    """Medians over the repeats; one and two threads in turn."""
    run()
    alone, held, gains = [], [], []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(args.repeats):
            alone.append(_time(run, time.thread_time) / args.images * 1e6)
            if small is not None:
                held.append(_time(small, time.thread_time) / args.images * 1e6)
            one = _time(lambda: pool.submit(run).result(), time.perf_counter)
            two = _time(lambda: [job.result() for job in [pool.submit(run), pool.submit(run)]], time.perf_counter)
            gains.append(2 * one / two)
    return {
        "us": statistics.median(alone),
        "us_low": min(alone),
        "us_high": max(alone),
        "held_us": statistics.median(held) if held else None,
        "two_threads": statistics.median(gains),
        "two_threads_best": max(gains),
    }


def _run(chain: tuple[Op, ...], image: np.ndarray, side: int, images: int) -> None:
    pipeline, out = Pipeline(chain, 0), np.empty((side, side, 3), np.uint8)
    draws = pipeline.draw(0, np.arange(images))
    for number in range(images):
        pipeline.run(image, [drawn[number] for drawn in draws], out)


def _yardsticks(photo: np.ndarray, images: int) -> dict[str, Callable[[], None]]:
    data, block = memoryview(simplejpeg.encode_jpeg(photo, 90)), bytes(200_000)

    def decode(chain: tuple[Op, ...]) -> None:
        pipeline, memory = Pipeline(chain, 0, fast=True), np.empty(photo.size, np.uint8)
        draws, out = pipeline.draw(0, np.arange(images)), np.empty((_SIDE, _SIDE, 3), np.uint8)
        for number in range(images):
            row = [drawn[number] for drawn in draws]
            pipeline.run_stored(data, None, row, out if chain else None, lambda size: memory[:size])

    def checksum() -> None:
        for _ in range(images):
            zlib.crc32(block)

    return {
        "JPEG 500x375, decoding alone": partial(decode, ()),
        "JPEG 500x375, RandomResizedCrop, HorizontalFlip": partial(decode, _DEFAULT),
        "zlib.crc32 of 200 kB": checksum,
    }


def _time(run: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def _photo() -> np.ndarray:
    # Beside cv2, so that scikit-learn is not imported, which takes seconds.
    image = cv2.imread(str(Path(cv2.__file__).parents[1] / "sklearn/datasets/images/china.jpg"), cv2.IMREAD_COLOR)
    assert image is not None, "pip install '.[photos]': china.jpg is missing"
    return cv2.resize(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), _FULL, interpolation=cv2.INTER_AREA)


def _at(photo: np.ndarray, side: int) -> np.ndarray:
    return cv2.resize(photo, (side, side), interpolation=cv2.INTER_AREA)


def _print(rows: list[dict[str, Any]]) -> None:
    columns = ["op", "us", "lowest", "highest", "held, us", "two threads", "best"]
    cells = [
        [row["op"], *(figure(row[key]) for key in ("us", "us_low", "us_high", "held_us")),
         *(figure(row[key], 2) for key in ("two_threads", "two_threads_best"))]
        for row in rows
    ]  # fmt: skip
    print_table(f"Ops at {_SIDE}x{_SIDE}, an image", columns, cells)
