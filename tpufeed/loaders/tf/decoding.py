"""Encoded images to uint8 RGB in TensorFlow graphs, by TensorFlow's own decoders.

As `tpufeed.images.decoding` they give the stored pixels and do not look at EXIF.
"""

from functools import partial

from tpufeed.errors import MissingExtraError
from tpufeed.images.ops import RandomCrop
from tpufeed.images.protocols import WindowOp
from tpufeed.loaders.tf.branches import rare
from tpufeed.loaders.tf.resizing import (
    average,
    clip_window,
    cut,
    cut_padded,
    interpolate,
    interpolate_within,
    pad,
)
from tpufeed.loaders.tf.windows import find_window

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

_JPEG = {"channels": 3, "dct_method": "INTEGER_FAST", "fancy_upscaling": False}
_REDUCTIONS = (2, 4, 8)


def decode(encoded: tf.Tensor, only_jpeg: bool = False) -> tf.Tensor:
    """The whole image, uint8 (h, w, 3). To find out whether it is a JPEG costs 0.03 ms."""
    whole = partial(tf.raw_ops.DecodeJpeg, contents=encoded, **_JPEG)
    if only_jpeg:
        return whole()
    return tf.cond(_is_jpeg(encoded), whole, rare(partial(_decode_other, encoded)))


def decode_window(encoded: tf.Tensor, op: WindowOp, draws: tf.Tensor | None, only_jpeg: bool = False) -> tf.Tensor:
    """The image after its first op; of a JPEG no more is decoded than the window, and that as small as will do."""
    if only_jpeg:
        return _decode_jpeg_window(encoded, op, draws)
    other = rare(lambda: run_window(_decode_other(encoded), op, draws))
    return tf.cond(_is_jpeg(encoded), lambda: _decode_jpeg_window(encoded, op, draws), other)


def run_window(image: tf.Tensor, op: WindowOp, draws: tf.Tensor | None) -> tf.Tensor:
    """`op` on decoded pixels."""
    window, out = find_window(op, tf.shape(image)[:2], draws)
    return cut_padded(image, window, op.fill) if isinstance(op, RandomCrop) else cut(image, window, out)


def _is_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    return _starts_with(encoded, b"\xff\xd8\xff")


def _starts_with(encoded: tf.Tensor, magic: bytes) -> tf.Tensor:
    return tf.strings.substr(encoded, 0, len(magic)) == magic


def _decode_jpeg_window(encoded: tf.Tensor, op: WindowOp, draws: tf.Tensor | None) -> tf.Tensor:
    size = tf.image.extract_jpeg_shape(encoded)[:2]
    window, out = find_window(op, size, draws)
    if isinstance(op, RandomCrop):
        within, paddings = clip_window(window, size)
        beside = rare(lambda: tf.zeros(tf.concat([within[2:], [3]], 0), tf.uint8))  # of no pixels
        image = tf.cond(tf.reduce_any(within[2:] == 0), beside, lambda: _cut_jpeg(encoded, within, 1))
        return pad(image, paddings, op.fill)
    return tf.cond(
        tf.reduce_all(window[2:] >= 2 * out),
        rare(lambda: _decode_reduced(encoded, size, window, out)),
        lambda: interpolate(_cut_jpeg(encoded, window, 1), out),
    )


def _decode_reduced(encoded: tf.Tensor, size: tf.Tensor, window: tf.Tensor, out: tf.Tensor) -> tf.Tensor:
    """The window by as large a reduction as leaves no less than `out`."""
    more = tf.reduce_all(window[2:] >= tf.constant(_REDUCTIONS[1:])[:, None] * out, 1)
    branches = [rare(partial(_reduced_by, factor, encoded, size, window, out)) for factor in _REDUCTIONS]
    return tf.switch_case(tf.reduce_sum(tf.cast(more, tf.int32)), branches)


def _reduced_by(factor: int, encoded: tf.Tensor, size: tf.Tensor, window: tf.Tensor, out: tf.Tensor) -> tf.Tensor:
    """As `tpufeed.images.resizing.resize_reduced`: a window seldom begins at a whole reduced pixel."""
    start, sides = tf.cast(window[:2], tf.float64), tf.cast(window[2:], tf.float64)

    def between_pixels() -> tf.Tensor:
        half = 0.5 * sides / tf.cast(out, tf.float64)
        first, last = (start + half) / factor - 0.5, (start + sides - half) / factor - 0.5
        low = tf.cast(first, tf.int32)
        high = tf.minimum(tf.cast(last, tf.int32) + 2, -(-size // factor))
        origin = tf.cast(low, tf.float64)
        image = _cut_jpeg(encoded, tf.concat([low, high - low], 0), factor)
        return interpolate_within(image, first - origin, last - origin, out)

    def over_areas() -> tf.Tensor:
        low, high = (tf.cast(tf.round(place / factor), tf.int32) for place in (start, start + sides))
        return average(_cut_jpeg(encoded, tf.concat([low, high - low], 0), factor), out)

    if factor != _REDUCTIONS[-1]:  # what is twice as large yet is reduced by more
        return between_pixels()
    return tf.cond(tf.reduce_all(window[2:] >= 2 * factor * out), over_areas, between_pixels)


def _cut_jpeg(encoded: tf.Tensor, window: tf.Tensor, factor: int) -> tf.Tensor:
    """`window` in pixels of the reduced image, whose sides are those of the whole over `factor`, rounded up."""
    return tf.raw_ops.DecodeAndCropJpeg(contents=encoded, crop_window=window, ratio=factor, **_JPEG)


def _decode_other(encoded: tf.Tensor) -> tf.Tensor:
    """PNG and WebP with alpha over white; GIF, of which the first frame, and BMP."""
    branches = [
        lambda: _over_white(tf.raw_ops.DecodePng(contents=encoded, channels=0)),
        lambda: _over_white(tf.raw_ops.DecodeWebP(contents=encoded, channels=0)[0]),
        lambda: tf.raw_ops.DecodeImage(contents=encoded, channels=3, expand_animations=False),
    ]
    kind = tf.where(_starts_with(encoded, b"\x89PNG"), 0, tf.where(_starts_with(encoded, b"RIFF"), 1, 2))
    return tf.ensure_shape(tf.switch_case(kind, branches), (None, None, 3))


def _over_white(image: tf.Tensor) -> tf.Tensor:
    """Grey or colour with or without alpha. Asked for four channels, TensorFlow fills up a 1-bit PNG's with alpha 1."""
    channels = tf.shape(image)[2]
    colour = tf.gather(image, tf.where(channels <= 2, tf.constant([0, 0, 0]), tf.constant([0, 1, 2])), axis=2)

    def blended() -> tf.Tensor:
        alpha = tf.cast(image[..., -1:], tf.int32)
        return tf.cast((tf.cast(colour, tf.int32) * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)

    return tf.cond(channels % 2 == 0, blended, lambda: colour)
