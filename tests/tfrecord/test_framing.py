"""Framing against real TensorFlow, and against damage of every kind."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.tfrecords import encode_record, records_of
from tpufeed.dataset.walk import Walker
from tpufeed.errors import RecordError
from tpufeed.storage.memory import MemoryStore
from tpufeed.tfrecord.framing import (
    HEADER_BYTES,
    decode_records,
    encode_footer,
    encode_header,
    join_crc32c,
    mask_crc32c,
)

PAYLOADS = [b"", b"x", b"hello", b"\0" * 1000, bytes(range(256)) * 400, b""]
# tf.io.TFRecordWriter(path).write(b"hello") of TensorFlow 2.21
HELLO = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19")
SHARD = encode_record(b"one") + encode_record(b"") + encode_record(b"three")


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_the_crc_of_pieces_follows_from_theirs(pieces):
    joined = 0
    for piece in pieces:
        joined = join_crc32c(joined, crc32c(piece), len(piece))
    assert joined == crc32c(b"".join(pieces))


def payloads_of(shard):
    """All payloads of a shard, walked as `verify` and `adopt` do."""
    store = MemoryStore("memory://framing")
    store.put("shard", bytes(shard), store.stat("shard"))
    payloads = []
    for walked in Walker(store, "shard", len(shard), chunk_bytes=30).walk():
        for payload in walked.payloads:
            if isinstance(payload, RecordError):
                raise payload
            payloads.append(bytes(payload))
        if walked.problem:
            raise RecordError(walked.problem)
    return payloads


def decode_one(record):
    return decode_records([memoryview(record)], "record {}".format)[0]


def test_crc32c_is_castagnoli_and_continues():
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4 has more
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    assert crc32c(memoryview(b"x123456789")[1:]) == 0xE3069283
    assert mask_crc32c(crc32c(b"abc")) != crc32c(b"abc")


@pytest.mark.uses("tensorflow")
def test_tensorflow_writes_the_same_bytes_and_reads_them(tmp_path):
    import tensorflow as tf

    path = tmp_path / "shard"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in PAYLOADS:
            writer.write(payload)
    shard = path.read_bytes()
    assert encode_record(b"hello") == encode_header(5) + b"hello" + encode_footer(crc32c(b"hello")) == HELLO
    assert shard == b"".join(map(encode_record, PAYLOADS))
    assert payloads_of(shard) == PAYLOADS == [bytes(payload) for _, payload in records_of(shard)]
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == PAYLOADS


def test_payloads_are_views_and_no_copies():
    record = bytearray(encode_record(b"abc"))
    payload = decode_one(record)
    record[HEADER_BYTES] = ord("X")
    assert bytes(payload) == b"Xbc"


def test_every_single_bit_flip_is_detected():
    for bit in range(8 * len(SHARD)):
        damaged = bytearray(SHARD)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError):
            payloads_of(damaged)


def test_truncation_at_every_byte_is_detected_except_between_records():
    boundaries = {0: 0, 19: 1, 35: 2}
    assert len(SHARD) == 56
    for stop in range(len(SHARD)):
        if stop in boundaries:
            assert len(payloads_of(SHARD[:stop])) == boundaries[stop]
        else:
            with pytest.raises(RecordError, match="truncated"):
                payloads_of(SHARD[:stop])


@pytest.mark.parametrize("length", [6, 1 << 31, 1 << 62, (1 << 64) - 1])
def test_a_length_that_the_shard_cannot_hold_is_refused(length):
    shard = encode_header(length) + b"hello" + bytes(4)
    with pytest.raises(RecordError, match="truncated"):
        payloads_of(shard)
    with pytest.raises(RecordError, match=f"record 0: .*{length} bytes"):
        decode_one(shard)


@pytest.mark.parametrize(
    "change", [lambda r: r + b"\0", lambda r: r[:-1], lambda r: r[1:], lambda r: r[:0], lambda r: r * 2]
)
def test_a_record_is_exactly_one(change):
    with pytest.raises(RecordError, match=r"^record 0: "):
        decode_one(change(HELLO))


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_round_trip(payloads):
    assert payloads_of(b"".join(map(encode_record, payloads))) == payloads


@given(st.binary(max_size=64))
def test_any_bytes_are_records_or_a_record_error(data):
    try:
        found = payloads_of(data)
    except RecordError:
        with pytest.raises(RecordError):
            decode_one(data)
        return
    assert b"".join(map(encode_record, found)) == data


@given(st.integers(0, (1 << 64) - 1) | st.integers(0, 40), st.binary(max_size=40))
def test_any_length_with_a_good_crc_is_a_record_or_a_record_error(length, rest):
    try:
        found = payloads_of(encode_header(length) + rest)
    except RecordError:
        return
    assert struct.unpack("<I", rest[length : length + 4])[0] == mask_crc32c(crc32c(found[0]))
