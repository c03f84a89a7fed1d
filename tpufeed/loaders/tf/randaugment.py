"""RandAugment in TensorFlow graphs: the transforms of `tpufeed.images.randaugment` in its order."""

from collections.abc import Callable
from functools import partial

from tpufeed.errors import MissingExtraError
from tpufeed.images.ops import RandAugment
from tpufeed.loaders.tf.branches import rare
from tpufeed.loaders.tf.colour import autocontrast, brighten, contrast, equalize, posterize, saturate, sharpen, solarize
from tpufeed.loaders.tf.warping import rotate, shear_x, shear_y, shift

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error


def randaugment(op: RandAugment, image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """One transform after another, each drawn."""
    shape = image.shape
    for number in range(0, op.draws, 2):
        signed = tf.where(draws[number + 1] < 0.5, op.magnitude, -op.magnitude)
        transforms = _transforms(op, image, signed)
        drawn = tf.cast(draws[number] * len(transforms), tf.int32)
        image = tf.ensure_shape(tf.switch_case(drawn, [_identity(image), *map(rare, transforms[1:])]), shape)
    return image


def _identity(image: tf.Tensor) -> Callable[[], tf.Tensor]:
    return lambda: image


def _transforms(op: RandAugment, image: tf.Tensor, signed: tf.Tensor) -> list[Callable[[], tf.Tensor]]:
    fill, amount = op.fill, tf.cast(signed, tf.float64)
    shear, factor = 0.3 * amount / 30, 1 + 0.9 * amount / 30
    side_shares = tf.sign(signed) * (150 * tf.shape(image)[:2] * op.magnitude // (331 * 30))
    return [
        _identity(image),
        partial(shear_x, image, shear, fill),
        partial(shear_y, image, shear, fill),
        partial(shift, image, side_shares * [0, 1], fill),
        partial(shift, image, side_shares * [1, 0], fill),
        partial(rotate, image, amount, fill),
        partial(brighten, image, factor),
        partial(saturate, image, factor),
        partial(contrast, image, factor),
        partial(sharpen, image, factor),
        partial(posterize, image, 8 - round(op.magnitude / 7.5)),
        partial(solarize, image, 255 - 8.5 * op.magnitude),
        partial(autocontrast, image),
        partial(equalize, image),
    ]
