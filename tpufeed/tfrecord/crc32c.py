"""CRC-32C (Castagnoli) as TFRecord and Google Cloud Storage use it."""

import crc32c as _crc32c

BytesLike = bytes | bytearray | memoryview  # `collections.abc.Buffer` from Python 3.12 on


def crc32c(data: BytesLike, crc: int = 0) -> int:
    """CRC-32C of `data`, continuing from `crc`. Reads any contiguous buffer without a copy and releases the GIL."""
    return int(_crc32c.crc32c(data, crc))


def mask_crc32c(crc: int) -> int:
    """A CRC as TFRecord stores it: rotated right by 15 bits plus a constant (tensorflow/core/lib/hash/crc32c.h)."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c(data: BytesLike) -> int:
    """The masked CRC of `data`; written out, as loaders call it twice a record."""
    crc = _crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
