"""Run a sequence of ops, from encoded bytes or pixels into a batch's memory."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.errors import ImageError, OpError, OptionError
from tpufeed.images.coefficients import Coefficients, decode_part, unpack_into
from tpufeed.images.decoding import Buffer, Pixels, decode, image_size, turn
from tpufeed.images.geometry import Geometry
from tpufeed.images.header import DCT_START, JPEG_START, read_jpeg_header
from tpufeed.images.markers import Box, find_segments
from tpufeed.images.mending import mend, orientation_of
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.protocols import Draws, Fill, MovingOp, Op, PixelOp, Window, WindowOp, keep
from tpufeed.images.rng import uniforms
from tpufeed.images.tensors import NPY_START, npy_part
from tpufeed.images.windows import (
    cut_padded,
    cut_resized,
    is_too_long,
    reduction,
    refuse_too_long,
    resize,
    resize_reduced,
)

DrawnBatch: TypeAlias = list[list[Draws]]  # [op][sample]
_Step: TypeAlias = tuple[WindowOp | None, PixelOp | None, Fill]  # one of the two ops, and the colour beyond the image


class Pipeline:
    """A sequence of ops that runs over images. Immutable and safe to share between threads.

    Args:
        ops: run in this order.
        seed: seeds their random numbers.
        fast: as in `decode`.
        upright: turn encoded images by their EXIF orientation before ops see them.
        whole: decode no JPEG at a fraction of its size: on a device, ops see the pixels of the whole image.
        coefficients: unpack those of DCT images, which a device decodes. Without ops.
        pixels: the pixel format of images, before and after the ops.
        shared: for an op that draws as one of another pipeline, the seed of that one, and the op's place in it.
    """

    def __init__(  # noqa: PLR0913  # how images are decoded, and what draws
        self,
        ops: Sequence[Op],
        seed: int,
        fast: bool = False,
        upright: bool = False,
        *,
        whole: bool = False,
        coefficients: Coefficients | None = None,
        pixels: PixelFormat = RGB8,
        shared: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        for op in ops:
            if not isinstance(op, WindowOp | PixelOp) or isinstance(op, type):
                raise OptionError(
                    "ops are tpufeed.images.RandomResizedCrop(size=224) and the like, or for a function of your own "
                    f"Custom('module:function'), not {op!r}"
                )
            if pixels != RGB8 and not getattr(op, "any_pixels", False):
                raise OptionError(
                    f"{op} is for 8-bit RGB, and the images are {pixels}: leave it out, or write "
                    "Custom('module:function') for them"
                )
        self.ops = tuple(ops)
        self.seed = seed
        self.pixels, self._dtype = pixels, np.dtype(pixels.dtype)
        self._keys = [(shared or {}).get(position, (seed, position)) for position in range(len(self.ops))]
        self.fast = fast
        self.upright = upright
        self.whole = whole
        self.coefficients = coefficients
        self._head = None if coefficients is None else coefficients.head
        # Checked once: `isinstance` with a Protocol takes 13 us on Python 3.11, with the GIL held.
        self._steps: list[_Step] = [
            (op, None, op.fill) if isinstance(op, WindowOp) else (None, op if isinstance(op, PixelOp) else None, 0)
            for op in ops
        ]
        self._moving = [op if isinstance(op, MovingOp) else None for op in ops]
        self._first_window = self._steps[0][0] if self._steps else None

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return `(height, width)` of the results for images of `size`, or None if it differs from image to image."""
        for op in self.ops:
            size = op.output_size(size)
        return size

    def draw(self, round_: int, samples: npt.NDArray[np.int64]) -> DrawnBatch:
        """Draw the random numbers of a whole batch: `round_` is the epoch, or the variant in a cache."""
        return [
            uniforms(seed, round_, samples, position, op.draws).tolist() if op.draws else [()] * len(samples)
            for op, (seed, position) in zip(self.ops, self._keys, strict=True)
        ]

    def geometry(self, height: int, width: int, draws: Sequence[Draws]) -> Geometry:
        """Return where the pixels of the result lie in an image of this size. No pixels are needed.

        Args:
            height: height of the image as ops see it. `width` likewise.
            draws: one entry per op.

        Raises:
            ImageError: the result would be too large, as for `run`.
        """
        found = Geometry.identity(height, width)
        for (window_op, _, _), moving_op, drawn in zip(self._steps, self._moving, draws, strict=True):
            if window_op is not None:
                found = found.window(window_op.window(*found.size, drawn))
            elif moving_op is not None:
                for step in moving_op.maps(*found.size, drawn):
                    found = found.affine(step)
        if is_too_long(found.size, found.source):
            raise refuse_too_long(found.size, found.source)
        return found

    def keeps(self, data: bytes | memoryview) -> bool:
        """Return whether no op changes a pixel of an encoded image, and no orientation does, whatever is drawn."""
        height, width = image_size(data)
        whole = Window(0, 0, height, width, height, width)
        return not (self.upright and orientation_of(data) > 1) and all(
            op is not None and not op.draws and op.window(height, width, ()) == whole for op, _, _ in self._steps
        )

    def run_stored(
        self,
        data: memoryview,
        shape: tuple[int, ...] | None,
        draws: Sequence[Draws],
        out: Pixels | None = None,
        buffer: Buffer | None = None,
    ) -> Pixels:
        """Apply the ops to an image as a record holds it. A JPEG that fails is mended if no pixel changes, see `mend`.

        Args:
            data: an encoded image, or its pixels in C order.
            shape: shape of the pixels, or None or () if `data` is encoded.
            draws: one entry per op.
            out: C-contiguous memory of the result's type and shape, int8 for coefficients. It is returned.
            buffer: memory to decode into, see `decode`.

        Raises:
            ImageError: `data` does not decode, or is not of `out`'s size and no op changes the size.
            OpError, OptionError: a `Custom` op failed.
        """
        if self._head is not None and out is not None:
            unpack_into(data, self._head, out)
            return out
        if shape:
            return self.run(self.pixels.of_bytes(data, shape), draws, out)
        try:
            return run_views([self], data, [draws], [out], buffer)[0]
        except ImageError as error:
            return run_views([self], memoryview(mend(data, error)), [draws], [out], buffer)[0]

    def run(self, pixels: Pixels, draws: Sequence[Draws], out: Pixels | None = None) -> Pixels:
        """Apply the ops to a copy of `pixels`. Without `out`, the result may be a view of them.

        Raises:
            ImageError, OpError, OptionError: see `run_stored`.
        """
        first = self._first_window
        window = None if first is None else first.window(pixels.shape[0], pixels.shape[1], draws[0])
        return self._run(pixels, window, draws, out)

    def checked(self, pixels: Pixels) -> Pixels:
        """Return decoded pixels if they are of the pixel format. Raises ImageError: OpenCV would write elsewhere."""
        if pixels.dtype != self._dtype or pixels.shape[2] != self.pixels.channels:
            found = f"{pixels.dtype} of {pixels.shape[2]} channels"
            raise ImageError("other_pixels", f"the image is {found}, and those of the dataset are {self.pixels}")
        return pixels

    def _run(
        self,
        pixels: Pixels,
        window: Window | None,
        draws: Sequence[Draws],
        out: Pixels | None,
        reduced: int = 1,
        origin: tuple[int, int] = (0, 0),
    ) -> Pixels:
        """Run the ops. `window` is the first op's, if any, in pixels of the image at `reduced` times the size.

        `pixels` begin at the row and column `origin` of that image.

        After the last change of size, ops work in `out` itself: other memory would be fresh each time, and its page
        faults would cost more than the op.
        """
        start = 0 if window is None else 1
        # Leave out ops that skip this image: the last op that changes the size must be known beforehand.
        live = [
            (step, drawn)
            for step, drawn in zip(self._steps[start:], draws[start:], strict=True)
            if step[1] is None or not step[1].skips(drawn)
        ]
        sized = max((number for number, (step, _) in enumerate(live) if step[0] is not None), default=-1)
        size: tuple[int, int] | None = None  # to which pixels still have to be resized, see `_cut`
        if window is not None:
            memory = out if sized < 0 else None
            if reduced > 1:
                pixels = resize_reduced(pixels, reduced, window, memory, origin)
            else:
                window = window._replace(top=window.top - origin[0], left=window.left - origin[1])
                pixels, size = _cut(pixels, window, self._steps[0][2], memory, None)
        elif sized < 0:
            if out is not None and out.shape != pixels.shape:  # OpenCV would write elsewhere, without an error
                found, expected = (f"{shape[1]}x{shape[0]}" for shape in (pixels.shape, out.shape))
                raise ImageError(
                    "unsupported", f"the image has {found} pixels, not the promised {expected}, and no op resizes it"
                )
            if not live:
                return keep(pixels, out)
        for number, ((window_op, pixel_op, fill), drawn) in enumerate(live):
            memory = out if number >= sized else None
            if window_op is not None:
                height, width = size or (pixels.shape[0], pixels.shape[1])
                window = window_op.window(height, width, drawn)
                pixels, size = _cut(pixels, window, fill, memory, size)
            elif pixel_op is not None:
                if size is not None:
                    break
                pixels = pixel_op.apply(pixels, drawn, memory)
        if size is not None:  # the image would be too large, and is needed whole
            raise refuse_too_long(size, (pixels.shape[0], pixels.shape[1]))
        return pixels


