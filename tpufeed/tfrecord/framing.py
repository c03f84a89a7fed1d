"""TFRecord framing, little-endian: u64 length, u32 masked CRC of it, the payload, u32 masked CRC of the payload."""

import struct
from collections.abc import Callable, Iterator, Sequence

from tpufeed.errors import RecordError
from tpufeed.tfrecord.crc32c import BytesLike, crc32c, mask_crc32c, masked_crc32c

HEADER_BYTES = 12
FOOTER_BYTES = 4
OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")


def encode_header(payload_bytes: int) -> bytes:
    """The 12 bytes before a payload of this length."""
    length = _LENGTH.pack(payload_bytes)
    return length + _CRC.pack(masked_crc32c(length))


def encode_footer(payload_crc32c_masked: int) -> bytes:
    """The 4 bytes after a payload whose masked CRC this is."""
    return _CRC.pack(payload_crc32c_masked)


def encode_record(payload: BytesLike) -> bytes:
    """One whole record; the writer of shards puts the parts together without this copy."""
    return encode_header(len(payload)) + bytes(payload) + encode_footer(masked_crc32c(payload))


def decode_record(record: memoryview, where: str = "record") -> memoryview:
    """The payload of `record`, which is exactly one record; both CRCs are verified.

    Args:
        record: from the first byte of the header to the last of the footer.
        where: names the place in errors, as "shard, record, byte".

    Raises:
        RecordError: the length or a CRC does not fit.
    """
    length = _read_length(record, 0, where)
    if length != len(record) - OVERHEAD_BYTES:
        raise RecordError(
            f"{where}: the record says {length} bytes of payload, the index says {len(record) - OVERHEAD_BYTES}"
        )
    return _read_payload(record, 0, length, where)


def decode_records(
    records: Sequence[memoryview], where: Callable[[int], str], use: Callable[[int, memoryview], None] | None = None
) -> list[memoryview]:
    """The payloads of records, verified as by `decode_record`.

    The CRCs are computed in one go: they release the GIL, and a thread that has a few microseconds of Python between
    one release and the next runs into the other threads each time. Twice the throughput on two cores.

    Args:
        records: each exactly one record.
        where: names the place of record number i in an error.
        use: called with number and payload while its bytes are in the processor's cache, before they are known to be
            sound; it copies them, and no more.

    Raises:
        RecordError: as by `decode_record`.
    """
    payloads = [record[HEADER_BYTES:-FOOTER_BYTES] for record in records]
    crcs = []
    for number, payload in enumerate(payloads):
        crcs.append(crc32c(payload))
        if use is not None:
            use(number, payload)
    for number, (record, payload, crc) in enumerate(zip(records, payloads, crcs, strict=True)):
        size = len(payload)
        if (
            len(record) != size + OVERHEAD_BYTES
            or record[:HEADER_BYTES] != encode_header(size)
            or record[-FOOTER_BYTES:] != encode_footer(mask_crc32c(crc))
        ):
            decode_record(record, where(number))  # raises, and says why
    return payloads


def iter_records(shard: memoryview, where: str = "shard") -> Iterator[tuple[int, memoryview]]:
    """Each record of a whole shard as `(offset of its header, payload)`; both CRCs are verified.

    Raises:
        RecordError: naming record and byte; a length that the shard cannot hold is refused before it is used.
    """
    offset, number = 0, 0
    while offset < len(shard):
        place = f"{where}, record {number}, byte {offset}"
        length = _read_length(shard, offset, place)
        left = len(shard) - offset - OVERHEAD_BYTES
        if length > left:
            raise RecordError(f"{place}: truncated; the record wants {length} bytes of payload, {left} are left")
        yield offset, _read_payload(shard, offset, length, place)
        offset, number = offset + OVERHEAD_BYTES + length, number + 1


def _read_length(buffer: memoryview, offset: int, where: str) -> int:
    left = len(buffer) - offset
    if left < OVERHEAD_BYTES:
        raise RecordError(f"{where}: truncated; {left} bytes are left, a record takes at least {OVERHEAD_BYTES}")
    length, crc = _HEADER.unpack_from(buffer, offset)
    if masked_crc32c(buffer[offset : offset + 8]) != crc:
        raise RecordError(f"{where}: the CRC of the record's length does not match; the bytes here are damaged")
    return int(length)


def _read_payload(buffer: memoryview, offset: int, length: int, where: str) -> memoryview:
    start = offset + HEADER_BYTES
    payload = buffer[start : start + length]
    if masked_crc32c(payload) != _CRC.unpack_from(buffer, start + length)[0]:
        raise RecordError(f"{where}: the CRC of the payload ({length} bytes) does not match; the bytes are damaged")
    return payload
