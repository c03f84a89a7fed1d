"""What a dataset was made of and how, as `tpufeed shard` is told it: for commands that make it anew, otherwise."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from shlex import quote
from typing import Any

from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import OptionError
from tpufeed.images.policy import ImagePolicy
from tpufeed.sharding.options import ShardOptions

UNKNOWN_SOURCE = "PHOTOS"

_FLAGS = {
    "shard_bytes": "--shard-size",
    "shards": "--shards",
    "hosts": "--hosts",
    "split_by": "--split-by",
    "image": "--image",
    "label": "--label",
    "seed": "--seed",
    "check": "--check",
    "encode": "--encode",
    "quality": "--quality",
    "presize_mode": "--presize-mode",
    "max_pixels": "--max-pixels",
    "min_side": "--min-side",
}
_POLICIES = ("exif", "cmyk", "alpha", "deep", "greyscale", "animated", "extension", "damaged")
_SAID_OTHERWISE = ("command", "source", "presize")
_OF_ADOPTED = (
    f"{UNKNOWN_SOURCE} stands for the images that its TFRecords were made of: add --label, --split or --split-by as "
    "they need it"
)
_OF_UNKNOWN = f"{UNKNOWN_SOURCE} stands for the images it was made of; how it was made is not recorded"


@dataclass(frozen=True, slots=True)
class Origin:
    """What samples come from.

    Attributes:
        source: raw images.
        flags: of `tpufeed shard`, quoted for a shell, each with a space before it: all that is not the default but
            the size of the images, which is what is to be changed.
        remarks: what the flags do not say, as sentences.
        images: how images were stored.
    """

    source: str = UNKNOWN_SOURCE
    flags: str = ""
    remarks: tuple[str, ...] = ()
    images: ImagePolicy = field(default_factory=ImagePolicy)


def find_origin(options: Mapping[str, Any]) -> Origin:
    """The origin of a dataset with these options in its manifest."""
    if options.get("command") != "shard" or not options.get("source"):
        return Origin(remarks=(_OF_ADOPTED if options.get("command") == "adopt" else _OF_UNKNOWN,))
    usual = {"shards": None, **ShardOptions().to_dict()}
    changed = {
        name: value
        for name, value in options.items()
        if name not in _SAID_OTHERWISE and value is not None and (name not in usual or value != usual[name])
    }
    flags, remarks = list[str](), list[str]()
    for name, value in changed.items():
        if name in _FLAGS:
            flags.append(f" {_FLAGS[name]} {quote(str(value))}")
        elif name in _POLICIES:
            flags.append(f" --policy {quote(f'{name}={value}')}")
        elif name == "split" and isinstance(value, Mapping):
            flags.append(f" --split {quote(','.join(f'{split}={share}' for split, share in value.items()))}")
        elif name == "classes" and isinstance(value, list | tuple):
            flags.append(" --classes CLASSES")
            remarks.append(_say_classes(len(value)))
        else:
            remarks.append(f"it was made with {name}={value}, which no option of `tpufeed shard` says")
    return Origin(str(options["source"]), "".join(flags), tuple(remarks), _policy(options))


def _say_classes(count: int) -> str:
    names = number_of(count, "class name")
    return f"CLASSES stands for the file of its {names}, one a line, in the order that `tpufeed info --json` has them"


def _policy(options: Mapping[str, Any]) -> ImagePolicy:
    try:
        return ImagePolicy(**dict(_iter_policy(options)))
    except OptionError:  # of another version
        return ImagePolicy()


def _iter_policy(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for known in fields(ImagePolicy):
        name = known.name.removesuffix("_px")
        if options.get(name) is not None or options.get(known.name) is not None:
            yield known.name, options.get(known.name, options.get(name))
