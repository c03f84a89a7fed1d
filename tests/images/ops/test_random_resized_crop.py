"""RandomResizedCrop: any op of the kind, and what it is equal to. test_windows.py has the windows."""

import numpy as np
from hypothesis import strategies as st

from tests.images.ops.every import Case, ranges, sizes, small
from tpufeed.images import RandomResizedCrop

CASES = [
    Case(RandomResizedCrop(48), 0xA2C6E5DC),
    Case(RandomResizedCrop(70), device=1),
    Case(RandomResizedCrop((30, 40)), device=1),  # some shrink by two
]
MADE = [st.builds(RandomResizedCrop, sizes, ranges(1e-6, 1), ranges(0.01, 100))]
MOVING = [st.builds(RandomResizedCrop, small, st.just((0.3, 1.0)))]
SAME = [
    (RandomResizedCrop(scale=(0.08, 1)), RandomResizedCrop(scale=[0.08, 1.0])),
    (RandomResizedCrop([96, 128]), RandomResizedCrop((np.int64(96), np.uint8(128)))),
]
