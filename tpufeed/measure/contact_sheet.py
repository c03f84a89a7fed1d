"""Draw a labelled contact sheet of a dataset: thumbnails of its records in a nearly square grid.

A line of text is above the grid, and two lines are below each image. Variants of a sample are side by side. Boxes with
labels have the colours of their classes, and a legend below the grid names those.
"""

import colorsys
import contextlib
import functools
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from crc32c import crc32c
from PIL import Image, ImageDraw, ImageFont, ImageOps

from tpufeed.dataset.clips import pipeline_of
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.dataset.sample import Sample
from tpufeed.dataset.schema import FILENAME, LABEL, FeatureSpec
from tpufeed.errors import ImageError, OptionError, RecordError
from tpufeed.images.decoding import Pixels
from tpufeed.images.geometry import Geometry
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.protocols import Window
from tpufeed.measure.files import check_output, write_file
from tpufeed.measure.sampling import Place, default_split, draw_evenly, iter_payloads
from tpufeed.options import between, checked
from tpufeed.text import format_count
from tpufeed.tfrecord.example import Feature, decode_arrays

# Format and longest side in pixels, by the ending of the sheet's name.
_FORMATS = {".png": ("PNG", 1 << 20), ".jpg": ("JPEG", 65535), ".jpeg": ("JPEG", 65535), ".webp": ("WEBP", 16383)}
_MOST_PIXELS = 300_000_000

_STRETCHED = (2, 98)  # percentiles

_GAP_PX, _TITLE_PX, _LABEL_PX, _NAME_PX = 8, 26, 15, 13
_TITLE_FONT_PX, _LABEL_FONT_PX, _NAME_FONT_PX = 14, 12, 10
_LEAST_WIDTH_PX = 320  # a narrower sheet would cut the title short
_PAPER, _INK, _FAINT = "white", "black", (110, 110, 110)
# Fonts that systems have. Pillow's own covers little more than ASCII.
_WIDE_FONTS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "msgothic.ttc")
_MASK_OPACITY = 0.5
_GOLDEN = (math.sqrt(5) - 1) / 2
_MARK = (255, 0, 0)  # of keypoints, and of boxes without labels
_LEGEND_PX, _MOST_NAMED = 150, 60  # width of an entry of the legend, and how many classes it names
_FAULT, _FAULT_INK = (150, 20, 20), (255, 235, 235)


@dataclass(frozen=True, slots=True)
class ContactSheet:
    """A sheet: its picture, the (left, top) of each image's square, and messages about images that are not shown.

    `legend` has the colour of each class of the boxes that are shown, the most frequent class first.
    """

    image: Image.Image
    corners: tuple[tuple[int, int], ...]
    problems: tuple[str, ...]
    legend: Mapping[str, tuple[int, int, int]]


