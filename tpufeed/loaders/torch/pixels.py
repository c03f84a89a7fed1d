"""Convert, flip, shift and mix images on their device: XLA, or any other of torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tpufeed.errors import OptionError
from tpufeed.options import at_least

Seed = int | Sequence[int]

_FLIP, _SHIFT = 1, 2  # so that equal seeds give the two functions unrelated draws


def scaled(
    images: torch.Tensor, scale: list[float], shift: list[float], dtype: torch.dtype | None, layout: str | None
) -> torch.Tensor:
    """`images * scale + shift` by channel; see `to_device_float`."""
    scales = torch.tensor(scale, dtype=torch.float32, device=images.device)
    shifts = torch.tensor(shift, dtype=torch.float32, device=images.device)
    result = (images.to(torch.float32) * scales + shifts).to(dtype or torch.bfloat16)
    return result if layout == "NHWC" else result.permute(0, 3, 1, 2)


def random_flip(images: torch.Tensor, *, seed: Seed, probability: float = 0.5) -> torch.Tensor:
    """Images of torch of which some are mirrored left to right, on their device.

    The draws are made on the host, a byte an image, and sent along: the device is never waited for, and one compiled
    graph serves every step.

    Args:
        images: of shape (batch, height, width, channels).
        seed: equal ones give equal draws, so give what should change them, like `(7, rank, step)`.
        probability: of an image to be mirrored.
    """
    _check(images)
    draws = _generator(seed, _FLIP).random(len(images)) < probability
    return torch.where(_send(draws, images), images.flip(2), images)


def random_shift(images: torch.Tensor, *, pixels: int, seed: Seed, fill: int = 0) -> torch.Tensor:
    """Images that are each moved by up to `pixels` up, down, left and right on their device: crops of padded images.

    See `random_flip` for how draws are made. No gather, which TPUs are slow at: an image is moved by powers of two, so
    by up to 7 pixels in four selections of whole images a direction.

    Args:
        images: of shape (batch, height, width, channels).
        pixels: the furthest move, each of [-pixels, pixels] as likely as the others.
        seed: see `random_flip`.
        fill: the value of pixels from outside.
    """
    _check(images)
    pixels = at_least(0).check("pixels", pixels)
    draws = _generator(seed, _SHIFT).integers(0, 2 * pixels, (2, len(images)), endpoint=True)
    bits = (2 * pixels).bit_length()
    # The moves leave out 2**bits - 1 pixels of a direction in all, of which at most 2 * pixels are drawn.
    before, after = pixels, (1 << bits) - 1 - pixels
    images = torch.nn.functional.pad(images, (0, 0, before, after, before, after), value=fill)
    moves = _send(draws[:, None] >> np.arange(bits)[:, None] & 1 == 1, images)
    for axis, moves_of_axis in enumerate(moves, start=1):
        for bit, moved in enumerate(moves_of_axis):
            length = images.shape[axis] - (1 << bit)
            images = torch.where(moved, images.narrow(axis, 1 << bit, length), images.narrow(axis, 0, length))
    return images


def _generator(seed: Seed, purpose: int) -> np.random.Generator:
    return np.random.default_rng([purpose, *([seed] if isinstance(seed, int | np.integer) else seed)])


def _send(draws: Any, images: torch.Tensor) -> torch.Tensor:
    """Bools (..., batch) on the images' device, to be broadcast over pixels. As data: constants would compile anew."""
    return torch.from_numpy(draws).to(images.device, non_blocking=True).view(*draws.shape, 1, 1, 1)


def _check(images: torch.Tensor) -> None:
    if not isinstance(images, torch.Tensor):
        raise OptionError(
            f"images are a tensor of torch, not {type(images).__name__}; in JAX and TensorFlow draw by jax.random or "
            "tf.image.stateless_random_flip_left_right within the step"
        )
    if images.ndim != 4:
        raise OptionError(f"images have the shape (batch, height, width, channels), not {tuple(images.shape)}")


ARRAYS: Any = torch
OR_KEY = ""


def roll(values: torch.Tensor) -> torch.Tensor:
    """Each row at the place of the next one, the last at that of the first."""
    return values.roll(1, 0)


def blend(values: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """`share * values + (1 - share) * rolled` along the batch, in the type of `values`; see `mixup`."""
    floats, share = values.to(torch.promote_types(values.dtype, torch.float32)), share.to(values.device)
    mixed = floats * share + roll(floats) * (1 - share)
    return (mixed if values.is_floating_point() else mixed.round()).to(values.dtype)


def one_hot(labels: torch.Tensor, classes: int | None) -> torch.Tensor:
    """Labels as float32 (batch, classes)."""
    if labels.ndim == 2:
        return labels.to(torch.float32)
    return (labels[:, None] == torch.arange(classes or 1, device=labels.device)).to(torch.float32)


def send(draws: npt.NDArray[np.float32], images: torch.Tensor) -> Any:
    """The draws on the images' device, as data of its graph."""
    return torch.from_numpy(draws).to(images.device, non_blocking=True).unbind()


def draw(seed: Any, _alpha: float, _purpose: int) -> Any:
    """Raise OptionError: torch has no draws by a seed within a step."""
    raise OptionError(f"seed is a number of at least 0, or several like (7, step), not {seed!r}")


def count(stop: int, images: torch.Tensor) -> torch.Tensor:
    """0, 1 ... below `stop`, on the images' device."""
    return torch.arange(stop, device=images.device)


def is_traced(_images: Any) -> bool:
    """Return true within a step that is being compiled."""
    return bool(torch.compiler.is_compiling())