def run_views(
    pipelines: Sequence[Pipeline],
    data: memoryview,
    draws: Sequence[Sequence[Draws]],
    outs: Sequence[Pixels | None],
    buffer: Buffer | None = None,
) -> list[Pixels]:
    """Run each pipeline over one encoded image, without mending. All share one decoding, as small as they allow.

    The pipelines are equal in `fast`, `upright` and `whole`.
    """
    one = pipelines[0]
    orientation = orientation_of(data) if one.upright else 1
    firsts = [first for pipeline in pipelines if (first := pipeline._first_window) is not None]
    if len(firsts) < len(pipelines):
        pixels = one.checked(turn(decode(data, 1, buffer, one.fast), orientation))
        return [pipeline.run(pixels, drawn, out) for pipeline, drawn, out in zip(pipelines, draws, outs, strict=True)]
    jpeg = read_jpeg_header(data) if data[:3] == JPEG_START else None
    height, width = image_size(data) if jpeg is None else (jpeg.height, jpeg.width)
    if orientation >= 5:
        height, width = width, height
    size = height, width
    windows = [first.window(height, width, drawn[0]) for first, drawn in zip(firsts, draws, strict=True)]
    # A part of these is decoded faster than all at half of the size.
    is_dct, is_npy = data[:4] == DCT_START, data[:6] == NPY_START
    reductions = (reduction(w.height, w.width, w.out_height, w.out_width) for w in windows)
    reduce = 1 if one.whole or is_dct or is_npy else min(reductions)
    while orientation > 1 and (size[0] % reduce or size[1] % reduce):
        reduce //= 2  # a last pixel that covers less than the others must not become the first
    origin, cut = (0, 0), None
    box = Box(
        min(window.top for window in windows),
        min(window.left for window in windows),
        max(window.top + window.height for window in windows),
        max(window.left + window.width for window in windows),
    )
    if jpeg is not None and jpeg.interval and orientation == 1 and (segments := find_segments(data, jpeg)) is not None:
        # Interpolation looks at neighbours: the decoder's between colour samples, `resize_reduced` between pixels.
        down, across = segments.mcu if not one.fast else (reduce, reduce) if reduce > 1 else (0, 0)
        cut = segments.cut(Box(box.top - down, box.left - across, box.bottom + down, box.right + across))
    if cut is not None and jpeg is not None:
        data, origin, size = memoryview(cut.data), (cut.top, cut.left), (cut.height, cut.width)
        jpeg = jpeg._replace(height=cut.height, width=cut.width)
    if is_dct:
        pixels, origin = decode_part(data, box, one.fast, buffer)
    elif is_npy:
        pixels, origin = npy_part(data, box)
    else:
        pixels = turn(decode(data, reduce, buffer, one.fast, jpeg), orientation)
    one.checked(pixels)
    reduced = 1 if pixels.shape[:2] == size else reduce
    return [
        pipeline._run(pixels, window, drawn, out, reduced, origin)
        for pipeline, window, drawn, out in zip(pipelines, windows, draws, outs, strict=True)
    ]


