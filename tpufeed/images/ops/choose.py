"""One of several values of a sample."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import Draws, Op, SameSizeOp, keep
from tpufeed.options import Rule


@dataclass(frozen=True, slots=True)
class Choose(SameSizeOp):
    """One of the values that a sample has in a column, such as one of its captions, drawn in each epoch.

    The column then has one value per sample. Pixels do not change. Put it after crops: loaders decode less of an image
    if a crop is first.

    Attributes:
        column: a column whose values are lists of texts or numbers.
        random: False for the first value, as in evaluation.
    """

    column: Annotated[str, Rule("the name of a column", lambda value: isinstance(value, str) and value != "")]
    random: bool = True
    version: ClassVar[int] = 1
    any_pixels: ClassVar[bool] = True

    @property
    def draws(self) -> int:
        return int(self.random)

    def evaluation(self) -> tuple[Op, ...]:
        return (Choose(self.column, random=False),)

    def skips(self, draws: Draws) -> bool:
        return True

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return keep(image, out)
