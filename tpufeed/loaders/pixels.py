"""Images on their device, in any framework: as floats, and mixed by MixUp and CutMix."""

import importlib
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

import numpy as np

from tpufeed.errors import OptionError
from tpufeed.options import above

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_FILES = {"torch": "torch.pixels", "jax": "jax.pixels", "jaxlib": "jax.pixels", "tensorflow": "tf.pixels"}
_MIXUP, _CUTMIX = 3, 4  # so that equal seeds give the two functions unrelated draws


def to_device_float(
    images: Any,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    dtype: Any = None,
    layout: Literal["NCHW", "NHWC"] | None = None,
) -> Any:
    """Return uint8 NHWC images as normalised floats, on their device: only a quarter of float32's bytes cross to it.

    `(image / 255 - mean) / std`, computed in float32. In a jitted or traced step the compiler fuses this with what
    reads the images; sharded arrays stay sharded.

    Args:
        images: uint8 of shape (batch, height, width, channels): a tensor of torch or TensorFlow, or an array of JAX.
        mean: mean of each channel, for values in [0, 1].
        std: standard deviation of each channel, for values in [0, 1].
        dtype: the framework's dtype of the result; by default its bfloat16.
        layout: layout of the result; by default what models expect: "NCHW" in torch, "NHWC" in the other frameworks.

    Raises:
        OptionError: images or parameters of another kind.
    """
    try:
        means, stds = [float(value) for value in mean], [float(value) for value in std]
    except TypeError:
        means, stds = [], []
    if not means or not all(value > 0 for value in stds):
        raise OptionError(f"mean and std have a number for each channel, in std above 0; not {mean!r}, {std!r}")
    if dtype is not None and "float" not in str(dtype):
        raise OptionError(f"dtype is a float type, like the framework's bfloat16, not {dtype!r}")
    file = _file_of("images", images)
    if len(images.shape) != 4:
        raise OptionError(f"images have the shape (batch, height, width, channels), not {tuple(images.shape)}")
    channels = images.shape[3]
    if not re.search(r"\buint8\b", str(images.dtype)) or not len(means) == len(stds) == channels:
        raise OptionError(
            f"images are uint8 with as many channels as mean ({len(means)}) and std ({len(stds)}) have values, not "
            f"{images.dtype} of {channels}"
        )
    if layout not in ("NCHW", "NHWC", None):
        raise OptionError(f"layout is 'NCHW' or 'NHWC', not {layout!r}")
    scale, shift = [1 / (255 * s) for s in stds], [-m / s for m, s in zip(means, stds, strict=True)]
    return file.scaled(images, scale, shift, dtype, layout)


def mixup(images: Any, labels: Any, *, seed: Any, alpha: float = 1.0, classes: int | None = None) -> tuple[Any, Any]:
    """Blend each image with the one before it in the batch, and their labels by the same share, on the device.

    MixUp as in torchvision's v2.MixUp (Zhang et al. 2018, https://arxiv.org/abs/1710.09412): `share` is drawn from
    Beta(alpha, alpha) once per batch; images become `share * images + (1 - share) * rolled`, and so do one-hot labels.

    For training: a loader's padding would be mixed into the images next to it, so read with `remainder="drop"`.

    Args:
        images: images of shape (batch, height, width, channels), or channels first: a tensor of torch or TensorFlow, or
            an array of JAX, which stays sharded. uint8 stays uint8, rounded; floats keep their type.
        labels: labels of the same framework: ids (batch,), or floats (batch, classes) as `label_format="multi_hot"`
            gives them. An id that is not a class becomes a row of zeros.
        seed: equal seeds give equal draws in every framework, so include what should change them, like `(7, step)`.
            Processes that share a global array of JAX need the same seed; ranks of torch include their rank, like
            `(7, rank, step)`. In a compiled step that takes its seed as a parameter, give a key of `jax.random`, or an
            int tensor (2,) of TensorFlow; these have other draws.
        alpha: above 0; 0.2 is usual for ImageNet, and 1 is uniform.
        classes: number of classes, if labels are ids.

    Returns:
        Images of the same shape and type, and labels float32 of shape (batch, classes).

    Raises:
        OptionError: images, labels or parameters of another kind.
    """
    return _mix(images, labels, seed, alpha, classes, cut=False)


def cutmix(images: Any, labels: Any, *, seed: Any, alpha: float = 1.0, classes: int | None = None) -> tuple[Any, Any]:
    """Paste a box of the image before it in the batch into each image, and mix labels by the box's area, on the device.

    CutMix as in torchvision's v2.CutMix (Yun et al. 2019, https://arxiv.org/abs/1905.04899): the box has `1 - share` of
    the area, with `share` from Beta(alpha, alpha), around a uniform centre. The part of it beyond the image is cut off,
    and the labels' share is that of what remains. See `mixup` for the parameters; images are channels last, of known
    height and width.
    """
    return _mix(images, labels, seed, alpha, classes, cut=True)