@checked()
def make_contact_sheet(
    dataset: Dataset,
    split: str | None = None,
    *,
    count: Annotated[int, between(1, 10_000)] = 64,
    seed: int = 0,
    size_px: Annotated[int, between(16, 2048)] = 160,
) -> ContactSheet:
    """Draw thumbnails of samples of a split, with label and file name or sample number.

    Only the shown records are read.

    Args:
        dataset: the dataset.
        split: the split. Default: "train", or the first one.
        count: most images on the sheet. A cache shows all K variants of count // K samples.
        seed: seed for the choice of samples.
        size_px: side of the square that each image is fitted into.

    Raises:
        OptionError: there is no such split, or it has no samples.
        ShardError: a shard is missing, or is not the one in the manifest.
    """
    manifest = dataset.manifest
    split = default_split(dataset) if split is None else split
    variants = dataset.split(split).variants
    drawn = max(1, count // len(variants))
    places, problems = draw_evenly(dataset, split, drawn, seed), list[str]()
    if not places:
        raise OptionError(f"split {split!r} of {dataset.label} holds no samples")

    sample_px, row_px = len(variants) * (size_px + _GAP_PX) + _GAP_PX, size_px + _LABEL_PX + _NAME_PX + _GAP_PX
    columns = max(1, min(len(places), round(math.sqrt(len(places) * row_px / sample_px))))
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
    if manifest.pixels.frame != RGB8:
        stored = f"{manifest.pixels}, channels 0 to 2 from the {_STRETCHED[0]}nd to the {_STRETCHED[1]}th percentile"
    stored += f", the middle frame of {manifest.pixels.frames}" if manifest.pixels.frames else ""
    number = format_count(dataset.split(split).records, "sample")
    title = f"{dataset.label}   {split}: {len(places)} of {number}   {stored}"
    _write(draw, (_GAP_PX, 5), title, _TITLE_FONT_PX, width - 2 * _GAP_PX, _INK)

    corners, shown = [], Counter[int | str]()
    starts = np.cumsum([0, *(shard.records for shard in variants[0].shards)])
    readers = [dataset.reader(split, variant) for variant in range(len(variants))]
    for sample, place in enumerate(places):
        row, column = divmod(sample, columns)
        for variant, reader in enumerate(readers):
            left = _GAP_PX + column * sample_px + variant * (size_px + _GAP_PX)
            top = _TITLE_PX + row * row_px
            corners.append((left, top))
            label_text, name, image = _read_tile(dataset, reader, place, size_px, shown)
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
    legend = {_name_of(dataset, label): _colour_of(label) for label, _ in shown.most_common()}
    return ContactSheet(_add_legend(sheet, legend), tuple(corners), tuple(dict.fromkeys(problems)), legend)


def check_sheet_path(path: Path) -> None:
    """Raise OptionError if no sheet can be written to `path`."""
    check_output(path, _FORMATS, "the sheet's name must end in .png, .jpg or .webp")


def write_sheet(image: Image.Image, path: Path) -> None:
    """Write the sheet atomically, in the format of the path's ending. Replace an earlier file.

    Raises:
        OptionError: as `check_output`, or the image is too large for the format.
        StoreError: the sheet cannot be written.
    """
    check_sheet_path(path)
    name, longest_px = _FORMATS[path.suffix.lower()]
    if max(image.size) > longest_px:
        raise OptionError(
            f"{path}: {image.width} x {image.height} pixels are too many for {name}; use .png or fewer images"
        )
    file = io.BytesIO()
    image.save(file, name, quality=90)
    write_file(path, file.getvalue())


def _read_tile(
    dataset: Dataset, reader: Reader, place: Place, size_px: int, shown: Counter[int | str]
) -> tuple[str, str, Image.Image | str]:
    """Return a record's label, file name and thumbnail, or a message instead of the thumbnail if it is damaged.

    `shown` counts the labels of the boxes that are drawn.
    """
    label, name, manifest = "", "", dataset.manifest
    (payload,) = iter_payloads(reader, [place])
    if isinstance(payload, RecordError):
        return "", "", str(payload)
    try:
        features = decode_arrays(payload)
        label = ", ".join(dict.fromkeys(_name_of(dataset, each) for each in _labels_of(dataset, features)))
        key = next((spec.key for spec in manifest.features if spec.name == FILENAME), None)
        feature = None if key is None else features.get(key)
        if feature is not None and len(feature.values) and isinstance(feature.values[0], memoryview):
            name = str(feature.values[0], "utf-8", "replace")
        data, shape = reader.layout.decode(payload)[0], manifest.tensor_shape
        if shape is not None and len(data) != (size := manifest.pixels.bytes_of(shape)):
            raise RecordError(f"the image has {len(data)} bytes, but a tensor of {shape} takes {size}")
        make = pipeline_of(manifest.pixels)
        pixels = make((), seed=0, upright=manifest.upright, pixels=manifest.pixels).run_stored(data, shape, ())
        pixels = pixels[len(pixels) // 2] if manifest.pixels.frames else pixels
        image = Image.fromarray(np.ascontiguousarray(_stretch(pixels) if manifest.pixels.frame != RGB8 else pixels))
        stored = image.height, image.width
        scale = size_px / max(image.size)
        if scale >= 2:  # show a tiny image with visible pixels
            image = image.resize((image.width * int(scale), image.height * int(scale)), Image.Resampling.NEAREST)
        image.thumbnail((size_px, size_px), Image.Resampling.LANCZOS)
        image = _draw_over(image, dataset, features, reader.place(*place), stored, shown)
    except (ImageError, RecordError) as error:
        return label, name, f"{reader.place(*place)}: {error}"
    return label, name, image


def _stretch(pixels: Pixels) -> Pixels:
    """Return the first channels as RGB, or the only one as grey: each from its 2nd to its 98th percentile."""
    shown = np.nan_to_num(pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., :1].repeat(3, 2).astype(np.float64))
    low, high = np.percentile(shown, _STRETCHED, (0, 1))
    levels: Pixels = (255 * np.clip((shown - low) / np.maximum(high - low, 1e-9), 0, 1)).astype(np.uint8)
    return levels


def _labels_of(dataset: Dataset, features: Mapping[str, Feature]) -> Iterator[int | str]:
    """Yield the labels of a record, as a view numbers them."""
    for spec in dataset.manifest.features:
        if spec.name == LABEL and spec.key in features:
            for value in features[spec.key].values:
                if isinstance(value, memoryview | bytes):
                    yield str(value, "utf-8", "replace")
                else:
                    yield dataset.label_of(int(value))


def _draw_over(
    image: Image.Image,
    dataset: Dataset,
    features: Mapping[str, Feature],
    where: str,
    stored: tuple[int, int],
    shown_labels: Counter[int | str],
) -> Image.Image:
    """Return a thumbnail with its sample's masks, boxes and keypoints drawn over it. Count the labels of its boxes.

    Raises:
        ImageError, RecordError: one of them is damaged.
    """
    manifest = dataset.manifest
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
            boxes, labels = sample.boxes(spec).tolist(), _labels_of_boxes(dataset, sample, spec)
            shown_labels.update(labels)
            for box, colour in zip(boxes, map(_colour_of, labels) if labels else [_MARK] * len(boxes), strict=True):
                draw.rectangle(box, outline=colour, width=2)
        elif spec.kind == "keypoints":
            points, visible = sample.points(spec)
            for x, y in points[visible][:, :2].tolist():
                draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_MARK)
    return image


