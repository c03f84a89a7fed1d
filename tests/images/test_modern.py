"""AVIF, HEIC and JPEG XL: read as other formats, refused as they are, turned once; and without their plug-ins."""

import base64
import io
import json
import subprocess
import sys
import tarfile
from functools import partial

import numpy as np
import pytest
from PIL import Image, ImageOps

import tpufeed
from tests.frameworks import lazy, load
from tests.images.conftest import exif_of
from tpufeed.errors import ImageError
from tpufeed.images import CenterCrop
from tpufeed.images import policy as policy_module
from tpufeed.images.decoding import decode, image_size
from tpufeed.images.header import format_of_name, read_header, sniff
from tpufeed.images.mending import orientation_of
from tpufeed.images.policy import Images, store_image

pytest.importorskip("PIL._avif")
pytestmark = pytest.mark.uses("pillow_heif", "pillow_jxl")

pillow_heif = lazy("pillow_heif")

# A JPEG of 32x16 pixels, red, green, blue and white by its quarters, of EXIF orientation 6, which libjxl packed: all of
# it, and the codestream alone. Bits 11 to 13 after the codestream's signature are its orientation.
PACKED = base64.b85decode(
    "0000CN?1%F4GM<}0000KW^{RQYItlQ00000YItlQ0000IYItmL00000{|dt`5EB3Z08?sWa%8}8+W>+f2rUBwKq3I4MuAiU0000wh5r))0002M|4N"
    "ty0002hLgfF800000;D3Q10H`bg3kZPV01!$>Nk#wx0RR92009610{{R3Ct`AMVnujqW*Z#<00ePkJA#-k(bO$jEQ&PX-(e)HD1Z$B0002NYItmLf"
    "B*mi;9CF?0Js7OaR_h-asK}f000;O2mk>900000fPf{5q=>t@9s&TA$y(eCP$-m=6ciM0z+F@%BN<~bB-0ojr+=(N5RKgU9GK_E6}@qR0@9UbDEl"
    "D|al)NHV57tUP5?0(vH<|(vZ{W-3kf&86uP2{sQqM?LUJopX|xJU^b2fwWOTr5=)ZaLfDjI{X#S!qf+mhGiaJ&NP3<;lpb^xm^V`-QUZJR_2mk;80"
    "05vQ0R"
)
CODESTREAM = base64.b85decode(
    "{|dt`5EI~A01yDU0tj&ka0qe!{|*2E7yt+W0RR91004l1C5fbnySW|$0F=pE+zU`Bl#&z_6mGy>R3sxAV=yGs7#*j7tV0lu-1r=r=f)Miae)HTm1QX"
    "VAq{cDoj+is!~jkJF&VM}0OYc&e!vR}H@p<OqKc^fWR^m5D^qE-3QP10Y<OgJz-#EgdGde|4zg(eqAG$WjxLHiRs2ouHfW#`)T#5^)*fD=sHO-2000"
    "00pd<k"
)
# A grey ramp of 8x8 pixels, as an AVIF of 10 bits per channel, which Pillow cannot write.
TEN_BITS = base64.b85decode(
    "0000WW^{RQVRmU|00000VRmU|ZE0pPZE0a<O+hh10002%ZDn*}000000000XXk=`10000000000aA{+7000000000000000000004sdC7Z2$lO00031"
    "0016oY;R)#0000)000310RR910RR926951JDF6TfC~0YKW&i*H00031000_kZf0cy000000RRADb}%tRZ)|UJ00000YH4tCZ~y=ROKEUpZvX%Q6lrs"
    "CWdHyG000002mk;82mk;85O8UDX#fBK00RmN3IG5A3}JRLLxCVb000006Ju{|a&BX6cmM(b0ssbp0000NX>e^}0000000001009I60)qqq001#<WMOm"
    "?015~=2)}Ov0tS#W8xjITN`L_J0001xJP~5IepA?)7XP@~BRuzT"
)
WIDE = np.linspace(0, 65535, 150 * 99).astype(np.uint16).reshape(99, 150)


