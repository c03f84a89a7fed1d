"""Further images of a sample: the options that name them, and the folder of masks that is parallel to one of images."""

import re
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, cast

from tpufeed.build.plan import ImageRef
from tpufeed.dataset.naming import count_ending
from tpufeed.dataset.schema import DType, FeatureSpec
from tpufeed.errors import OptionError, SourceError
from tpufeed.sharding.rows import Found, is_image_name, listing
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import BROKEN_LINK, Store

PictureKind = Literal["image", "mask", "depth"]
MASKS = "mask"  # the column that `masks=` makes
_KINDS: dict[str, DType] = {"image": "uint8", "mask": "uint8", "depth": "int32"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN = frozenset({"image", "label", "sample", "window"})  # by what loaders give themselves
_FORM = "write image columns like mask=mask_path:mask, of kind image, mask or depth"


class Picture(NamedTuple):
    """A further image of each sample.

    Attributes:
        name: of its column in the dataset.
        column: of a table, which holds the paths; or the suffix of a tar's files, in small letters and without its
            first dot. Empty for a parallel folder.
        kind: "image"; "mask", of integers of 8 bits; "depth", of 16.
    """

    name: str
    column: str
    kind: PictureKind

    @property
    def spec(self) -> FeatureSpec:
        """Its feature: a file of an image as one bytes value."""
        return FeatureSpec(self.name, _KINDS[self.kind], kind=self.kind)

    @property
    def missing(self) -> str:
        """The reason code of a sample that lacks it."""
        return "unreadable" if self.kind == "image" else "bad_mask"


def parse_pictures(image_columns: Mapping[str, str] | None, masks: bool) -> tuple[Picture, ...]:
    """Return the further images that options name.

    Args:
        image_columns: as {"mask": "mask_path:mask"}: a name, its column or suffix, and its kind.
        masks: there is a parallel folder of masks.

    Raises:
        OptionError: one of them cannot be.
    """
    if masks and image_columns:
        raise OptionError(
            "masks names a folder parallel to one of images, and image_columns the columns of a table or the suffixes "
            "of a tar's files: give one of them"
        )
    pictures = [Picture(MASKS, "", "mask")] if masks else []
    for name, value in (image_columns or {}).items():
        column, _, kind = value.rpartition(":")
        if not column or kind not in _KINDS:
            raise OptionError(f"the image column {name}={value} names no column and kind; {_FORM}")
        if not _NAME.fullmatch(name) or name in _TAKEN:
            of_loaders = f"; {', '.join(sorted(_TAKEN))} are what loaders give themselves" if name in _TAKEN else ""
            raise OptionError(f"no image column can be called {name!r}: take letters, digits and '_'{of_loaders}")
        pictures.append(Picture(name, column, cast(PictureKind, kind)))
    columns = [picture.column for picture in pictures]
    for column in columns:
        if columns.count(column) > 1:
            raise OptionError(f"two image columns are made of {column!r}; one is enough")
    return tuple(pictures)


def stem_of(name: str) -> str:
    """Return a relative path without the suffix of an image."""
    return name.rpartition(".")[0]


class ParallelFolder:
    """The masks in a folder, by the relative path of their image. They stand in a file: a million take no memory."""

    def __init__(self, store: Store, database: sqlite3.Connection, found: Found) -> None:
        """List the folder. Other files than images are counted in `found`. Raises OptionError where it has none."""
        self._root, self._database = store.url.rstrip("/"), database
        database.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN;"
            "CREATE TABLE masks(stem TEXT, name TEXT, bytes INT, version TEXT, used INT DEFAULT 0);"
        )

        def iter_lines() -> Iterator[tuple[str, str, int, str]]:
            for info in store.iter_objects():
                if is_image_name(info.name):
                    yield stem_of(info.name), info.name, info.size_bytes, info.version
                else:
                    count_ending(found.ignored_files, info.name)

        with listing("the folder of masks cannot be listed"), _in_utf8():
            database.executemany("INSERT INTO masks(stem, name, bytes, version) VALUES(?, ?, ?, ?)", iter_lines())
        if not database.total_changes:
            raise OptionError(f"{store.url} holds no masks: no file whose name ends as that of an image")
        database.execute("CREATE INDEX by_stem ON masks(stem)")

    def find(self, image: str) -> ImageRef | str:
        """Return the mask of the image with this relative path, or why there is none."""
        stem = stem_of(image)
        with _in_utf8():
            query = "SELECT name, bytes, version FROM masks WHERE stem = ? ORDER BY name"
            masks = self._database.execute(query, (stem,)).fetchall()
            self._database.execute("UPDATE masks SET used = 1 WHERE stem = ?", (stem,))
        if not masks:
            return f"there is no mask of it: expected {self._root}/{stem}.png"
        if len(masks) > 1:
            return f"it has {len(masks)} masks: {', '.join(f'{self._root}/{name}' for name, *_ in masks)}"
        ((name, size, version),) = masks
        if version == BROKEN_LINK:
            return f"its mask {self._root}/{name} is a link to nothing"
        return ImageRef(f"{self._root}/{name}", size, version)

    def count_unused(self, found: Found) -> None:
        """Count the masks without an image among the files that were left out."""
        for (name,) in self._database.execute("SELECT name FROM masks WHERE used = 0"):
            count_ending(found.ignored_files, name)


@contextmanager
def open_masks(url: str | Path, images: Store, found: Found) -> Generator[ParallelFolder, None, None]:
    """List the folder of masks at `url` into a temporary file.

    Raises:
        OptionError: it lies among the images, or holds no mask.
        SourceError: it cannot be listed.
    """
    store = open_store(url)
    if f"{store.url}/".startswith(f"{images.url}/"):
        raise OptionError(
            f"the masks in {store.url} lie within the folder of images, {images.url}, and would be taken for images: "
            "give the folder of the images alone as the source"
        )
    with temporary_folder() as folder, closing(sqlite3.connect(folder / "masks.sqlite", isolation_level=None)) as base:
        yield ParallelFolder(store, base, found)


@contextmanager
def _in_utf8() -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError as error:
        raise SourceError(f"the file name {error.object!r} is not UTF-8; rename it") from None
