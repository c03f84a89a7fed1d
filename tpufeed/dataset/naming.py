"""Names of a dataset's objects."""

import re

from tpufeed.errors import OptionError

MANIFEST = "manifest.json"
REJECTS = "rejects.jsonl"
PLAN = "_tpufeed/plan.jsonl"
REPORTS = "_tpufeed/reports"
PROBE = "_tpufeed/probe"

_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


def check_split_name(split: str) -> str:
    """`split` itself where it can begin file names. Raises OptionError."""
    if not _SPLIT.fullmatch(split):
        raise OptionError(f"a split is named by letters, digits, '_' and '.', like train or val; not {split!r}")
    return split


def shard_name(split: str, variant: int | None, shard: int, shards: int) -> str:
    """`train-00003-of-00012.tfrecord`, or `train-v0-...` for variant 0 of a cache."""
    return f"{_part(split, variant)}-{shard:05d}-of-{shards:05d}.tfrecord"


def index_name(split: str, variant: int | None) -> str:
    """`train.index.npy`, or `train-v0.index.npy` for variant 0 of a cache."""
    return f"{_part(split, variant)}.index.npy"


def report_name(task: int) -> str:
    """Where the report of a plan's task lies."""
    return f"{REPORTS}/{task:06d}.json"


def _part(split: str, variant: int | None) -> str:
    return split if variant is None else f"{split}-v{variant}"