def heic(image, **options):
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, quality=90, **options)
    return buffer.getvalue()


def heic_of_ten_bits(mode, samples):
    buffer = io.BytesIO()
    pillow_heif.from_bytes(mode, samples.shape[1::-1], samples.tobytes()).save(buffer, quality=-1, chroma=444)
    return buffer.getvalue()


@pytest.fixture(scope="module", autouse=True)
def plug_in():
    load("pillow_jxl")  # for Pillow to save JPEG XL


@pytest.fixture(scope="module")
def files(cat, encoded):
    """A file of each kind by its name; the odd cases come after the comma."""
    rgba = cat.convert("RGBA")
    rgba.putalpha(Image.linear_gradient("L").resize(cat.size))
    several = heic(ImageOps.invert(cat), append_images=list(pillow_heif.from_pillow(cat)), primary_index=1)
    return {
        "avif": encoded(cat, "AVIF", quality=90),
        "avif, alpha": encoded(rgba, "AVIF", quality=90),
        "avif, greyscale": encoded(cat.convert("L"), "AVIF", quality=90),
        "avif, animated": encoded(cat, "AVIF", quality=90, save_all=True, append_images=[ImageOps.invert(cat)]),
        "heic": heic(cat),
        "heic, alpha": heic(rgba),
        "heic, greyscale": heic(cat.convert("L")),
        "heic, animated": several,
        "jxl": encoded(cat, "JXL", quality=90),
        "jxl, alpha": encoded(rgba, "JXL", lossless=True, use_container=True),
        "jxl, alpha greyscale": encoded(rgba.convert("LA"), "JXL", lossless=True),
        "jxl, deep greyscale": encoded(Image.fromarray(WIDE), "JXL", lossless=True),
    }


def pixels_of(image):
    return np.asarray(Image.open(io.BytesIO(image.data)))


def reason_of(call):
    with pytest.raises(ImageError) as caught:
        call()
    return caught.value.reason


@pytest.mark.all
def test_each_kind_is_read_and_becomes_a_jpeg_with_the_pixels_of_its_decoder(files, cat):
    for kind, data in files.items():
        image_format, _, odd = kind.partition(", ")
        header = read_header(data)
        assert sniff(data) == sniff(memoryview(data)) == header.format == format_of_name(f"x.{image_format}")
        assert (header.width, header.height) == image_size(data)[::-1] == cat.size, kind
        assert header.odd == tuple(odd.split()), kind
        assert not header.plain
        for encode in ("keep", "exact", "jpeg"):
            stored = store_image(data, Images(encode=encode))
            assert (stored.format, stored.kept, stored.odd) == ("jpeg", False, header.odd), kind
        exact = store_image(data, Images(encode="png"))
        assert exact.channels == (1 if "greyscale" in odd else 3)
        if not odd or odd == "animated":
            assert np.abs(pixels_of(exact).astype(int) - np.asarray(cat)).mean() < 4, kind
            np.testing.assert_array_equal(decode(data), pixels_of(exact))
        if "alpha" in odd:
            black = pixels_of(store_image(data, Images(encode="png", alpha="black")))
            assert pixels_of(exact)[0].mean() > 250, kind
            assert black[0].mean() < 5, kind
    assert pixels_of(store_image(files["heic"], Images(encode="webp"))).shape == (99, 150, 3)


def test_more_than_8_bits_are_scaled_to_8(encoded):
    expected = (WIDE / 257).round()
    colour = np.repeat(WIDE[..., None], 3, axis=2)
    grey = Image.fromarray(WIDE)
    for data in (
        heic_of_ten_bits("RGB;16", colour),
        heic_of_ten_bits("I;16", WIDE),
        encoded(grey, "JXL", lossless=True),
    ):
        image = store_image(data, Images(encode="png"))
        assert "deep" in image.odd
        assert np.abs(pixels_of(image).reshape(99, 150, -1)[..., 0] - expected).max() <= 2
        assert reason_of(lambda data=data: store_image(data, Images(deep="reject"))) == "unsupported"
    floats = Image.fromarray((WIDE / 65535).astype(np.float32))
    image = store_image(encoded(floats, "JXL", lossless=True), Images(encode="png"))
    assert image.odd == ("deep", "greyscale")
    assert np.abs(pixels_of(image) - expected).max() <= 1


