"""DICOM files that are kept: their values and types, what is inverted, what is refused, and decoders."""

import io
import sys

import numpy as np
import pytest

from tests.frameworks import lazy
from tpufeed.errors import ImageError, MissingExtraError
from tpufeed.images import tensors
from tpufeed.images.kept import read_kept
from tpufeed.images.pixel_format import PixelFormat
from tpufeed.images.policy import Images, store_image

pytestmark = pytest.mark.uses("pydicom")
pydicom, uid, imagecodecs = lazy("pydicom"), lazy("pydicom.uid"), lazy("imagecodecs")
STORED = np.random.default_rng(0).integers(0, 4096, (20, 24)).astype(np.uint16)
KEEP = Images(pixels="keep")


def dicom(array=STORED, kind="MONOCHROME2", bits=12, **tags):
    scan = pydicom.Dataset()
    scan.file_meta = pydicom.dataset.FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    scan.SOPClassUID, scan.SOPInstanceUID = uid.SecondaryCaptureImageStorage, uid.generate_uid()
    scan.set_pixel_data(array, kind, bits)
    for name, value in tags.items():
        setattr(scan, name, value)
    file = io.BytesIO()
    scan.save_as(file, enforce_file_format=True)
    return file.getvalue()


def coded(codec, syntax, array=STORED, **options):
    """A file with a codestream of imagecodecs."""
    from pydicom.encaps import encapsulate

    made = getattr(imagecodecs, f"{codec}_encode")(array, **options)
    kind = "RGB" if array.ndim == 3 else "MONOCHROME2"
    scan = pydicom.dcmread(io.BytesIO(dicom(array, kind, 12 if array.dtype.itemsize > 1 else 8)))
    scan.file_meta.TransferSyntaxUID = getattr(uid, syntax)
    scan.PixelData = encapsulate([made])
    scan["PixelData"].VR = "OB"
    file = io.BytesIO()
    scan.save_as(file)
    return file.getvalue()


@pytest.mark.filterwarnings("error")
def test_what_pydicom_overlooks_is_not_printed():
    scan = pydicom.dcmread(io.BytesIO(dicom(SpecificCharacterSet="ISO_IR 100")))
    scan.PixelData += bytes(100)
    file = io.BytesIO()
    scan.save_as(file)
    assert np.array_equal(read_kept(file.getvalue()).load()[..., 0], STORED)


def test_a_padding_value_is_counted():
    kept = read_kept(dicom(PixelPaddingValue=0, WindowCenter=5, WindowWidth=9))
    assert kept.header.odd == ("window, not applied", "padding value, kept")


SIGNED = STORED.astype(np.int16) - 2048
BYTES = (STORED >> 4).astype(np.uint8)
WHOLE = STORED.astype(int)
# What the file has, its values, and their type by the rule of `read_dicom`.
FILES = {
    "12 bits": ({}, STORED, "uint16"),
    "8 bits": ({"array": BYTES, "bits": 8}, BYTES, "uint8"),
    "MONOCHROME1": ({"kind": "MONOCHROME1"}, 4095 - STORED, "uint16"),
    "whole factor": ({"RescaleSlope": 2, "RescaleIntercept": 10}, 2 * WHOLE + 10, "uint16"),
    "8 bits become more": ({"array": BYTES, "bits": 8, "RescaleSlope": 2}, 2 * BYTES.astype(int), "uint16"),
    "Hounsfield units": ({"RescaleSlope": 1, "RescaleIntercept": -1024}, WHOLE - 1024, "float32"),
    "fractions": ({"RescaleSlope": 0.5, "RescaleIntercept": 0}, STORED / 2, "float32"),
    "too large": ({"RescaleSlope": 20, "RescaleIntercept": 0}, STORED * 20.0, "float32"),
    "signed": ({"array": SIGNED}, SIGNED, "float32"),
    "signed, shifted": ({"array": SIGNED, "RescaleIntercept": 2048}, STORED, "uint16"),
    "MONOCHROME1, shifted": ({"kind": "MONOCHROME1", "RescaleIntercept": 100}, 4295 - (STORED + 100), "uint16"),
    "bits of an overlay": ({"kind": "MONOCHROME1", "BitsStored": 8, "HighBit": 7}, 255 - (STORED & 255), "uint16"),
    "blank tags": ({"RescaleSlope": None, "RescaleIntercept": None}, STORED, "uint16"),
}


@pytest.mark.parametrize("name", FILES)
def test_values_and_their_type(name):
    given, values, dtype = FILES[name]
    image = store_image(dicom(**given), KEEP, "a.dcm", PixelFormat(dtype, 1))
    found = tensors.npy_view(image.data)[..., 0]
    assert (found.dtype, image.levels) == (np.dtype(dtype), (values.min(), values.max()))
    assert np.array_equal(found, values)
    assert image.odd == (("MONOCHROME1, inverted",) if "kind" in given else ())


def test_a_window_is_said_and_not_applied():
    image = store_image(dicom(WindowCenter=40, WindowWidth=400), KEEP, "", PixelFormat("uint16", 1))
    assert image.odd == ("window, not applied",)
    assert np.array_equal(tensors.npy_view(image.data)[..., 0], STORED)


def test_colours_are_8_bit_rgb():
    array = np.dstack([BYTES, BYTES.T.reshape(20, 24), BYTES[::-1]])
    image = store_image(dicom(array, "RGB", 8), KEEP)
    assert image.format == "png"
    assert np.array_equal(read_kept(dicom(array, "RGB", 8)).load(), array)


