"""A labelled contact sheet of a dataset: what its records hold, as a person sees it.

A grid as square as can be, a line of text above it, two lines under each image. Variants of a sample stand side
by side. Text is shortened to fit, and legible whatever its script.
"""

import functools
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.dataset.schema import FILENAME
from tpufeed.diagnosis.files import check_output, write_file
from tpufeed.diagnosis.sampling import Place, draw_evenly, draw_of_class, find_class, iter_payloads, read_label
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import ImageError, OptionError, RecordError, mask_secrets
from tpufeed.images.decoding import Pixels, decode, orientation_of
from tpufeed.images.mending import mend
from tpufeed.images.orientation import turn
from tpufeed.tfrecord.example import decode_example

Font = ImageFont.FreeTypeFont

_FORMATS = {".png": ("PNG", 1 << 20), ".jpg": ("JPEG", 65535), ".jpeg": ("JPEG", 65535), ".webp": ("WEBP", 16383)}
_MOST_PIXELS = 300_000_000
_MOST_TILES = 10_000

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
class SheetOptions:
    """Options of a contact sheet.

    Attributes:
        count: at most so many images; of a cache all K variants of count // K samples.
        class_name: only samples of this class, by name or id.
        seed: of the choice of samples.
        size_px: side of the square that each image is fitted into.
    """

    count: int = 64
    class_name: str | None = None
    seed: int = 0
    size_px: int = 160

    def __post_init__(self) -> None:
        if not 1 <= self.count <= _MOST_TILES:
            raise OptionError(f"a sheet shows between 1 and {_MOST_TILES} images, not {self.count}")
        if not 16 <= self.size_px <= 2048:
            raise OptionError(f"size is a side in pixels between 16 and 2048, not {self.size_px}")


@dataclass(frozen=True, slots=True)
class ContactSheet:
    """The sheet, how many images are on it, and what is wrong with those that could not be shown."""

    image: Image.Image
    images: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The places on a sheet of so many samples, each of so many variants."""

    samples: int
    variants: int
    size_px: int

    @property
    def columns(self) -> int:
        """Samples side by side, for the sheet to be nearly square, wider rather than higher."""
        columns = math.ceil(math.sqrt(self.samples * self._row_px / self._sample_px) - 0.25)
        return min(self.samples, max(1, columns))

    @property
    def sheet_size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        height = _TITLE_PX + math.ceil(self.samples / self.columns) * self._row_px + _GAP_PX
        return max(_LEAST_WIDTH_PX, self.columns * self._sample_px + _GAP_PX), height

    def corner(self, sample: int, variant: int) -> tuple[int, int]:
        """Return `(left, top)` of the square that an image is centred in."""
        row, column = divmod(sample, self.columns)
        return _GAP_PX + column * self._sample_px + variant * (self.size_px + _GAP_PX), _TITLE_PX + row * self._row_px

    @property
    def _sample_px(self) -> int:
        return self.variants * (self.size_px + _GAP_PX) + _GAP_PX

    @property
    def _row_px(self) -> int:
        return self.size_px + _LABEL_PX + _NAME_PX + _GAP_PX


def make_contact_sheet(dataset: Dataset, split: str | None = None, options: SheetOptions | None = None) -> ContactSheet:
    """Draw thumbnails of samples of a split (its first by default), with label and file name or sample number.

    Only the records shown are read; for a class also those that had to be looked at to find them.

    Raises:
        OptionError: no such split or class, or none of its samples is in the split.
        ShardError: a shard is missing, or not the manifest's.
    """
    options, manifest = options or SheetOptions(), dataset.manifest
    split = next(iter(manifest.splits), "") if split is None else split
    variants = dataset.split(split).variants
    count = max(1, options.count // len(variants))
    if options.class_name is None:
        places, problems = draw_evenly(dataset, split, count, options.seed), list[str]()
    else:
        label = find_class(manifest, options.class_name)
        places, problems = draw_of_class(dataset, split, label, count, options.seed)
    if not places:
        what = "" if options.class_name is None else f" of class {options.class_name!r}"
        raise OptionError(f"split {split!r} of {dataset.url} holds no samples{what}")
    grid = Grid(len(places), len(variants), options.size_px)
    width, height = grid.sheet_size
    if width * height > _MOST_PIXELS:
        raise OptionError(f"a sheet of {width} x {height} pixels is too large; take a smaller count or size")

    sheet = Image.new("RGB", grid.sheet_size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    if manifest.tensor_shape is not None:
        stored = "raw " + "x".join(map(str, manifest.tensor_shape))
    else:
        stored = ", ".join(dict.fromkeys(name.partition(",")[0] for name in manifest.images)) or "encoded"
    url = mask_secrets(dataset.url).encode("utf-8", "backslashreplace").decode()
    number = number_of(dataset.split(split).records, "sample")
    title = f"{url}   {split}: {len(places)} of {number}   {stored}"
    text, font = letter(title, _TITLE_FONT_PX, width - 2 * _GAP_PX)
    draw.text((_GAP_PX, 5), text, _INK, font)

    starts = np.cumsum([0, *(shard.records for shard in variants[0].shards)])
    readers = [dataset.reader(split, variant) for variant in range(len(variants))]
    for sample, place in enumerate(places):
        for variant, reader in enumerate(readers):
            tile = _read_tile(dataset, reader, place, grid.size_px)
            left, top = grid.corner(sample, variant)
            if tile.image is not None:
                inset = (grid.size_px - tile.image.width) // 2, (grid.size_px - tile.image.height) // 2
                sheet.paste(tile.image, (left + inset[0], top + inset[1]))
            else:
                problems.append(tile.problem)
                right, bottom = left + grid.size_px - 1, top + grid.size_px - 1
                draw.rectangle((left, top, right, bottom), _FAULT)
                draw.line((left, top, right, bottom), _FAULT_INK)
                draw.line((left, bottom, right, top), _FAULT_INK)
            under = top + grid.size_px + 1
            if tile.label:
                text, font = letter(tile.label, _LABEL_FONT_PX, grid.size_px)
                draw.text((left, under), text, _INK, font)
                under += _LABEL_PX
            name = (f"v{variant} " if len(readers) > 1 else "") + (tile.name or f"#{int(starts[place[0]]) + place[1]}")
            text, font = letter(name, _NAME_FONT_PX, grid.size_px)
            draw.text((left, under), text, _FAINT, font)
    return ContactSheet(sheet, len(places) * len(variants), tuple(dict.fromkeys(problems)))


def check_sheet_path(path: Path) -> None:
    """Raise OptionError where no sheet can be written to `path`."""
    check_output(path, "the sheet's name", tuple(_FORMATS))


def write_sheet(image: Image.Image, path: Path) -> None:
    """Write the sheet in the format that its name says, whole or not at all; what was there is replaced.

    Raises:
        OptionError: another ending, no such folder, or an image too large for the format.
        StoreError: it cannot be written.
    """
    check_sheet_path(path)
    name, longest_px = _FORMATS[path.suffix.lower()]
    if max(image.size) > longest_px:
        raise OptionError(
            f"{path}: {image.width} x {image.height} pixels are too many for {name}; take .png or fewer images"
        )
    write_file(path, partial(image.save, format=name, quality=90))


@dataclass(slots=True)
class _Tile:
    """One image with what stands under it; without an image, what is wrong."""

    image: Image.Image | None = None
    label: str = ""
    name: str = ""
    problem: str = ""


def _read_tile(dataset: Dataset, reader: Reader, place: Place, size_px: int) -> _Tile:
    tile, manifest = _Tile(), dataset.manifest
    (payload,) = iter_payloads(reader, [place])
    if isinstance(payload, RecordError):
        tile.problem = str(payload)
        return tile
    label = read_label(manifest, reader, payload)
    if isinstance(label, int) and 0 <= label < len(manifest.class_names):
        label = manifest.class_names[label]
    tile.label = "" if label is None else str(label)
    try:
        key = next((spec.key for spec in manifest.features if spec.name == FILENAME), None)
        feature = None if key is None else decode_example(payload).get(key)
        name = feature.values[0] if feature is not None and len(feature.values) else None
        tile.name = str(name, "utf-8", "replace") if isinstance(name, memoryview) else ""
        tile.image = _fit(_read_pixels(dataset, reader.layout.decode(payload)[0]), size_px)
    except (ImageError, RecordError) as error:
        tile.problem = f"{reader.place(*place)}: {error}"
    return tile


def _read_pixels(dataset: Dataset, image: memoryview) -> Pixels:
    shape = dataset.manifest.tensor_shape
    if shape is None:
        try:
            pixels = decode(image)
        except ImageError as error:
            image = memoryview(mend(image, error))  # as loaders do
            pixels = decode(image)
        return turn(pixels, orientation_of(image)) if dataset.manifest.upright else pixels
    pixels = np.frombuffer(image, np.uint8)
    if pixels.size != np.prod(shape):
        raise RecordError(f"the image has {pixels.size} bytes; a tensor of {shape} takes {np.prod(shape)}")
    return pixels.reshape(shape)


def _fit(pixels: Pixels, size_px: int) -> Image.Image:
    """Return the image within a square of `size_px`: a larger one averaged, a much smaller one in visible pixels."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    scale = size_px / max(image.size)
    if scale >= 2:
        scale = int(scale)
    if scale == 1 or 1 < scale < 2:
        return image
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)