def test_the_depth_of_an_avif_is_that_of_its_av1_configuration():
    image = store_image(TEN_BITS, Images(encode="png"))
    assert image.odd == ("deep",)
    assert np.abs(pixels_of(image)[..., 0] - np.linspace(0, 255, 64).reshape(8, 8)).max() < 6


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_image_is_turned_once(cat, encoded, orientation):
    """EXIF of a HEIC and a JPEG XL says it a second time, and does not count."""
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded(cat, "PNG", exif=exif_of(orientation)))))
    avif = encoded(cat, "AVIF", quality=90, exif=exif_of(orientation))
    for data, at_decoding in ((avif, False), (heic(cat, exif=exif_of(orientation).tobytes()), True)):
        image = store_image(data, Images(encode="png"))
        assert (image.width, image.height) == upright.size
        assert np.abs(pixels_of(image).astype(int) - np.asarray(upright)).mean() < 4
        assert image.orientation == orientation_of(data) == (1 if at_decoding else orientation)
        ignored = store_image(data, Images(encode="png", exif="ignore"))
        assert (ignored.width, ignored.height) == (upright.size if at_decoding else cat.size)
    corners = Image.new("RGB", (32, 16), (200, 0, 0))
    for colour, box in (((0, 200, 0), (16, 0, 32, 8)), ((0, 0, 200), (0, 8, 16, 16)), ((220,) * 3, (16, 8, 32, 16))):
        corners.paste(colour, box)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded(corners, "PNG", exif=exif_of(orientation)))))
    bits = int.from_bytes(CODESTREAM[2:], "little") & ~(7 << 11) | (orientation - 1) << 11
    naked = CODESTREAM[:2] + bits.to_bytes(len(CODESTREAM) - 2, "little")
    for data in (naked, PACKED) if orientation == 6 else (naked,):
        image = store_image(data, Images(encode="png"))
        assert (image.width, image.height) == expected.size
        assert np.abs(pixels_of(image).astype(int) - np.asarray(expected)).mean() < 12
        assert (image.orientation, image_size(data)) == (1, expected.size[::-1])


