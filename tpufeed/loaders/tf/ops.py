"""Ops that map pixels at an unchanged size, in TensorFlow graphs: uint8 (h, w, 3) and the sample's draws."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import Any

from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.ops import (
    ColorJitter,
    Custom,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    Op,
    RandAugment,
    RandomErasing,
    Rotate,
    VerticalFlip,
)
from tpufeed.images.parameters import as_range
from tpufeed.loaders.tf.branches import rare
from tpufeed.loaders.tf.colour import brighten, contrast, desaturate, saturate, shift_hue
from tpufeed.loaders.tf.erasing import erase
from tpufeed.loaders.tf.randaugment import randaugment
from tpufeed.loaders.tf.warping import blur, rotate
from tpufeed.loaders.tf.windows import WINDOW_OPS

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

FLIPS = (VerticalFlip, HorizontalFlip)  # in the order of their axes
_HUE_STEPS = 256


def check_ops(ops: Sequence[Op]) -> None:
    """Raises OptionError where an op has no graph."""
    for op in ops:
        if isinstance(op, Custom):
            raise OptionError(
                f"{op} is a function of Python's, and direct=True a TensorFlow graph that also runs where there is no "
                "Python: leave out direct=True, or the op"
            )
        if type(op) not in (*FLIPS, *WINDOW_OPS, *PIXEL_OPS):
            raise OptionError(f"{op} has no TensorFlow graph: leave out direct=True, or the op")


def run_pixel_op(op: Op, image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """`op`, one of `PIXEL_OPS`, on an image."""
    return tf.ensure_shape(PIXEL_OPS[type(op)](op, image, draws), image.shape)


def _sometimes(image: tf.Tensor, draw: tf.Tensor, p: float, change: Callable[[], tf.Tensor]) -> tf.Tensor:
    return tf.cond(draw < p, rare(change), lambda: image)


def _color_jitter(op: ColorJitter, image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Only what can change anything takes part, in the order that all four would have."""
    spreads = [as_range(spread) for spread in (op.brightness, op.contrast, op.saturation, op.hue)]
    live = [number for number, spread in enumerate(spreads) if spread != ((0.0, 0.0) if number == 3 else (1.0, 1.0))]
    if not live:
        return image
    amounts = [low + draws[number] * (high - low) for number, (low, high) in enumerate(spreads)]
    orders = [[live.index(number) for number in order if number in live] for order in permutations(range(4))]
    order = tf.constant(orders)[tf.cast(draws[4] * len(orders), tf.int32)]
    for position in range(len(live)):
        steps = [rare(partial(_JITTER[number], image, amounts[number])) for number in live]
        image = tf.ensure_shape(tf.switch_case(order[position], steps), image.shape)
    return image


def _turn_hue(image: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
    steps = tf.cast(tf.round(turn * _HUE_STEPS), tf.int32) % _HUE_STEPS
    return tf.cond(steps == 0, lambda: image, lambda: shift_hue(image, steps))


_JITTER = (brighten, contrast, saturate, _turn_hue)


def _grayscale(op: Grayscale, image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    return _sometimes(image, draws[0], op.p, lambda: desaturate(image))


def _gaussian_blur(op: GaussianBlur, image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    low, high = op.sigma
    return _sometimes(image, draws[0], op.p, lambda: blur(image, low + draws[1] * (high - low)))


def _rotate(op: Rotate, image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    low, high = as_range(op.degrees)
    return _sometimes(image, draws[0], op.p, lambda: rotate(image, low + draws[1] * (high - low), op.fill))


def _random_erasing(op: RandomErasing, image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    return _sometimes(image, draws[0], op.p, lambda: erase(op, image, draws))


PIXEL_OPS: dict[type[Any], Callable[[Any, tf.Tensor, tf.Tensor], tf.Tensor]] = {
    ColorJitter: _color_jitter,
    GaussianBlur: _gaussian_blur,
    Grayscale: _grayscale,
    RandAugment: randaugment,
    RandomErasing: _random_erasing,
    Rotate: _rotate,
}