def without(name):
    scan, file = pydicom.dcmread(io.BytesIO(dicom())), io.BytesIO()
    delattr(scan, name)
    scan.save_as(file)
    return file.getvalue()


LOSSLESS = {"lossless": True, "bitspersample": 12}
CODED = {
    "lossless JPEG": ("jpeg8", "JPEGLosslessSV1", STORED, LOSSLESS),
    "JPEG-LS": ("jpegls", "JPEGLSLossless", STORED, {}),
    "JPEG 2000": ("jpeg2k", "JPEG2000Lossless", STORED, {"codecformat": "j2k", "level": 0, "reversible": True}),
    "JPEG 2000 in boxes": ("jpeg2k", "JPEG2000", STORED, {"codecformat": "jp2", "level": 0, "reversible": True}),
    "signed JPEG-LS": ("jpegls", "JPEGLSLossless", SIGNED, {}),
    "signed JPEG 2000": ("jpeg2k", "JPEG2000Lossless", SIGNED, {"codecformat": "j2k", "level": 0, "reversible": True}),
    "colours": ("jpeg8", "JPEGLosslessSV1", np.dstack([BYTES, BYTES // 2, BYTES[::-1]]), {"lossless": True}),
}


@pytest.mark.parametrize("name", CODED)
def test_compressed_files(name):
    codec, syntax, array, options = CODED[name]
    given = (array & 4095).astype(np.uint16) if name == "signed JPEG-LS" else array
    data = coded(codec, syntax, given, **options)
    if name == "signed JPEG-LS":
        data = with_tags(data, PixelRepresentation=1)
    assert np.array_equal(np.squeeze(read_kept(data).load()), array)


def test_lossy_jpegs_are_near():
    flat = np.add.outer(np.arange(20), np.arange(24)).astype(np.uint16) * 80
    for array, syntax in ((flat, "JPEGExtended12Bit"), ((flat >> 4).astype(np.uint8), "JPEGBaseline8Bit")):
        data = coded("jpeg8", syntax, array, bitspersample=8 * array.dtype.itemsize - 4 * (array.dtype.itemsize > 1))
        assert np.abs(read_kept(data).load()[..., 0].astype(int) - array).max() < 40


def test_rle():
    scan, file = pydicom.dcmread(io.BytesIO(dicom())), io.BytesIO()
    scan.compress(uid.RLELossless)
    scan.save_as(file)
    assert np.array_equal(read_kept(file.getvalue()).load()[..., 0], STORED)


def test_a_package_that_is_missing_is_named(monkeypatch):
    data = coded("jpegls", "JPEGLSLossless")
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingExtraError, match=r"imagecodecs, for JPEG-LS.*\[dicom\]"):
        read_kept(data)
    assert read_kept(dicom()) is not None
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingExtraError, match=r"pydicom.*\[dicom\]"):
        read_kept(data)


def with_tags(data, **tags):
    """The same file with other tags. None removes one."""
    scan, file = pydicom.dcmread(io.BytesIO(data)), io.BytesIO()
    for name, value in tags.items():
        if value is None:
            delattr(scan, name)
        else:
            setattr(scan, name, value)
    scan.save_as(file)
    return file.getvalue()


REFUSED = {
    "frames": (lambda: dicom(np.stack([STORED, STORED])), "unsupported", "several frames (2)"),
    "no pixels": (lambda: with_tags(dicom(), PixelData=None), "unsupported", "without pixels"),
    "a palette": (lambda: dicom(PhotometricInterpretation="PALETTE COLOR"), "unsupported", "PALETTE COLOR"),
    "32 bits": (lambda: dicom(BitsAllocated=32), "unsupported", "12 in 32 bits"),
    "more bits than there are": (lambda: dicom(BitsStored=99), "unsupported", "99 in 16 bits"),
    "high bits": (lambda: dicom(HighBit=15), "unsupported", "12 bits at 15"),
    "a table of values": (lambda: dicom(ModalityLUTSequence=[pydicom.Dataset()]), "unsupported", "ModalityLUT"),
    "cut": (lambda: dicom()[:-40], "truncated", "less than expected"),
    "cut in its header": (lambda: dicom()[:300], "unsupported", "without pixels"),
    "a video": (lambda: coded("jpegls", "MPEG2MPML"), "unsupported", "MPEG2"),
    "another size": (lambda: with_tags(coded("jpegls", "JPEGLSLossless"), Rows=21), "unreadable", "24x20"),
    "another size in JPEG 2000": (
        lambda: with_tags(coded("jpeg2k", "JPEG2000", codecformat="j2k"), Columns=23),
        "unreadable",
        "24x20",
    ),
    "a damaged codestream": (
        lambda: coded("jpeg8", "JPEGLosslessSV1", **LOSSLESS).replace(b"\xff\xda", b"\xff\xdb"),
        "unreadable",
        "JPEG Lossless",
    ),
    "no size": (lambda: with_tags(dicom(), Rows=None), "unreadable", "Rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, reason, said = REFUSED[name]
    with pytest.raises(ImageError) as caught:
        store_image(make(), KEEP, "", PixelFormat("uint16", 1))
    assert (caught.value.reason, said in str(caught.value)) == (reason, True), caught.value


def test_without_keep_the_way_is_said():
    with pytest.raises(ImageError, match="--pixels keep"):
        store_image(dicom(), Images())
