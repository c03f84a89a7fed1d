"""Torch's functions for ops on the device, XLA included: constants are made there, and none is read back."""

from functools import partial

import torch

from tpufeed.loaders.device_ops import Arrays

ARRAYS = Arrays(
    floats=lambda x: x.to(torch.float32),
    levels=lambda x: x.to(torch.uint8),
    count=lambda stop, x: torch.arange(stop, dtype=torch.float32, device=x.device),
    row=lambda numbers, x: torch.tensor(numbers, dtype=torch.float32, device=x.device),
    where=torch.where,
    minimum=lambda x, limit: torch.clamp(x, max=limit),  # torch.minimum takes no numbers
    maximum=lambda x, limit: torch.clamp(x, min=limit),
    floor=torch.floor,
    round=torch.round,
    exp=torch.exp,
    einsum=torch.einsum,
    flip=lambda x, axis: x.flip(axis),
    reshape=torch.reshape,
    stack=partial(torch.stack, dim=-1),
    sum=torch.sum,
    least=torch.amin,
    most=torch.amax,
)
