"""Frames of animated files: which are taken, their pixels, and files that end early."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.clips import FRAMES, write_animation
from tests.frameworks import lazy
from tpufeed.errors import ImageError
from tpufeed.images.decoding import decode
from tpufeed.images.frames import choose_frames, read_frames
from tpufeed.images.header import read_header
from tpufeed.images.policy import Images, store_image

tifffile, pydicom = lazy("tifffile"), lazy("pydicom")


@pytest.mark.parametrize(
    ("count", "frames", "stride", "chosen"),
    [
        (9, 4, None, [0, 2, 5, 8]),
        (4, 4, None, [0, 1, 2, 3]),
        (100, 2, None, [0, 99]),
        (9, 4, 2, [0, 2, 4, 6]),
        (7, 4, 2, [0, 2, 4, 6]),
        (9, 4, 1, [0, 1, 2, 3]),
    ],
)
def test_frames_are_chosen(count, frames, stride, chosen):
    assert choose_frames(count, frames, stride) == chosen


@pytest.mark.parametrize(("count", "stride", "needed"), [(3, None, 4), (1, None, 4), (6, 2, 7)])
def test_too_few_frames(count, stride, needed):
    with pytest.raises(ImageError, match=f"{count} frames?, and --frames 4.* takes {needed}") as caught:
        choose_frames(count, 4, stride)
    assert caught.value.reason == "too_few_frames"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x.gif", {}),
        ("x.png", {}),
        ("x.webp", {"lossless": True}),
        ("x.tif", {}),
        ("lzw.tif", {"compression": "tiff_lzw"}),
    ],
)
def test_frames_have_the_pixels_that_pillow_shows(name, options, tmp_path):
    data = write_animation(tmp_path / name, 1, **options).read_bytes()
    found = read_frames(data, 4, None)
    for number, file in zip([0, 2, 5, 8], found, strict=True):
        with Image.open(io.BytesIO(data)) as image:
            image.seek(number)
            assert np.array_equal(decode(file), np.asarray(image.convert("RGB")))


def test_frames_of_sixteen_bits_keep_them(tmp_path):
    pages = [Image.fromarray(np.full((5, 6), 1000 * n, np.uint16)) for n in range(1, 4)]
    pages[0].save(tmp_path / "x.tif", save_all=True, append_images=pages[1:])
    found = read_frames((tmp_path / "x.tif").read_bytes(), 3, None)
    assert [np.asarray(Image.open(io.BytesIO(file))).max() for file in found] == [1000, 2000, 3000]


@pytest.mark.parametrize(("colour", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_an_animated_png_of_deep_colours_is_no_clip_that_keeps_them(colour, channels):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + bytes(2 * channels * 8)) * 9)
    control = [struct.pack(">5I2H2B", number, 8, 9, 0, 0, 1, 10, 0, 0) for number in (0, 1)]
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", 8, 9, 16, colour, 0, 0, 0))
    data += chunk(b"acTL", struct.pack(">2I", 2, 0)) + chunk(b"fcTL", control[0]) + chunk(b"IDAT", rows)
    data += chunk(b"fcTL", control[1]) + chunk(b"fdAT", struct.pack(">I", 2) + rows) + chunk(b"IEND", b"")
    assert len(read_frames(data, 2, None)) == 2
    with pytest.raises(ImageError, match="16-bit colours"):
        read_frames(data, 2, None, keeps=True)


def rows_of(frames):
    for kept in frames:
        assert (kept.header.odd, kept.header.orientation) == (("exif",), 6)
        yield kept.load()


@pytest.mark.uses("tifffile")
@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 3), (5, 9, 7)])
@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_kept_pages_have_the_values_that_tifffile_reads(shape, dtype):
    pages, file = np.random.default_rng(0).uniform(0, 65000, (4, *shape)).astype(dtype), io.BytesIO()
    order = "contig" if len(shape) > 2 else None
    turned = [(274, "H", 1, 6, False)]
    tifffile.imwrite(
        file, pages, photometric="minisblack", planarconfig=order, extratags=turned, metadata=None, rowsperstrip=2
    )
    found = list(rows_of(read_frames(file.getvalue(), 2, 2, keeps=True)))
    assert np.array_equal(found, pages[[0, 2]].reshape(2, *shape[:2], -1))
    with pytest.raises(ImageError, match="4 frames"):
        read_frames(file.getvalue(), 5, None, keeps=True)
    fewer = file.getvalue()[: tifffile.TiffFile(io.BytesIO(file.getvalue())).pages[3].offset]
    with pytest.raises(ImageError, match="ends after page 3") as caught:
        read_frames(fewer, 2, None, keeps=True)
    assert caught.value.reason == "truncated"
    mixed = io.BytesIO()
    with tifffile.TiffWriter(mixed) as writer:
        for page in (pages[0], np.zeros((5, 6), np.uint8)):
            writer.write(page, photometric="minisblack", planarconfig=order if page.ndim > 2 else None, metadata=None)
    with pytest.raises(ImageError, match="page 2 is 8-bit"):
        read_frames(mixed.getvalue(), 2, None, keeps=True)


def dicom():
    scan, file = pydicom.Dataset(), io.BytesIO()
    scan.file_meta = pydicom.dataset.FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    scan.SOPClassUID, scan.SOPInstanceUID = pydicom.uid.SecondaryCaptureImageStorage, pydicom.uid.generate_uid()
    scan.set_pixel_data(np.zeros((9, 8), np.uint16), "MONOCHROME2", 12)
    scan.save_as(file, enforce_file_format=True)
    return file.getvalue()


def jpeg2000():
    file = io.BytesIO()
    Image.new("I;16", (8, 9)).save(file, "JPEG2000")
    return file.getvalue()


def deep_png():
    return cv2.imencode(".png", np.zeros((9, 8, 3), np.uint16))[1].tobytes()


@pytest.mark.uses("pydicom", "imagecodecs")
@pytest.mark.parametrize("make", [dicom, jpeg2000, deep_png])
def test_a_single_image_has_too_few_frames(make):
    with pytest.raises(ImageError, match="1 frame, and --frames 4") as caught:
        read_frames(make(), 4, None, keeps=True)
    assert caught.value.reason == "too_few_frames"


def test_the_image_that_is_shown_instead_of_an_animation_is_no_frame(tmp_path):
    data = write_animation(tmp_path / "x.png", 1, count=4, default_image=True).read_bytes()
    assert len(read_frames(data, 3, None)) == 3
    with pytest.raises(ImageError, match="3 frames"):
        read_frames(data, 4, None)


def test_a_gif_that_ends_early_is_refused_wherever_it_ends(tmp_path):
    data = write_animation(tmp_path / "x.gif", 1, count=5).read_bytes()
    assert len(read_frames(data[:-1], 5, None)) == 5  # all but the mark of the end
    for size in range(900, len(data) - 2, 97):
        with pytest.raises(ImageError):
            read_frames(data[:size], 2, 1)


@pytest.mark.parametrize("name", ["x.png", "x.webp", "x.tif"])
def test_other_files_that_end_early_are_refused(name, tmp_path):
    data = write_animation(tmp_path / name, 1).read_bytes()
    for share in (0.3, 0.6, 0.95):
        with pytest.raises(ImageError):
            read_frames(data[: int(share * len(data))], FRAMES, None)


def test_an_animation_that_would_take_hours_is_refused(tmp_path, monkeypatch):
    data = write_animation(tmp_path / "x.gif", 1).read_bytes()
    monkeypatch.setattr("tpufeed.images.frames._MOST_COMPOSED", 1000)
    with pytest.raises(ImageError, match="8 frames of 56x40"):
        read_frames(data, 4, None)


@pytest.mark.parametrize("name", ["x.png", "x.webp"])
def test_frames_keep_the_orientation_of_their_file(name, tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    data = write_animation(tmp_path / name, 1, exif=exif).read_bytes()
    assert read_header(data).orientation == 6
    assert {read_header(file).orientation for file in read_frames(data, 4, None)} == {6}
    stored = [store_image(file, Images()) for file in read_frames(data, 4, None)]
    assert {(image.height, image.width) for image in stored} == {(56, 40)}