def _mix(images: Any, labels: Any, seed: Any, alpha: float, classes: int | None, cut: bool) -> tuple[Any, Any]:
    file = _file_of("images", images)
    if _file_of("labels", labels) is not file:
        raise OptionError(
            f"images and labels are of one framework, not {type(images).__module__} and {type(labels).__module__}"
        )
    alpha = above(0, 1e6).check("alpha", alpha)
    shape = _shape_of(images)
    if len(shape) != 4 or not re.search(r"\buint8\b|float", str(images.dtype)):
        raise OptionError(
            f"images have the shape (batch, height, width, channels) and are uint8 or floats, not {images.dtype} of "
            f"{shape}"
        )
    if cut and (None in shape[1:3] or (shape[3] or 1) > 4):
        raise OptionError(f"cutmix takes images of shape (batch, height, width, channels), not {shape}: mix them first")
    _check_labels(labels, shape[0], classes)
    purpose = _CUTMIX if cut else _MIXUP
    if _is_host_seed(seed, file):
        if file.is_traced(images):
            raise OptionError(
                "draws for a seed of numbers are made on the host, and would be constants of a compiled step: "
                f"call it before the step{file.OR_KEY}"
            )
        draws = np.random.default_rng([purpose, *([seed] if isinstance(seed, int | np.integer) else seed)])
        share, box = _plan(np, (draws.beta(alpha, alpha), *draws.random(2)), shape if cut else None)
        # As data: with constants the step would be compiled again for each batch.
        share, *box = file.send(np.array([share, *box], np.float32), images)
    else:
        share, box = _plan(file.ARRAYS, file.draw(seed, float(alpha), purpose), shape if cut else None)
    if cut:
        top, bottom, left, right = box
        rows, columns = file.count(images.shape[1], images)[:, None, None], file.count(images.shape[2], images)[:, None]
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)  # (height, width, 1)
        mixed = file.ARRAYS.where(inside, file.roll(images), images)
    else:
        mixed = file.blend(images, share)
    return mixed, file.blend(file.one_hot(labels, classes), share)


def _plan(arrays: Any, drawn: Sequence[Any], shape: tuple[Any, ...] | None) -> tuple[Any, list[Any]]:
    """Return the share that an image keeps; if `shape` is given, also the box: top, bottom, left, right."""
    share, x, y = drawn
    if shape is None:
        return share, []
    half, box = 0.5 * arrays.sqrt(1.0 - share), []
    for place, side in ((y, shape[1]), (x, shape[2])):
        centre, reach = arrays.floor(place * side), arrays.floor(half * side)
        box += [arrays.maximum(centre - reach, 0.0), arrays.minimum(centre + reach, float(side))]
    top, bottom, left, right = box
    return 1.0 - (bottom - top) * (right - left) / (shape[1] * shape[2]), box


def _file_of(name: str, value: Any) -> ModuleType:
    framework = type(value).__module__.partition(".")[0]
    if framework not in _FILES:
        raise OptionError(
            f"{name} are a tensor of torch or TensorFlow, or an array of JAX, not {type(value).__name__} of {framework}"
        )
    return importlib.import_module(f"tpufeed.loaders.{_FILES[framework]}")


def _shape_of(value: Any) -> tuple[Any, ...]:
    """Return the shape, None for sides that `tf.function` does not know; () if it does not even know their number."""
    try:
        return tuple(value.shape)
    except ValueError:
        return ()


def _is_host_seed(seed: Any, file: Any) -> bool:
    numbers = seed if isinstance(seed, Sequence) else (seed,)
    if all(isinstance(number, int | np.integer) and not isinstance(number, bool) for number in numbers):
        if not numbers or min(numbers) < 0:
            raise OptionError(f"seed is a number of at least 0, or several, not {seed!r}")
        return True
    if not hasattr(seed, "dtype") or isinstance(seed, np.ndarray | np.generic):
        raise OptionError(
            f"seed is a number of at least 0, or several like (7, step), not {seed!r}; call it before a compiled "
            f"step{file.OR_KEY}"
        )
    return False


def _check_labels(labels: Any, batch: int | None, classes: int | None) -> None:
    shape, kind = _shape_of(labels), str(labels.dtype)
    if len(shape) not in (1, 2) or (None not in (shape[0], batch) and shape[0] != batch):
        raise OptionError(f"labels have the shape ({batch},) or ({batch}, classes), not {shape}")
    if len(shape) == 1 and "int" not in kind:
        raise OptionError(f"labels with one number per sample are ids, not {kind}")
    if len(shape) == 1 and (isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 1):
        raise OptionError(f"labels are ids, so say how many classes there are: classes=1000, not {classes!r}")
    if len(shape) == 2 and None not in (classes, shape[1]) and classes != shape[1]:
        raise OptionError(f"labels have {shape[1]} classes; classes={classes} says otherwise")
