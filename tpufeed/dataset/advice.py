"""Advice: sizes and numbers of shards that would serve training better, and how compressed files are unpacked."""

import posixpath
import shlex
from collections.abc import Iterator

from tpufeed.dataset.manifest import Manifest

_SMALL_BYTES, _GOOD_BYTES, _LARGE_BYTES = 10 * 10**6, 128 * 10**6, 10**9

_UNPACKERS = {"gz": "gunzip", "bz2": "bunzip2", "xz": "unxz", "zst": "unzstd"}
_MAGIC = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\0", "zst": b"\x28\xb5\x2f\xfd"}
MAGIC_BYTES = 6


def unpack_beside(url: str) -> str:
    """Return the command that unpacks a file next to itself, by its ending; after a copy, if it is not local."""
    first, path = _copied(url)
    ending = path.rpartition(".")[2].lower()
    if ending == "zip":
        return f"{first}unzip {shlex.quote(path)} -d {shlex.quote(path[: -len('.zip')])}"
    return f"{first}{_UNPACKERS['gz' if ending == 'tgz' else ending]} -k {shlex.quote(path)}"


def unpack_elsewhere(url: str, head: bytes) -> str:
    """Return the command that unpacks a file of any name into a folder; "" if its first bytes are of no such file."""
    kind = next((kind for kind, magic in _MAGIC.items() if head.startswith(magic)), None)
    if kind is None:
        return ""
    first, path = _copied(url)
    name = posixpath.basename(path).removesuffix(f".{kind}")
    into = shlex.quote(f"unpacked/{name}")
    return f"{first}mkdir -p unpacked && {_UNPACKERS[kind]} -c < {shlex.quote(path)} > {into}"


def _copied(url: str) -> tuple[str, str]:
    """Return what is to be done before, and the path of the file then."""
    return ("", url) if "://" not in url else ("copy it to this machine, then: ", posixpath.basename(url))


def manifest_warnings(manifest: Manifest) -> tuple[str, ...]:
    """About all splits of a dataset, as sentences."""
    hosts = int(manifest.options.get("hosts", 1))
    found: list[str] = []
    for name, split in manifest.splits.items():
        shards = split.variants[0].shards
        found += iter_warnings(name, len(shards), sum(shard.bytes for shard in shards), hosts)
    return tuple(found)


def iter_warnings(split: str, shards: int, size_bytes: float, hosts: int) -> Iterator[str]:
    """About the shards of one split, which hold `size_bytes` together."""
    if not shards:
        yield f"split {split} is empty: no input falls into it"
        return
    if shards < hosts:
        yield f"split {split} has fewer shards ({shards}) than hosts ({hosts}): some will read nothing; add images"
    mean, fewest = size_bytes / shards, hosts * max(1, round(size_bytes / _GOOD_BYTES / hosts))
    if mean > _LARGE_BYTES:
        yield f"split {split} has shards of {mean / 1e9:.1f} GB; smaller ones stream better: --shard-size 128MB"
    elif mean < _SMALL_BYTES and fewest < shards:
        yield (
            f"split {split} has {shards} shards of {mean / 1e6:.2f} MB, less than 10 MB; fewer and larger ones are "
            "read faster: --shard-size 128MB"
        )
