"""Convert and mix images of torch on their device, XLA included."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tpufeed.errors import OptionError

ARRAYS: Any = torch
OR_KEY = ""


def scaled(
    images: torch.Tensor, scale: list[float], shift: list[float], dtype: torch.dtype | None, layout: str | None
) -> torch.Tensor:
    """Return `images * scale + shift` by channel; see `to_device_float`."""
    scales = torch.tensor(scale, dtype=torch.float32, device=images.device)
    shifts = torch.tensor(shift, dtype=torch.float32, device=images.device)
    result = (images.to(torch.float32) * scales + shifts).to(dtype or torch.bfloat16)
    return result if layout == "NHWC" else result.permute(0, 3, 1, 2)


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
