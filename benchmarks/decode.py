"""What libjpeg-turbo's two short cuts gain and cost: time a photo, and mean error before and after crop and resize.

python benchmarks/run.py decode PHOTOS
"""

import time
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

from benchmarks.entry import make_parser
from benchmarks.harness import describe, machine, print_table

SHORT_CUTS: dict[str, dict[str, bool]] = {
    "none": {},
    "fastupsample": {"fastupsample": True},
    "fastdct": {"fastdct": True},
    "both": {"fastdct": True, "fastupsample": True},
}
REPEATS = 5


def main(arguments: list[str]) -> None:
    parser = make_parser("decode", __doc__, save=False)
    parser.add_argument("folder", type=Path, metavar="PHOTOS", help="a folder of JPEGs")
    options = parser.parse_args(arguments)
    photos = [path.read_bytes() for path in sorted(options.folder.rglob("*.jpg"))[:200]]
    seconds = {name: min(_time(photos, options) for _ in range(REPEATS)) for name, options in SHORT_CUTS.items()}
    rows = []
    for name, options in SHORT_CUTS.items():
        errors = np.mean([_errors(photo, options) for photo in photos[::4]], axis=0)
        rows.append([name, f"{seconds[name] / len(photos) * 1e6:,.0f}", f"{errors[0]:.2f}", f"{errors[1]:.2f}"])
    print_table("JPEG decoding", ["short cut", "us a photo", "error", "error at 224"], rows)
    print(describe(machine()))


def _time(photos: list[bytes], options: Mapping[str, bool]) -> float:
    memory = np.empty(1 << 26, np.uint8)
    start = time.thread_time()
    for photo in photos:
        simplejpeg.decode_jpeg(photo, buffer=memory, **options)
    return time.thread_time() - start


def _errors(photo: bytes, options: Mapping[str, bool]) -> tuple[float, float]:
    exact, found = simplejpeg.decode_jpeg(photo), simplejpeg.decode_jpeg(photo, **options)
    return _difference(exact, found), _difference(_crop(exact), _crop(found))


def _crop(image: np.ndarray) -> np.ndarray:
    return cv2.resize(image[20:300, 30:330], (224, 224), interpolation=cv2.INTER_LINEAR)


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(np.int16) - b).mean())
