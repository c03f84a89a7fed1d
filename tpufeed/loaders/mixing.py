"""MixUp and CutMix on the device: each image of a batch with the one before it, in whatever framework they are."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpufeed.errors import OptionError

_FILES = {"torch": "torch.pixels", "jax": "jax.pixels", "jaxlib": "jax.pixels", "tensorflow": "tf.pixels"}
_MIXUP, _CUTMIX = 3, 4  # so that equal seeds give the two functions unrelated draws
_WAY_OUT = (
    "the draws of a number or numbers are made on the host, and would be constants of a compiled step: call it before "
    "the step, or give seed a {key}"
)


def mixup(images: Any, labels: Any, *, seed: Any, alpha: float = 1.0, classes: int | None = None) -> tuple[Any, Any]:
    """Blend each image with the one before it in the batch, and their labels by the same share, on their device.

    MixUp as torchvision's v2.MixUp has it (Zhang et al. 2018, https://arxiv.org/abs/1710.09412): `share` is drawn from
    Beta(alpha, alpha) once a batch; images become `share * images + (1 - share) * rolled`, and so do one-hot labels.

    Args:
        images: of shape (batch, height, width, channels), or channels first: a tensor of torch or TensorFlow, or an
            array of JAX. uint8 stays uint8, rounded; floats keep their type.
        labels: ids (batch,), or floats (batch, classes) as `label_format="multi_hot"` gives them.
        seed: equal ones give equal draws in every framework, so give what should change them, like `(7, step)`. In a
            step that is compiled with its seed as a parameter: a key of `jax.random`, or an int tensor (2,) of
            TensorFlow, with draws of their own.
        alpha: above 0; 0.2 is usual for ImageNet, and 1 is uniform.
        classes: how many there are, where labels are ids.

    Returns:
        Images as they came, and labels float32 of shape (batch, classes).

    Raises:
        OptionError: images, labels or parameters of another kind.
    """
    return _mix(images, labels, seed, alpha, classes, cut=False)


def cutmix(images: Any, labels: Any, *, seed: Any, alpha: float = 1.0, classes: int | None = None) -> tuple[Any, Any]:
    """Put a box of the image before it in the batch into each image, and mix their labels by its area, on their device.

    CutMix as torchvision's v2.CutMix has it (Yun et al. 2019, https://arxiv.org/abs/1905.04899): the box has
    `1 - share` of the area, with `share` from Beta(alpha, alpha), around a uniform centre; what of it lies beyond the
    image is cut off, and the labels' share follows. See `mixup` for the parameters; images are channels last.
    """
    return _mix(images, labels, seed, alpha, classes, cut=True)


def _mix(images: Any, labels: Any, seed: Any, alpha: float, classes: int | None, cut: bool) -> tuple[Any, Any]:
    framework = type(images).__module__.partition(".")[0]
    if framework not in _FILES:
        raise OptionError(
            "images are a tensor of torch or TensorFlow, or an array of JAX, not "
            f"{type(images).__name__} of {framework}"
        )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1e6:
        raise OptionError(f"alpha is a number above 0, not {alpha!r}")
    shape = tuple(images.shape)
    if len(shape) != 4:
        raise OptionError(f"images have the shape (batch, height, width, channels), not {shape}")
    if cut and shape[3] > 4:
        raise OptionError(f"cutmix takes images of shape (batch, height, width, channels), not {shape}: mix them first")
    _check_labels(labels, shape[0], classes)
    file = importlib.import_module(f"tpufeed.loaders.{_FILES[framework]}")
    if _is_host_seed(seed):
        if file.is_traced(images):
            raise OptionError(_WAY_OUT.format(key=file.KEY))
        draws = np.random.default_rng([_CUTMIX if cut else _MIXUP, *([seed] if isinstance(seed, int) else seed)])
        # As data: constants would compile a step anew for each batch.
        share, x, y = file.send(np.array([draws.beta(alpha, alpha), *draws.random(2)], np.float32), images)
    else:
        share, x, y = file.draw(seed, float(alpha))
    weights = share
    if cut:
        share, weights = _box(file, share, x, y, shape[1], shape[2])
    return file.blend(images, weights), file.blend(file.one_hot(labels, classes), share)


def _box(file: Any, share: Any, x: Any, y: Any, height: int, width: int) -> tuple[Any, Any]:
    """Return the share of the image that stays, and 1 for each of its pixels that does, (height, width, 1)."""
    arrays: Any = file.ARRAYS
    half = 0.5 * arrays.sqrt(1.0 - share)
    row, column = arrays.floor(y * height), arrays.floor(x * width)
    down, across = arrays.floor(half * height), arrays.floor(half * width)
    zero, most_y, most_x = 0.0 * share, 0.0 * share + height, 0.0 * share + width
    top, bottom = arrays.maximum(row - down, zero), arrays.minimum(row + down, most_y)
    left, right = arrays.maximum(column - across, zero), arrays.minimum(column + across, most_x)
    rows = arrays.reshape(file.count(height, share), (height, 1, 1))
    columns = arrays.reshape(file.count(width, share), (1, width, 1))
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return 1.0 - (bottom - top) * (right - left) / (height * width), arrays.where(inside, zero, zero + 1.0)


def _is_host_seed(seed: Any) -> bool:
    numbers = seed if isinstance(seed, Sequence) else (seed,)
    if all(isinstance(number, int | np.integer) and not isinstance(number, bool) for number in numbers):
        if not numbers or min(numbers) < 0:
            raise OptionError(f"seed is a number of at least 0, or several, not {seed!r}")
        return True
    if not hasattr(seed, "dtype") or isinstance(seed, np.ndarray):
        raise OptionError(f"seed is a number of at least 0, or several like (7, step), not {seed!r}")
    return False


def _check_labels(labels: Any, batch: int, classes: int | None) -> None:
    shape, kind = tuple(getattr(labels, "shape", ())), str(getattr(labels, "dtype", type(labels).__name__))
    if not shape or shape[0] != batch or len(shape) > 2:
        raise OptionError(f"labels have the shape ({batch},) or ({batch}, classes), not {shape}")
    if len(shape) == 1 and "int" not in kind:
        raise OptionError(f"labels of one number a sample are ids, not {kind}")
    if len(shape) == 1 and (isinstance(classes, bool) or not isinstance(classes, int) or classes < 1):
        raise OptionError(f"labels are ids, so say how many classes there are: classes=1000, not {classes!r}")
    if len(shape) == 2 and classes not in (None, shape[1]):
        raise OptionError(f"labels have {shape[1]} classes; classes={classes} says otherwise")
