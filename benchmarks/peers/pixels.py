"""JPEG to pixels for loaders that leave it to their user, with Pillow as their guides do, or with what is faster.

"pil" is what torchvision's transforms do to a PIL image; "turbo" is simplejpeg and cv2, which release the GIL.
"""

import io
import math
import random
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from benchmarks.peers import SCALE, SIZE

cv2.setNumThreads(1)

_LOG_RATIO = math.log(4 / 3)


def random_window(height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width by torchvision's RandomResizedCrop: scale SCALE, ratio 3/4 to 4/3, ten tries."""
    for _ in range(10):
        area = height * width * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(-_LOG_RATIO, _LOG_RATIO))
        cut_height, cut_width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < cut_height <= height and 0 < cut_width <= width:
            top, left = random.randint(0, height - cut_height), random.randint(0, width - cut_width)
            return top, left, cut_height, cut_width
    cut_height, cut_width = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    return (height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width


def crop_pil(image: Image.Image) -> np.ndarray:
    """A random-resized crop of an image, flipped or not."""
    top, left, height, width = random_window(image.height, image.width)
    image = image.convert("RGB").crop((left, top, left + width, top + height))
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def crop_array(image: np.ndarray) -> np.ndarray:
    """The same of decoded pixels."""
    top, left, height, width = random_window(*image.shape[:2])
    image = cv2.resize(image[top : top + height, left : left + width], (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(image, 1) if random.random() < 0.5 else image


def pixels_pil(data: bytes | memoryview | Path) -> np.ndarray:
    """From JPEG bytes, or from a file."""
    with Image.open(data if isinstance(data, Path) else io.BytesIO(data)) as image:
        return crop_pil(image)


def pixels_turbo(data: bytes | memoryview | Path) -> np.ndarray:
    """From JPEG bytes, or from a file."""
    return crop_array(simplejpeg.decode_jpeg(data.read_bytes() if isinstance(data, Path) else data))


PIXELS: dict[str, Callable[[bytes | memoryview | Path], np.ndarray]] = {"pil": pixels_pil, "turbo": pixels_turbo}
