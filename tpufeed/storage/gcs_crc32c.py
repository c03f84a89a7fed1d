"""CRC-32C as Google Cloud Storage writes it: base64 of four bytes, the highest first."""

from base64 import b64decode, b64encode
from collections.abc import Mapping

from tpufeed.errors import StoreError


def to_crc32c(text: str) -> int:
    """From text. Raises ValueError."""
    data = b64decode(text, validate=True)
    if len(data) != 4:
        raise ValueError(f"{text!r} is no CRC-32C in base64")
    return int.from_bytes(data, "big")


def from_crc32c(crc32c: int) -> str:
    """To text."""
    return b64encode(crc32c.to_bytes(4, "big")).decode()


def crc32c_of(headers: Mapping[str, str], where: str) -> int | None:
    """What a download's X-Goog-Hash says of the whole object as it is stored. Raises StoreError."""
    for part in headers.get("X-Goog-Hash", "").split(","):
        key, _, value = part.strip().partition("=")
        if key == "crc32c":
            try:
                return to_crc32c(value)
            except ValueError as error:
                raise StoreError(f"{where}: the header X-Goog-Hash is {headers['X-Goog-Hash']!r:.200}") from error
    return None