def letter(text: str, size_px: int, width_px: int) -> tuple[str, Font]:
    """Return `text` as it is to be drawn, at most `width_px` wide, and the font that can draw it.

    A character that no font at hand has is written as its escape (U+732B as \\\\u732b), never as an empty box. Of a
    text that is too wide the middle is left out.
    """

    def escaped(character: str) -> str:
        return character.encode("unicode_escape").decode()

    text = "".join(character if character.isprintable() else escaped(character) for character in text)
    fonts = [_find_font("", size_px)]
    if not text.isascii():
        fonts += [_find_font(name, size_px) for name in _WIDE_FONTS]
    known = [font for font in fonts if font is not None]
    font = min(known, key=lambda font: sum(not _has(font, character) for character in text))
    text = "".join(character if _has(font, character) else escaped(character) for character in text)

    def keep(count: int) -> str:
        head = (count + 1) // 2
        return text if count == len(text) else f"{text[:head]}...{text[len(text) - (count - head) :]}"

    low, high = 0, len(text)  # how many characters stay
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if font.getlength(keep(middle)) <= width_px else (low, middle - 1)
    return keep(low), font


@functools.lru_cache(maxsize=64)
def _find_font(name: str, size_px: int) -> Font | None:
    """Return the font of that file name, None where there is none; Pillow's own, without a name."""
    try:
        font = ImageFont.truetype(name, size_px) if name else ImageFont.load_default(size_px)
    except OSError:
        return None
    assert isinstance(font, Font), "Pillow was built without FreeType"
    return font


@functools.lru_cache(maxsize=4096)
def _has(font: Font, character: str) -> bool:
    """Return whether the font has a picture of its own for the character, not the one for those that it lacks."""
    if character.isascii():
        return True
    mask, missing = font.getmask(character), font.getmask("\U0010fffd")
    return mask.size != missing.size or bytes(mask) != bytes(missing)
