"""Images on their device as floats, in any framework."""

import importlib
import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from tpufeed.errors import OptionError
from tpufeed.images.pixel_format import PIXEL_TYPES, RGB8
from tpufeed.options import checked

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_FOLDERS = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "tensorflow": "tf"}


@checked()
def to_device_float(
    images: Any,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    dtype: Any = None,
    layout: Literal["NCHW", "NHWC"] | None = None,
) -> Any:
    """Return NHWC images as normalised floats, on their device: only a quarter of float32's bytes cross to it.

    `(image / 255 - mean) / std` of uint8, and `(image - mean) / std` of uint16 and float32, computed in float32. In a
    jitted or traced step the compiler fuses this with what reads the images. Sharded arrays stay sharded.

    Args:
        images: of shape (batch, height, width, channels), or (batch, frames, height, width, channels) for clips, as
            loaders give them: a tensor of torch or TensorFlow, or an array of JAX.
        mean: mean of each channel, of uint8 for values in [0, 1]. `tpufeed info --stats` prints it.
        std: standard deviation of each channel, likewise.
        dtype: the framework's dtype of the result. By default its bfloat16.
        layout: layout of the result. By default what models expect: "NCHW" in torch, "NHWC" in the other frameworks. A
            clip has its frames first: (batch, frames, channels, height, width) for "NCHW".

    Raises:
        OptionError: images or parameters of another kind.
    """
    try:
        means, stds = ([] if isinstance(each, str | bytes) else [*map(float, each)] for each in (mean, std))
    except (TypeError, ValueError):
        means, stds = [], []
    if not means or not all(map(math.isfinite, means)) or not all(0 < value < math.inf for value in stds):
        raise OptionError(f"mean and std have a number for each channel, in std above 0; not {mean!r}, {std!r}")
    if dtype is not None and "float" not in str(dtype):
        raise OptionError(f"dtype is a float type, like the framework's bfloat16, not {dtype!r}")
    framework = type(images).__module__.partition(".")[0]
    if framework not in _FOLDERS:
        kind = type(images).__name__
        raise OptionError(f"images are a tensor of torch or TensorFlow, or an array of JAX, not {kind} of {framework}")
    axes = len(images.shape)
    if axes not in (4, 5):
        shape = "(batch, height, width, channels), clips also have frames"
        raise OptionError(f"images have the shape {shape}, not {tuple(images.shape)}")
    channels = images.shape[-1]
    found = re.search(rf"\b({'|'.join(PIXEL_TYPES)})\b", str(images.dtype))
    if found is None or not len(means) == len(stds) == channels:
        raise OptionError(
            f"images are {', '.join(PIXEL_TYPES)} with as many channels as mean ({len(means)}) and std ({len(stds)}) "
            f"have values, not {images.dtype} of {channels}"
        )
    if found[1] != RGB8.dtype and (mean is IMAGENET_MEAN or std is IMAGENET_STD):
        raise OptionError(
            f"images of {found[1]} have no usual mean and std: give both, as `tpufeed info` prints them with --stats"
        )
    top = 255 if found[1] == RGB8.dtype else 1
    scale, shift = [1 / (top * s) for s in stds], [-m / s for m, s in zip(means, stds, strict=True)]
    arrays = importlib.import_module(f"tpufeed.adapters.{_FOLDERS[framework]}.arrays").ARRAYS
    floats = arrays.floats(images) * arrays.row(scale, images) + arrays.row(shift, images)
    try:
        result = arrays.cast(floats, dtype)
    except TypeError as error:
        raise OptionError(f"dtype is a float type of {framework}, like its bfloat16, not {dtype!r}") from error
    first = (*range(axes - 3), axes - 1, axes - 3, axes - 2)  # channels before height and width
    return arrays.transpose(result, first) if (layout or arrays.layout) == "NCHW" else result
