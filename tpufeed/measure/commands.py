"""Write commands for advice, complete and quoted for a shell."""

import re
from collections.abc import Mapping
from shlex import join, quote
from typing import Any

from tpufeed.dataset.manifest import Manifest
from tpufeed.sources.options import ShardOptions

_UNKNOWN = "DATASET"  # a name to fill in, if the source suggests none
# Options without a flag: workers of this release set the first, and an append the second.
_NO_FLAGS = ("restart_markers", "keeps_classes")
_POLICIES = {"exif", "cmyk", "alpha", "deep", "greyscale", "animated", "bands", "extension", "damaged"}
_FLAGS = {"shard_bytes": "--shard-size", "columns": "--column", "image_columns": "--image-column"}


def make_again(manifest: Manifest, dst: str, **changes: Any) -> str | None:
    """Return the `tpufeed shard` that makes a dataset again at `dst`, with changed options.

    Return None if no single `tpufeed shard` has made it, or the manifest does not have all of its options.
    """
    stored = dict(manifest.options)
    made_by, source = stored.pop("command", None), stored.pop("source", None)
    if made_by != "shard" or not source or manifest.number > 1 or stored.get("classes"):  # they were in a file
        return None
    if "shard_bytes" in changes:
        stored.pop("shards", None)
    usual = ShardOptions().to_dict()
    words = ["tpufeed", "shard", source, dst]
    for name, value in (stored | changes).items():
        if value != usual.get(name) and name not in _NO_FLAGS:
            words += _words(name, value)
    return join(words)


def name_beside(url: str, suffix: str) -> str:
    """Return a quoted URL beside `url`: `photos-224` for "photos/" or "photos.csv", a placeholder for several URLs."""
    start = re.sub(r"[*?\[{].*", "", url) if "://" not in url or "?" not in url else ""
    stem = re.sub(r"(?<=[^/])\.\w+$", "", start).rstrip("-_./")
    return quote(f"{_UNKNOWN if not stem or '=' in stem else stem}-{suffix}")


def _words(name: str, value: Any) -> list[str]:
    """Return the words of an option as the manifest has it."""
    if name in _POLICIES:
        return ["--policy", f"{name}={value}"]
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    if value is True:
        return [flag]
    if name == "columns":
        return [word for column, dtype in value.items() for word in (flag, f"{column}:{dtype}")]
    if name == "image_columns":
        return [word for column in value for word in (flag, column)]
    if isinstance(value, Mapping):
        value = ",".join(f"{split}={share}" for split, share in value.items())
    return [flag, ",".join(value) if isinstance(value, list | tuple) else str(value)]
