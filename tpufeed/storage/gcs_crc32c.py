"""CRC-32C as Google Cloud Storage writes it: base64 of four bytes, the highest first."""

from base64 import b64decode, b64encode
from collections.abc import Mapping


def to_crc32c(text: str) -> int:
    """From text."""
    return int.from_bytes(b64decode(text), "big")


def from_crc32c(crc32c: int) -> str:
    """To text."""
    return b64encode(crc32c.to_bytes(4, "big")).decode()


def crc32c_of(headers: Mapping[str, str]) -> int | None:
    """What a download's X-Goog-Hash says of the whole object as it is stored."""
    for part in headers.get("X-Goog-Hash", "").split(","):
        key, _, value = part.strip().partition("=")
        if key == "crc32c":
            return to_crc32c(value)
    return None
