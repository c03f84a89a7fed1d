"""Small text in pictures: shortened to fit, and legible whatever its script."""

import functools
from collections.abc import Callable

from PIL import ImageFont

Font = ImageFont.FreeTypeFont

# Looked up by name where systems keep their fonts; Pillow's own covers little more than Latin.
_WIDE_FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "NotoSans-Regular.ttf",
    "Arial Unicode.ttf",
    "FreeSans.ttf",
    "msgothic.ttc",
)


def letter(text: str, size_px: int, width_px: int) -> tuple[str, Font]:
    """`text` as it is to be drawn, at most `width_px` wide, and the font that can draw it.

    A character that no font at hand has is written as its escape (U+732B as \\\\u732b), never as an empty box.
    """
    text = "".join(character if character.isprintable() else escape(character) for character in text)
    fonts = [_default_font(size_px)]
    if not text.isascii():
        fonts += [font for name in _WIDE_FONTS if (font := _find_font(name, size_px))]
    font = min(fonts, key=lambda font: sum(not _has(font, character) for character in text))
    text = "".join(character if _has(font, character) else escape(character) for character in text)
    return shorten(text, width_px, font.getlength), font


def shorten(text: str, width: float, measure: Callable[[str], float]) -> str:
    """`text` with as much of its middle as needed left out for it to measure no more than `width`."""
    if measure(text) <= width:
        return text
    low, high = 0, len(text) - 1  # how many characters stay
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(_keep(text, middle)) <= width else (low, middle - 1)
    return _keep(text, low)


def escape(character: str) -> str:
    """How a character that cannot be drawn is written."""
    return character.encode("unicode_escape").decode()


def _keep(text: str, count: int) -> str:
    head = (count + 1) // 2
    return f"{text[:head]}...{text[len(text) - (count - head) :]}"


@functools.lru_cache(maxsize=32)
def _default_font(size_px: int) -> Font:
    font = ImageFont.load_default(size_px)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font


@functools.lru_cache(maxsize=64)
def _find_font(name: str, size_px: int) -> Font | None:
    try:
        return ImageFont.truetype(name, size_px)
    except OSError:
        return None


@functools.lru_cache(maxsize=4096)
def _has(font: Font, character: str) -> bool:
    """Whether the font has a picture of its own for the character, not the one for those that it lacks."""
    if character.isascii():
        return True
    mask, missing = font.getmask(character), font.getmask("\U0010fffd")
    return mask.size != missing.size or bytes(mask) != bytes(missing)
