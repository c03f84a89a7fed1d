"""Rewrite JPEGs without loss, by the C extension `_restart`: restart markers, and baseline for progressive."""

from tpufeed.images.header import MAX_PIXELS

try:  # by its own name: asked for a name, the package imports all ops first, and these need this file
    from tpufeed.images._restart import add_markers as _add_markers
    from tpufeed.images._restart import to_baseline as _to_baseline

    CAN_REWRITE = True
except ImportError:  # an sdist that was installed without a C compiler
    CAN_REWRITE = False


class CannotRewrite(Exception):
    """A JPEG cannot be rewritten. Nothing is wrong with it: it is stored unchanged.

    Its text is the reason in a few fixed words: reasons can be counted.
    """


def add_markers(data: bytes, mcus: int) -> bytes:
    """Return a JPEG with a restart marker after each `mcus` MCUs.

    Coefficients, quantization tables, metadata and everything after the end marker stay unchanged. Huffman tables may
    get more DC categories. Releases the GIL.

    Args:
        data: a baseline JPEG of one scan. It may have other restart markers.
        mcus: a divisor of the MCUs of a row, or a multiple of them, 1 to 65,535.

    Raises:
        CannotRewrite: `data` is another kind of JPEG, damaged, or not a JPEG.
    """
    if not 1 <= mcus <= 65535:
        raise ValueError(f"a restart interval has 1 to 65,535 MCUs, not {mcus}")
    if not CAN_REWRITE:
        raise CannotRewrite("no C extension")
    try:
        return _add_markers(data, mcus)
    except ValueError as error:
        raise CannotRewrite(str(error)) from None


def to_baseline(data: bytes) -> bytes:
    """Return a progressive JPEG, or one of several scans, as a baseline JPEG of one scan with the same coefficients.

    Its Huffman tables are optimal. Quantization tables, metadata and everything after the end marker stay unchanged.
    Takes 3 bytes of memory per pixel, and 2 more if all chroma is kept. Releases the GIL.

    Raises:
        CannotRewrite: `data` is another kind of JPEG, damaged, or not a JPEG, or its scans leave out bits.
    """
    if not CAN_REWRITE:
        raise CannotRewrite("no C extension")
    try:
        return _to_baseline(data, MAX_PIXELS)
    except ValueError as error:
        raise CannotRewrite(str(error)) from None
