"""CenterCrop: any op of the kind, and what it is equal to. test_windows.py has the windows."""

import numpy as np
from hypothesis import strategies as st

from tests.images.ops.every import Case, sizes, small
from tpufeed.images import CenterCrop

CASES = [
    Case(CenterCrop(50), 0xBF70AA57),
    Case(CenterCrop(64), device=0),
    Case(CenterCrop((120, 60)), device=1),  # of a smaller image
]
MADE = [st.builds(CenterCrop, sizes)]
MOVING = [st.builds(CenterCrop, small)]
SAME = [(CenterCrop((1, 16384)), CenterCrop([1, np.int64(16384)]))]
REFUSED = [(CenterCrop, {"size": list(range(10_000))}, r"not \[0, 1, 2, .{40,90}\.\.\.$")]
