"""Photographs that show their own number in black and white stripes: `fuse_photos.py FOLDER FROM TO`."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, BITS = 400, 10


def main(folder: Path, start: int, stop: int) -> None:
    draws = np.random.default_rng(start)
    for number in range(start, stop):
        bits = [(number >> bit) & 1 for bit in range(BITS)]
        stripes = np.repeat(np.array(bits) * 175, SIDE // BITS)[None, :, None]
        pixels = (stripes + draws.integers(0, 80, (SIDE, SIDE, 3))).astype("uint8")
        path = folder / ("even", "odd")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
