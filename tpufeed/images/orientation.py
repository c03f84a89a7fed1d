"""The eight orientations of EXIF."""

import cv2
import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """Turn stored `pixels` (height, width, channels) as they are to be seen; 1 to 8 as in Exif 2.32, table 6."""
    if orientation == 1:
        return pixels
    height, width, channels = pixels.shape
    result = pixels
    if orientation >= 5:
        result, height, width = cv2.transpose(result), width, height  # type: ignore[assignment]
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    if down or across:
        result = cv2.flip(result, -1 if down and across else 0 if down else 1)  # type: ignore[assignment]
    return result.reshape(height, width, channels)
