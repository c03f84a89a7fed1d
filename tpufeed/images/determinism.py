"""Check that ops keep their promise: the same draws, the same pixels."""

from collections.abc import Sequence

import numpy as np

from tpufeed.errors import OpError
from tpufeed.images.decoding import Pixels
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Draws


def check_deterministic(pipeline: Pipeline, pixels: Pixels, draws: Sequence[Draws]) -> None:
    """Runs each op twice, on copies of what the one before it made.

    Args:
        pipeline: its ops are run.
        pixels: uint8 RGB of any size; stays as it is.
        draws: one entry an op.

    Raises:
        OpError: names the first op that gives other pixels the second time; or an op failed.
        OptionError: a function of the user's cannot be imported.
    """
    for number, (op, drawn) in enumerate(zip(pipeline.ops, draws, strict=True), 1):
        alone = Pipeline((op,), pipeline.seed)
        first, second = (alone.run(pixels.copy(), [drawn]) for _ in range(2))
        if not np.array_equal(first, second):
            raise OpError(
                f"{op}, number {number} of {len(pipeline.ops)} ops, is not deterministic: {_difference(first, second)} "
                "when it ran again on the same image with the same random numbers. Take all of them from the Generator "
                "that the function is given, none from random, np.random or torch, and keep nothing between calls"
            )
        pixels = first


def _difference(first: Pixels, second: Pixels) -> str:
    if first.shape != second.shape:
        return f"it gave {second.shape} after {first.shape}"
    return f"{int((first != second).sum())} of {first.size} values were others"
