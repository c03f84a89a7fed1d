"""DICOM files as images that are kept: values are rescaled, low ones are dark, and no window is applied.

The type of the values follows from the header alone, so that all images of one machine have the same.
"""

import importlib
import io
import struct
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tpufeed.errors import ImageError, MissingExtraError
from tpufeed.images.decoding import Pixels
from tpufeed.images.header import BOXES, CODESTREAM, ImageHeader
from tpufeed.images.jpeg2000 import find_codestream, read_size

WINDOW = "window, not applied"  # the odd case of a file with a window for people
PADDED = "padding value, kept"  # the odd case of a file that names a value of pixels without data
INVERTED = "MONOCHROME1, inverted"  # the odd case of a file whose low values are bright
_MOST = {8: 255, 16: 65535}  # the greatest value by bits
_RLE, _OF_JPEG = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4."  # transfer syntaxes
_CODECS = {  # of imagecodecs, by the end of the transfer syntax
    **dict.fromkeys(("50", "51", "57", "70"), "jpeg8"),
    **dict.fromkeys(("80", "81"), "jpegls"),
    **dict.fromkeys(("90", "91", "201", "202", "203"), "jpeg2k"),
}
_FRAMES = frozenset((*range(0xC0, 0xD0), 0xF7)) - {0xC4, 0xC8, 0xCC}  # second bytes of markers of frames, also JPEG-LS
_KINDS = ("MONOCHROME1", "MONOCHROME2", "RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


def read_dicom(data: bytes) -> tuple[ImageHeader, str, Callable[[], Pixels]]:
    """Read the header of a DICOM file.

    Values are `stored * RescaleSlope + RescaleIntercept`. They are unsigned (uint8 if stored in 8 bits, else uint16) if
    by BitsStored none can be negative, above 65,535 or a fraction, and float32 otherwise, like the Hounsfield units of
    a CT. In MONOCHROME1 low values are bright: they are inverted within the range that BitsStored gives.

    Returns:
        The header, the type of the values, and what decodes them to (height, width, 1 or 3), maybe of a wider type.

    Raises:
        ImageError: it is damaged, or not one image of plain values.
        MissingExtraError: pydicom or a decoder is not installed.
    """
    try:
        import pydicom
    except ImportError as error:
        raise MissingExtraError("pydicom", "dicom") from error
    try:
        with warnings.catch_warnings(action="ignore"):  # pydicom prints what it overlooks, once per file
            file: Any = pydicom.dcmread(io.BytesIO(data))
        kind, syntax = str(file.get("PhotometricInterpretation", "")), file.file_meta.TransferSyntaxUID
        refused = _refuse(file, kind)
        if not refused:
            bits, is_signed = int(file.BitsStored), bool(file.PixelRepresentation)
            shape = int(file.Rows), int(file.Columns), int(file.SamplesPerPixel)
            slope, shift = float(file.get("RescaleSlope") or 1), float(file.get("RescaleIntercept") or 0)
            is_coded = syntax.is_compressed and syntax != _RLE
            codec = _CODECS.get(syntax.removeprefix(_OF_JPEG)) if is_coded else ""
    except Exception as error:  # it raises all kinds of errors
        raise ImageError("unreadable", f"pydicom does not read the file: {error}") from error
    if refused or codec is None:
        raise ImageError("unsupported", f"a DICOM {refused or f'in {syntax.name}, which is not decoded'}")
    decode = None
    if codec:
        try:
            decode = getattr(importlib.import_module("imagecodecs"), f"{codec}_decode")
        except ImportError as error:
            raise MissingExtraError(f"imagecodecs, for {syntax.name} in a DICOM,", "dicom") from error
    least = -(1 << bits - 1) if is_signed else 0
    low, high = sorted(value * slope + shift for value in (least, least + (1 << bits) - 1))
    is_unsigned = slope.is_integer() and shift.is_integer() and low >= 0 and high <= _MOST[16]
    stored_bits = 8 if file.BitsAllocated == 8 and high <= _MOST[8] else 16

    def load() -> Pixels:
        try:
            with warnings.catch_warnings(action="ignore"):
                values: Pixels = file.pixel_array if decode is None else decode(_frame_of(file.PixelData, shape))
            if values.shape != (shape if shape[2] > 1 else shape[:2]):
                raise ValueError(f"its pixels have the shape {values.shape}, and its header says {shape}")
        except MemoryError:
            raise
        except Exception as error:
            reason = "truncated" if "less than expected" in str(error) else "unreadable"
            raise ImageError(reason, f"the {syntax.name} of the DICOM does not decode: {error}") from error
        # Other bits may have an overlay, or the sign.
        values = values.reshape(shape).astype(np.int32) & (1 << bits) - 1
        values = (values ^ -least) + least if is_signed else values
        if (slope, shift) != (1, 0) or kind == "MONOCHROME1":
            values = values * slope + shift
            values = low + high - values if kind == "MONOCHROME1" else values
        return values

    met = {INVERTED: kind == "MONOCHROME1", WINDOW: "WindowCenter" in file, PADDED: "PixelPaddingValue" in file}
    odd = tuple(case for case, is_met in met.items() if is_met)
    header = ImageHeader("dicom", shape[1], shape[0], shape[2], False, odd=odd)
    return header, f"uint{stored_bits}" if is_unsigned else "float32", load


def _frame_of(data: bytes, shape: tuple[int, ...]) -> bytes:
    """Return the codestream of the only frame. Raises if it has another size: a decoder would allocate all of that."""
    from pydicom.encaps import get_frame

    frame = get_frame(data, 0, number_of_frames=1)
    if frame.startswith((BOXES, CODESTREAM)):
        frame = frame[find_codestream(frame) :]
        size = read_size(frame, 0)
    else:
        at = 2
        while frame[at + 1] not in _FRAMES:
            at += 2 + int.from_bytes(frame[at + 2 : at + 4], "big")
        size = struct.unpack_from(">2H", frame, at + 5)
    if size != shape[:2]:
        raise ValueError(f"its codestream has {size[1]}x{size[0]} pixels, and its header says {shape[1]}x{shape[0]}")
    return frame


def _refuse(file: Any, kind: str) -> str:
    """Return why a DICOM is no image of plain values, or empty text."""
    frames = int(file.get("NumberOfFrames") or 1)
    if "PixelData" not in file:
        return f"without pixels, of the modality {file.get('Modality', 'unknown')}"
    if frames > 1 or "SharedFunctionalGroupsSequence" in file:
        return f"of several frames ({frames}). Write each frame as a file"
    if kind not in _KINDS:
        return f"in {kind or 'no known colours'}. {', '.join(_KINDS[:4])} are read"
    stored, most = file.BitsStored, 16 if kind in _KINDS[:2] else 8
    if file.BitsAllocated not in (8, most) or not 1 <= stored <= file.BitsAllocated:
        return f"of {stored} in {file.BitsAllocated} bits a value. Up to 8 in 8 and {most} in {most} are read"
    if (high := int(file.get("HighBit") or stored - 1)) != stored - 1:
        return f"with the highest of {stored} bits at {high}. Expected {stored - 1}: save it with low bits in use"
    return "with a table of values (ModalityLUTSequence)" if "ModalityLUTSequence" in file else ""
