"""Options and plan of a cache, as pure functions."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import msgspec

from tpufeed.dataset.manifest import CacheInfo
from tpufeed.dataset.plan import Task
from tpufeed.dataset.schema import CHANNELS, FORMAT, HEIGHT, LABEL, TENSOR, WIDTH, FeatureSpec, record_schema
from tpufeed.errors import OptionError
from tpufeed.images import HorizontalFlip
from tpufeed.images.ops import to_dict
from tpufeed.images.protocols import Op
from tpufeed.images.windows import RandomResizedCrop
from tpufeed.sharding.options import ShardKeywords
from tpufeed.storage.store import parse_size

KIND = "cache warmup"
Encoding = Literal["raw", "jpeg", "png", "webp"]

_FEATURES_BYTES = 400  # of a record, besides the image
_LARGE_SHARD, _SMALL_SHARD, _ENOUGH_SHARDS = 128 * 10**6, 16 * 10**6, 64


class CacheKeywords(TypedDict, total=False):
    """The keywords of `warmup` that decide its bytes: those of the cache, then those for raw images.

    `CacheOptions` explains the first; `size` is the side in pixels of the images where no `ops` are given. The others
    are those of `tpufeed.shard`.
    """

    size: int | None
    ops: Sequence[Op] | None
    final: Sequence[Op] | None
    variants: int
    encode: Encoding
    quality: int
    seed: int
    shard_bytes: str | int | None
    split: str | Mapping[str, float] | None
    split_by: str | None
    image: str | None
    label: str
    classes: str | Path | Sequence[str] | None
    max_pixels: int
    min_side: int
    policy: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Options that decide the bytes of a cache, besides its source.

    Attributes:
        ops: applied to every sample, with other random numbers in every variant.
        final: ops that loaders apply live to what the cache holds, with other random numbers in every epoch. None of
            the user's own: a loader imports nothing that a manifest names, and has to be given `ops=[...]`.
        variants: K; epoch e reads variant e mod K.
        encode: "raw" stores uint8 pixels, the others encode them.
        quality: of JPEG and WebP, 1 to 100.
        seed: of the random numbers.
        shard_bytes: aim for shards of this size; None: 128 MB, and less where there would be fewer than 64, so that
            many cores have work.
    """

    ops: tuple[Op, ...]
    variants: int = 1
    encode: Encoding = "raw"
    seed: int = 0
    shard_bytes: int | None = None
    quality: int = 90
    final: tuple[Op, ...] = ()

    def __post_init__(self) -> None:
        for name, most in (("variants", 1000), ("quality", 100)):
            if not _is_whole(getattr(self, name), 1, most):
                raise OptionError(f"{name} is a whole number between 1 and {most}, not {getattr(self, name)!r}")
        if self.encode not in get_args(Encoding):
            raise OptionError(f"encode is one of {', '.join(get_args(Encoding))}, not {self.encode!r}")
        if not _is_whole(self.seed, 0, 2**63 - 1):
            raise OptionError(f"a seed is a whole number between 0 and 2**63 - 1, not {self.seed!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data, for plan and manifest."""
        return {
            "ops": [to_dict(op) for op in self.ops],
            "final": [to_dict(op) for op in self.final],
            "variants": self.variants,
            "encode": self.encode,
            "quality": self.quality if self.encode in ("jpeg", "webp") else None,
            "seed": self.seed,
            "shard_bytes": self.shard_bytes,
        }

    def cache_info(self, source_digest: str, identity: Mapping[str, Any], size: tuple[int, int]) -> CacheInfo:
        """Return the manifest's entry for the cache; `identity` as for `fingerprint`."""
        return CacheInfo(
            source_digest=source_digest,
            ops=tuple(identity["ops"]),  # as a reader of the manifest sees them: lists in place of tuples
            final=tuple(identity["final"]),
            encode=self.encode,
            shape=(*size, 3),
            dtype="uint8",
            variants=self.variants,
            seed=self.seed,
            fingerprint=fingerprint(source_digest, identity),
        )


def make_options(keywords: CacheKeywords) -> tuple[CacheOptions, ShardKeywords]:
    """The options of the cache, and the keywords for raw images. Raises OptionError."""
    given: dict[str, Any] = dict(keywords)
    unknown = given.keys() - CacheKeywords.__optional_keys__
    if unknown:
        raise OptionError(
            f"warmup has no option {', '.join(sorted(unknown))}; there are {', '.join(CacheKeywords.__annotations__)}"
        )
    size, ops, shard_bytes = given.pop("size", None), given.pop("ops", None), given.pop("shard_bytes", None)
    if size is not None and ops is not None:
        raise OptionError(f"size={size!r} is that of the default ops; give either a size, or ops of which one fixes it")
    own = {name: given.pop(name) for name in ("variants", "encode", "quality", "seed") if name in given}
    options = CacheOptions(
        ops=(RandomResizedCrop(224 if size is None else size), HorizontalFlip()) if ops is None else tuple(ops),
        final=tuple(given.pop("final", None) or ()),
        shard_bytes=None if shard_bytes is None else parse_size(shard_bytes),
        **own,
    )
    return options, given  # type: ignore[return-value]  # what is left of a TypedDict


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def fingerprint(source_digest: str, identity: Mapping[str, Any]) -> str:
    """32 hexadecimal digits of what a cache holds: the same on every machine, for every process and Python version.

    Args:
        source_digest: the content digest of a dataset, or the digest of raw inputs.
        identity: every option that decides bytes, as plain data.
    """
    data = msgspec.json.encode({"source_digest": source_digest, **identity}, order="deterministic")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def record_size(options: CacheOptions, size: tuple[int, int], probed_bytes: float) -> float:
    """Bytes of a record: known for raw pixels, else those of the images that were probed."""
    return (size[0] * size[1] * 3 if options.encode == "raw" else probed_bytes) + _FEATURES_BYTES


def count_shards(samples: Mapping[str, int], options: CacheOptions, record_bytes: float) -> dict[str, int]:
    """Return the number of shards of each variant, by split.

    Raises:
        OptionError: a shard would be smaller than a record.
    """
    target: float | None = options.shard_bytes
    if target is None:
        total = max(samples.values(), default=0) * record_bytes
        target = min(_LARGE_SHARD, max(_SMALL_SHARD, total / _ENOUGH_SHARDS))
    elif record_bytes > target:
        raise OptionError(
            f"a shard of {options.shard_bytes} bytes cannot hold one record of {record_bytes:.0f}; give a --shard-size "
            "of 64MB to 256MB"
        )
    return {name: min(count, max(1, round(count * record_bytes / target))) for name, count in samples.items()}


def iter_ranges(samples: Mapping[str, int], shards: Mapping[str, int]) -> Iterator[Task]:
    """Tasks of equally many samples: each is the range `[first, stop)` of a split."""
    number = 0
    for split, count in samples.items():
        for shard in range(shards[split]):
            first, stop = (count * edge // shards[split] for edge in (shard, shard + 1))
            yield Task(number, split, shard, shards[split], (), first, stop)
            number += 1


def cached_schema(
    features: Sequence[FeatureSpec], options: CacheOptions, size: tuple[int, int]
) -> tuple[FeatureSpec, ...]:
    """The features of a cache whose source has `features`."""
    own = record_schema(labelled=any(feature.name == LABEL for feature in features))
    known = {feature.name for feature in own}
    present = {feature.name for feature in features} | {HEIGHT, WIDTH, CHANNELS, FORMAT}
    others = (FeatureSpec(f.name, f.dtype, f.shape, lengths=f.lengths) for f in features[1:] if f.name not in known)
    image = FeatureSpec(TENSOR, "uint8", (*size, 3)) if options.encode == "raw" else own[0]
    return (image, *(f for f in own[1:] if f.name in present), *others)
