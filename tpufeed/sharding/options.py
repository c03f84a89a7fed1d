"""The options of `shard`, checked once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from tpufeed.dataset.classes import read_classes
from tpufeed.dataset.naming import check_split_name
from tpufeed.errors import OptionError
from tpufeed.images.policy import ImagePolicy
from tpufeed.storage.store import parse_size


class ShardKeywords(TypedDict, total=False):
    """The keywords of `shard` that decide its bytes; `ShardOptions` and `ImagePolicy` explain them."""

    shard_bytes: str | int
    shards: int | None
    hosts: int
    split: str | Mapping[str, float] | None
    split_by: str | None
    image: str | None
    label: str
    classes: str | Path | Sequence[str] | None
    seed: int
    check: Literal["full", "header"]
    encode: Literal["keep", "jpeg", "png", "webp"]
    quality: int
    presize: int | None
    presize_mode: Literal["short", "long", "fit"]
    max_pixels: int
    min_side: int
    policy: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """Options that decide the bytes of a dataset, besides its source.

    Attributes:
        shard_bytes: aim for shards of this size.
        shards: or for so many in the largest split; the others get theirs by their size.
        hosts: the number of shards of each split is a multiple of this, so that all hosts read equally many.
        split: shares by name, dealt by a stable hash of each sample's path; None: folders called train, val and
            so on where there are such, else everything is train.
        split_by: "folder" for the folders right below the source, or the column of a table.
        image: the column of a table that holds paths, or the extension of a tar's images.
        label: "auto", "none", or the column or key that holds the labels.
        classes: names of classes, whose places are their ids; None: those that occur.
        seed: of the global order of the inputs.
        images: how images are checked and stored.
    """

    shard_bytes: int = 128 * 10**6
    shards: int | None = None
    hosts: int = 1
    split: dict[str, float] | None = None
    split_by: str | None = None
    image: str | None = None
    label: str = "auto"
    classes: tuple[str, ...] | None = None
    seed: int = 0
    images: ImagePolicy = field(default_factory=ImagePolicy)

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise OptionError(f"a shard size is at least one byte, not {self.shard_bytes}")
        if self.hosts < 1:
            raise OptionError(f"hosts are at least 1, not {self.hosts}")
        if self.shards is not None and (self.shards < 1 or self.shards % self.hosts):
            raise OptionError(f"shards are a multiple of the {self.hosts} hosts, not {self.shards}")
        if self.split is not None:
            if self.split_by is not None:
                raise OptionError("give either the splits' shares or what the source is split by, not both")
            _check_shares(self.split)

    @property
    def split_shares(self) -> dict[str, float]:
        """The shares of the splits, where the source does not say its own."""
        return {"train": 1.0} if self.split is None else self.split

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data, for plan and manifest."""
        return {
            **({"shard_bytes": self.shard_bytes} if self.shards is None else {"shards": self.shards}),
            "hosts": self.hosts,
            "split": self.split,
            "split_by": self.split_by,
            "image": self.image,
            "label": self.label,
            "classes": self.classes,
            "seed": self.seed,
            **{_KEYWORD_OF_FIELD.get(name, name): value for name, value in self.images.to_dict().items()},
        }


def make_options(keywords: ShardKeywords) -> ShardOptions:
    """The options that keywords say. Raises OptionError."""
    given: dict[str, Any] = dict(keywords)
    if given.get("shards") is not None and "shard_bytes" in given:
        raise OptionError("give either a size of the shards or their number, not both")
    split, classes = given.pop("split", None), given.pop("classes", None)
    policy = {str(name): choice for name, choice in dict(given.pop("policy", None) or {}).items()}
    fields = {keyword: field for field, keyword in _KEYWORD_OF_FIELD.items()}
    images = {fields.get(name, name): given.pop(name) for name in _IMAGE_KEYWORDS if name in given}
    unknown = policy.keys() - _POLICIES
    if unknown:
        raise OptionError(f"no policy for {', '.join(sorted(unknown))}; there are {', '.join(sorted(_POLICIES))}")
    if "shard_bytes" in given:
        given["shard_bytes"] = parse_size(given["shard_bytes"])
    return ShardOptions(
        **given,
        split=parse_splits(split) if isinstance(split, str) else None if split is None else dict(split),
        classes=None if classes is None else read_classes(classes),
        images=ImagePolicy(**images, **policy),
    )


_AS = "write them like train=0.9,val=0.1"
_KEYWORD_OF_FIELD = {"presize_px": "presize", "min_side_px": "min_side"}
_IMAGE_KEYWORDS = ("check", "encode", "quality", "presize", "presize_mode", "max_pixels", "min_side")
_POLICIES = frozenset({"exif", "cmyk", "alpha", "deep", "greyscale", "animated", "extension", "damaged"})


def parse_splits(text: str) -> dict[str, float]:
    """Shares of "train=0.9,val=0.1"; "train" alone is all of it. Raises OptionError."""
    splits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.partition("=")
        name = name.strip()
        if not equals and name.replace(".", "", 1).isdigit():
            raise OptionError(f"{part!r} is a share of no split; {_AS}")
        try:
            value = float(share) if equals else 1.0
        except ValueError:
            raise OptionError(f"{part!r} is no split; {_AS}") from None
        if name in splits:
            raise OptionError(f"split {name} is given twice")
        splits[name] = value
    return splits


def _check_shares(splits: dict[str, float]) -> None:
    if not splits:
        raise OptionError("there is at least one split, like train=1.0")
    for name, share in splits.items():
        try:
            check_split_name(name)
        except OptionError as error:
            raise OptionError(f"{error}; {_AS}") from None
        if not 0 < share <= 1:
            raise OptionError(f"split {name}: a share is in (0, 1], not {share}; {_AS}")
    if abs(sum(splits.values()) - 1) > 1e-6:
        raise OptionError(f"the shares of the splits add up to {sum(splits.values()):g}, not 1: {splits}; {_AS}")
