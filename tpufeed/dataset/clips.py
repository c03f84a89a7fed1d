"""Clips: samples of several frames, which all go through the ops with the same random numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpufeed.errors import ImageError, RecordError
from tpufeed.images.decoding import Buffer, Pixels
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.pixel_format import PixelFormat
from tpufeed.images.protocols import Draws
from tpufeed.tfrecord.layout import split_values


class ClipPipeline(Pipeline):
    """A pipeline that runs over each frame of a clip. `pixels` is the format of clips, the others are `Pipeline`'s."""

    def __init__(self, *args: Any, pixels: PixelFormat, **options: Any) -> None:
        super().__init__(*args, pixels=pixels.frame, **options)
        self._clip = pixels

    def run_stored(
        self,
        data: memoryview,
        shape: tuple[int, ...] | None,
        draws: Sequence[Draws],
        out: Pixels | None = None,
        buffer: Buffer | None = None,
    ) -> Pixels:
        """Apply the ops to a clip as a record holds it: `data` is a list of encoded images, or the pixels of all.

        Raises:
            RecordError: it has another number of frames, or their sizes differ.
            ImageError, OpError, OptionError: as for a single image.
        """
        if shape:
            return self.run(self.pixels.of_bytes(data, shape), draws, out)
        made = list[Pixels]()
        for number, frame in enumerate(frames_of(data, self._clip)):
            try:
                image = super().run_stored(frame, None, draws, None if out is None else out[number], buffer)
            except ImageError as error:
                raise error.at(f"frame {number}") from error
            made.append(image.copy() if out is None else image)  # it may be a view of `buffer`
        if out is not None:
            return out
        if len({each.shape for each in made}) > 1:
            raise RecordError("the frames of the clip differ in size")
        return np.stack(made)

    def run(self, pixels: Pixels, draws: Sequence[Draws], out: Pixels | None = None) -> Pixels:
        """Apply the ops to a clip (frames, height, width, channels), or to one of its frames."""
        if pixels.ndim == 3:
            return super().run(pixels, draws, out)
        if out is None:
            return np.stack([super(ClipPipeline, self).run(frame, draws) for frame in pixels])
        for frame, target in zip(pixels, out, strict=True):
            super().run(frame, draws, target)
        return out


def frames_of(data: memoryview, pixels: PixelFormat) -> list[memoryview]:
    """Return the encoded frames of a clip. Raises RecordError if they are not as many as the pixel format says."""
    frames = split_values(data)
    if len(frames) != pixels.frames:
        raise RecordError(f"the clip has {len(frames)} frames, and those of the dataset have {pixels.frames}")
    return frames


def pipeline_of(pixels: PixelFormat) -> type[Pipeline]:
    """Return the class of pipelines for images, or clips, of this format."""
    return ClipPipeline if pixels.frames else Pipeline