def _labels_of_boxes(dataset: Dataset, sample: Sample, boxes: FeatureSpec) -> list[int | str]:
    """Return the label of each box that is kept, as a view numbers them. Empty if labels are not those of boxes."""
    spec = next((spec for spec in sample.specs.values() if spec.name == LABEL and spec.of == boxes.name), None)
    if spec is None:
        return []
    if spec.dtype in ("bytes", "string"):
        return [str(text, "utf-8", "replace") for text in sample.texts(spec)]
    return [dataset.label_of(label) for label in sample.items(spec).tolist()]


def _name_of(dataset: Dataset, label: int | str) -> str:
    names = dataset.class_names
    return names[label] if isinstance(label, int) and 0 <= label < len(names) else str(label)


def _colour_of(label: int | str) -> tuple[int, int, int]:
    """Return the colour of a class, the same on each sheet. Neighbouring ids have very different hues."""
    number = label if isinstance(label, int) else crc32c(label.encode())
    strong, bright = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.65))[number // 8 % 3]
    red, green, blue = colorsys.hsv_to_rgb((number + 1) * _GOLDEN % 1, strong, bright)
    return round(255 * red), round(255 * green), round(255 * blue)


def _add_legend(sheet: Image.Image, legend: Mapping[str, tuple[int, int, int]]) -> Image.Image:
    """Return the sheet with rows of colours and names below it, if there are any."""
    if not legend:
        return sheet
    entries: list[tuple[str, tuple[int, int, int] | None]] = list(legend.items())
    if len(entries) > _MOST_NAMED:
        entries[_MOST_NAMED:] = [(f"and {format_count(len(entries) - _MOST_NAMED, 'class', 'classes')} more", None)]
    columns = max(1, (sheet.width - _GAP_PX) // _LEGEND_PX)
    top, rows = sheet.height, math.ceil(len(entries) / columns)
    sheet = ImageOps.expand(sheet, (0, 0, 0, rows * _LABEL_PX + _GAP_PX), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (name, colour) in enumerate(entries):
        row, column = divmod(number, columns)
        left, upper = _GAP_PX + column * _LEGEND_PX, top + row * _LABEL_PX
        if colour is not None:
            draw.rectangle((left, upper + 2, left + 10, upper + 12), colour)
        _write(draw, (left + 15, upper), name, _LABEL_FONT_PX, _LEGEND_PX - 15 - _GAP_PX, _INK)
    return sheet


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
