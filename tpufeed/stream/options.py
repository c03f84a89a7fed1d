"""The options of reading, checked once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tpufeed.dataset.order import Remainder, World
from tpufeed.errors import OptionError
from tpufeed.images.mixing import MixingOp
from tpufeed.images.protocols import Op, Ops
from tpufeed.options import (
    Count,
    FilePath,
    Names,
    Number,
    Size,
    Whole,
    a_dict,
    a_list,
    above,
    at_least,
    between,
    check_fields,
)

LabelFormat = Literal["ids", "multi_hot"]
Shared = Literal["crop", "colors"]
Numa = Literal["auto", "off"]
_VIEWS_FORM = "lists of ops, one for each crop, like [[RandomResizedCrop(224)], ([RandomResizedCrop(96)], 8)]"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The checked options of `Loader`, which explains them."""

    batch_size: Count = 128
    ops: Ops | None = None
    device_ops: Ops | None = None
    columns: Literal["default"] | Names | None = "default"
    shuffle: bool = True
    seed: Whole = 0
    remainder: Remainder = "drop"
    world: World | None = None
    lanes: Count | None = None
    processes: Number | None = None
    threads: Count | None = None
    prefetch: Count | None = None
    repeat: bool = False
    max_bad_records: Number = 0
    max_bad_shards: Number = 0
    timeout_seconds: Annotated[float, above(0)] = 600.0
    numa: Numa = "auto"
    local_dir: FilePath | None = None
    local_bytes: Size | None = None
    pad: Annotated[Mapping[str, int], a_dict("lengths, each at least 1, like {'boxes': 64}", at_least(1))] | None = None
    truncate: bool | Names = False
    fill: Annotated[Mapping[str, float | str], a_dict("values, like {'label': -1}")] | None = None
    label_format: LabelFormat = "ids"
    min_visibility: Annotated[float, between(0.0, 1.0)] = 0.0
    views: Annotated[Sequence[Any], a_list(_VIEWS_FORM)] | None = None
    share: Shared | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.columns is not None and not len(self.columns):
            raise OptionError("columns is empty; give names like ('image', 'label'), or None for a dict")
        if self.share is not None and self.views is None:
            raise OptionError(f"share={self.share!r} is what views have in common: give views=, or leave it out")
        if self.views is not None and self.ops is not None:
            raise OptionError("give either ops, for one crop of an image, or views, which are lists of ops")
        mixing = [type(op).__name__ for op in self.device_ops or () if isinstance(op, MixingOp)]
        if mixing and (self.batch_size % 2 or self.remainder == "pad"):
            raise OptionError(
                f"{mixing[0]} mixes pairs of rows: give an even batch_size, and remainder='drop' or 'repeat', not "
                f"{self.batch_size} and {self.remainder!r}"
            )
        if self.views is not None and self.device_ops:
            raise OptionError("views are made on the host: leave out device_ops, and put its ops into each view")
        crops = (self.ops or (),) if self.views is None else self.view_ops
        for view in crops:
            if self.views is not None and not isinstance(view, list | tuple):
                raise OptionError(f"views are {_VIEWS_FORM}, not {self.views!r}")
            for op in view:
                if isinstance(op, MixingOp):
                    raise OptionError(f"{type(op).__name__} mixes the images of a batch: give it last in device_ops")

    def truncates(self, name: str) -> bool:
        """Return True if lists of a column are cut."""
        return self.truncate if isinstance(self.truncate, bool) else name in self.truncate

    @property
    def view_ops(self) -> tuple[Sequence[Op], ...]:
        """The ops of each view. `(ops, 2)` stands for two views. Empty if `views` was not given."""
        found: list[Sequence[Op]] = []
        for view in () if self.views is None else self.views:
            if isinstance(view, tuple) and len(view) == 2 and isinstance(view[1], int):
                at_least(1).check("the number of views", view[1])
                found += [view[0]] * view[1]
            else:
                found.append(view)
        if self.views is not None and not found:
            raise OptionError(f"views is empty; give {_VIEWS_FORM}")
        return tuple(found)
