"""What a profile's file holds, read from its bytes: an XSpace is a protobuf of planes, one a device or a host.

Only what xprof does not tell is read here; of a plane's events, which are nearly all of a file, not a byte.
"""

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpufeed.errors import DamageError

# Cores for sparse embeddings have planes of their own: "/device:TPU:0 SparseCore 1".
_TENSOR_CORE = re.compile(r"/device:TPU:\d+")
# Fields of XSpace, XPlane, XStat, XStatMetadata and of a map's entries.
_PLANES, _ERRORS = 1, 2
_PLANE_NAME, _STAT_METADATA, _PLANE_STATS = 2, 5, 6
_STAT_METADATA_ID, _STAT_NAME = 1, 2
_KEY, _VALUE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Plane:
    """One device's or host's part of a profile.

    Attributes:
        name: "/device:TPU:0", "/host:CPU", ...
        stats: names of the figures that stand for the plane as a whole.
    """

    name: str
    stats: frozenset[str]


@dataclass(frozen=True, slots=True)
class XSpace:
    """One host's profile. `errors` is what went wrong while it was captured, in the profiler's own words."""

    planes: tuple[Plane, ...]
    errors: tuple[str, ...]

    @property
    def tensor_cores(self) -> int:
        """How many of a TPU's cores were profiled."""
        return sum(_TENSOR_CORE.fullmatch(plane.name) is not None for plane in self.planes)


@dataclass(frozen=True, slots=True)
class _Field:
    """Of a message: its number, and its value, which is a number or lies at `[start, stop)`."""

    number: int
    kind: int
    value: int
    start: int
    stop: int


def read_xspace(path: Path) -> XSpace:
    """The outline of one `.xplane.pb`.

    Raises:
        DamageError: the file is empty, cut short, or no XSpace.
    """
    if path.stat().st_size == 0:
        raise DamageError(f"{path} is empty: the capture was broken off; capture again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            space = _space(data)
        except (ValueError, IndexError) as error:
            raise DamageError(f"{path} is cut short, or no profile: {error}; copy it or capture it again") from error
    if not space.planes:
        raise DamageError(f"{path} is no profile: it holds no plane; an .xplane.pb of a profiler is expected")
    return space


def _space(data: mmap.mmap) -> XSpace:
    planes: list[Plane] = []
    errors: list[str] = []
    for field in _fields(data, 0, len(data)):
        if field.number == _PLANES and field.kind == _BYTES:
            planes.append(_plane(data, field))
        elif field.number == _ERRORS and field.kind == _BYTES:
            errors.append(_text(data, field))
    return XSpace(tuple(planes), tuple(errors))


def _plane(data: mmap.mmap, plane: _Field) -> Plane:
    name, names, carried = "", {}, []
    for field in _fields(data, plane.start, plane.stop):
        if field.kind != _BYTES:
            continue
        if field.number == _PLANE_NAME:
            name = _text(data, field)
        elif field.number == _STAT_METADATA:
            entry = {part.number: part for part in _fields(data, field.start, field.stop)}
            if _KEY in entry and _VALUE in entry:
                names[entry[_KEY].value] = _stat_name(data, entry[_VALUE])
        elif field.number == _PLANE_STATS:
            carried += [p.value for p in _fields(data, field.start, field.stop) if p.number == _STAT_METADATA_ID]
    return Plane(name, frozenset(names[number] for number in carried if number in names))


def _stat_name(data: mmap.mmap, metadata: _Field) -> str:
    texts = [_text(data, part) for part in _fields(data, metadata.start, metadata.stop) if part.number == _STAT_NAME]
    return texts[-1] if texts else ""


def _text(data: mmap.mmap, field: _Field) -> str:
    return data[field.start : field.stop].decode("utf-8", "replace")


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[_Field]:
    """The fields of the message at `[start, stop)`. Raises ValueError or IndexError where they are no such thing."""
    at = start
    while at < stop:
        began = at
        tag, at = _varint(data, at)
        number, kind, value = tag >> 3, tag & 7, 0
        begin = at
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            size, begin = _varint(data, at)
            at = begin + size
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"byte {began} begins no field")
        if number == 0 or at > stop:
            raise ValueError(f"the field at byte {began} would end at byte {at}, past byte {stop}")
        yield _Field(number, kind, value, begin, at)


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """`(value, where the next byte is)`."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(f"the number that ends at byte {at} is too long")
