"""Read and write whole TFRecord files in tests, in a few lines of their own."""

import gzip
import struct
import zlib

from crc32c import crc32c

from tpufeed.tfrecord.example import encode_entries, encode_field
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


def encode_features(features):
    """A `tf.train.Example` of `Feature`s, by tpufeed's own encoder."""
    return encode_field(1, encode_entries(features))


def encode_example(features):
    """A `tf.train.Example`; a value is bytes, a float, an int, or a list of one of them, which may be empty."""
    return _field(
        1, b"".join(_field(1, _field(1, key.encode()) + _field(2, _feature(value))) for key, value in features.items())
    )


def _feature(value):
    values = value if isinstance(value, list) else [value]
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return _field(1, b"".join(_field(1, each) for each in values))
    if isinstance(values[0], float):
        return _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))
    return _field(3, _field(1, b"".join(_varint(each % 2**64) for each in values)))


def _field(number, content):
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value):
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def write_file(path, payloads, compression=""):
    """Write a TFRecord file; compressed ("GZIP", "ZLIB") as TensorFlow does it, as a whole."""
    data = b"".join(map(encode_record, payloads))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes({"": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}[compression](data))
    return path
