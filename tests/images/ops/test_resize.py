"""Resize: any op of the kind, and what it is equal to. test_windows.py has the windows."""

import numpy as np
from hypothesis import strategies as st

from tests.images.ops.every import Case, sizes, small
from tpufeed.images import Resize

CASES = [
    Case(Resize(40), 0x053B03FE),
    Case(Resize((90, 33)), 0xBC70B3A8),
    Case(Resize(64), device=1),
    Case(Resize((40, 20)), device=1),  # to less than half
    Case(Resize((100, 130)), device=1),
]
MADE = [st.builds(Resize, sizes)]
MOVING = [st.builds(Resize, small)]
SAME = [(Resize(np.int32(5)), Resize(5))]
REFUSED = [(Resize, {"size": size}, "size is one or two") for size in (0, True, 3.0)]
