"""The fixed layout of tpufeed's records: a tf.train.Example whose image and integers stand at known places.

Any protobuf parser reads these bytes; a loader need not parse them. The image comes first and every length before it
is a varint padded to 5 bytes, so it starts at `image_offset` of the payload, whatever its size. Behind it
follow the integer features in a stated order, each value a varint padded to 10 bytes. All other features come last.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tpufeed.errors import RecordError
from tpufeed.tfrecord.example import (
    Feature,
    decode_example,
    encode_entry,
    encode_int64,
    encode_varint,
    read_varint,
    to_signed,
)

_LENGTH_BYTES = 5
_INT_BYTES = 10


class FixedLayout:
    """Encodes and decodes payloads with the image `image_key` and the integers `int_keys` in front.

    Immutable and safe to share between threads.
    """

    def __init__(self, image_key: str, int_keys: Sequence[str]) -> None:
        key = image_key.encode()
        self.image_key = image_key
        self.int_keys = tuple(int_keys)
        self._key_field = b"\x0a" + encode_varint(len(key)) + key
        self.image_offset = 30 + len(self._key_field)
        self._key_at = slice(12, 12 + len(self._key_field))
        self._heads = tuple(_int_head(name) for name in self.int_keys)
        self._ints = struct.Struct("".join(f"{len(head)}s{_INT_BYTES}s" for head in self._heads))

    def encode(self, image_bytes: int, ints: Sequence[int], rest: Mapping[str, Feature]) -> tuple[bytes, bytes]:
        """`(prefix, suffix)` such that prefix + image + suffix is the payload, for an image of `image_bytes` bytes.

        Raises:
            RecordError: a value that its feature cannot hold.
        """
        try:
            integers = [head + encode_int64(value, _INT_BYTES) for head, value in zip(self._heads, ints, strict=True)]
        except (TypeError, OverflowError) as error:
            raise RecordError(f"features {self.int_keys}: {error}") from error
        suffix = b"".join([*integers, *(encode_entry(name, feature) for name, feature in rest.items())])
        value = _length_field(1, image_bytes)
        bytes_list = _length_field(1, len(value) + image_bytes)
        feature = self._key_field + _length_field(2, len(bytes_list) + len(value) + image_bytes)
        entry = _length_field(1, len(feature) + len(bytes_list) + len(value) + image_bytes)
        features = _length_field(
            1, len(entry) + len(feature) + len(bytes_list) + len(value) + image_bytes + len(suffix)
        )
        return features + entry + feature + bytes_list + value, suffix

    def is_fixed(self, payload: memoryview) -> bool:
        """Whether the payload's image stands at `image_offset`."""
        return payload[self._key_at] == self._key_field

    def decode(self, payload: memoryview, where: str = "record") -> tuple[memoryview, tuple[int, ...]]:
        """`(image, integers)` of a payload, the image as a view into it.

        Payloads that another tool has written, with the same features in another order, are parsed in full.

        Raises:
            RecordError: not a tf.train.Example, or one of the features is missing.
        """
        start = self.image_offset
        if self.is_fixed(payload) and len(payload) >= start:
            length = _read_padded_once(bytes(payload[start - _LENGTH_BYTES : start]))
            if length is not None and start + length + self._ints.size <= len(payload):
                stop = start + length
                parts = self._ints.unpack_from(payload, stop)
                ints = tuple(map(_read_padded_once, parts[1::2]))
                if parts[::2] == self._heads and None not in ints:
                    return payload[start:stop], ints  # type: ignore[return-value]  # None is not among them
        return self._parse(payload, where)

    def _parse(self, payload: memoryview, where: str) -> tuple[memoryview, tuple[int, ...]]:
        features = decode_example(payload, where)
        values = []
        for name in (self.image_key, *self.int_keys):
            feature = features.get(name)
            if feature is None or len(feature.values) != 1:
                found = "is missing" if feature is None else f"has {len(feature.values)} values instead of one"
                raise RecordError(f"{where}: feature {name!r} {found}; the record has {sorted(features)}")
            values.append(feature.values[0])
        image, ints = values[0], tuple(value for value in values[1:] if isinstance(value, int))
        if not isinstance(image, memoryview) or len(ints) < len(self.int_keys):
            raise RecordError(f"{where}: features {(self.image_key, *self.int_keys)} should be bytes, then int64")
        return image, ints


def _length_field(number: int, length: int) -> bytes:
    return bytes([number << 3 | 2]) + encode_varint(length, _LENGTH_BYTES)


def _int_head(name: str) -> bytes:
    """The bytes before the padded varint of an int64 feature: an entry whose lengths are all known."""
    key = b"\x0a" + encode_varint(len(name.encode())) + name.encode()
    packed = b"\x0a" + encode_varint(_INT_BYTES)
    int64_list = b"\x1a" + encode_varint(len(packed) + _INT_BYTES)
    value = b"\x12" + encode_varint(len(int64_list) + len(packed) + _INT_BYTES)
    return (
        b"\x0a"
        + encode_varint(len(key) + len(value) + len(int64_list) + len(packed) + _INT_BYTES)
        + (key + value + int64_list + packed)
    )


def _read_padded(varint: bytes) -> int | None:
    """The int64 of a varint that fills all of these bytes; None where they hold something else."""
    if varint[-1] > 0x7F or min(varint[:-1]) < 0x80:
        return None
    return to_signed(read_varint(varint, 0)[0])


_read_padded_once = lru_cache(maxsize=1 << 16)(_read_padded)  # labels and sizes come again and again
