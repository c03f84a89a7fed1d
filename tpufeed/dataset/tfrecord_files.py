"""Find foreign TFRecord files among the files of a folder, and the split of each, by names alone."""

import itertools
import posixpath
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tpufeed.dataset.naming import OWN_FOLDER, SPLIT_OF_WORD, check_split_name, count_ending, format_endings, is_own
from tpufeed.errors import NoInputsError, OptionError, SourceError, advised
from tpufeed.storage.store import ObjectInfo

_EXTENSION = r"\.(?:tfrecords?|tfrec)"
_PART = r"-\d+-of-\d+"
# name.tfrec, name-00000-of-00002.tfrecord, TFDS's name.tfrecord-00000-of-00002, ImageNet's name-00000-of-01024, and
# compressed ones: reading them fails with advice instead of leaving them out.
_TFRECORD = re.compile(
    rf"(?P<stem>.*?)(?:(?P<part>{_PART}){_EXTENSION}|{_EXTENSION}(?P<after>{_PART})?|(?<!\.)(?P<bare>{_PART}))"
    r"(?:\.(?:gz|gzip|zz|zlib))?",
    re.IGNORECASE | re.DOTALL,
)
_NUMBERS = re.compile(r"(?:[-_.]?\d+(?:x\d+)?)+$")
_DEFAULT_SPLIT = "train"
_UNPACKERS = {"gz": "gunzip", "bz2": "bunzip2", "xz": "unxz", "zst": "unzstd"}
_MAGIC = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\0", "zst": b"\x28\xb5\x2f\xfd"}
MAGIC_BYTES = 6


class ForeignFiles(NamedTuple):
    """TFRecord files of each split, sorted by name, and the number of other files by their endings."""

    splits: dict[str, list[ObjectInfo]]
    ignored: dict[str, int]


def sort_files(url: str, infos: Iterable[ObjectInfo], wanted: Sequence[str] | None = None) -> ForeignFiles:
    """Return the TFRecord files among `infos`.

    A split is named by a folder called train, val, test or the like, else by the top folder, else by such a word in the
    files' names, else it is "train".

    Args:
        url: URL of the folder, for errors.
        infos: all files below it.
        wanted: take only these splits.

    Raises:
        NoInputsError: there are no TFRecord files.
        OptionError: a split of `wanted` does not exist, or a split would hold files of different folders.
        SourceError: a manifest cannot hold the name of a file.
    """
    found: dict[str, ObjectInfo] = {}
    ignored, own = Counter[str](), False
    for info in infos:
        if is_tfrecord_name(info.name):
            found[info.name] = info
        elif is_own(info.name):
            own = True
        else:
            count_ending(ignored, info.name)
    if not found:
        hint = format_endings(ignored) if ignored else " (it is a dataset already)" if own else " (is it there?)"
        raise NoInputsError(
            f"no TFRecord files below {url} among {ignored.total()} files{hint}. Give the folder that holds files "
            "named like train-00000-of-00012.tfrecord or train/00.tfrec. To make a dataset of images: tpufeed shard"
        )
    for name in found:
        if not name.isprintable():
            raise SourceError(f"{url}: the file name {name!r} is not printable UTF-8. Rename it")
    split_of = find_splits(url, list(found))
    splits: dict[str, list[ObjectInfo]] = defaultdict(list)
    for name in sorted(found):
        splits[split_of[name]].append(found[name])
    for split in wanted or ():
        if split not in splits:
            raise OptionError(f"{url} has no split {split!r}. The names of its files give {', '.join(splits)}")
    return ForeignFiles({split: splits[split] for split in wanted or splits}, ignored)


