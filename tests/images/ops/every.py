"""What each op's test file says of it, for the tests of all ops: they walk the list of ops, and name none."""

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from tpufeed.images.ops import EVERY

LARGEST = 1 - 2**-53
lengths = st.integers(1, 16384)
sizes = lengths | st.tuples(lengths, lengths)
levels = st.integers(0, 255)
fills = levels | st.tuples(levels, levels, levels)
chances = st.floats(0, 1) | st.integers(0, 1)
small = st.tuples(st.integers(16, 70), st.integers(16, 70))


def ranges(low, high):
    return st.tuples(st.floats(low, high), st.floats(low, high)).map(lambda pair: tuple(sorted(pair)))


@dataclass(frozen=True)
class Case:
    """An op of one image.

    Attributes:
        op: the op.
        crc: CRC-32 of its pixels, on which OpenCV 4.9, 4.12 and 5.0 agree. Whoever changes one gives its op another
            version. None: other cases are enough.
        device: levels by which a device may differ from the host; None if it is not run there.
    """

    op: Any
    crc: int | None = None
    device: int | None = None


def files() -> list[ModuleType]:
    """The test files of all ops."""
    names = dict.fromkeys(kind.__module__.rpartition(".")[2] for kind in EVERY.values())
    return [importlib.import_module(f"tests.images.ops.test_{name}") for name in names]


def gather(name: str) -> list[Any]:
    """What all files say under a name:

    - CASES: each a `Case`;
    - MADE: strategies that make any op of the kind;
    - MOVING: strategies of small windows, and of ops that move pixels;
    - SAME: pairs of ops that are the same;
    - REFUSED: kind, parameters, and what the error says;
    - CHAINED: for an op with a step on the device, ops of its kind and by how many levels each may differ there. The
      oracle of device ops chains them, and finds their pixels by the file's function `reference(op, image, u)`.
    """
    return [each for file in files() for each in getattr(file, name, ())]


def difference(one, other):
    import numpy as np

    return np.abs(np.asarray(one).astype(int) - np.asarray(other))
