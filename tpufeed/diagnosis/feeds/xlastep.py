"""A training step on a device of torch_xla. Its computing is small: what is measured is how it is fed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_xla
from torch import nn

Step = Callable[[Any], None]


def make_step() -> Step:
    """A step that is done when it returns: waits that follow are the loader's."""
    device = torch_xla.device()
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1000)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def on_device(array: Any) -> Any:
        return array.to(device) if isinstance(array, torch.Tensor) else torch.from_numpy(np.asarray(array)).to(device)

    def step(batch: Any) -> None:
        image, label = (on_device(array) for array in batch[:2])
        image = image.permute(0, 3, 1, 2).float() / 255
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), label.long()).backward()
        optimizer.step()
        torch_xla.sync(wait=True)

    return step
