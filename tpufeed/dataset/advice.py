"""Advice on shards: sizes and numbers that would serve training better."""

from collections.abc import Iterator

from tpufeed.dataset.manifest import Manifest

_SMALL_BYTES, _GOOD_BYTES, _LARGE_BYTES = 10 * 10**6, 128 * 10**6, 10**9


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
