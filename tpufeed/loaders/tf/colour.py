"""`tpufeed.images.tones` in TensorFlow graphs: uint8 (h, w, 3) to the same; factors are float64 scalars."""

import numpy as np

from tpufeed.errors import MissingExtraError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

_LUMA = (0.299, 0.587, 0.114)
_GREY_WEIGHTS, _GREY_BITS = (9798, 19235, 3735), 15  # OpenCV's, to the bit
_HUE_BITS = 12


def brighten(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blend with black."""
    return look_up(image, _levels() * factor)


def contrast(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blend with the mean level of the grey image, rounded."""
    # summed in float64: float32 loses the last digits of sums of photographs
    mean = tf.floor(tf.reduce_mean(tf.cast(_grey(image), tf.float64)) + 0.5)
    return look_up(image, mean + (_levels() - mean) * factor)


def saturate(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blend with the grey image."""
    matrix = factor * tf.eye(3, dtype=tf.float64) + (1 - factor) * tf.constant(_LUMA, tf.float64)
    return rounded(_mixed(image, tf.cast(tf.transpose(matrix), tf.float32)))


def shift_hue(image: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
    """Turn the colour wheel by steps of 360 / 256 degrees, an int32 scalar."""
    largest = tf.reduce_max(image, 2, keepdims=True)
    spread = largest - tf.reduce_min(image, 2, keepdims=True)
    hue = (_hue(image, largest, spread) + steps) % 256
    missing = tf.cast(tf.gather(tf.constant(_hue_shares()), hue), tf.float32) * tf.cast(spread, tf.float32)
    return largest - tf.cast(tf.round(missing / 255), tf.uint8)


def desaturate(image: tf.Tensor) -> tf.Tensor:
    """The grey image in all three channels."""
    return tf.tile(tf.cast(_grey(image), tf.uint8), [1, 1, 3])


def sharpen(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Blend with the smoothed image; the outermost pixels stay."""
    levels = tf.cast(image, tf.float32)
    kernel = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32)[:, :, None, None]
    sums = tf.nn.depthwise_conv2d(levels[None], tf.tile(kernel, [1, 1, 3, 1]), [1, 1, 1, 1], "SAME")[0]
    weight = tf.cast(factor, tf.float32)
    blended = rounded(levels * weight + tf.round(sums / 13) * (1 - weight))
    height, width = tf.unstack(tf.shape(image)[:2])
    inner = [tf.one_hot([0, side - 1], side, dtype=tf.int32) for side in (height, width)]
    rows, columns = (tf.reduce_sum(ends, 0) == 0 for ends in inner)
    return tf.where((rows[:, None] & columns)[:, :, None], blended, image)


def posterize(image: tf.Tensor, bits: int) -> tf.Tensor:
    """Only the upper `bits` of each level."""
    return tf.bitwise.bitwise_and(image, tf.constant(0xFF << (8 - bits) & 0xFF, tf.uint8))


def solarize(image: tf.Tensor, threshold: float) -> tf.Tensor:
    """Levels of `threshold` and above are inverted."""
    inverted = tf.constant(np.arange(256) >= threshold)
    return look_up(image, tf.where(inverted, 255 - _levels(), _levels()))


def autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Each channel stretched to 0 to 255; one of a single level stays."""
    low, high = (tf.cast(reduce(image, [0, 1]), tf.float64) for reduce in (tf.reduce_min, tf.reduce_max))
    scale = 255 / tf.maximum(high - low, 1.0)
    levels = _levels()[:, None]
    return look_up(image, tf.where(high > low, tf.math.floor(tf.maximum(levels * scale - low * scale, 0.0)), levels))


def equalize(image: tf.Tensor) -> tf.Tensor:
    """Each channel with its levels spread evenly."""
    places = tf.cast(image, tf.int32) + tf.constant([0, 256, 512])
    counts = tf.reshape(tf.math.bincount(tf.reshape(places, [-1]), minlength=768, maxlength=768), [3, 256])
    highest = tf.cast(tf.reduce_max(image, [0, 1]), tf.int32)
    step = (tf.reduce_sum(counts, 1) - tf.gather(counts, highest, batch_dims=1))[:, None] // 255
    before = tf.cumsum(counts, 1, exclusive=True)
    spread = tf.cast((step // 2 + before) // tf.maximum(step, 1), tf.float64)
    return look_up(image, tf.transpose(tf.where(step > 0, spread, _levels())))


def look_up(image: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """`table`: 256 numbers, or (256, 3) for one column a channel; rounded and cut off at 0 and 255."""
    levels = rounded(table)
    places = tf.cast(image, tf.int32)
    if table.shape.rank == 2:
        places = places * 3 + tf.constant([0, 1, 2])
    return tf.gather(tf.reshape(levels, [-1]), places)


def rounded(values: tf.Tensor) -> tf.Tensor:
    """Levels of numbers of any size."""
    return tf.cast(tf.clip_by_value(tf.round(values), 0, 255), tf.uint8)


def _levels() -> tf.Tensor:
    return tf.range(256, dtype=tf.float64)


def _grey(image: tf.Tensor) -> tf.Tensor:
    """float32 (h, w, 1) of whole numbers: none on the way is too large for float32 to hold exactly."""
    sums = _mixed(image, tf.constant(_GREY_WEIGHTS, tf.float32)[:, None])
    return tf.floor((sums + 2.0 ** (_GREY_BITS - 1)) * 2.0**-_GREY_BITS)


def _mixed(image: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """Each pixel's three levels times a matrix float32 (3, n)."""
    mixed = tf.matmul(tf.reshape(tf.cast(image, tf.float32), [-1, 3]), matrix)
    return tf.reshape(mixed, tf.concat([tf.shape(image)[:2], [matrix.shape[1]]], 0))


def _hue(image: tf.Tensor, largest: tf.Tensor, spread: tf.Tensor) -> tf.Tensor:
    """int32 (h, w), 0 to 255: OpenCV's COLOR_RGB2HSV_FULL to the bit (modules/imgproc/src/color_hsv.simd.hpp)."""
    red, green, blue = tf.unstack(tf.cast(image, tf.int32), axis=2)
    widest, difference = tf.cast(largest[..., 0], tf.int32), tf.cast(spread[..., 0], tf.int32)
    otherwise = tf.where(green == widest, blue - red + 2 * difference, red - green + 4 * difference)
    sixths = tf.where(red == widest, green - blue, otherwise)
    scales = tf.constant([0, *(round((256 << _HUE_BITS) / (6 * level)) for level in range(1, 256))], tf.int32)
    hue = tf.bitwise.right_shift(sixths * tf.gather(scales, difference) + (1 << _HUE_BITS >> 1), _HUE_BITS)
    return tf.where(hue < 0, hue + 256, hue)


def _hue_shares() -> np.ndarray:
    """uint8 (256, 3): of each hue how much of the spread red, green and blue miss, in 1/255."""
    places = [(offset + np.arange(256) * (6 / 256)) % 6 for offset in (5, 3, 1)]
    shares = [np.rint(255 * np.minimum(place, 4 - place).clip(0, 1)) for place in places]
    return np.stack(shares, 1).astype(np.uint8)
