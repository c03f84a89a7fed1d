"""Run by images/test_device.py: prints how far torch_xla's pixels are from torch's, how often it compiled and waited.

xla_device_ops.py
"""

from itertools import product

import numpy as np
import torch
import torch_xla
from torch_xla.debug import metrics

from tpufeed.adapters.torch.arrays import ARRAYS
from tpufeed.images import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
)
from tpufeed.images.coefficients import of_quality
from tpufeed.images.device import DeviceOps
from tpufeed.images.rng import uniforms

ROWS = np.arange(4)
OPS = [
    RandomCrop((44, 40), padding=3, fill=(9, 200, 50)),
    RandomResizedCrop(20),
    HorizontalFlip(),
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    Grayscale(0.5),
    GaussianBlur(0.5, (0.1, 1.0)),
    RandomErasing(value=(1, 2, 3)),
    Resize(24),
]

SIZE = (48, 64)
CHAINS = [DeviceOps(OPS, SIZE), DeviceOps(OPS[1:3], SIZE, of_quality(SIZE, 90))]

most = 0
for epoch, made in product(range(3), CHAINS):
    ops, random = OPS if made.coefficients is None else OPS[1:3], np.random.default_rng(epoch)
    if made.coefficients is None:
        images = random.integers(0, 256, (len(ROWS), *SIZE, 3), np.uint8)
    else:
        images = random.integers(-9, 10, (len(ROWS), *made.coefficients.shape), np.int8)
    parameters = made.parameters([uniforms(7, epoch, ROWS, number, op.draws) for number, op in enumerate(ops)])
    given = torch.from_numpy(images), torch.from_numpy(parameters)
    found = made.apply(*(tensor.to(torch_xla.device()) for tensor in given), ARRAYS)
    torch_xla.sync()
    most = max(most, int((found.cpu().int() - made.apply(*given, ARRAYS).int()).abs().max()))
print(most, metrics.metric_data("CompileTime")[0], [name for name in metrics.counter_names() if "aten::" in name])
