"""Clips for many tests: their frames, as folders of JPEGs and as animated files."""

from pathlib import Path

import cv2
import numpy as np
from PIL import Image

import tpufeed

FRAMES = 9  # of each clip in a source


def frame(clip, number, height=40, width=56):
    noise = np.random.default_rng(100 * clip + number).integers(0, 255, (5, 7, 3), np.uint8)
    return cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)


def write_folder(folder, clip, numbers=range(FRAMES), name="frame_{}.jpg", **size):
    folder.mkdir(parents=True, exist_ok=True)
    for at, number in enumerate(numbers):
        Image.fromarray(frame(clip, at, **size)).save(folder / name.format(number), quality=95)
    return folder


def write_animation(path, clip, count=FRAMES, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *rest = (Image.fromarray(frame(clip, number)) for number in range(count))
    first.save(path, save_all=True, append_images=rest, **options)
    return path


def write_source(folder: Path, count=12, start=0):
    for clip in range(start, start + count):
        write_folder(folder / f"class{clip % 2}" / f"clip{clip:02d}", clip)
    return folder


def build(src, dst, frames=4, **options):
    images = tpufeed.Images(frames=frames, **options.pop("images", {}))
    return tpufeed.shard(src, dst, images=images, workers=1, progress=False, **options)


def make_clips(folder):
    build(write_source(folder / "raw"), folder / "set")
