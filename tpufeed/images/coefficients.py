"""Quantized DCT coefficients instead of pixels: how a batch holds those of an image, and with which tables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Sampling: TypeAlias = Literal["420", "444", "grey"]
Table: TypeAlias = tuple[int, ...]
"""64 steps of quantization in row-major order: the vertical frequency is the row."""

EXACT = 96
"""The largest AC value that an int8 holds exactly; larger ones are held in steps, `Coefficients.step`."""
_LARGEST = 1023  # an AC value of 8-bit samples before quantization

# ITU-T T.81, tables K.1 and K.2.
_LUMA = (
    *(16, 11, 10, 16, 24, 40, 51, 61),
    *(12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77),
    *(24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101),
    *(72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    *(17, 18, 24, 47, 99, 99, 99, 99),
    *(18, 21, 26, 66, 99, 99, 99, 99),
    *(24, 26, 56, 99, 99, 99, 99, 99),
    *(47, 66, 99, 99, 99, 99, 99, 99),
    *(99,) * 32,
)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What is common to the coefficients of all images of a cache.

    A batch holds those of an image as int8 of `shape`. Rows 0 to H have luma: block (i, j) at rows 8i and columns 8j, a
    coefficient's row being its vertical frequency. Then chroma: H / 2 rows with Cb left and Cr right (4:2:0), H rows of
    Cb and H of Cr (4:4:4), or none (grey). Then a high part of each DC value, in order of luma's blocks, Cb's and Cr's,
    zeros up to a whole row.

    - DC: 128 times the high part, plus what is in its place in the plane, -64 to 63.
    - AC: `v` up to 96 in size; beyond, its size is 96 + step * (abs(v) - 96).

    Args:
        size: height and width.
        sampling: "420" (chroma at half of the height and width), "444", or "grey".
        tables: quantization of luma and of chroma.
    """

    size: tuple[int, int]
    sampling: Sampling
    tables: tuple[Table, Table]

    @property
    def blocks(self) -> int:
        """Blocks of 8x8 of an image, of all components."""
        height, width = self.size
        return height * width * {"420": 3, "444": 6, "grey": 2}[self.sampling] // 128

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width of an image's int8 array."""
        width = self.size[1]
        return self.blocks * 64 // width + math.ceil(self.blocks / width), width

    @property
    def step(self) -> int:
        """In what steps int8 holds AC values beyond `EXACT`: the smallest with which the largest fits."""
        return max(1, math.ceil((_LARGEST / min(*self.tables[0][1:], *self.tables[1][1:]) - EXACT) / (127 - EXACT)))


def multiple(sampling: Sampling) -> int:
    """Return what both sides of an image must be a multiple of."""
    return 16 if sampling == "420" else 8


def quality_tables(quality: int) -> tuple[Table, Table]:
    """Return the tables that libjpeg takes for a quality, 1 to 100."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality

    def scaled(table: Sequence[int]) -> Table:
        return tuple(min(255, max(1, (step * scale + 50) // 100)) for step in table)

    return scaled(_LUMA), scaled(_CHROMA)
