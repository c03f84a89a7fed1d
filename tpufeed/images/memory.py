"""Memory of ops: how they keep to the contract of `out`."""

import numpy as np

from tpufeed.images.decoding import Pixels


def keep(image: Pixels, out: Pixels | None) -> Pixels:
    """The image unchanged: copied to `out`, or itself where there is none."""
    if out is None or out is image:
        return image
    np.copyto(out, image)
    return out


def copied(image: Pixels, out: Pixels | None) -> Pixels:
    """The image unchanged in memory that may be written to: `out`, or its own where there is none."""
    return image.copy(order="C") if out is None else keep(image, out)


def apart(image: Pixels, out: Pixels | None) -> Pixels:
    """The image, or a copy where writing to `out` could change it: for ops that read pixels after writing others."""
    return image.copy() if out is not None and np.may_share_memory(image, out) else image
