"""A shard to be staged, and the name of its copy."""

import hashlib
from dataclasses import dataclass

from tpufeed.errors import mask_secrets


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """A shard as the manifest has it.

    Attributes:
        name: in its store.
        size_bytes: how long it is.
        crc32c: of all its bytes.
    """

    name: str
    size_bytes: int
    crc32c: int


def copy_key(url: str, shard: RemoteShard) -> str:
    """What the copy of a shard of the store at `url` is called."""
    # A token that was renewed leads to the same shard.
    identity = f"{mask_secrets(url)}\0{shard.name}\0{shard.size_bytes}\0{shard.crc32c}"
    return hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
