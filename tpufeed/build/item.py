"""An item: one sample of a source, from its listing to the worker that makes its record."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

Label: TypeAlias = str | int | None
Labels: TypeAlias = tuple[Label, ...]  # of a sample of several classes
ColumnValue: TypeAlias = int | float | str


class ImageRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Place of the bytes of an image.

    Attributes:
        file: below the plan's `base`, an absolute path or a URL.
        bytes: of the image; for a row of Parquet an estimate, which is never compared.
        version: of its file: equal means unchanged.
        offset: of the image within the file.
        row: of a Parquet file, from 0; None for an image whose bytes are in one piece.
        leaf: the column of bytes in that file.
    """

    file: str
    bytes: int
    version: str
    offset: int = 0
    row: int | None = None
    leaf: str = ""


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample. Its source says the first fields; the build adds the last ones once all items are listed.

    Attributes:
        path: its name, from which the global order, its split and `image/filename` follow. A URL is without signature
            and secrets, see `errors.url_identity`.
        bytes: of its image; for a row of Parquet an estimate, which is never compared.
        version: of its file: equal means unchanged, see `storage.store.ObjectInfo`.
        label_name: the name or id of its class in the source, or several; None if the source says none.
        split: as the source says.
        file: where its bytes are, if not at `path` below the plan's `base`. A URL in a table is kept as it is, since a
            build that was killed continues from here.
        offset: of the image within the file.
        values: further values by name, as the source says them.
        problem: why it is rejected without being read, as (reason code, message).
        images: its further images, in the order of their features; empty if one of them is missing.
        group: items of one group are neighbours in the global order, as they are read together.
        pixels: height and width of the image that boxes and keypoints refer to, if the source says it.
        row: of a Parquet file, from 0.
        leaf: the column of that file that holds its bytes.
        label: the class's id, or -1.
        labels: ids of classes, in a dataset whose samples have several; `label` is -1 there.
        columns: `values` as the plan holds them, in the order of the header's features; bytes in base64.
        duplicate_of: the digest of its image, in hexadecimal digits, if it is left out because another item has the
            same image. It is not a reject, and stays in the plan so that reports can name it.
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
    group: str = ""
    pixels: tuple[int, int] | None = None
    row: int | None = None
    leaf: str = ""
    label: int = -1
    labels: tuple[int, ...] = ()
    columns: tuple[tuple[ColumnValue, ...], ...] = ()
    duplicate_of: str = ""


decode_item = msgspec.msgpack.Decoder(Item).decode
