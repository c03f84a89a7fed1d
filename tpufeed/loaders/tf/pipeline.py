"""Ops in a row as a TensorFlow graph: what `tpufeed.images.pipeline` does, with nothing of Python in the path."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.images.ops import Op
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import WindowOp
from tpufeed.loaders.tf.decoding import decode, decode_window, run_window
from tpufeed.loaders.tf.draws import uniforms
from tpufeed.loaders.tf.ops import FLIPS, check_ops, run_pixel_op

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error


class GraphPipeline:
    """Builds the graph of decoding and ops. Holds no tensors: any graph may be built with it, any number of times.

    Args:
        ops: of `tpufeed.images`.
        seed: of the draws.
        tensor_shape: of raw pixels, (height, width, 3); None where images are encoded.
        stored_size: (height, width) where all images have one size; by default that of `tensor_shape`.
        only_jpeg: all images are JPEGs.

    Raises:
        OptionError: an op has no graph, or neither the ops nor the dataset fix a size.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        seed: int,
        tensor_shape: tuple[int, int, int] | None = None,
        stored_size: tuple[int, int] | None = None,
        only_jpeg: bool = False,
    ) -> None:
        pipeline = Pipeline(ops, seed)
        check_ops(pipeline.ops)
        self.ops = pipeline.ops
        self.seed = seed
        self._only_jpeg = only_jpeg
        self._stored_size = tensor_shape[:2] if stored_size is None and tensor_shape is not None else stored_size
        size = pipeline.output_size(self._stored_size)
        if size is None:
            raise OptionError(
                "images may differ in size and none of the ops fixes one; pass for training "
                "ops=[RandomResizedCrop(size=224), HorizontalFlip()], for evaluation ops=[Resize(256), CenterCrop(224)]"
            )
        self.output_shape = (*size, 3)

    def draw(self, epoch: tf.Tensor, samples: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The draws of samples, int64 (n,), in `epoch`, an int64 scalar: for each op that draws, float64 (n, d)."""
        return tuple(
            uniforms(self.seed, epoch, samples, position, op.draws) for position, op in enumerate(self.ops) if op.draws
        )

    def decode(self, encoded: tf.Tensor, draws: Sequence[tf.Tensor]) -> tf.Tensor:
        """An encoded image, a string scalar, after the ops: uint8 of the static shape `output_shape`.

        `draws` are those of this sample: float64 (d,) for each op that draws. An image that does not decode is
        TensorFlow's InvalidArgumentError, and so is one whose size is not the promised one.
        """
        drawn = self._by_op(draws)
        if self.ops and isinstance(self.ops[0], WindowOp):
            image = _sized(self.ops[0], decode_window(encoded, self.ops[0], drawn[0], self._only_jpeg))
            return self._finish(image, drawn, 1)
        return self._finish(decode(encoded, self._only_jpeg), drawn, 0)

    def run(self, pixels: tf.Tensor, draws: Sequence[tf.Tensor]) -> tf.Tensor:
        """As `decode`, for uint8 (height, width, 3)."""
        return self._finish(pixels, self._by_op(draws), 0)

    def _by_op(self, draws: Sequence[tf.Tensor]) -> list[Any]:
        rest = iter(draws)
        return [next(rest) if op.draws else None for op in self.ops]

    def _finish(self, image: tf.Tensor, draws: list[Any], start: int) -> tf.Tensor:
        flips: dict[type, tf.Tensor] = {}
        for op, drawn in zip(self.ops[start:], draws[start:], strict=True):
            if isinstance(op, FLIPS):
                flip = drawn[0] < op.p
                flips[type(op)] = flip ^ flips[type(op)] if type(op) in flips else flip
                continue
            image, flips = _flip(image, flips), {}
            if isinstance(op, WindowOp):
                image = _sized(op, run_window(image, op, drawn))
            else:
                image = run_pixel_op(op, image, drawn)
        return self._check_size(_flip(image, flips))

    def _check_size(self, image: tf.Tensor) -> tf.Tensor:
        if not image.shape.is_fully_defined():
            height, width, _ = self.output_shape
            size = tf.shape(image)
            found = tf.strings.format("the image has {}x{} pixels", (size[1], size[0]))
            promised = f"where {width}x{height} were promised, and no op resizes"
            check = tf.debugging.Assert(tf.reduce_all(size == self.output_shape), [found, promised])
            with tf.control_dependencies([check]):
                image = tf.identity(image)
        return tf.ensure_shape(image, self.output_shape)


def _sized(op: WindowOp, image: tf.Tensor) -> tf.Tensor:
    """`image`, which came of `op`, with the shape that is known without it."""
    size = op.output_size(None)
    image.set_shape((None, None, 3) if size is None else (*size, 3))
    return image


def _flip(image: tf.Tensor, flips: dict[type, tf.Tensor]) -> tf.Tensor:
    """A branch each: the op that takes its axes as a tensor costs 0.08 ms an image, also where it turns nothing."""
    for axis, flip in enumerate(FLIPS):
        if flip in flips:
            image = tf.cond(flips[flip], partial(tf.reverse, image, [axis]), partial(tf.identity, image))
    return image
