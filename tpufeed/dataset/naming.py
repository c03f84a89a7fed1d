"""Names of a dataset's objects, splits and classes."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tpufeed.errors import OptionError

OWN_FOLDER = "_tpufeed/"
MANIFEST = "manifest.json"
REJECTS = "rejects.jsonl"
PLAN = "_tpufeed/plan.jsonl"
REPORTS = "_tpufeed/reports"
PROBE = "_tpufeed/probe"
REMOVALS = "_tpufeed/removals"
DIGESTS = "_tpufeed/digests.bin"
DUPLICATES = "_tpufeed/duplicates.jsonl"
VERSIONS = "_tpufeed/versions"
EVALUATION = "evaluation"  # option of a cache whose val and test have no random ops, unlike train

_INDEX = ".index.npy"
_ENDING = re.compile(r"\.[A-Za-z0-9_]{1,12}")
_MOST_ENDINGS, _SHOWN_ENDINGS = 1000, 4
_PART = re.compile(r"part-[0-9]{5,}")
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
_DATA = re.compile(
    rf"(?:{_PART.pattern}/)?{_SPLIT.pattern}"
    r"(?:(?:-v[0-9]+)?-[0-9]{5,}-of-[0-9]{5,}\.tfrecord|(?:-v[0-9]+-)?[0-9]{2,}-[0-9]+\.tfrec|"
    r"(?:-v[0-9]+)?(?:-version-[0-9]+)?\.index\.npy)"
)
_VERSION_INDEX = re.compile(rf"({_SPLIT.pattern})(?:-v[0-9]+)?-version-([0-9]+)\.index\.npy")
_COUNT = re.compile(r"-[0-9]+\.tfrec\Z")
_UNCOUNTED = "-*.tfrec"

SPLIT_OF_WORD = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def is_evaluation(split: str) -> bool:
    """Return True for the name of a split that no model is trained on, like val or test."""
    return SPLIT_OF_WORD.get(split.lower()) in ("val", "test")


def is_data_name(name: str) -> bool:
    """Return true for a name that a build gives to a shard or an index, also in the folder of a part."""
    return _DATA.fullmatch(name) is not None


def is_build_name(name: str) -> bool:
    """Return true for a name that a build gives to any of its files.

    A forged manifest, plan or note may name other files. These are never removed.
    """
    folder, slash, inner = name.partition("/")
    if slash and is_part_folder(folder):
        name = inner
    return (
        is_data_name(name)
        or name in (MANIFEST, REJECTS, PLAN, DIGESTS, DUPLICATES)
        or name.startswith((f"{REPORTS}/", f"{REMOVALS}-", f"{VERSIONS}/"))
    )


def is_own(name: str) -> bool:
    """Return true for a file that `adopt` or an unfinished build put into a folder of another program's TFRecords."""
    return name == MANIFEST or name.endswith(_INDEX) or name.startswith(OWN_FOLDER)


def check_split_name(split: str) -> str:
    """Return `split` if file names can begin with it. Raises OptionError."""
    if not _SPLIT.fullmatch(split):
        other = split.replace("-", "_")  # a hyphen would look like the beginning of a shard's or a variant's number
        hint = f". {other} would do" if _SPLIT.fullmatch(other) else ""
        raise OptionError(f"a split is named by letters, digits, '_' and '.', like train or val, not {split!r}{hint}")
    return split


def read_classes(classes: str | Path | Sequence[str]) -> tuple[str, ...]:
    """Return names of classes in the order of their ids, from a list or from a text file with one per line.

    Raises:
        OptionError: the file cannot be read or has a blank line, or there are no names, or one is there twice.
    """
    where = str(classes) if isinstance(classes, str | Path) else "the list of classes"
    if isinstance(classes, str | Path):
        try:
            text = Path(classes).read_text("utf-8-sig").rstrip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"the classes in {classes} cannot be read: {error}") from error
        classes = [line.strip() for line in text.split("\n")] if text else []
        if "" in classes:
            raise OptionError(
                f"line {classes.index('') + 1} of {where} is blank, but each line is a class. Remove it, or fill it in"
            )
    names = tuple(map(str, classes))
    if not names:
        raise OptionError(f"no classes in {where}, expected one name per line")
    for name in names:
        if name.encode("utf-8", "replace").decode() != name:
            raise OptionError(f"the class {name!r} in {where} is not UTF-8. Rename it")
    normal = [unicodedata.normalize("NFC", name) for name in names]  # as labels are compared
    if len(set(normal)) < len(names):
        twice = next(name for name in normal if normal.count(name) > 1)
        raise OptionError(f"the class {twice!r} is twice in {where}. Its id could be either place")
    return names


