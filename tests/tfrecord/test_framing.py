"""Framing against real TensorFlow, and against damage of every kind."""

import struct
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.errors import RecordError
from tpufeed.tfrecord.crc32c import crc32c, mask_crc32c, masked_crc32c
from tpufeed.tfrecord.framing import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    decode_record,
    encode_footer,
    encode_header,
    encode_record,
    iter_records,
)

PAYLOADS = [b"", b"x", b"hello", b"\0" * 1000, bytes(range(256)) * 400, b""]
# tf.io.TFRecordWriter(path).write(b"hello") of TensorFlow 2.21
HELLO = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19")


def write_by_tensorflow(path: Path, payloads: list[bytes]) -> bytes:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return path.read_bytes()


def payloads_of(shard: bytes) -> list[bytes]:
    return [bytes(payload) for _, payload in iter_records(memoryview(shard))]


def small_shard() -> bytes:
    return encode_record(b"one") + encode_record(b"") + encode_record(b"three")


def test_crc32c_is_castagnoli_and_continues():
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4 has more
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    assert crc32c(memoryview(b"x123456789")[1:]) == 0xE3069283
    assert masked_crc32c(b"abc") == mask_crc32c(crc32c(b"abc")) != crc32c(b"abc")


def test_tensorflow_s_records_are_ours_byte_for_byte(tmp_path):
    shard = write_by_tensorflow(tmp_path / "shard", PAYLOADS)
    assert shard == b"".join(map(encode_record, PAYLOADS))
    assert payloads_of(shard) == PAYLOADS


def test_bytes_of_a_record_never_change():
    assert encode_record(b"hello") == HELLO
    assert encode_header(5) + b"hello" + encode_footer(masked_crc32c(b"hello")) == HELLO


def test_tensorflow_reads_our_records(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(b"".join(map(encode_record, PAYLOADS)))
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == PAYLOADS


def test_offsets_are_those_of_the_headers():
    shard = b"".join(map(encode_record, PAYLOADS))
    for (offset, payload), expected in zip(iter_records(memoryview(shard)), PAYLOADS, strict=True):
        record = memoryview(shard)[offset : offset + len(expected) + OVERHEAD_BYTES]
        assert payload == expected
        assert decode_record(record) == expected


def test_payloads_are_views_and_no_copies():
    shard = bytearray(encode_record(b"abc"))
    (_, payload) = next(iter_records(memoryview(shard)))
    whole = decode_record(memoryview(shard))
    shard[HEADER_BYTES] = ord("X")
    assert bytes(payload) == bytes(whole) == b"Xbc"


def test_an_empty_shard_has_no_records():
    assert payloads_of(b"") == []


def test_every_single_bit_flip_is_detected():
    shard = small_shard()
    for bit in range(8 * len(shard)):
        damaged = bytearray(shard)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError):
            payloads_of(bytes(damaged))


def test_truncation_at_every_byte_is_detected_except_between_records():
    shard = small_shard()
    boundaries = {0: 0, 19: 1, 35: 2}
    assert len(shard) == 56
    for stop in range(len(shard)):
        if stop in boundaries:
            assert len(payloads_of(shard[:stop])) == boundaries[stop]
        else:
            with pytest.raises(RecordError, match="truncated"):
                payloads_of(shard[:stop])


def test_errors_name_file_record_and_byte():
    shard = bytearray(small_shard())
    shard[19 + HEADER_BYTES] ^= 1  # the footer of record 1, which is empty
    with pytest.raises(RecordError, match=r"^train-0, record 1, byte 19: the CRC of the payload"):
        list(iter_records(memoryview(shard), "train-0"))


def test_records_before_the_damage_are_read():
    shard = small_shard()[:-1]
    records = iter_records(memoryview(shard))
    assert [bytes(next(records)[1]), bytes(next(records)[1])] == [b"one", b""]
    with pytest.raises(RecordError):
        next(records)


@pytest.mark.parametrize("length", [6, 1 << 31, 1 << 62, (1 << 64) - 1])
def test_a_length_that_the_shard_cannot_hold_is_refused(length):
    shard = encode_header(length) + b"hello" + bytes(4)
    with pytest.raises(RecordError, match="truncated"):
        payloads_of(shard)
    with pytest.raises(RecordError, match=f"says {length} bytes"):
        decode_record(memoryview(shard))


@pytest.mark.parametrize(
    "change", [lambda r: r + b"\0", lambda r: r[:-1], lambda r: r[1:], lambda r: r[:0], lambda r: r * 2]
)
def test_decode_record_wants_exactly_one_record(change):
    with pytest.raises(RecordError):
        decode_record(memoryview(change(HELLO)))


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_round_trip(payloads):
    assert payloads_of(b"".join(map(encode_record, payloads))) == payloads


@given(st.binary(max_size=64))
def test_any_bytes_are_records_or_a_record_error(data):
    try:
        found = payloads_of(data)
    except RecordError:
        with pytest.raises(RecordError):
            decode_record(memoryview(data))
        return
    assert b"".join(map(encode_record, found)) == data


@given(st.integers(0, (1 << 64) - 1) | st.integers(0, 40), st.binary(max_size=40))
def test_any_length_with_a_good_crc_is_a_record_or_a_record_error(length, rest):
    try:
        found = payloads_of(encode_header(length) + rest)
    except RecordError:
        return
    assert struct.unpack("<I", rest[length : length + 4])[0] == masked_crc32c(found[0])
