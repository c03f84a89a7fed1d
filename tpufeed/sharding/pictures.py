"""Further images of a sample: the options that name them, and the folder of masks that is parallel to one of images."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

from tpufeed.dataset.schema import DType, FeatureSpec
from tpufeed.errors import OptionError

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