def _cut(
    pixels: Pixels, window: Window, fill: Fill, out: Pixels | None, size: tuple[int, int] | None
) -> tuple[Pixels, tuple[int, int] | None]:
    """Cut a window. A thin image that would become too large is left for the next op to cut.

    Args:
        pixels: the image.
        window: the window, in pixels of the image once it has `size`.
        fill: the colour beyond the image.
        out: memory of the result, or None.
        size: size that the op before has left to be given to the image.

    Returns:
        The result and None, or `pixels` and the size that they still have to be given.
    """
    height, width = pixels.shape[:2]
    box, wanted = window[:4], (window.out_height, window.out_width)
    if size is not None and box != (0, 0, *size):
        return resize(cut_resized(pixels, size, box, fill), *wanted, out), None
    if size is not None:
        box = 0, 0, height, width
    if box == (0, 0, height, width) and is_too_long(wanted, (height, width)):
        return pixels, wanted
    top, left, tall, wide = box
    if top < 0 or left < 0 or top + tall > height or left + wide > width:
        as_it_is = (tall, wide) == wanted
        view = cut_padded(pixels, box, fill, out if as_it_is else None)
        return view if as_it_is else resize(view, *wanted, out), None
    return resize(pixels[top : top + tall, left : left + wide], *wanted, out), None


def check_deterministic(pipeline: Pipeline, pixels: Pixels, draws: Sequence[Draws]) -> None:
    """Run each op twice, on copies of the pixels from the op before it, and compare.

    Args:
        pipeline: the pipeline whose ops are checked.
        pixels: an image of any size, not changed.
        draws: one entry per op.

    Raises:
        OpError: names the first op that gives other pixels the second time, or an op failed.
        OptionError: a function of the user's cannot be imported.
    """
    for number, (op, drawn) in enumerate(zip(pipeline.ops, draws, strict=True), 1):
        alone = Pipeline((op,), pipeline.seed, pixels=pipeline.pixels)
        try:
            first, second = (alone.run(pixels.copy(), [drawn]) for _ in range(2))
        except ImageError:  # a thin image, see `_cut`: alone, the op would need memory for the whole result
            return
        if not np.array_equal(first, second):
            difference = (
                f"it gave {second.shape} after {first.shape}"
                if first.shape != second.shape
                else f"{int((first != second).sum())} of {first.size} values differed"
            )
            raise OpError(
                f"{op}, number {number} of {len(pipeline.ops)} ops, is not deterministic: {difference} "
                "when it ran again on the same image with the same random numbers. Take all of them from the Generator "
                "that the function is given, none from random, np.random or torch, and keep nothing between calls"
            )
        pixels = first
