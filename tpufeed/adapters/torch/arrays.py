"""Torch's functions for ops on the device, XLA included: constants are made there, and none is read back."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from tpufeed.images.device import Arrays, product_of_parts

_HAVE_DOUBLES = ("cpu", "cuda")  # Apple's devices have none


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return `torch.matmul` in float32: a training loop may be within autocast, whose bfloat16 would round weights."""
    kind = x.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        return torch.matmul(x, y)


def upper(x: torch.Tensor) -> torch.Tensor:
    """Clear the last 16 bits of float32."""
    return (x.view(torch.int32) & -(1 << 16)).view(torch.float32)


def _exact_product(x: torch.Tensor, y: torch.Tensor) -> Any:
    if x.device.type in _HAVE_DOUBLES:  # a training may have allowed TF32
        return torch.matmul(x.double(), y.double()).float()
    return product_of_parts(_product, upper, x, y)


ARRAYS = Arrays(
    floats=lambda x: x.to(torch.float32),
    levels=lambda x, dtype: x.to(getattr(torch, dtype)),
    cast=lambda x, dtype: x.to(dtype or torch.bfloat16),
    count=lambda stop, axis, x: torch.arange(stop, dtype=torch.float32, device=x.device).unsqueeze(-3 - axis),
    row=lambda numbers, x: torch.tensor(numbers, dtype=torch.float32, device=x.device),
    where=torch.where,
    minimum=lambda x, limit: torch.clamp(x, max=limit),  # torch.minimum takes no numbers
    maximum=lambda x, limit: torch.clamp(x, min=limit),
    floor=torch.floor,
    round=torch.round,
    exp=torch.exp,
    product=_product,
    flip=lambda x, axis: x.flip(axis),
    reshape=torch.reshape,
    transpose=torch.permute,
    stack=partial(torch.stack, dim=-1),
    sum=partial(torch.sum, keepdim=True),
    least=partial(torch.amin, dim=(-2, -1), keepdim=True),
    most=partial(torch.amax, dim=(-2, -1), keepdim=True),
    layout="NCHW",
    exact_product=_exact_product,
)
