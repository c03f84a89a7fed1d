"""Options of a cache, checked once."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from tpufeed.dataset.naming import is_evaluation
from tpufeed.errors import OptionError
from tpufeed.images.coefficients import BEST_QUALITY, SIDE_PX
from tpufeed.images.description import from_dict, to_dict
from tpufeed.images.ops import Choose, Custom, HorizontalFlip, RandomResizedCrop
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.policy import Quality
from tpufeed.images.protocols import Op, Ops, evaluation_of
from tpufeed.images.restart import CAN_REWRITE
from tpufeed.options import between, check_fields, parse_size
from tpufeed.sources.options import NameStyle

Encoding = Literal["raw", "jpeg", "png", "webp", "dct"]
Size = tuple[int, int]
Variants: TypeAlias = Annotated[int, between(1, 1000)]
Seed: TypeAlias = Annotated[int, between(0, 2**63 - 1)]  # an int64 in manifests


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Options that, with the source, decide the bytes of a cache. `tpufeed.cache.warmup` documents them.

    Attributes:
        applied: `ops`, or the default ops of `size`.
        size_bytes: `shard_bytes` as a number, or None: 128 MB, or less if there would be fewer than 64 shards: many
            cores then have work.

    Raises:
        OptionError: an option is wrong.
    """

    size: int | None = None
    ops: Ops | None = None
    live: Ops | None = None
    variants: Variants = 1
    encode: Encoding = "raw"
    quality: Quality = 90
    seed: Seed = 0
    shard_bytes: str | int | None = None
    names: NameStyle = "tpufeed"
    all_splits_random: bool = False
    applied: tuple[Op, ...] = field(init=False)
    size_bytes: int | None = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.size is not None and self.ops is not None:
            raise OptionError(
                f"size={self.size!r} is for the default ops: give either a size, or ops with one that fixes the size"
            )
        if self.names == "kaggle" and self.encode in ("raw", "dct"):
            raise OptionError(
                f"names='kaggle' is for programs that decode image files, and encode={self.encode!r} makes none: give "
                "encode='jpeg' too"
            )
        if self.encode == "dct" and not CAN_REWRITE:
            raise OptionError(
                "encode='dct' takes tpufeed's C extension: install tpufeed from a wheel, or with a C compiler "
                "(docs/install.md)"
            )
        if self.encode == "dct" and self.quality > BEST_QUALITY:
            raise OptionError(
                f"encode='dct' has a quality of 1 to {BEST_QUALITY}, not {self.quality}: for a higher one give "
                "encode='jpeg' or 'raw'"
            )
        ops = (RandomResizedCrop(224 if self.size is None else self.size), HorizontalFlip())
        for name, value in (
            ("applied", ops if self.ops is None else tuple(self.ops)),
            ("live", tuple(self.live or ())),
            ("size_bytes", None if self.shard_bytes is None else parse_size(self.shard_bytes)),
        ):
            object.__setattr__(self, name, value)  # the class is frozen

    def ops_of(self, split: str) -> tuple[Op, ...]:
        """Return the ops of a split: those of evaluation for val and test, unless `all_splits_random`."""
        return self.applied if self.all_splits_random or not is_evaluation(split) else evaluation_of(self.applied)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data, for plan and manifest."""
        return {
            "ops": [to_dict(op) for op in self.applied],
            "live": [to_dict(op) for op in self.live or ()],
            "variants": self.variants,
            "encode": self.encode,
            "quality": self.quality if self.encode in ("jpeg", "webp", "dct") else None,
            "seed": self.seed,
            "shard_bytes": self.size_bytes,
            **({"names": self.names} if self.names != "tpufeed" else {}),
        }

    def output_size(self, source_size: Size | None, pixels: PixelFormat = RGB8) -> Size:
        """Return the size of all images of the cache, as (height, width). Their source has these pixels.

        Raises:
            OptionError: the ops leave images of different sizes, or workers or loaders cannot run them.
        """
        live, pixels = self.live or (), pixels.frame
        size = Pipeline(self.applied, self.seed, pixels=pixels).output_size(source_size)
        if size is None:
            raise OptionError(
                "these ops leave images of different sizes. End with one that fixes the size, e.g. "
                "RandomResizedCrop(size=224) or Resize(256) and CenterCrop(224)"
            )
        if self.encode == "dct" and (size[0] % SIDE_PX or size[1] % SIDE_PX):
            fitting = [max(SIDE_PX, side // SIDE_PX * SIDE_PX) for side in size]
            raise OptionError(
                f"encode='dct' takes sides that are multiples of {SIDE_PX}, and these ops leave images of "
                f"{size[1]}x{size[0]} pixels: end them with one that leaves e.g. {fitting[1]}x{fitting[0]}"
            )
        Pipeline(live, self.seed, pixels=pixels).output_size(size)  # raises if they are not ops
        for op in self.applied:
            if isinstance(op, Custom) and op.obstacle:  # even if this process runs all tasks: another may continue
                raise OptionError(op.obstacle)
            if isinstance(op, Choose) or (isinstance(op, Custom) and op.sample):
                raise OptionError(f"{op} changes whole samples, which only loaders do: pass it to them, in ops=[...]")
        for op in live:
            if isinstance(op, Custom):
                raise OptionError(
                    f"{op} cannot be a live op, because no loader imports what a manifest names. Leave it out here, "
                    f"and pass all live ops to each loader: ops=[..., {op}]"
                )
            from_dict(to_dict(op))  # as loaders do, which only know tpufeed's ops
        return size


def fingerprint(source_digest: str, identity: Mapping[str, Any]) -> str:
    """Return a hash (32 hexadecimal digits) of the contents of a cache, equal on all machines and Python versions.

    Args:
        source_digest: the content digest of a dataset.
        identity: all options that decide bytes, as plain data.
    """
    data = msgspec.json.encode({"source_digest": source_digest, **identity}, order="deterministic")
    return hashlib.blake2b(data, digest_size=16).hexdigest()
