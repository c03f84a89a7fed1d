"""The options of `shard`, checked once."""

import re
from dataclasses import dataclass, field
from decimal import Decimal

from tpufeed.dataset.naming import check_split_name
from tpufeed.errors import OptionError
from tpufeed.images.policy import ImagePolicy

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """What decides the bytes of a dataset, besides its source.

    Attributes:
        shard_bytes: aim for shards of this size.
        splits: names and shares, which add up to 1.
        seed: of the global order of the inputs.
        images: how images are checked and stored.
    """

    shard_bytes: int = 64 * 10**6
    splits: dict[str, float] = field(default_factory=lambda: {"train": 1.0})
    seed: int = 0
    images: ImagePolicy = field(default_factory=ImagePolicy)

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise OptionError(f"a shard size is at least one byte, not {self.shard_bytes}")
        if not self.splits:
            raise OptionError("there is at least one split, like train=1.0")
        for name, share in self.splits.items():
            check_split_name(name)
            if not 0 < share <= 1:
                raise OptionError(f"split {name}: a share is in (0, 1], not {share}")
        if abs(sum(self.splits.values()) - 1) > 1e-6:
            raise OptionError(f"the shares of the splits add up to {sum(self.splits.values()):g}, not 1: {self.splits}")

    def to_dict(self) -> dict[str, object]:
        """As plain data, for plan and manifest."""
        return {
            "shard_bytes": self.shard_bytes,
            "split": dict(self.splits),
            "seed": self.seed,
            "check": self.images.check,
            "presize": self.images.presize_px,
            "quality": self.images.quality,
        }


def parse_size(text: str | int) -> int:
    """Bytes of "64MB", "1GiB" or 1048576. Raises OptionError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = None if match is None else _UNITS.get(match.group(2).lower())
    if match is None or unit is None:
        raise OptionError(f"{text!r} is no size; write it like 64MB or 128MiB")
    return int(Decimal(match.group(1)) * unit)  # a float would overflow


def parse_splits(text: str) -> dict[str, float]:
    """Shares of "train=0.9,val=0.1"; "train" alone is all of it. Raises OptionError."""
    splits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.partition("=")
        name = name.strip()
        try:
            value = float(share) if equals else 1.0
        except ValueError:
            raise OptionError(f"{part!r} is no split; write them like train=0.9,val=0.1") from None
        if name in splits:
            raise OptionError(f"split {name} is given twice")
        splits[name] = value
    return splits
