"""Options and plan of a cache, as pure functions."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tpufeed.dataset.manifest import CacheInfo
from tpufeed.dataset.plan import PlanHeader, Task
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import CHANNELS, FORMAT, HEIGHT, LABEL, TENSOR, WIDTH, FeatureSpec, record_schema
from tpufeed.errors import OptionError
from tpufeed.images.ops import Op, to_dict

KIND = "cache warmup"
Encoding = Literal["raw", "jpeg"]


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What decides the bytes of a cache, besides its source.

    Attributes:
        ops: applied to every sample, with other random numbers in every variant.
        variants: K; epoch e reads variant e mod K.
        encode: "raw" stores uint8 pixels, "jpeg" JPEGs of `quality`.
        seed: of the random numbers.
        shard_bytes: aim for shards of this size.
    """

    ops: tuple[Op, ...]
    variants: int = 1
    encode: Encoding = "raw"
    seed: int = 0
    shard_bytes: int = 128 * 10**6
    quality: int = 90

    def __post_init__(self) -> None:
        if not 1 <= self.variants <= 1000:
            raise OptionError(f"variants are between 1 and 1000, not {self.variants}")
        if self.encode not in ("raw", "jpeg"):
            raise OptionError(f"encode is 'raw' or 'jpeg', not {self.encode!r}")

    def to_dict(self, source_digest: str) -> dict[str, Any]:
        """As plain data, for plan and manifest; with the digest of the source's content it is the cache's identity."""
        return {
            "source_digest": source_digest,
            "ops": [to_dict(op) for op in self.ops],
            "variants": self.variants,
            "encode": self.encode,
            "quality": self.quality if self.encode == "jpeg" else None,
            "seed": self.seed,
            "shard_bytes": self.shard_bytes,
        }

    def fingerprint(self, source_digest: str) -> str:
        """The identity in 32 hexadecimal digits: the same on every machine, for every process and Python version."""
        return hashlib.blake2b(
            msgspec.json.encode(self.to_dict(source_digest), order="deterministic"), digest_size=16
        ).hexdigest()

    def cache_info(self, source_digest: str, size: tuple[int, int]) -> CacheInfo:
        """What the manifest says of the cache."""
        return CacheInfo(
            source_digest=source_digest,
            ops=tuple(to_dict(op) for op in self.ops),
            final=(),
            encode=self.encode,
            shape=(*size, 3),
            dtype="uint8",
            variants=self.variants,
            seed=self.seed,
            fingerprint=self.fingerprint(source_digest),
        )


def plan_cache(
    source: Dataset, options: CacheOptions, size: tuple[int, int], record_bytes: int
) -> tuple[PlanHeader, list[Task]]:
    """Header and tasks: each task is a range of a split's samples, of about `shard_bytes` in each variant.

    Raises:
        OptionError: a shard would be smaller than a record.
    """
    if record_bytes > options.shard_bytes:
        raise OptionError(
            f"a shard of {options.shard_bytes} bytes cannot hold one record of {record_bytes}; give a --shard-size of "
            "64MB to 256MB"
        )
    tasks: list[Task] = []
    splits: dict[str, int] = {}
    for name, split in source.manifest.splits.items():
        shards = splits[name] = min(split.records, max(1, round(split.records * record_bytes / options.shard_bytes)))
        cuts = [split.records * n // shards for n in range(shards + 1)] if shards else [0]
        tasks += [Task(len(tasks) + n, name, n, shards, (), cuts[n], cuts[n + 1]) for n in range(shards)]
    header = PlanHeader(
        kind=KIND,
        source=source.url,
        options=options.to_dict(source.content_digest),
        run_id=secrets.token_hex(8),
        input_digest=source.content_digest,
        splits=splits,
        variants=options.variants,
        class_names=source.manifest.class_names,
        features=_cached_schema(source.manifest.features, options.encode, size),
        notes={"images": options.variants * sum(split.records for split in source.manifest.splits.values())},
    )
    return header, tasks


def _cached_schema(features: Sequence[FeatureSpec], encode: Encoding, size: tuple[int, int]) -> tuple[FeatureSpec, ...]:
    raw = FeatureSpec(TENSOR, "uint8", (*size, 3))
    own = record_schema(labelled=any(feature.name == LABEL for feature in features))
    known = {feature.name for feature in own}
    present = {feature.name for feature in features} | {HEIGHT, WIDTH, CHANNELS, FORMAT}
    others = (FeatureSpec(f.name, f.dtype, f.shape) for f in features[1:] if f.name not in known)
    return (raw if encode == "raw" else own[0], *(f for f in own[1:] if f.name in present), *others)
