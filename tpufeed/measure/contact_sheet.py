"""Draw a labelled contact sheet of a dataset: thumbnails of its records in a nearly square grid.

A line of text is above the grid, and two lines are below each image. Variants of a sample are side by side.
"""

import contextlib
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.dataset.schema import FILENAME
from tpufeed.errors import ImageError, OptionError, RecordError
from tpufeed.images.geometry import Geometry
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Window
from tpufeed.loaders.columns import Sample
from tpufeed.measure.files import check_output, write_file
from tpufeed.measure.sampling import (
    Place,
    default_split,
    draw_evenly,
    draw_of_class,
    find_class,
    iter_payloads,
    read_labels,
)
from tpufeed.measure.wording import number_of
from tpufeed.options import between, checked
from tpufeed.tfrecord.example import Feature, decode_arrays

# Format and longest side in pixels, by the ending of the sheet's name.
_FORMATS = {".png": ("PNG", 1 << 20), ".jpg": ("JPEG", 65535), ".jpeg": ("JPEG", 65535), ".webp": ("WEBP", 16383)}
_MOST_PIXELS = 300_000_000

_GAP_PX, _TITLE_PX, _LABEL_PX, _NAME_PX = 8, 26, 15, 13
_TITLE_FONT_PX, _LABEL_FONT_PX, _NAME_FONT_PX = 14, 12, 10
_LEAST_WIDTH_PX = 320  # a narrower sheet would cut the title short
_PAPER, _INK, _FAINT = "white", "black", (110, 110, 110)
# Font files that systems have; Pillow's own font covers little more than ASCII.
_WIDE_FONTS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "msgothic.ttc")
_MASK_OPACITY = 0.5
_BOXES = ("red", "lime", "cyan", "yellow", "magenta", "orange")
_FAULT, _FAULT_INK = (150, 20, 20), (255, 235, 235)


@dataclass(frozen=True, slots=True)
class ContactSheet:
    """A sheet: its picture, the (left, top) of each image's square, and messages about images that are not shown."""

    image: Image.Image
    corners: tuple[tuple[int, int], ...]
    problems: tuple[str, ...]


