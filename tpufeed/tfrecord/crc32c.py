"""CRC-32C (Castagnoli) as TFRecord and Google Cloud Storage use it."""

import crc32c as _crc32c

BytesLike = bytes | bytearray | memoryview  # `collections.abc.Buffer` from Python 3.12 on
_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed: the highest bit is the coefficient of x^0
_ONE = 1 << 31
_X = 1 << 30


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


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32C of A + B from `first`, that of A, and `second`, that of B, which has `second_bytes` bytes.

    A CRC is a remainder of polynomials over GF(2): that of A, shifted by the bits of B, plus that of B. The shift is a
    multiplication by x^bits modulo the polynomial, made of squarings (the method of zlib's crc32_combine).
    """
    shift, square, bits = _ONE, _X, 8 * second_bytes
    while bits:
        if bits & 1:
            shift = _multiply(square, shift)
        square = _multiply(square, square)
        bits >>= 1
    return _multiply(shift, first) ^ second


def _multiply(a: int, b: int) -> int:
    product, bit = 0, _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product
