"""Each policy for an odd case, both ways, by its pixels."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from tpufeed.errors import ImageError
from tpufeed.images import policy as policy_module
from tpufeed.images.decoding import decode
from tpufeed.images.header import format_of_name, read_header
from tpufeed.images.policy import Images, store_image

CASES = {
    "cmyk": ["jpeg, cmyk"],
    "alpha": ["png, rgba", "png, grey and alpha", "png, palette with transparency"],
    "deep": ["png, 16 bit"],
    "greyscale": ["jpeg, grey", "png, grey", "png, 1 bit", "png, 16 bit", "png, grey and alpha"],
    "animated": ["gif, animated"],
}


def pixels_of(image):
    return decode(image.data).astype(int)


def difference(one, other):
    return float(np.abs(np.asarray(one).astype(int) - np.asarray(other).astype(int)).mean())


def with_orientation(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_counted_and_rejected_if_the_policy_says_so(kinds, case):
    for kind, data in kinds.items():
        met = kind in CASES[case]
        assert (case in store_image(data, Images()).odd) == met, kind
        policy = Images(**{case: "reject"})
        if not met:
            assert store_image(data, policy) == store_image(data, Images())
            continue
        with pytest.raises(ImageError, match=case) as caught:
            store_image(data, policy)
        assert caught.value.reason == "unsupported"


@pytest.mark.first_cases(18)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_orientation_comes_out_as_the_upright_image(cat, encoded, orientation, image_format):
    """The photograph is stored so that, turned by its tag, it is the upright one."""
    back = {6: 8, 8: 6}.get(orientation, orientation)
    stored = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded(cat, "PNG", exif=with_orientation(back)))))
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(image_format, {})
    data = encoded(stored, image_format, exif=with_orientation(orientation), **options)
    tolerance = 4 if image_format in ("JPEG", "WEBP") else 0
    image = store_image(data, Images())
    assert image.odd == (() if orientation == 1 else ("exif",))
    assert difference(pixels_of(image), cat) <= tolerance
    for mode in ("short", "long", "fit"):
        small = store_image(data, Images(presize=40, presize_mode=mode, quality=95))
        upright = store_image(encoded(cat, "PNG"), Images(presize=40, presize_mode=mode))
        assert (small.height, small.width) == (upright.height, upright.width)
        assert difference(pixels_of(small), pixels_of(upright)) < 6
    if orientation > 1:
        assert not image.kept


@pytest.mark.parametrize("orientation", [2, 6])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_ignored_orientation_leaves_the_pixels_and_no_tag(cat, encoded, orientation, image_format):
    data = encoded(cat, image_format, exif=with_orientation(orientation))
    image = store_image(data, Images(exif="ignore"))
    assert image.odd == ("exif",)
    assert not image.kept
    assert read_header(image.data).orientation == 1
    seen = ImageOps.exif_transpose(Image.open(io.BytesIO(image.data)))
    assert seen.size == cat.size
    assert (image.height, image.width) == (99, 150)
    if image_format in ("JPEG", "WEBP"):
        assert image.format == image_format.lower()
        assert sum(one != other for one, other in zip(data, image.data, strict=True)) == 1
        assert (pixels_of(image) == decode(data)).all()
    else:
        assert difference(pixels_of(image), cat) == 0


@pytest.mark.parametrize(("policy", "level"), [("white", 255), ("black", 0)])
@pytest.mark.parametrize(("image_format", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})])
def test_alpha_lies_over_white_or_black(encoded, policy, level, image_format, options):
    pixels = np.full((20, 30, 4), (200, 40, 90, 255), np.uint8)
    pixels[:, :10, 3], pixels[:, 10:15, 3] = 0, 128
    image = store_image(encoded(Image.fromarray(pixels), image_format, **options), Images(alpha=policy, encode="png"))
    assert image.odd == ("alpha",)
    assert (pixels_of(image)[:, :10] == level).all()
    half = level + (np.array((200, 40, 90)) - level) * 128 / 255
    assert np.abs(pixels_of(image)[:, 10:15] - half).max() <= 1
    assert (pixels_of(image)[:, 15:] == (200, 40, 90)).all()


@pytest.mark.parametrize(("policy", "level"), [("white", 255), ("black", 0)])
def test_a_transparent_grey_level_of_sixteen_bits_is_the_backdrop(encoded, policy, level):
    values = np.full((9, 9), 30_000, np.uint16)
    values[3:6] = 1234
    data = encoded(Image.fromarray(values), "PNG", transparency=1234)
    image = store_image(data, Images(alpha=policy))
    assert image.odd == ("alpha", "deep", "greyscale")
    assert (pixels_of(image)[3:6] == level).all()
    assert (pixels_of(image)[:3] == round(30_000 / 257)).all()


def test_sixteen_bits_of_every_kind_are_scaled(encoded):
    ramp = np.linspace(0, 1, 64 * 64).reshape(64, 64)
    sixteen = (ramp * 65535).round().astype(np.uint16)
    colour = np.stack([sixteen, sixteen[::-1], sixteen.T], axis=2)
    expected = np.stack([ramp] * 3, axis=2) * 255
    for image_format in ("PNG", "TIFF"):
        image = store_image(encoded(Image.fromarray(sixteen), image_format), Images())
        assert (image.channels, image.odd) == (1, ("deep", "greyscale"))
        assert np.abs(pixels_of(image) - expected).max() <= 0.51
        data = cv2.imencode("." + image_format.lower(), colour[..., ::-1])[1].tobytes()
        image = store_image(data, Images())
        assert (image.channels, image.odd) == (3, ("deep",))
        assert np.abs(pixels_of(image) - colour / 257).max() <= 1
    for top in (1, 255, 65535):
        image = store_image(encoded(Image.fromarray((ramp * top).astype(np.float32)), "TIFF"), Images())
        assert image.odd == ("deep", "greyscale")
        assert np.abs(pixels_of(image) - expected).max() <= 0.51


@pytest.mark.parametrize("encode", ["keep", "jpeg", "png", "webp"])
def test_grey_stays_grey_or_becomes_three_channels(kinds, encode):
    for kind in CASES["greyscale"]:
        kept, three = (
            store_image(kinds[kind], Images(greyscale=policy, encode=encode, quality=95)) for policy in ("keep", "rgb")
        )
        assert kept.channels == (3 if encode == "webp" else 1), kind
        assert three.channels == 3
        assert not three.kept
        assert Image.open(io.BytesIO(three.data)).mode == "RGB"
        assert difference(pixels_of(kept), pixels_of(three)) < 3


def test_of_animations_and_pages_the_first_is_taken(cat, encoded):
    others = [ImageOps.invert(cat)] * 2
    for image_format in ("PNG", "GIF", "WEBP", "TIFF"):
        data = encoded(cat, image_format, save_all=True, append_images=others)
        image = store_image(data, Images())
        assert image.odd == ("animated",), image_format
        assert not image.kept
        assert difference(pixels_of(image), cat) < 8
        assert getattr(Image.open(io.BytesIO(image.data)), "n_frames", 1) == 1


def test_cmyk_is_rgb_as_pillow_converts_it(cat, encoded):
    for image_format in ("JPEG", "TIFF"):
        data = encoded(cat.convert("CMYK"), image_format)
        image = store_image(data, Images(encode="png"))
        assert image.odd == ("cmyk",)
        assert difference(pixels_of(image), Image.open(io.BytesIO(data)).convert("RGB")) == 0


def test_a_name_of_another_format_is_odd(kinds):
    assert store_image(kinds["png"], Images(), "photo.jpg").format == "png"
    for name in ("photo.jpg", "a.b/PHOTO.JPEG", "x.tif"):
        assert store_image(kinds["png"], Images(), name).odd == ("extension",)
        assert store_image(kinds["png"], Images(), name).kept
        with pytest.raises(ImageError, match="extension"):
            store_image(kinds["png"], Images(extension="reject"), name)
    for name in ("", "photo.png", "photo", "photo.txt", "a.jpg/photo", "photo.PNG"):
        assert store_image(kinds["png"], Images(extension="reject"), name).odd == ()
    assert format_of_name("..photo.jpg") == "jpeg"


def test_sizes_out_of_bounds_are_refused_before_decoding(kinds, monkeypatch):
    monkeypatch.setattr(policy_module, "decode_stored", None)
    monkeypatch.setattr(policy_module, "check_pixels", None)
    for kind, data in kinds.items():
        for options, reason in (({"max_pixels": 150 * 99 - 1}, "too_large"), ({"min_side": 100}, "too_small")):
            with pytest.raises(ImageError, match="150x99") as caught:
                store_image(data, Images(**options))
            assert caught.value.reason == reason, kind


def test_sizes_at_the_bounds_are_taken(kinds):
    policy = Images(max_pixels=150 * 99, min_side=99)
    for data in kinds.values():
        assert store_image(data, policy) == store_image(data, Images())


@pytest.mark.parametrize("place", ["decode_stored", "encode", "shrink"])
def test_no_memory_is_no_fault_of_the_image(kinds, monkeypatch, place):
    def none_left(*_):
        raise MemoryError

    monkeypatch.setattr(policy_module, place, none_left)
    with pytest.raises(MemoryError):
        store_image(kinds["jpeg"], Images(presize=20))
