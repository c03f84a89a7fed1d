"""Random numbers as pure functions without state: thread count and order never change a pixel."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def uniforms(seed: int, round_: int, samples: npt.NDArray[np.int64], op: int, count: int) -> npt.NDArray[np.float64]:
    """Draw uniform numbers in [0, 1) of shape (len(samples), count), for a whole batch at once.

    Args:
        seed: seed of the run.
        round_: the epoch for live ops, the variant in a cache.
        samples: ids within the split.
        op: the op's position among the ops.
        count: numbers per sample.

    The hash is splitmix64 (Steele, Lea, Flood 2014, figure 15), keyed by all four.
    """
    key = _mix_int(_mix_int(_mix_int(seed & _MASK) ^ (round_ & _MASK)) ^ op)
    rows = _mix(samples.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    bits = _mix(rows[:, None] + steps)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def noise(draw: float, count: int) -> npt.NDArray[np.uint8]:
    """Make `count` independent uniform levels from one uniform number: splitmix64's stream, little-endian."""
    start = np.uint64(_mix_int(int(draw * 2.0**53)))
    words = _mix(np.arange(1, count // 8 + 2, dtype=np.uint64) * np.uint64(_GOLDEN) + start)
    return words.astype("<u8").view(np.uint8)[:count]


def draw_between(bounds: float | tuple[float, float], draw: float) -> float:
    """Map a uniform number in `[0, 1)` to `[low, high)`. Ops store their bounds as pairs, whatever was given."""
    assert isinstance(bounds, tuple)
    return bounds[0] + draw * (bounds[1] - bounds[0])


def exp_each(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return `math.exp` of each number (n,): numpy's may differ from it in the last bit, and so move a window."""
    return np.fromiter(map(math.exp, values.tolist()), np.float64, len(values))


def generator(draws: Sequence[float]) -> np.random.Generator:
    """Make a Philox generator (Salmon et al. 2011). Its 128-bit key is the first 32 bits of four uniform numbers.

    NumPy keeps Philox's bits from version to version. Its distributions may change.
    """
    first, second, third, fourth = (int(draw * 2.0**32) for draw in draws)
    key = np.array([first << 32 | second, third << 32 | fourth], np.uint64)  # a list of these would become float64
    return np.random.Generator(np.random.Philox(key=key))


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _mix_int(z: int) -> int:
    # With Python's integers: 0.3 us. An array of one number takes 5 us. This counts if samples come one by one.
    z = (z + _GOLDEN) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)