def find_splits(url: str, names: Sequence[str]) -> dict[str, str]:
    """Return the split of each file. Raises OptionError if a split would hold files of different folders."""
    folders_of = {name: name.split("/")[:-1] for name in names}
    # Folders that all files share do not name splits, unless they are called train, val or the like.
    levels = zip(*folders_of.values(), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    split_of, roots, flat = dict[str, str](), defaultdict[str, set[str]](set), list[str]()
    for name, folders in folders_of.items():
        words = [depth for depth, folder in enumerate(folders) if folder.lower() in SPLIT_OF_WORD]
        depth = words[-1] if words else shared
        if depth < len(folders):
            split_of[name] = _to_split(folders[depth])
            roots[split_of[name]].add("/".join(folders[: depth + 1]))
        else:
            flat.append(name)
    for split, several in roots.items():
        if len(several) > 1:
            raise OptionError(
                f"{url}: split {split!r} is in {len(several)} folders ({', '.join(sorted(several)[:4])}), which may "
                "hold the same images. Adopt one of the folders above them"
            )

    prefix_of = {name: _stem(name) or "" for name in flat}
    word_of = {}
    for prefix in prefix_of.values():  # the last word that names a split: TFDS puts the dataset's name before it
        words_in = [word for word in re.findall("[A-Za-z]+", prefix) if word.lower() in SPLIT_OF_WORD]
        word_of[prefix] = words_in[-1] if words_in else ""
    counts = Counter(word_of.values())
    above = url.rstrip("/").rsplit("/", 1)[-1]
    for name, prefix in prefix_of.items():
        word = word_of[prefix]
        if not any(word_of.values()):
            split_of[name] = above if above.lower() in SPLIT_OF_WORD else _DEFAULT_SPLIT
        else:
            # Prefixes that share a word, like train_a and train_b, are separate splits. So is a prefix without a word.
            split_of[name] = word if word and counts[word] == 1 else _to_split(prefix or _DEFAULT_SPLIT)
    return split_of


def is_tfrecord_name(name: str) -> bool:
    """Return true for the name of a TFRecord file."""
    return _stem(name) is not None


def adopt_advice(url: str) -> str:
    """Return advice on TFRecords that were found instead of a dataset or images."""
    return f"To make a dataset of another tool's TFRecords: {advised('adopt', url, '--to', 'DATASET')}"


def unpack_beside(url: str) -> str:
    """Return the command that unpacks a file next to itself, by its ending, with advice to copy a remote file."""
    first, path = _copied(url)
    ending = path.rpartition(".")[2].lower()
    if ending == "zip":
        return f"{first}unzip {shlex.quote(path)} -d {shlex.quote(path[: -len('.zip')])}"
    return f"{first}{_UNPACKERS['gz' if ending == 'tgz' else ending]} -k {shlex.quote(path)}"


def unpack_elsewhere(url: str, head: bytes) -> str:
    """Return the command that unpacks a file of any name into a folder, or "" if its first bytes are not compressed."""
    kind = next((kind for kind, magic in _MAGIC.items() if head.startswith(magic)), None)
    if kind is None:
        return ""
    first, path = _copied(url)
    name = posixpath.basename(path).removesuffix(f".{kind}")
    into = shlex.quote(f"unpacked/{name}")
    return f"{first}mkdir -p unpacked && {_UNPACKERS[kind]} -c < {shlex.quote(path)} > {into}"


def _copied(url: str) -> tuple[str, str]:
    """Return what to do first, and the path of the file after that."""
    return ("", url) if "://" not in url else ("copy it to this machine, then: ", posixpath.basename(url))


def _stem(name: str) -> str | None:
    """Return the name without extension and numbers, or None if it is not the name of a TFRecord file."""
    match = _TFRECORD.fullmatch(name.rpartition("/")[2])
    if match is None or name.startswith(OWN_FOLDER) or (match["bare"] and "." in match["stem"]):
        return None
    numbered = match["part"] or match["after"] or match["bare"]
    return match["stem"] if numbered else _NUMBERS.sub("", match["stem"])


def _to_split(text: str) -> str:
    return check_split_name(re.sub(r"[^A-Za-z0-9_.]", "_", text).lstrip("_.") or _DEFAULT_SPLIT)
