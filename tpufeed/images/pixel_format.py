"""The pixel format of images: the type of a value, the channels of a pixel, the frames of a clip. Told here once."""

import math
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

PixelType = Literal["uint8", "uint16", "float32"]
PIXEL_TYPES = ("uint8", "uint16", "float32")
MOST_CHANNELS = 64
MOST_FRAMES = 1024


class PixelFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Type and channels of all images of a column, and the number of frames if each is a clip.

    Attributes:
        dtype: type of the values. Stored ones are little-endian.
        channels: values of a pixel.
        frames: images of a clip. Not there for single images.
    """

    dtype: PixelType = "uint8"
    channels: Annotated[int, msgspec.Meta(ge=1, le=MOST_CHANNELS)] = 3
    frames: Annotated[int, msgspec.Meta(ge=2, le=MOST_FRAMES)] | msgspec.UnsetType = msgspec.UNSET

    @property
    def frame(self) -> "PixelFormat":
        """The pixel format of one frame of a clip."""
        return msgspec.structs.replace(self, frames=msgspec.UNSET)

    @property
    def most(self) -> float | None:
        """The greatest level. None for floats, whose levels are no whole numbers."""
        return None if self.dtype == "float32" else float(np.iinfo(self.dtype).max)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of an image, or a clip, of this (height, width)."""
        return (*((self.frames,) if self.frames else ()), *size, self.channels)

    def bytes_of(self, shape: tuple[int, ...] | None) -> int:
        """Return the bytes of pixels of this shape, 0 without one."""
        return math.prod(shape or (0,)) * np.dtype(self.dtype).itemsize

    def of_bytes(self, data: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return stored pixels as an array: a view, or a copy if they begin at an odd place."""
        found = np.frombuffer(data, np.dtype(self.dtype).newbyteorder("<")).reshape(shape)
        return np.require(found, self.dtype, "A")

    @property
    def of_images(self) -> str:
        """Name the format in a message about images. Grey images of 8 bits are taken for `RGB8`, too."""
        return "8-bit grey or RGB" if self == RGB8 else str(self)

    def __str__(self) -> str:
        clip = f", clips of {self.frames} frames" if self.frames else ""
        return f"{self.dtype} of {self.channels} channel{'s' * (self.channels > 1)}{clip}"


RGB8 = PixelFormat()
