"""An item: one sample of a source, from its listing to the worker that writes its record."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

Label: TypeAlias = str | int | None
Labels: TypeAlias = tuple[Label, ...]  # of a sample with several classes
ColumnValue: TypeAlias = int | float | str


class ImageRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Place of the bytes of an image.

    Attributes:
        file: its file: a name below the plan's `base`, an absolute path or a URL.
        bytes: size of the image. An estimate for a row of Parquet, which is never compared.
        version: version of its file: equal means unchanged.
        offset: first byte of the image in the file.
        row: row in a Parquet file, from 0. None if the bytes begin at `offset`.
        leaf: column of bytes in the Parquet file.
    """

    file: str
    bytes: int
    version: str
    offset: int = 0
    row: int | None = None
    leaf: str = ""


class Outline(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The outline of one object: polygons, or a mask in COCO's compressed run lengths.

    Attributes:
        polygons: x, y, x, y ... of each polygon, in the same unit as the boxes: pixels of the image that they refer to,
            or shares of its sides.
        counts: the compressed run lengths of a mask. Empty for polygons.
        size: height and width of that mask.
        is_crowd: it surrounds several objects that are not told apart.
    """

    polygons: tuple[tuple[float, ...], ...] = ()
    counts: bytes = b""
    size: tuple[int, int] = (0, 0)
    is_crowd: bool = False


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample. Its source gives the other fields. The build adds the last three once all items are listed.

    Attributes:
        path: its name, from which the global order, its split and `image/filename` follow. A URL has no signature and
            no secrets, see `errors.url_identity`.
        bytes: size of its image. An estimate for a row of Parquet, which is never compared.
        version: version of its file: equal means unchanged, see `storage.store.ObjectInfo`.
        label_name: the name or id of its class in the source, or several. None without a label.
        split: its split, if the source has splits.
        file: the file that holds its bytes, if that is not `path` below the plan's `base`. A URL in a table stays
            unchanged here, unlike in `path`, because a killed build reads it again when it continues.
        offset: first byte of the image in the file.
        values: further values in the source, by name.
        problem: why it is rejected without being read, as (reason code, message).
        images: the other files of its image, if that is in several, and its further images, in the order of their
            features. Empty if one of them is missing.
        outlines: outlines of its objects, one for each box and label, in their order, if the build makes masks of them.
        group: items of a group are neighbours in the global order, as they are read together.
        pixels: height and width of the image that boxes and keypoints refer to, if the source has them.
        row: row in a Parquet file, from 0.
        leaf: column of bytes in the Parquet file.
        label: id of its class, or -1.
        labels: ids of its classes, in a dataset whose samples have several. Then `label` is -1.
        columns: `values` as the plan holds them, in the order of the header's features, with bytes in base64.
    """

    path: str
    bytes: int
    version: str
    label_name: Label | Labels = None
    split: str | None = None
    file: str = ""
    offset: int = 0
    values: Mapping[str, Any] | None = None
    problem: tuple[str, str] | None = None
    images: tuple[ImageRef, ...] = ()
    outlines: tuple[Outline, ...] = ()
    group: str = ""
    pixels: tuple[int, int] | None = None
    row: int | None = None
    leaf: str = ""
    label: int = -1
    labels: tuple[int, ...] = ()
    columns: tuple[tuple[ColumnValue, ...], ...] = ()


decode_item = msgspec.msgpack.Decoder(Item).decode
