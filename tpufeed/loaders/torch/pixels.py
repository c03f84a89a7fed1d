"""Convert, flip, shift and mix images of torch on their device, XLA included."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tpufeed.errors import OptionError
from tpufeed.options import at_least

Seed = int | Sequence[int]

_FLIP, _SHIFT = 1, 2  # so that the two functions have unrelated draws for equal seeds


def scaled(
    images: torch.Tensor, scale: list[float], shift: list[float], dtype: torch.dtype | None, layout: str | None
) -> torch.Tensor:
    """Return `images * scale + shift` by channel; see `to_device_float`."""
    scales = torch.tensor(scale, dtype=torch.float32, device=images.device)
    shifts = torch.tensor(shift, dtype=torch.float32, device=images.device)
    result = (images.to(torch.float32) * scales + shifts).to(dtype or torch.bfloat16)
    return result if layout == "NHWC" else result.permute(0, 3, 1, 2)


def random_flip(images: torch.Tensor, *, seed: Seed, probability: float = 0.5) -> torch.Tensor:
    """Mirror some images left to right, on their device.

    The draws are made on the host and sent along, a byte per image: nothing waits for the device, and one compiled
    graph serves every step.

    Args:
        images: images of shape (batch, height, width, channels).
        seed: equal seeds give equal draws, so include what should change them, like `(7, rank, step)`.
        probability: the probability that an image is mirrored.
    """
    _check(images)
    draws = _generator(seed, _FLIP).random(len(images)) < probability
    return torch.where(_send(draws, images), images.flip(2), images)


def random_shift(images: torch.Tensor, *, pixels: int, seed: Seed, fill: int = 0) -> torch.Tensor:
    """Move each image by up to `pixels` up, down, left and right on its device, like a crop of a padded image.

    Draws are made as for `random_flip`. There is no gather, which is slow on TPUs: images move by powers of two, so a
    move by up to 7 pixels takes four selections of whole images per direction.

    Args:
        images: images of shape (batch, height, width, channels).
        pixels: the longest move; all moves in [-pixels, pixels] are equally likely.
        seed: see `random_flip`.
        fill: the value of pixels beyond the image.
    """
    _check(images)
    pixels = at_least(0).check("pixels", pixels)
    draws = _generator(seed, _SHIFT).integers(0, 2 * pixels, (2, len(images)), endpoint=True)
    bits = (2 * pixels).bit_length()
    # All moves of a direction together cut off 2**bits - 1 pixels; draws use at most 2 * pixels of them.
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
    """Return bools (..., batch) on the images' device, to broadcast over pixels; as data, to compile only once."""
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
    """Return the rows, each moved to the place of the next, and the last to the first place."""
    return values.roll(1, 0)


def blend(values: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return `share * values + (1 - share) * rolled` along the batch, in the type of `values`; see `mixup`."""
    floats, share = values.to(torch.promote_types(values.dtype, torch.float32)), share.to(values.device)
    mixed = floats * share + roll(floats) * (1 - share)
    return (mixed if values.is_floating_point() else mixed.round()).to(values.dtype)


def one_hot(labels: torch.Tensor, classes: int | None) -> torch.Tensor:
    """Return labels as float32 (batch, classes)."""
    if labels.ndim == 2:
        return labels.to(torch.float32)
    return (labels[:, None] == torch.arange(classes or 1, device=labels.device)).to(torch.float32)


def send(draws: npt.NDArray[np.float32], images: torch.Tensor) -> Any:
    """Return the draws on the images' device, as data of its graph."""
    return torch.from_numpy(draws).to(images.device, non_blocking=True).unbind()


def draw(seed: Any, _alpha: float, _purpose: int) -> Any:
    """Raise OptionError: torch cannot draw by a seed within a step."""
    raise OptionError(f"seed is a number of at least 0, or several like (7, step), not {seed!r}")


def count(stop: int, images: torch.Tensor) -> torch.Tensor:
    """Return 0, 1 ... below `stop`, on the images' device."""
    return torch.arange(stop, device=images.device)


def is_traced(_images: Any) -> bool:
    """Return true within a step that is being compiled."""
    return bool(torch.compiler.is_compiling())