def count_ending(counts: Counter[str], name: str) -> None:
    """Count a file by its ending in small letters, or as "" if it is hidden or its ending is not fit to show.

    Endings after the first thousand count as "": each file of a source may have another one.
    """
    last = name[name.rfind("/") + 1 :]
    dot = last.rfind(".")
    is_shown = dot > 0 and not last.startswith(".") and _ENDING.fullmatch(last, dot)
    ending = last[dot:].lower() if is_shown else ""
    counts[ending if ending in counts or len(counts) < _MOST_ENDINGS else ""] += 1


def format_endings(counts: Mapping[str, int]) -> str:
    """Return ` (7 .txt, 3 .xml, 2 others)`, the most frequent first, or "" if no file has an ending."""
    named = (ending for ending in counts if ending)
    most = sorted(named, key=lambda ending: (-counts[ending], ending))[:_SHOWN_ENDINGS]
    others = sum(counts.values()) - sum(counts[ending] for ending in most)
    parts = [f"{counts[ending]:,} {ending}" for ending in most]
    if others:
        parts.append(f"{others:,} other{'s' * (others > 1)}")
    return f" ({', '.join(parts)})" if most else ""


def shard_name(split: str, variant: int | None, shard: int, shards: int) -> str:
    """Return `train-00003-of-00012.tfrecord`, or `train-v0-...` for variant 0 of a cache."""
    return f"{split}{'' if variant is None else f'-v{variant}'}-{shard:05d}-of-{shards:05d}.tfrecord"


def kaggle_shard_name(split: str, variant: int | None, shard: int, shards: int) -> str:
    """Return `train03-*.tfrec`, or `train-v0-03-*.tfrec` for variant 0 of a cache.

    Once the shard is written, the number of its records replaces the asterisk.

    The shard's number has two digits, or as many as the last shard's: names sort by it.
    """
    number = f"{shard:0{max(2, len(str(shards - 1)))}d}"
    return f"{split}{'' if variant is None else f'-v{variant}-'}{number}{_UNCOUNTED}"


def counted(name: str, records: int) -> str:
    """Return the name of a shard with its number of records: `train03-512.tfrec`. Most names have none, and stay."""
    return name.removesuffix(_UNCOUNTED) + f"-{records}.tfrec" if name.endswith(_UNCOUNTED) else name


def uncounted(name: str) -> str:
    """Return the name of an object in a plan: `train03-*.tfrec` for `train03-512.tfrec`."""
    return _COUNT.sub(_UNCOUNTED, name)


def index_name(split: str, variant: int | None, version: int | None = None) -> str:
    """Return `train.index.npy`, `train-v0.index.npy` for variant 0 of a cache, or `train-version-2.index.npy`.

    Each version of a dataset that has grown has its own index. A split's name has no hyphen.
    """
    numbers = ("" if variant is None else f"-v{variant}") + ("" if version is None else f"-version-{version}")
    return f"{split}{numbers}{_INDEX}"


def part_folder(version: int) -> str:
    """Return the folder of the files that a version of a dataset has added: `part-00002`."""
    return f"part-{version:05d}"


def is_part_folder(name: str) -> bool:
    """Return true for the name of such a folder."""
    return _PART.fullmatch(name) is not None


def version_name(version: int) -> str:
    """Return the name of the manifest of a version that is no longer the newest."""
    return f"{VERSIONS}/{version}.json"


def parse_version_index(name: str) -> tuple[str, int] | None:
    """Return the split and the version of the name of such an index, or None for other names."""
    match = _VERSION_INDEX.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def report_name(task: int) -> str:
    """Return the name of the report of a plan's task."""
    return f"{REPORTS}/{task:06d}.json"


def removals_name(run_id: str) -> str:
    """Return the name of the list of objects that a build with --overwrite removes. `run_id` is that of its plan."""
    return f"{REMOVALS}-{run_id}.json"


def splits_mentioned(names: Iterable[str]) -> set[str]:
    """Return which of train, val and test some names mention, as `flowers-train` does."""
    words = (word for name in names for word in re.findall("[a-z]+", name.lower()))
    return {SPLIT_OF_WORD[word] for word in words if word in SPLIT_OF_WORD}
