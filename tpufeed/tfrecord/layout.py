"""The fixed layout of tpufeed's records: a tf.train.Example whose image and integers are at known places.

Any protobuf parser reads these bytes. A loader need not parse them. The image comes first, and every length before it
is a varint padded to 5 bytes, so it starts at `image_offset` of the payload, whatever its size. The integer features
follow in a fixed order, each value a varint padded to 10 bytes. All other features come last.

A clip has a list of images. All of it, as `pack_values` joins it, then counts as the image.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.errors import RecordError
from tpufeed.tfrecord.example import (
    Feature,
    Kind,
    decode_example,
    encode_entry,
    encode_field,
    encode_varint,
    read_varint,
    to_signed,
)

_LENGTH_BYTES = 5  # of a padded varint: 35 bits
_INT_BYTES = 10
_VALUE_HEAD_BYTES = 6  # of a value in a list of bytes: its tag and padded length


class FixedLayout:
    """Encodes and decodes payloads with the image `image_key` and the integers `int_keys` in front.

    Immutable and safe to share between threads. With `is_list` the image is a list of values, see `pack_values`.
    """

    def __init__(self, image_key: str, int_keys: Sequence[str], is_list: bool = False) -> None:
        self.image_key, self._is_list = image_key, is_list
        self.int_keys = tuple(int_keys)
        self._key_field = encode_field(1, image_key.encode())
        # The key, and five tags, each with a padded length. The last one is that of a value.
        self.image_offset = 30 + len(self._key_field) - _VALUE_HEAD_BYTES * is_list
        self._key_at = slice(12, 12 + len(self._key_field))  # after two of them
        self._length_at = slice(self.image_offset - _LENGTH_BYTES, self.image_offset)
        # Entries of one padded varint, up to this: all their lengths are known.
        packed = encode_field(3, encode_field(1, bytes(_INT_BYTES)))
        entries = (encode_field(1, encode_field(1, name.encode()) + encode_field(2, packed)) for name in self.int_keys)
        self._heads = tuple(entry[:-_INT_BYTES] for entry in entries)
        self._ints = struct.Struct("".join(f"{len(head)}s{_INT_BYTES}s" for head in self._heads))

    def encode(self, image_bytes: int, ints: Sequence[int], rest: bytes) -> tuple[bytes, bytes]:
        """Return `(prefix, suffix)`: prefix + image + suffix is the payload, for an image of `image_bytes` bytes.

        `rest` are the other features, as `encode_entries` returns them.

        Raises:
            RecordError: a feature cannot hold its value.
        """
        try:
            integers = [head + _encode_int_once(value) for head, value in zip(self._heads, ints, strict=True)]
        except (TypeError, OverflowError) as error:
            raise RecordError(f"features {self.int_keys}: {error}") from error
        suffix = b"".join([*integers, rest])
        return self._encode_prefix(image_bytes, self.image_offset + image_bytes + len(suffix)), suffix

    def is_fixed(self, payload: memoryview) -> bool:
        """Return true if the payload's image is at `image_offset`."""
        return payload[self._key_at] == self._key_field

    def decode(self, payload: memoryview, where: str = "record") -> tuple[memoryview, tuple[int, ...]]:
        """Return `(image, integers)` of a payload, the image as a view into it.

        Payloads of another tool, with the same features in another order, are parsed in full.

        Raises:
            RecordError: not a tf.train.Example, or one of the features is missing.
        """
        found = self._find(payload) if payload[self._key_at] == self._key_field else None
        if found is None:
            return self._parse(payload, where)
        stop, ints = found
        return payload[self.image_offset : stop], ints

    def decode_ints(self, payloads: Sequence[memoryview], image_bytes: int) -> npt.NDArray[np.int64] | None:
        """Return the integers of all payloads, of shape (payloads, integers), in a third of the time of `decode`.

        Return None if one of them has an image of another size than `image_bytes`, or was written by another tool.
        """
        key, start, stop = self._key_at.start, self.image_offset, self.image_offset + image_bytes
        size = stop + self._ints.size
        head = self._encode_prefix(image_bytes, size)[key:]
        if any(len(payload) < size or payload[key:start] != head for payload in payloads):
            return None
        joined = b"".join([payload[stop:size] for payload in payloads])
        found = np.frombuffer(joined, np.uint8).reshape(len(payloads), self._ints.size)
        wanted = np.frombuffer(b"".join(head + bytes(_INT_BYTES) for head in self._heads), np.uint8)
        is_value = (
            np.repeat([0, 1] * len(self._heads), [n for head in self._heads for n in (len(head), _INT_BYTES)]) > 0
        )
        values = found[:, is_value].reshape(len(payloads), len(self._heads), _INT_BYTES)
        continues = values >= 0x80
        if (found != wanted)[:, ~is_value].any() or not continues[..., :-1].all() or continues[..., -1].any():
            return None
        bits = (values & 0x7F).astype(np.uint64) << np.arange(0, 7 * _INT_BYTES, 7, dtype=np.uint64)
        ints: npt.NDArray[np.int64] = bits.sum(-1, dtype=np.uint64).view(np.int64)
        return ints

    def split(self, payload: memoryview) -> tuple[int, tuple[int, ...], bytes] | None:
        """Return `(image_bytes, integers, rest)` of a payload if every length before `rest` is right, else None.

        `rest` is a copy of the bytes after the integers. `decode` skips the lengths around the image, which no loader
        needs. This compares them, as other parsers rely on them.
        """
        found = self._find(payload)
        if found is None:
            return None
        stop, ints = found
        length = stop - self.image_offset
        if payload[: self.image_offset] != self._encode_prefix(length, len(payload)):
            return None
        return length, ints, bytes(payload[stop + self._ints.size :])

    def _encode_prefix(self, image_bytes: int, payload_bytes: int) -> bytes:
        """Return the bytes of a payload before its image: five nested messages, or four before a list."""
        value_bytes = image_bytes - _VALUE_HEAD_BYTES * self._is_list
        prefix = b"\x0a%b\x0a%b%b\x12%b\x0a%b\x0a%b" % (
            _pad_length(payload_bytes - 6),
            _pad_length(self.image_offset + image_bytes - 12),
            self._key_field,
            _pad_length(value_bytes + 12),
            _pad_length(value_bytes + 6),
            _pad_length(value_bytes),
        )
        return prefix[: self.image_offset]

    def _find(self, payload: memoryview) -> tuple[int, tuple[int, ...]] | None:
        """Return where the image ends, and the integers behind it, or None if they are not at their places."""
        length = _read_padded(bytes(payload[self._length_at]))
        if length is None:
            return None
        stop = self.image_offset + length
        if stop + self._ints.size > len(payload):
            return None
        # The heads name the features and hold all their lengths: equal bytes are the same features.
        parts = self._ints.unpack_from(payload, stop)
        ints = tuple(map(_read_padded, parts[1::2]))
        if parts[::2] != self._heads or None in ints:
            return None
        return stop, ints  # type: ignore[return-value]  # None is not among them

    def _parse(self, payload: memoryview, where: str) -> tuple[memoryview, tuple[int, ...]]:
        features = decode_example(payload, where)
        values = list[Any]()
        for name in (self.image_key, *self.int_keys):
            feature: Any = features.get(name)
            if self._is_list and not values and feature is not None and feature.kind == "bytes":
                values.append(memoryview(pack_values(feature.values)))
                continue
            if feature is None or len(feature.values) != 1:
                found = "is missing" if feature is None else f"has {len(feature.values)} values instead of one"
                raise RecordError(f"{where}: feature {name!r} {found}. The record has {sorted(features)}")
            values.append(feature.values[0])
        image, ints = values[0], tuple(value for value in values[1:] if isinstance(value, int))
        if not isinstance(image, memoryview) or len(ints) < len(self.int_keys):
            raise RecordError(f"{where}: features {(self.image_key, *self.int_keys)} should be bytes, then int64")
        return image, ints


