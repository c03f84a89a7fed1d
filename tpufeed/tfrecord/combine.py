"""The CRC-32C of two byte strings end to end from the CRC of each, so that parts of a file can be read in parallel.

A CRC is a remainder of polynomials over GF(2): that of A, shifted by the bits of B, plus that of B. The shift is a
multiplication by x^bits modulo the polynomial, made of squarings (the method of zlib's crc32_combine).
"""

_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed: the highest bit is the coefficient of x^0
_ONE = 1 << 31
_X = 1 << 30


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """CRC-32C of A + B, where `first` is that of A, `second` that of B, and B has `second_bytes` bytes."""
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
