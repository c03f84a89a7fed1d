"""Draw a contact sheet from its tiles: a grid as square as can be, a line of text above it, two under each tile.

Text is shortened to fit, and legible whatever its script.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

Font = ImageFont.FreeTypeFont

_GAP_PX = 8
_TITLE_PX, _TITLE_FONT_PX = 26, 14
_LABEL_PX, _LABEL_FONT_PX = 15, 12
_NAME_PX, _NAME_FONT_PX = 13, 10
_LEAST_WIDTH_PX = 320  # or the title is cut short
_PAPER, _INK, _FAINT = "white", "black", (110, 110, 110)
_FAULT, _FAULT_INK = (150, 20, 20), (255, 235, 235)

# Looked up by name where systems keep their fonts; Pillow's own covers little more than Latin.
_WIDE_FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "NotoSans-Regular.ttf",
    "Arial Unicode.ttf",
    "FreeSans.ttf",
    "msgothic.ttc",
)


@dataclass(frozen=True, slots=True)
class Tile:
    """One image with what stands under it; without an image, `problem` stands in its place."""

    image: Image.Image | None
    label: str
    name: str
    problem: str = ""


def sheet_size(groups: int, variants: int, size_px: int) -> tuple[int, int]:
    """Return `(width, height)` of the sheet of so many groups of tiles."""
    columns = group_columns(groups, variants, size_px)
    width = columns * variants * (size_px + _GAP_PX) + (columns + 1) * _GAP_PX
    rows = math.ceil(groups / columns)
    return max(_LEAST_WIDTH_PX, width), _TITLE_PX + rows * _cell_height(size_px) + _GAP_PX


def group_columns(groups: int, variants: int, size_px: int) -> int:
    """Return how many groups stand side by side for the sheet to be nearly square, wider rather than higher."""
    width = variants * (size_px + _GAP_PX) + _GAP_PX
    columns = math.ceil(math.sqrt(groups * _cell_height(size_px) / width) - 0.25)
    return min(groups, max(1, columns))


def tile_corner(group: int, variant: int, columns: int, variants: int, size_px: int) -> tuple[int, int]:
    """Return `(left, top)` of the square that a tile's image is centred in."""
    row, column = divmod(group, columns)
    left = _GAP_PX + column * (variants * (size_px + _GAP_PX) + _GAP_PX) + variant * (size_px + _GAP_PX)
    return left, _TITLE_PX + row * _cell_height(size_px)


def draw_sheet(groups: Sequence[Sequence[Tile]], title: str, size_px: int) -> Image.Image:
    """Draw the sheet. Tiles of a group, the variants of a sample, stand side by side."""
    variants = len(groups[0])
    columns = group_columns(len(groups), variants, size_px)
    sheet = Image.new("RGB", sheet_size(len(groups), variants, size_px), _PAPER)
    draw = ImageDraw.Draw(sheet)
    text, font = letter(title, _TITLE_FONT_PX, sheet.width - 2 * _GAP_PX)
    draw.text((_GAP_PX, 5), text, _INK, font)
    for number, group in enumerate(groups):
        for variant, tile in enumerate(group):
            left, top = tile_corner(number, variant, columns, variants, size_px)
            if tile.image is None:
                _draw_fault(draw, tile.problem, left, top, size_px)
            else:
                image = tile.image
                sheet.paste(image, (left + (size_px - image.width) // 2, top + (size_px - image.height) // 2))
            for line, height, colour, at in (
                (tile.label, _LABEL_FONT_PX, _INK, top + size_px + 1),
                (tile.name, _NAME_FONT_PX, _FAINT, top + size_px + 1 + (_LABEL_PX if tile.label else 0)),
            ):
                text, font = letter(line, height, size_px)
                draw.text((left, at), text, colour, font)
    return sheet


def _cell_height(size_px: int) -> int:
    return size_px + _LABEL_PX + _NAME_PX + _GAP_PX


def _draw_fault(draw: ImageDraw.ImageDraw, problem: str, left: int, top: int, size_px: int) -> None:
    right, bottom = left + size_px - 1, top + size_px - 1
    draw.rectangle((left, top, right, bottom), _FAULT)
    draw.line((left, top, right, bottom), _FAULT_INK)
    draw.line((left, bottom, right, top), _FAULT_INK)
    at, words = top + 4, problem.rpartition(": ")[2].split() if len(problem) > 200 else problem.split()
    line = ""
    for word in [*words, ""]:
        longer = f"{line} {word}".strip()
        text, font = letter(longer, _NAME_FONT_PX, 1 << 20)
        if line and (not word or font.getlength(text) > size_px - 8):
            if at + _NAME_PX > bottom:
                return
            text, font = letter(line, _NAME_FONT_PX, size_px - 8)
            draw.text((left + 4, at), text, _FAULT_INK, font, stroke_width=2, stroke_fill=_FAULT)
            at, line = at + _NAME_PX, word
        else:
            line = longer


def letter(text: str, size_px: int, width_px: int) -> tuple[str, Font]:
    """Return `text` as it is to be drawn, at most `width_px` wide, and the font that can draw it.

    A character that no font at hand has is written as its escape (U+732B as \\\\u732b), never as an empty box.
    """
    text = "".join(character if character.isprintable() else _escape(character) for character in text)
    fonts = [_default_font(size_px)]
    if not text.isascii():
        fonts += [font for name in _WIDE_FONTS if (font := _find_font(name, size_px))]
    font = min(fonts, key=lambda font: sum(not _has(font, character) for character in text))
    text = "".join(character if _has(font, character) else _escape(character) for character in text)
    return shorten(text, width_px, font), font


def shorten(text: str, width_px: float, font: Font) -> str:
    """Return `text` with as much of its middle left out as needed for it to be no wider than `width_px`."""

    def keep(count: int) -> str:
        head = (count + 1) // 2
        return text if count == len(text) else f"{text[:head]}...{text[len(text) - (count - head) :]}"

    low, high = 0, len(text)  # how many characters stay
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if font.getlength(keep(middle)) <= width_px else (low, middle - 1)
    return keep(low)


def _escape(character: str) -> str:
    """Return how a character that cannot be drawn is written."""
    return character.encode("unicode_escape").decode()


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
