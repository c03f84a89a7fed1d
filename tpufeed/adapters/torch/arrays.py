"""Torch's functions for ops on the device, XLA included: constants are made there, and none is read back."""

from contextlib import nullcontext
from functools import partial

import torch

from tpufeed.images.device import Arrays


def _einsum(form: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return `torch.einsum` in float32: a training loop may be within autocast, whose bfloat16 would round weights."""
    kind = x.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        return torch.einsum(form, x, y)


ARRAYS = Arrays(
    floats=lambda x: x.to(torch.float32),
    levels=lambda x: x.to(torch.uint8),
    cast=lambda x, dtype: x.to(dtype or torch.bfloat16),
    count=lambda stop, x: torch.arange(stop, dtype=torch.float32, device=x.device),
    row=lambda numbers, x: torch.tensor(numbers, dtype=torch.float32, device=x.device),
    where=torch.where,
    minimum=lambda x, limit: torch.clamp(x, max=limit),  # torch.minimum takes no numbers
    maximum=lambda x, limit: torch.clamp(x, min=limit),
    floor=torch.floor,
    round=torch.round,
    exp=torch.exp,
    einsum=_einsum,
    flip=lambda x, axis: x.flip(axis),
    reshape=torch.reshape,
    transpose=torch.permute,
    stack=partial(torch.stack, dim=-1),
    sum=torch.sum,
    least=torch.amin,
    most=torch.amax,
    layout="NCHW",
)
