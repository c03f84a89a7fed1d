"""Ops in a row, from encoded bytes or pixels into a batch's memory."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.errors import OptionError
from tpufeed.images.decoding import Buffer, Pixels, decode, image_size
from tpufeed.images.draws import uniforms
from tpufeed.images.ops import Draws, Op, PixelOp, Window, WindowOp, is_op
from tpufeed.images.resizing import reduction, resize

DrawnBatch: TypeAlias = list[list[Draws]]  # [op][sample]


class Pipeline:
    """Runs ops over images; `fast` as in `decode`. Immutable and safe to share between threads."""

    def __init__(self, ops: Sequence[Op], seed: int, fast: bool = False) -> None:
        for op in ops:
            if not is_op(op):
                raise OptionError(f"ops are tpufeed.images.RandomResizedCrop(size=224) and its like, not {op!r}")
        self.ops = tuple(ops)
        self.seed = seed
        self._fast = fast
        # Asked once: isinstance of a Protocol takes 13 us on Python 3.11, all of them with the GIL held.
        self._windows = [op if isinstance(op, WindowOp) else None for op in ops]
        self._pixels = [op if isinstance(op, PixelOp) else None for op in ops]
        self._first_window = self._windows[0] if self._windows else None

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """`(height, width)` of what comes out for images of `size`; None where it differs from image to image."""
        for op in self.ops:
            size = op.output_size(size)
        return size

    def draw(self, round_: int, samples: npt.NDArray[np.int64]) -> DrawnBatch:
        """The random numbers of a whole batch: `round_` is the epoch, or the variant in a cache."""
        return [
            uniforms(self.seed, round_, samples, position, op.draws).tolist() if op.draws else [()] * len(samples)
            for position, op in enumerate(self.ops)
        ]

    def run_encoded(
        self, data: memoryview, draws: Sequence[Draws], out: Pixels | None = None, buffer: Buffer | None = None
    ) -> Pixels:
        """Decodes `data` and applies the ops.

        Args:
            data: a JPEG or another encoded image.
            draws: one entry an op.
            out: uint8 C-contiguous memory of the result's shape; it is what is returned.
            buffer: memory to decode into, see `decode`.

        Raises:
            ImageError: `data` does not decode.
        """
        return self.run_variants(data, [draws], [out], buffer)[0]

    def run_variants(
        self,
        data: memoryview,
        draws: Sequence[Sequence[Draws]],
        outs: Sequence[Pixels | None],
        buffer: Buffer | None = None,
    ) -> list[Pixels]:
        """As `run_encoded`, once for each of `draws`; all share one decoding, as small as they allow."""
        first = self._first_window
        if first is None:
            pixels = decode(data, 1, buffer, self._fast)
            return [self._run(pixels, None, drawn, out) for drawn, out in zip(draws, outs, strict=True)]
        size = image_size(data)
        windows = [first.window(size[0], size[1], drawn[0]) for drawn in draws]
        reduce = min(reduction(w.height, w.width, w.out_height, w.out_width) for w in windows)
        pixels = decode(data, reduce, buffer, self._fast)
        return [
            self._run(pixels, _scaled(window, size, pixels.shape), drawn, out)
            for window, drawn, out in zip(windows, draws, outs, strict=True)
        ]

    def run(self, pixels: Pixels, draws: Sequence[Draws], out: Pixels | None = None) -> Pixels:
        """Applies the ops to uint8 RGB `pixels`, which stay as they are."""
        first = self._first_window
        window = None if first is None else first.window(pixels.shape[0], pixels.shape[1], draws[0])
        return self._run(pixels, window, draws, out)

    def _run(self, pixels: Pixels, window: Window | None, draws: Sequence[Draws], out: Pixels | None) -> Pixels:
        """`window` is the first op's, where that is a window op.

        What comes behind the last change of size happens in `out` itself: memory in between would be fresh each time,
        and its page faults cost more than the op.
        """
        start = 0 if window is None else 1
        live = [
            (window_op, pixel_op, drawn)
            for window_op, pixel_op, drawn in zip(
                self._windows[start:], self._pixels[start:], draws[start:], strict=True
            )
            if pixel_op is None or not pixel_op.skips(drawn)
        ]
        sized = max((number for number, (window_op, _, _) in enumerate(live) if window_op is not None), default=-1)
        if window is not None:
            pixels = _cut(pixels, window, out if sized < 0 else None)
        elif not live:
            return _cut(pixels, Window(0, 0, *pixels.shape[:2], *pixels.shape[:2]), out)
        for number, (window_op, pixel_op, drawn) in enumerate(live):
            memory = out if number >= sized else None
            if window_op is not None:
                pixels = _cut(pixels, window_op.window(pixels.shape[0], pixels.shape[1], drawn), memory)
            elif pixel_op is not None:
                pixels = pixel_op.apply(pixels, drawn, memory)
        return pixels


def _cut(pixels: Pixels, window: Window, out: Pixels | None) -> Pixels:
    view = pixels[window.top : window.top + window.height, window.left : window.left + window.width]
    return resize(view, window.out_height, window.out_width, out)


def _scaled(window: Window, size: tuple[int, int], decoded: tuple[int, ...]) -> Window:
    """The window of the image at full `size` in pixels of the image as it was decoded, rounded to whole pixels."""
    if decoded[:2] == size:
        return window
    down, across = decoded[0] / size[0], decoded[1] / size[1]
    height = min(decoded[0], max(1, round(window.height * down)))
    width = min(decoded[1], max(1, round(window.width * across)))
    top, left = min(round(window.top * down), decoded[0] - height), min(round(window.left * across), decoded[1] - width)
    return Window(top, left, height, width, window.out_height, window.out_width)
