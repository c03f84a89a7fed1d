"""Hashes as GCS writes and checks them: base64 of the big-endian bytes."""

import base64
import hashlib
from collections.abc import Mapping

from crc32c import crc32c

from tests.gcs_server.errors import ApiError
from tests.gcs_server.messages import Data


def crc_text(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def md5_text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def crc_of(data: Data) -> int:
    return crc32c(data)


def md5_of(data: Data) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def hash_header(crc: int, md5: bytes | None) -> str:
    return f"crc32c={crc_text(crc)}" + (f",md5={md5_text(md5)}" if md5 else "")


def expected_hashes(headers: Mapping[str, str], metadata: dict[str, object]) -> dict[str, str]:
    """What the client says its bytes hash to, by `crc32c` and `md5`: the JSON metadata first, then the headers."""
    found = {}
    for item in headers.get("x-goog-hash", "").split(","):
        kind, _, text = item.strip().partition("=")
        found[kind] = text
    found["md5"] = found.get("md5") or headers.get("content-md5", "")
    found["crc32c"] = str(metadata.get("crc32c") or found.get("crc32c") or "")
    found["md5"] = str(metadata.get("md5Hash") or found["md5"])
    return {kind: text for kind, text in found.items() if kind in {"crc32c", "md5"} and text}


def check_hashes(expected: dict[str, str], crc: int, md5: bytes | None) -> None:
    """Raises ApiError 400 where the bytes that came are not those that were sent."""
    if (told := expected.get("crc32c")) and told != crc_text(crc):
        raise ApiError(400, f'Provided CRC32C "{told}" doesn\'t match calculated CRC32C "{crc_text(crc)}".')
    if md5 is not None and (told := expected.get("md5")) and told != md5_text(md5):
        raise ApiError(400, f'Provided MD5 hash "{told}" doesn\'t match calculated MD5 hash "{md5_text(md5)}".')
