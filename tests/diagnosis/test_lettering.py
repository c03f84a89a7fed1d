"""Text in pictures: whatever it is, it is drawn, fits, and is no row of boxes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from tpufeed.diagnosis import sheet
from tpufeed.diagnosis.sheet import letter


def test_text_that_fits_is_left_alone():
    assert letter("coffee/00018.jpg", 10, 400)[0] == "coffee/00018.jpg"


def test_the_middle_is_left_out():
    text, font = letter("a_very_long_folder/with/a/very_long_name_00018.jpg", 10, 120)
    assert text.startswith("a_very")
    assert text.endswith("018.jpg")
    assert "..." in text
    assert font.getlength(text) <= 120


@pytest.mark.parametrize("fonts", [sheet._WIDE_FONTS, ()], ids=["system fonts", "Pillow's own"])
def test_other_scripts(fonts, monkeypatch):
    monkeypatch.setattr(sheet, "_WIDE_FONTS", fonts)
    for text in ("größe", "Жук", "猫", "قطة", "👩‍🚀", "a\tb\n", "\x00", "\udcff", "\U0010fffd"):
        shown, font = letter(text, 12, 1000)
        assert shown
        assert all(sheet._has(font, character) for character in shown)
        image = Image.new("RGB", (300, 30), "white")
        ImageDraw.Draw(image).text((2, 2), shown, "black", font)
        assert image.getcolors(10_000)[0][0] < 9000


@given(st.text(max_size=60), st.integers(1, 200))
def test_any_text(text, width):
    shown, font = letter(text, 10, width)
    assert font.getlength(shown) <= max(width, font.getlength("..."))
