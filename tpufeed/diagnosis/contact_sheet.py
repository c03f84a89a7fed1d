"""A labelled contact sheet of a dataset: what its records hold, as a person sees it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.dataset.schema import FILENAME
from tpufeed.diagnosis.files import write_file
from tpufeed.diagnosis.sampling import Place, draw_evenly, draw_of_class, find_class, iter_payloads, read_label
from tpufeed.diagnosis.sheet import Tile, draw_sheet, sheet_size
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import ImageError, OptionError, RecordError, mask_secrets
from tpufeed.images.decoding import Pixels, decode, orientation_of
from tpufeed.images.mending import mend
from tpufeed.images.orientation import turn
from tpufeed.tfrecord.example import decode_example

_SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_LONGEST_PX = {"PNG": 1 << 20, "JPEG": 65535, "WEBP": 16383}
_MOST_PIXELS = 300_000_000
_MOST_TILES = 10_000


@dataclass(frozen=True, slots=True)
class SheetOptions:
    """What a sheet shows.

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


def make_contact_sheet(dataset: Dataset, split: str | None = None, options: SheetOptions | None = None) -> ContactSheet:
    """Thumbnails of samples of a split (its first by default), with label and file name or sample number.

    Only the records shown are read; for a class also those that had to be looked at to find them.

    Raises:
        OptionError: no such split or class, or none of its samples is in the split.
        ShardError: a shard is missing, or not the manifest's.
    """
    options = options or SheetOptions()
    split = next(iter(dataset.manifest.splits), "") if split is None else split
    variants = len(dataset.split(split).variants)
    count = max(1, options.count // variants)
    if options.class_name is None:
        places, problems = draw_evenly(dataset, split, count, options.seed), list[str]()
    else:
        label = find_class(dataset.manifest, options.class_name)
        places, problems = draw_of_class(dataset, split, label, count, options.seed)
    if not places:
        what = "" if options.class_name is None else f" of class {options.class_name!r}"
        raise OptionError(f"split {split!r} of {dataset.url} holds no samples{what}")
    width, height = sheet_size(len(places), variants, options.size_px)
    if width * height > _MOST_PIXELS:
        raise OptionError(f"a sheet of {width} x {height} pixels is too large; take a smaller count or size")
    groups = list(_iter_groups(dataset, split, places, options.size_px))
    problems += [tile.problem for group in groups for tile in group if tile.problem]
    records = dataset.split(split).records
    url = mask_secrets(dataset.url).encode("utf-8", "backslashreplace").decode()
    title = f"{url}   {split}: {len(places)} of {number_of(records, 'sample')}   {describe_encoding(dataset.manifest)}"
    return ContactSheet(
        draw_sheet(groups, title, options.size_px), len(places) * variants, tuple(dict.fromkeys(problems))
    )


def check_sheet_path(path: Path) -> None:
    """Raises OptionError where no sheet can be written to `path`."""
    if path.suffix.lower() not in _SUFFIXES:
        raise OptionError(f"{path}: the sheet's name ends in .png, .jpg or .webp")
    if not path.parent.is_dir():
        raise OptionError(f"{path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise OptionError(f"{path} is a folder; give the name of a file")


def write_sheet(image: Image.Image, path: Path) -> None:
    """Write the sheet in the format that its name says, whole or not at all; what was there is replaced.

    Raises:
        OptionError: another ending, no such folder, or an image too large for the format.
        StoreError: it cannot be written.
    """
    check_sheet_path(path)
    image_format = _SUFFIXES[path.suffix.lower()]
    if max(image.size) > _LONGEST_PX[image_format]:
        raise OptionError(
            f"{path}: {image.width} x {image.height} pixels are too many for {image_format}; take .png or fewer images"
        )
    write_file(path, partial(image.save, format=image_format, quality=90))


def describe_encoding(manifest: Manifest) -> str:
    """How the images are stored, in a few words."""
    if manifest.tensor_shape is not None:
        height, width, channels = manifest.tensor_shape
        return f"raw {height}x{width}x{channels}"
    formats = dict.fromkeys(name.partition(",")[0] for name in manifest.images)
    return ", ".join(formats) or "encoded"


def _iter_groups(dataset: Dataset, split: str, places: Sequence[Place], size_px: int) -> Iterator[list[Tile]]:
    """The tiles of each sample, one a variant."""
    variants = dataset.split(split).variants
    starts = np.cumsum([0, *(shard.records for shard in variants[0].shards)])
    readers = [dataset.reader(split, variant) for variant in range(len(variants))]
    for shard, record in places:
        sample = int(starts[shard]) + record
        tiles = []
        for variant, reader in enumerate(readers):
            (payload,) = iter_payloads(reader, [(shard, record)])
            name = f"v{variant} " if len(readers) > 1 else ""
            tiles.append(_make_tile(dataset.manifest, reader, payload, (shard, record), f"{name}#{sample}", size_px))
        yield tiles


def _make_tile(
    manifest: Manifest, reader: Reader, payload: memoryview | RecordError, place: Place, number: str, size_px: int
) -> Tile:
    if isinstance(payload, RecordError):
        return Tile(None, "", number, str(payload))
    where = reader.place(*place)
    label = read_label(manifest, reader, payload)
    if isinstance(label, int) and 0 <= label < len(manifest.class_names):
        label = manifest.class_names[label]
    text = "" if label is None else str(label)
    try:
        name = _file_name(manifest, payload)
        name = f"{number.rpartition('#')[0]}{name}" if name else number
        pixels = _read_pixels(manifest, reader.layout.decode(payload)[0])
        return Tile(_fit(pixels, size_px), text, name)
    except (ImageError, RecordError) as error:
        return Tile(None, text, number, f"{where}: {error}")


def _file_name(manifest: Manifest, payload: memoryview) -> str:
    key = next((spec.key for spec in manifest.features if spec.name == FILENAME), None)
    feature = None if key is None else decode_example(payload).get(key)
    value = feature.values[0] if feature is not None and len(feature.values) else b""
    return str(value, "utf-8", "replace") if isinstance(value, memoryview) else ""


def _read_pixels(manifest: Manifest, image: memoryview) -> Pixels:
    shape = manifest.tensor_shape
    if shape is None:
        try:
            pixels = decode(image)
        except ImageError as error:
            image = memoryview(mend(image, error))  # as loaders do
            pixels = decode(image)
        return turn(pixels, orientation_of(image)) if manifest.upright else pixels
    pixels = np.frombuffer(image, np.uint8)
    if pixels.size != np.prod(shape):
        raise RecordError(f"the image has {pixels.size} bytes; a tensor of {shape} takes {np.prod(shape)}")
    return pixels.reshape(shape)


def _fit(pixels: Pixels, size_px: int) -> Image.Image:
    """The image within a square of `size_px`: a larger one averaged, a much smaller one in visible pixels."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    scale = size_px / max(image.size)
    if scale >= 2:
        scale = int(scale)
    if scale == 1 or 1 < scale < 2:
        return image
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