class ScalarEntry:
    """Reads one feature of exactly one value in the shortest encoding, as `encode_entry` writes it.

    It compares bytes at fixed offsets: ten times faster than parsing. Entries with lengths of more than a byte
    are left to the parser. Immutable.
    """

    def __init__(self, key: str, kind: Kind) -> None:
        self._size = 0
        self._heads: dict[int, bytes] = {}
        self._is_varint = kind == "int64"
        values: dict[Kind, Iterable[tuple[int, Any]]] = {
            "bytes": ((size, b"x" * size) for size in range(128)),
            "float": [(4, 0.0)],
            "int64": [*((size, 1 << 7 * (size - 1)) for size in range(1, 10)), (10, -1)],
        }
        for value_bytes, value in values[kind]:
            entry = encode_entry(key, Feature(kind, (value,)))
            head = entry[: len(entry) - value_bytes]
            if len(entry) > 127 or (self._heads and len(head) != self._size):
                break
            self._heads[value_bytes] = head
            self._size = len(head)

    def read(self, data: bytes, at: int) -> tuple[bytes, int] | None:
        """Return `(value, offset after the entry)` of the entry at `at`, or None for another entry or encoding.

        The value is bytes: the string itself, four bytes of a float, or a varint.
        """
        if not self._heads:
            return None
        start = at + self._size
        if start > len(data):
            return None
        value_bytes = data[start - 1]  # the innermost length is the last byte of the head
        stop = start + value_bytes
        if stop > len(data) or data[at:start] != self._heads.get(value_bytes):
            return None
        value = data[start:stop]
        # A varint ends at the first byte below 0x80. It must be its last one.
        if self._is_varint and (value[-1] > 0x7F or min(value[:-1], default=0x80) < 0x80):
            return None
        return value, stop


def pack_values(values: Iterable[Any]) -> bytes:
    """Return values as a list of bytes holds them."""
    return b"".join([b"\x0a%b%b" % (_pad_length(len(value)), value) for value in values])


def split_values(packed: memoryview) -> list[memoryview]:
    """Return the values that `pack_values` has joined. Raises RecordError."""
    found, at = list[memoryview](), 0
    while at < len(packed):
        start = at + _VALUE_HEAD_BYTES
        length = _read_padded(bytes(packed[at + 1 : start])) if packed[at] == 0x0A else None
        if length is None or start + length > len(packed):
            raise RecordError(f"value {len(found)} of the image's list has no sound length")
        at = start + length
        found.append(packed[start:at])
    return found


def _pad_length(length: int) -> bytes:
    """Return `encode_varint(length, 5)` of a length below 2**35, in a quarter of the time."""
    low = length & 0x7F | (length & 0x3F80) << 1 | (length & 0x1FC000) << 2 | (length & 0xFE00000) << 3
    return (low | (length >> 28) << 32 | 0x80808080).to_bytes(_LENGTH_BYTES, "little")


@lru_cache(maxsize=1 << 16)  # labels and sizes come again and again
def _read_padded(varint: bytes) -> int | None:
    """Return the int64 of a padded varint of exactly these bytes, or None if they are something else."""
    if len(varint) < _LENGTH_BYTES or varint[-1] > 0x7F or min(varint[:-1]) < 0x80:
        return None
    return to_signed(read_varint(varint, 0)[0])


_encode_int_once = lru_cache(maxsize=1 << 16, typed=True)(partial(encode_varint, width=_INT_BYTES))
