"""tf.train.Example without TensorFlow: `Example{features{feature: map<string, Feature>}}`.

Field numbers are those of tensorflow/core/example/{example,feature}.proto. Packed and unpacked lists are read. Lists
are written packed, map entries in the order given, so the same features give the same bytes.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from tpufeed.errors import RecordError
from tpufeed.tfrecord.framing import BytesLike

Kind = Literal["bytes", "float", "int64"]
Values = Sequence[bytes] | Sequence[memoryview] | Sequence[float] | Sequence[int] | npt.NDArray[Any]
_FIELD_OF_KIND: dict[Kind, int] = {"bytes": 1, "float": 2, "int64": 3}
_KIND_OF_FIELD: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}

_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ENTRY_TAG = 1 << 3 | _BYTES  # of an entry in the map, and of the name in an entry


class Feature(NamedTuple):
    """One feature: a list of `bytes`, of float32 or of int64. `kind` is None if the proto names none."""

    kind: Kind | None
    values: Values


ABSENT = Feature(None, ())


def encode_entries(features: Mapping[str, Feature]) -> bytes:
    """Return the map entries of `Features`, one after another.

    Raises:
        RecordError: a value does not fit its kind. The message names the feature.
    """
    return b"".join(encode_entry(name, feature) for name, feature in features.items())


def encode_entry(name: str, feature: Feature) -> bytes:
    """Return one entry of the map in `Features`, tag and length included."""
    try:
        packed = value = b""
        if feature.kind == "bytes":
            # memoryview, as bytes(5) would be five zeros
            packed = b"".join(encode_field(1, bytes(memoryview(value))) for value in feature.values)  # type: ignore[arg-type]  # kind says so
        elif feature.kind is not None and len(feature.values):
            if feature.kind == "float":
                data = struct.pack(f"<{len(feature.values)}f", *feature.values)
            else:
                data = b"".join(encode_varint(value) for value in feature.values)  # type: ignore[arg-type]  # kind says so
            packed = encode_field(1, data)
        if feature.kind is not None:
            value = encode_field(_FIELD_OF_KIND[feature.kind], packed)
        return encode_field(1, encode_field(1, name.encode()) + encode_field(2, value))
    except (TypeError, UnicodeEncodeError, struct.error, OverflowError) as error:
        raise RecordError(f"feature {name!r}: {error} in a list of kind {feature.kind}") from error


def decode_example(payload: BytesLike, where: str = "record") -> dict[str, Feature]:
    """Return the features of a serialised tf.train.Example. Bytes values are views into `payload`.

    Raises:
        RecordError: `payload` is not a tf.train.Example.
    """
    return _decode(_iter_messages(memoryview(payload), 1), _decode_list, f"{where}: not a tf.train.Example")


def decode_arrays(payload: BytesLike, where: str = "record") -> dict[str, Feature]:
    """Return the features like `decode_example`, but lists of numbers as arrays of int64 and float32.

    Arrays of floats are read-only views into `payload`, as bytes values are.

    Raises:
        RecordError: `payload` is not a tf.train.Example.
    """
    return _decode(_iter_messages(memoryview(payload), 1), _decode_array, f"{where}: not a tf.train.Example")


def decode_entries(entries: BytesLike, where: str = "record") -> dict[str, Feature]:
    """Return the features of successive map entries, as `encode_entry` writes them. Bytes values are views.

    Raises:
        RecordError: `entries` are something else.
    """
    return _decode([memoryview(entries)], _decode_list, f"{where}: no features of a tf.train.Example")


def split_entries(entries: bytes, where: str = "record") -> dict[str, bytes]:
    """Return successive map entries undecoded, by name: this takes an eighth of the time of decoding them.

    Raises:
        RecordError: `entries` are something else, or their names do not come first.
    """
    found, at = dict[str, bytes](), 0
    try:
        while at < len(entries):
            length, start = read_varint(entries, at + 1)
            key_bytes, key = read_varint(entries, start + 1)
            stop, key_stop = start + length, key + key_bytes
            if entries[at] != _ENTRY_TAG or entries[start] != _ENTRY_TAG or not key_stop <= stop <= len(entries):
                raise ValueError(f"no entry at byte {at}")
            found[str(entries[key:key_stop], "utf-8")] = entries[at:stop]
            at = stop
    except (IndexError, ValueError) as error:
        raise RecordError(f"{where}: no features of a tf.train.Example: {error}") from error
    return found


def read_text(value: object) -> str | None:
    """Return a bytes value of a feature as text, or None if it is something else, or not valid UTF-8."""
    try:
        return str(value, "utf-8") if isinstance(value, bytes | memoryview) else None
    except UnicodeDecodeError:
        return None


def encode_varint(value: SupportsIndex, width: int = 0) -> bytes:
    """Return the protobuf varint of an int64.

    Args:
        value: the number.
        width: pad to this many bytes. Parsers accept up to 10, for lengths up to 5, so a field that is written later or
            read in place can have a constant offset.

    Raises:
        OverflowError, TypeError: the value is no int64.
    """
    number = index(value)
    if 0 <= number < 0x80 and width < 2:  # most lengths and all tags
        return _ONE_BYTE[number]
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{number} does not fit into an int64")
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F or len(out) < width - 1:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(buffer: BytesLike, offset: int) -> tuple[int, int]:
    """Return `(value, offset after it)` of the unsigned varint at `offset`. Raises IndexError or ValueError."""
    value = shift = 0
    while True:
        byte = buffer[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, offset
        shift += 7
        if shift > 63:
            raise ValueError(f"a varint of more than 10 bytes before byte {offset}")


def to_signed(value: int) -> int:
    """Interpret `value` as a two's-complement int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def encode_field(number: int, data: bytes) -> bytes:
    """Return a field of bytes, as strings, messages and packed lists are."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(data)) + data


def _iter_fields(buffer: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield `(field number, wire type, value)`. Fixed-width values come as views."""
    offset = 0
    while offset < len(buffer):
        tag, offset = read_varint(buffer, offset)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, offset = read_varint(buffer, offset)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, offset = read_varint(buffer, offset)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {offset}")
        if length > len(buffer) - offset:
            raise ValueError(f"field {number} wants {length} bytes, {len(buffer) - offset} are left")
        yield number, wire, buffer[offset : offset + length]
        offset += length


