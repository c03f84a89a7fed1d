"""CRCs of parts give that of the whole."""

from hypothesis import given
from hypothesis import strategies as st

from tpufeed.tfrecord.crc32c import combine_crc32c, crc32c


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_parts(first, second):
    assert combine_crc32c(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_parts_of_megabytes():
    first, second = b"a" * 1_000_003, bytes(5_000_000)
    assert combine_crc32c(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)
