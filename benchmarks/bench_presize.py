"""Presizing 3000x2000 photographs to a shorter side of 256: time against decoding in full, and quality.

python benchmarks/bench_presize.py [--repeats N] [--qualities 85 90 94] [--save]

One thread and its CPU time, both sides in turn within one run; medians. The baseline decodes in full (simplejpeg) and
shrinks by cv2.resize INTER_AREA; PSNR is against decoding in full and Pillow's Lanczos. The content: no photograph of
this size ships in a wheel, so real ones are laid out at their own size ("tiled": one and its mirror images, "mosaic":
windows of ten), which is sharper, and so costs more bits a pixel, than most of what a camera takes at this size;
"enlarged" ones are softer. The size of each file is in the table: entropy decoding grows with it and cannot be spared.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from harness import describe, machine, print_table, write_result
from PIL import Image

from tpufeed.images.decoding import decode, decode_stored
from tpufeed.images.header import read_header
from tpufeed.images.presizing import decoding_reduction, scaled_size, shrink

_HEIGHT, _WIDTH, _SIDE = 2000, 3000, 256
_WHEELS = {
    "astronaut": "skimage/data/astronaut.png",
    "cat": "skimage/data/chelsea.png",
    "coffee": "skimage/data/coffee.png",
    "china": "sklearn/datasets/images/china.jpg",
    "flower": "sklearn/datasets/images/flower.jpg",
    "motorcycle": "skimage/data/motorcycle_left.png",
    "rocket": "skimage/data/rocket.jpg",
    "galaxies": "skimage/data/hubble_deep_field.jpg",
    "tissue": "skimage/data/ihc.png",
    "retina": "skimage/data/retina.jpg",
}
_TILED = ("astronaut", "coffee", "china", "flower", "motorcycle", "rocket", "galaxies", "retina")
_ENLARGED = ("galaxies", "retina", "china", "rocket")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, metavar="N")
    parser.add_argument("--qualities", type=int, nargs="+", default=[75, 85, 90, 94], metavar="Q")
    parser.add_argument("--save", action="store_true", help="put the figures at results/presize.json")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    rows = [
        {
            "content": content,
            "quality": quality,
            **_measure(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420"), args.repeats),
        }
        for content, pixels in _contents().items()
        for quality in args.qualities
    ]
    _print(rows)
    print(describe(machine()))
    if args.save:
        print(write_result("presize", {"repeats": args.repeats, "side_px": _SIDE, "images": rows}))


def presize(data: bytes) -> np.ndarray:
    """What store_image does between reading the header and encoding."""
    header = read_header(data)
    size = header.height, header.width
    wanted = scaled_size(*size, _SIDE, "short")
    return shrink(decode_stored(data, header, decoding_reduction(*size, *wanted)), *wanted)


def decode_and_area(data: bytes) -> np.ndarray:
    return cv2.resize(decode(data), _wanted()[::-1], interpolation=cv2.INTER_AREA)


def decode_and_lanczos(data: bytes) -> np.ndarray:
    return np.asarray(Image.fromarray(decode(data)).resize(_wanted()[::-1], Image.Resampling.LANCZOS))


def _wanted() -> tuple[int, int]:
    return scaled_size(_HEIGHT, _WIDTH, _SIDE, "short")


def _measure(data: bytes, repeats: int) -> dict[str, Any]:
    ours, baseline, entropy = [], [], []
    for _ in range(repeats):
        ours.append(_time(lambda: presize(data)))
        baseline.append(_time(lambda: decode_and_area(data)))
        entropy.append(_time(lambda: simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=8)))
    reference = decode_and_lanczos(data)
    return {
        "megabytes": len(data) / 1e6,
        "presize_ms": statistics.median(ours),
        "baseline_ms": statistics.median(baseline),
        "entropy_ms": statistics.median(entropy),
        "ratio": statistics.median(baseline) / statistics.median(ours),
        "psnr_db": _psnr(presize(data), reference),
        "baseline_psnr_db": _psnr(decode_and_area(data), reference),
    }


def _time(run: Callable[[], object]) -> float:
    start = time.thread_time()  # others may work on the machine; all of it happens in this thread
    run()
    return (time.thread_time() - start) * 1e3


def _psnr(one: np.ndarray, other: np.ndarray) -> float:
    error = np.mean((one.astype(np.float64) - other) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def _contents() -> dict[str, np.ndarray]:
    photos = {name: _read(path) for name, path in _WHEELS.items()}
    contents = {f"tiled {name}": _tile(photos[name]) for name in _TILED}
    contents |= {f"mosaic {seed}": _mosaic(list(photos.values()), seed) for seed in range(3)}
    return contents | {f"enlarged {name}": _enlarge(photos[name]) for name in _ENLARGED}


def _read(path: str) -> np.ndarray:
    # Beside cv2, so that neither package is imported, which takes seconds.
    image = cv2.imread(str(Path(cv2.__file__).parents[1] / path), cv2.IMREAD_COLOR)
    assert image is not None, f"pip install 'tpufeed[photos]': {path} is missing"
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _tile(photo: np.ndarray) -> np.ndarray:
    pair = np.concatenate([photo, photo[:, ::-1]], axis=1)
    block = np.concatenate([pair, pair[::-1]])
    times = (-(-_HEIGHT // block.shape[0]), -(-_WIDTH // block.shape[1]), 1)
    return np.ascontiguousarray(np.tile(block, times)[:_HEIGHT, :_WIDTH])


def _mosaic(photos: list[np.ndarray], seed: int, side: int = 250) -> np.ndarray:
    rng = np.random.default_rng(seed)
    canvas = np.empty((_HEIGHT, _WIDTH, 3), np.uint8)
    for top in range(0, _HEIGHT, side):
        for left in range(0, _WIDTH, side):
            photo = photos[rng.integers(len(photos))]
            y, x = rng.integers(photo.shape[0] - side + 1), rng.integers(photo.shape[1] - side + 1)
            canvas[top : top + side, left : left + side] = photo[y : y + side, x : x + side]
    return canvas


def _enlarge(photo: np.ndarray) -> np.ndarray:
    width = min(photo.shape[1], photo.shape[0] * _WIDTH // _HEIGHT)
    window = photo[: width * _HEIGHT // _WIDTH, :width]
    return cv2.resize(window, (_WIDTH, _HEIGHT), interpolation=cv2.INTER_LANCZOS4)


def _print(rows: list[dict[str, Any]]) -> None:
    columns = [
        "content",
        "quality",
        "MB",
        "full + area ms",
        "presize ms",
        "entropy ms",
        "ratio",
        "PSNR dB",
        "area's dB",
    ]
    keys = ["megabytes", "baseline_ms", "presize_ms", "entropy_ms", "ratio", "psnr_db", "baseline_psnr_db"]
    lines = [
        [
            row["content"],
            str(row["quality"]),
            *(f"{row[key]:.2f}" if key == "megabytes" else f"{row[key]:.1f}" for key in keys),
        ]
        for row in rows
    ]
    print_table("Presizing 3000x2000 to 256", columns, lines)
    summary = []
    for quality in sorted({row["quality"] for row in rows}):
        some = [row for row in rows if row["quality"] == quality]
        ratios, psnrs = [row["ratio"] for row in some], [row["psnr_db"] for row in some]
        figures = [min(ratios), statistics.median(ratios), max(ratios), min(psnrs), statistics.median(psnrs)]
        summary.append([str(quality), *(f"{value:.2f}" for value in figures)])
    print_table("All contents", ["quality", "least ratio", "median", "most", "least PSNR", "median PSNR"], summary)


if __name__ == "__main__":
    main()
