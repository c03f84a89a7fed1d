"""Makes photographs, or feeds one epoch, for the platforms of scripts/proxies/limits.py.

limits_feed.py photos FOLDER COUNT HEIGHT WIDTH
limits_feed.py epoch URL OPTIONS        prints what came; OPTIONS are JSON, `size` and `hog` make ops
"""

import json
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

import tpufeed
from tpufeed.images import Custom, HorizontalFlip, RandomResizedCrop

HOGGED = []


def hog(image, _):
    """Take 100 MB with each image, and keep them."""
    HOGGED.append(np.ones(100 << 20, np.uint8))
    return image


def make_photos(folder: Path, count: int, height: int, width: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        rng = np.random.default_rng([number, count])
        coarse = rng.integers(0, 256, (height // 100 + 2, width // 100 + 2, 3), np.uint8)
        noise = rng.integers(0, 12, (height // 8 + 1, width, 3), np.uint8)
        pixels = cv2.add(cv2.resize(coarse, (width, height)), np.tile(noise, (8, 1, 1))[:height])
        (folder / f"{folder.name}-{number:05}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, quality=88))


def feed(url: str, size: int = 0, hog: bool = False, **options) -> None:
    ops = [RandomResizedCrop(size), HorizontalFlip()] if size else None
    if hog:
        ops = [*ops, Custom("limits_feed:hog")]
    with tpufeed.Loader(url, "train", ops=ops, columns=["image", "sample"], remainder="pad", **options) as loader:
        samples, began = set(), time.perf_counter()
        for images, numbers, mask in loader:
            assert images[0].std() > 1
            samples |= set(numbers[mask].tolist())
        stats = loader.stats()
    rate = len(samples) / (time.perf_counter() - began)
    print(f"{len(samples)} samples; {rate:,.0f} images/s, {stats.prefetch} batches ahead")


if __name__ == "__main__":
    if sys.argv[1] == "photos":
        make_photos(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        feed(sys.argv[2], **json.loads(sys.argv[3]))