def _iter_messages(buffer: memoryview, number: int) -> Iterator[memoryview]:
    for found, wire, value in _iter_fields(buffer):
        if found == number and wire == _BYTES and isinstance(value, memoryview):
            yield value


def _decode(
    messages: Iterable[memoryview], decode_list: Callable[[Kind, memoryview], Values], wrong: str
) -> dict[str, Feature]:
    """Return the features of `Features` messages. `wrong` starts the error message."""
    try:
        return {
            name: Feature(kind, () if kind is None else decode_list(kind, data))
            for features in messages
            for name, kind, data in _iter_lists(features)
        }
    except (IndexError, ValueError, struct.error) as error:
        raise RecordError(f"{wrong}: {error}") from error


def _iter_lists(features: memoryview) -> Iterator[tuple[str, Kind | None, memoryview]]:
    """Yield name, kind and the bytes of the list of each feature."""
    for entry in _iter_messages(features, 1):
        name, kind, data = "", None, memoryview(b"")
        for number, wire, value in _iter_fields(entry):
            if wire == _BYTES and isinstance(value, memoryview):
                if number == 1:
                    name = str(value, "utf-8")
                elif number == 2:
                    kind, data = _find_list(value)
        yield name, kind, data


def _find_list(feature: memoryview) -> tuple[Kind | None, memoryview]:
    kind, data = None, memoryview(b"")
    # A oneof: as protobuf has it, the last kind counts.
    for number, wire, value in _iter_fields(feature):
        found = _KIND_OF_FIELD.get(number)
        if found is not None and wire == _BYTES and isinstance(value, memoryview):
            kind, data = found, value
    return kind, data


def _decode_array(kind: Kind, buffer: memoryview) -> Values:
    """Decode a list of numbers that is packed, as nearly all are, without a Python object for each."""
    if kind == "bytes":
        return _decode_list(kind, buffer)
    fields = list(_iter_fields(buffer))
    packed = len(fields) == 1 and fields[0][0] == 1 and isinstance(fields[0][2], memoryview)
    if not packed or fields[0][1] != _BYTES:
        return np.array(_decode_list(kind, buffer), np.float32 if kind == "float" else np.int64)
    data = np.frombuffer(fields[0][2], np.uint8)  # type: ignore[arg-type]  # it is a memoryview
    if kind == "float":
        return data.view("<f4")
    ends = np.flatnonzero(data < 0x80)
    if len(ends) == len(data):
        return data.astype(np.int64)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise ValueError("a varint is cut off")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise ValueError("a varint of more than 10 bytes")
    # All varints at once: shift each byte's seven bits into place, then sum per varint.
    shifts = (np.arange(len(data)) - np.repeat(starts, lengths)) * 7
    parts = (data & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)


def _decode_list(kind: Kind, buffer: memoryview) -> Values:
    if kind == "bytes":
        return list(_iter_messages(buffer, 1))
    if kind == "float":
        floats: list[float] = []
        for number, wire, value in _iter_fields(buffer):
            if number == 1 and wire in (_BYTES, _FIXED32) and isinstance(value, memoryview):
                floats.extend(struct.unpack(f"<{len(value) // 4}f", value))
        return floats
    ints: list[int] = []
    for number, wire, value in _iter_fields(buffer):
        if number == 1 and isinstance(value, int):
            ints.append(to_signed(value))
        elif number == 1 and wire == _BYTES and isinstance(value, memoryview):
            offset = 0
            while offset < len(value):
                unsigned, offset = read_varint(value, offset)
                ints.append(to_signed(unsigned))
    return ints
