"""Augmentations as slow as people's own: for `tpufeed.images.Custom`, imported by name in every worker."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import cv2
import numpy as np

LOG = "SLOW_OPS_LOG"  # an environment variable: the file that gets a line of milliseconds a call


def sleep_50ms(image: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """Waits, as for another machine."""
    with _noted():
        time.sleep(0.05)
    return image


def compute_50ms(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Computes on one core for 50 ms of its time, whatever the machine."""
    with _noted():
        start = time.thread_time()
        noise = rng.normal(0, 4, image.shape)
        while time.thread_time() - start < 0.05:
            noise = np.sort(noise, axis=0)
        return np.clip(image + noise, 0, 255).astype(np.uint8)


def heavy(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An elastic deformation, a bilateral filter and noise: what a Kaggle notebook does with albumentations."""
    height, width = image.shape[:2]
    shift = rng.uniform(-1, 1, (2, height, width)).astype(np.float32)
    across, down = (cv2.GaussianBlur(part, (0, 0), 8) * 120 for part in shift)
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    warped = cv2.remap(image, columns + across, rows + down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    smooth = cv2.bilateralFilter(warped, 9, 60, 60)
    return np.clip(smooth + rng.normal(0, 8, image.shape), 0, 255).astype(np.uint8)


@contextmanager
def _noted() -> Iterator[None]:
    start = time.perf_counter()
    yield
    if LOG in os.environ:
        with open(os.environ[LOG], "a") as log:  # noqa: PTH123
            log.write(f"{(time.perf_counter() - start) * 1e3}\n")