def test_files_that_end_early_are_refused_wherever_they_end(files):
    for kind in ("avif", "heic", "jxl", "jxl, alpha"):
        data = files[kind]
        for size in {*range(0, 60, 3), *range(60, len(data), max(1, len(data) // 60)), len(data) - 1}:
            cut = data[:size]
            for call in (partial(store_image, policy=Images()), decode):
                found = reason_of(lambda call=call, cut=cut: call(cut))
                assert found in ("truncated", "unreadable", "not_an_image", "zero_bytes"), (kind, size)


@pytest.mark.all
def test_damaged_files_are_refused_or_have_their_size(files):
    draws = np.random.default_rng(0)
    refused = 0
    for kind, data in files.items():
        for _ in range(40):
            damaged = bytearray(data)
            for place in draws.integers(0, len(data), 3):
                damaged[place] ^= 1 << draws.integers(8)
            try:
                image = store_image(bytes(damaged), Images(max_pixels=10**6))
            except ImageError:
                refused += 1
            else:
                assert Image.open(io.BytesIO(image.data)).size == (image.width, image.height), kind
    assert refused > 100


def test_too_many_pixels_are_refused_before_they_are_decoded(files, monkeypatch):
    monkeypatch.setattr(policy_module, "decode_stored", None)
    for data in files.values():
        assert reason_of(lambda data=data: store_image(data, Images(max_pixels=149 * 99))) == "too_large"
    # Of 60,000 x 60,000 pixels: not small, 18 bits of height less 1 (way 2), and the ratio 1:1.
    bomb = b"\xff\x0a" + (2 << 1 | 59_999 << 3 | 1 << 21 | 1 << 24).to_bytes(4, "little")
    assert reason_of(lambda: read_header(bomb)) == "too_large"
    assert reason_of(lambda: decode(bomb)) == "too_large"


def test_what_the_plug_in_of_jpeg_xl_reads_wrongly_is_unsupported():
    animated = bytes.fromhex("ff0a10032a099a00404c08040100fd44")
    assert reason_of(lambda: store_image(animated, Images())) == "unsupported"


def test_other_containers_of_the_same_kind_are_no_images():
    for brand in (b"mp42", b"isom", b"crx "):
        assert sniff(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mp42isom") is None
    assert sniff(b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif") == "avif"
    assert sniff(b"\0\0\0\x18ftypmif1\0\0\0\0mif1miaf") == "heic"
    assert [format_of_name(f"1.{name}") for name in ("HEIC", "heif", "hif", "jxl")] == ["heic"] * 3 + ["jxl"]


@pytest.mark.parametrize(
    "missing",
    [("avif", "PIL._avif", "Pillow 11.3"), ("heic", "pillow_heif", "pillow-heif"), ("jxl", "pillow_jxl", "pillow-jxl")],
)
def test_without_its_decoder_an_image_is_a_reject_that_names_the_package(
    files, cat, encoded, tmp_path, monkeypatch, missing
):
    kind, module, needed = missing
    monkeypatch.setitem(sys.modules, module, None)
    write(tmp_path / "photos", {f"a/1.{kind}": files[kind], "a/2.png": encoded(cat, "PNG")})
    result = tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=1)
    reject = json.loads((tmp_path / "d/rejects.jsonl").read_text())
    assert (reject["path"], reject["reason"]) == (f"a/1.{kind}", "unsupported")
    assert needed in reject["message"]
    assert "pip install" in reject["message"]
    assert result.manifest.images == {"png": 1}


def write(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def test_folders_tables_and_tars_take_them_and_loaders_show_them(files, cat, tmp_path):
    names = {"a/1.AVIF": "avif", "a/2.heic": "heic", "b/3.heif": "heic", "b/4.hif": "heic", "b/5.jxl": "jxl"}
    write(tmp_path / "photos", {name: files[kind] for name, kind in names.items()})
    (tmp_path / "table.csv").write_text("".join(["path,label\n", *(f"photos/{name},x\n" for name in names)]))
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        for number, name in enumerate(names):
            tar.add(tmp_path / "photos" / name, f"{number}.{name.rpartition('.')[2].lower()}")
    for source in ("photos", "table.csv", "photos.tar"):
        result = tpufeed.shard(
            tmp_path / source, tmp_path / "of" / source, **({"label": "none"} if source == "photos.tar" else {})
        )
        assert result.manifest.images == {"jpeg, encoded anew": 5}
        assert result.listed.ignored_files == {}
        with tpufeed.Loader(
            tmp_path / "of" / source, batch_size=5, columns=["image", "sample"], ops=[CenterCrop((99, 150))]
        ) as loader:
            ((images, _),) = loader
        assert np.abs(images.astype(int) - np.asarray(cat)).mean((1, 2, 3)).max() < 6


def test_plug_ins_are_imported_when_they_are_needed_and_leave_pillow_alone(files, tmp_path):
    (tmp_path / "x").write_bytes(files["heic"])
    script = """
import sys
from pathlib import Path
import tpufeed
from tpufeed.images.policy import Images, store_image
assert not {"pillow_heif", "pillow_jxl", "PIL.AvifImagePlugin"} & set(sys.modules)
store_image(Path("x").read_bytes(), Images())
from PIL import Image
Image.init()
assert "HEIF" not in Image.OPEN
assert "pillow_jxl" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, timeout=120)
