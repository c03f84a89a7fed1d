"""Clips: samples of several frames, which all go through the ops with the same random numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpufeed.errors import ImageError, RecordError
from tpufeed.images.decoding import Buffer, Pixels
from tpufeed.images.mending import mend
from tpufeed.images.pipeline import Pipeline, run_views
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
        return run_clip_views([self], self._clip, data, [draws], [out], buffer)[0]

    def run(self, pixels: Pixels, draws: Sequence[Draws], out: Pixels | None = None) -> Pixels:
        """Apply the ops to a clip (frames, height, width, channels), or to one of its frames."""
        if pixels.ndim == 3:
            return super().run(pixels, draws, out)
        if out is None:
            return np.stack([super(ClipPipeline, self).run(frame, draws) for frame in pixels])
        for frame, target in zip(pixels, out, strict=True):
            super().run(frame, draws, target)
        return out


def run_clip_views(
    pipelines: Sequence[Pipeline],
    pixels: PixelFormat,
    data: memoryview,
    draws: Sequence[Sequence[Draws]],
    outs: Sequence[Pixels | None],
    buffer: Buffer | None = None,
) -> list[Pixels]:
    """Run each pipeline over one encoded clip of the format `pixels`, as `run_views`. Each frame is decoded once.

    Raises:
        RecordError, ImageError, OpError, OptionError: see `ClipPipeline.run_stored`.
    """
    made = [list[Pixels]() for _ in pipelines]
    for number, frame in enumerate(frames_of(data, pixels)):
        own = [None if out is None else out[number] for out in outs]
        try:
            try:
                images = run_views(pipelines, frame, draws, own, buffer)
            except ImageError as error:
                images = run_views(pipelines, memoryview(mend(frame, error)), draws, own, buffer)
        except ImageError as error:
            raise error.at(f"frame {number}") from error
        for frames, image, out in zip(made, images, outs, strict=True):
            frames.append(image.copy() if out is None else image)  # it may be a view of `buffer`
    if any(len({frame.shape for frame in frames}) > 1 for frames in made):
        raise RecordError("the frames of the clip differ in size")
    return [np.stack(frames) if out is None else out for frames, out in zip(made, outs, strict=True)]


def frames_of(data: memoryview, pixels: PixelFormat) -> list[memoryview]:
    """Return the encoded frames of a clip. Raises RecordError if they are not as many as the pixel format says."""
    frames = split_values(data)
    if len(frames) != pixels.frames:
        raise RecordError(f"the clip has {len(frames)} frames, and those of the dataset have {pixels.frames}")
    return frames


def pipeline_of(pixels: PixelFormat) -> type[Pipeline]:
    """Return the class of pipelines for images, or clips, of this format."""
    return ClipPipeline if pixels.frames else Pipeline