@checked()
def make_contact_sheet(
    dataset: Dataset,
    split: str | None = None,
    *,
    count: Annotated[int, between(1, 10_000)] = 64,
    class_name: str | None = None,
    seed: int = 0,
    size_px: Annotated[int, between(16, 2048)] = 160,
) -> ContactSheet:
    """Draw thumbnails of samples of a split, with label and file name or sample number.

    Only the shown records are read, and those that are searched for a class.

    Args:
        dataset: the dataset.
        split: the split. Default: "train", or the first one.
        count: most images on the sheet; a cache shows all K variants of count // K samples.
        class_name: show only samples of this class, by name or id.
        seed: seed for the choice of samples.
        size_px: side of the square that each image is fitted into.

    Raises:
        OptionError: there is no such split or class, or the split has no sample of it.
        ShardError: a shard is missing, or is not the one in the manifest.
    """
    manifest = dataset.manifest
    split = default_split(dataset) if split is None else split
    variants = dataset.split(split).variants
    drawn = max(1, count // len(variants))
    if class_name is None:
        places, problems = draw_evenly(dataset, split, drawn, seed), list[str]()
    else:
        places, problems = draw_of_class(dataset, split, find_class(dataset, class_name), drawn, seed)
    if not places:
        what = "" if class_name is None else f" of class {class_name!r}"
        raise OptionError(f"split {split!r} of {dataset.label} holds no samples{what}")

    # Choose the number of columns that makes the sheet nearly square, wider rather than higher.
    sample_px, row_px = len(variants) * (size_px + _GAP_PX) + _GAP_PX, size_px + _LABEL_PX + _NAME_PX + _GAP_PX
    columns = min(len(places), max(1, math.ceil(math.sqrt(len(places) * row_px / sample_px) - 0.25)))
    width = max(_LEAST_WIDTH_PX, columns * sample_px + _GAP_PX)
    height = _TITLE_PX + math.ceil(len(places) / columns) * row_px + _GAP_PX
    if width * height > _MOST_PIXELS:
        raise OptionError(f"a sheet of {width} x {height} pixels is too large; use a smaller count or size")
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    if manifest.tensor_shape is not None:
        stored = "raw " + "x".join(map(str, manifest.tensor_shape))
    else:
        stored = ", ".join(dict.fromkeys(name.partition(",")[0] for name in manifest.images)) or "encoded"
    number = number_of(dataset.split(split).records, "sample")
    title = f"{dataset.label}   {split}: {len(places)} of {number}   {stored}"
    _write(draw, (_GAP_PX, 5), title, _TITLE_FONT_PX, width - 2 * _GAP_PX, _INK)

    corners = []
    starts = np.cumsum([0, *(shard.records for shard in variants[0].shards)])
    readers = [dataset.reader(split, variant) for variant in range(len(variants))]
    for sample, place in enumerate(places):
        row, column = divmod(sample, columns)
        for variant, reader in enumerate(readers):
            left = _GAP_PX + column * sample_px + variant * (size_px + _GAP_PX)
            top = _TITLE_PX + row * row_px
            corners.append((left, top))
            label_text, name, image = _read_tile(dataset, reader, place, size_px)
            if isinstance(image, str):
                problems.append(image)
                right, bottom = left + size_px - 1, top + size_px - 1
                draw.rectangle((left, top, right, bottom), _FAULT)
                draw.line((left, top, right, bottom), _FAULT_INK)
                draw.line((left, bottom, right, top), _FAULT_INK)
            else:
                sheet.paste(image, (left + (size_px - image.width) // 2, top + (size_px - image.height) // 2))
            under = top + size_px + 1
            if label_text:
                _write(draw, (left, under), label_text, _LABEL_FONT_PX, size_px, _INK)
                under += _LABEL_PX
            name = (f"v{variant} " if len(readers) > 1 else "") + (name or f"#{int(starts[place[0]]) + place[1]}")
            _write(draw, (left, under), name, _NAME_FONT_PX, size_px, _FAINT)
    return ContactSheet(sheet, tuple(corners), tuple(dict.fromkeys(problems)))


def check_sheet_path(path: Path) -> None:
    """Raise OptionError if no sheet can be written to `path`."""
    check_output(path, _FORMATS, "the sheet's name must end in .png, .jpg or .webp")


def write_sheet(image: Image.Image, path: Path) -> None:
    """Write the sheet atomically, in the format of the path's ending; replace an earlier file.

    Raises:
        OptionError: as `check_output` does; or the image is too large for the format.
        StoreError: the sheet cannot be written.
    """
    check_sheet_path(path)
    name, longest_px = _FORMATS[path.suffix.lower()]
    if max(image.size) > longest_px:
        raise OptionError(
            f"{path}: {image.width} x {image.height} pixels are too many for {name}; use .png or fewer images"
        )
    write_file(path, partial(image.save, format=name, quality=90))


def _read_tile(dataset: Dataset, reader: Reader, place: Place, size_px: int) -> tuple[str, str, Image.Image | str]:
    """Return a record's label, file name and thumbnail, or a message instead of the thumbnail if it is damaged."""
    name, manifest = "", dataset.manifest
    (payload,) = iter_payloads(reader, [place])
    if isinstance(payload, RecordError):
        return "", "", str(payload)
    names: dict[int | str, str] = dict(enumerate(dataset.class_names))
    found = (names.get(label, label) for label in read_labels(dataset, payload))
    label = ", ".join(map(str, dict.fromkeys(found)))
    try:
        features = decode_arrays(payload)
        key = next((spec.key for spec in manifest.features if spec.name == FILENAME), None)
        feature = None if key is None else features.get(key)
        if feature is not None and len(feature.values) and isinstance(feature.values[0], memoryview):
            name = str(feature.values[0], "utf-8", "replace")
        data, shape = reader.layout.decode(payload)[0], manifest.tensor_shape
        if shape is not None and len(data) != math.prod(shape):
            raise RecordError(f"the image has {len(data)} bytes, but a tensor of {shape} takes {math.prod(shape)}")
        pixels = Pipeline((), seed=0, upright=manifest.upright).run_stored(data, shape, ())
        image = Image.fromarray(np.ascontiguousarray(pixels))
        stored = image.height, image.width
        scale = size_px / max(image.size)
        if scale >= 2:  # show a tiny image with visible pixels
            image = image.resize((image.width * int(scale), image.height * int(scale)), Image.Resampling.NEAREST)
        image.thumbnail((size_px, size_px), Image.Resampling.LANCZOS)
        image = _draw_over(image, manifest, features, reader.place(*place), stored)
    except (ImageError, RecordError) as error:
        return label, name, f"{reader.place(*place)}: {error}"
    return label, name, image


def _draw_over(
    image: Image.Image, manifest: Manifest, features: Mapping[str, Feature], where: str, stored: tuple[int, int]
) -> Image.Image:
    """Return a thumbnail with its sample's masks, boxes and keypoints drawn over it.

    Raises:
        ImageError, RecordError: one of them is damaged.
    """
    specs = {spec.name: spec for spec in manifest.features}
    shown = Window(0, 0, *stored, image.height, image.width)
    sample = Sample(
        features, where, specs, lambda: Geometry.identity(*stored).window(shown), 0.0, upright=manifest.upright
    )
    for spec in specs.values():
        if spec.kind not in ("mask", "depth"):
            continue
        mask = sample.mask(spec, 0)
        if mask.dtype == np.uint8:  # colours, with neighbouring values far apart and 0 black
            steps = np.arange(256, dtype=np.uint32)[:, None] * np.array([97, 57, 193], np.uint32)
            table = (64 + steps % 192).astype(np.uint8)
            table[0] = 0
            colours = table[mask]
        else:  # depth, in greys
            greys = (mask.astype(np.int64) * 255 // max(1, int(mask.max()))).astype(np.uint8)
            colours = greys[..., None].repeat(3, 2)
        image = Image.blend(image, Image.fromarray(colours), _MASK_OPACITY)
    draw = ImageDraw.Draw(image)
    for spec in specs.values():
        if spec.kind == "boxes":
            for number, box in enumerate(sample.boxes(spec).tolist()):
                draw.rectangle(box, outline=_BOXES[number % len(_BOXES)], width=2)
        elif spec.kind == "keypoints":
            points, visible = sample.points(spec)
            for x, y in points[visible][:, :2].tolist():
                draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_BOXES[0])
    return image


def _write(
    draw: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    text: str,
    font_px: int,
    width_px: int,
    ink: str | tuple[int, int, int],
) -> None:
    """Write text on one line, leaving out its middle if it is wider than `width_px`.

    The first font that has all characters is used. If there is none, the text is written with escapes, never as boxes.
    """
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    fonts = _fonts(font_px)
    box, wide = "\U0010fffd", [letter for letter in {*text} if not letter.isascii()]
    drawn = ((font, [bytes(font.getmask(letter)) for letter in (box, *wide)]) for font in fonts)
    font = next((font for font, (missing, *masks) in drawn if missing not in masks), None)
    if font is None:
        text, font = text.encode("ascii", "backslashreplace").decode(), fonts[0]
    shown = text
    kept = len(text)
    while kept and font.getlength(shown) > width_px:
        # Guess from the width so far, then continue letter by letter.
        kept = min(kept - 1, int(kept * width_px / font.getlength(shown)) + 1)
        head = (kept + 1) // 2
        shown = f"{text[:head]}...{text[len(text) - (kept - head) :]}"
    draw.text(corner, shown, ink, font)


@functools.lru_cache(maxsize=8)
def _fonts(font_px: int) -> list[ImageFont.FreeTypeFont | ImageFont.ImageFont]:
    """Return Pillow's own font, and the `_WIDE_FONTS` that this system has."""
    fonts: list[ImageFont.FreeTypeFont | ImageFont.ImageFont] = [ImageFont.load_default(font_px)]
    for name in _WIDE_FONTS:
        with contextlib.suppress(OSError):
            fonts.append(ImageFont.truetype(name, font_px))
    return fonts
