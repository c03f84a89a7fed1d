"""Read and write whole TFRecord files in tests, in a few lines of their own."""

import struct

from crc32c import crc32c

from tpufeed.tfrecord.framing import mask_crc32c


def encode_record(payload):
    """One whole record."""
    header = struct.pack("<Q", len(payload))
    return b"".join(part + struct.pack("<I", mask_crc32c(crc32c(part))) for part in (header, bytes(payload)))


def records_of(data):
    """`(offset, payload)` of each record; both CRCs are verified."""
    data, offset, records = memoryview(data), 0, []
    while offset < len(data):
        length, length_crc = struct.unpack_from("<QI", data, offset)
        payload = data[offset + 12 : offset + 12 + length]
        assert length_crc == mask_crc32c(crc32c(data[offset : offset + 8]))
        assert struct.unpack_from("<I", data, offset + 12 + length) == (mask_crc32c(crc32c(payload)),)
        records.append((offset, payload))
        offset += 16 + length
    return records
