"""The Range header of a read."""

import re
from typing import NamedTuple

from tests.gcs_server.errors import ApiError


class Span(NamedTuple):
    """Bytes `[start, stop)`."""

    start: int
    stop: int


def requested_span(header: str, size: int) -> Span | None:
    """What of an object of `size` bytes is asked for; None: all of it.

    A header that cannot be read and several ranges ask for all, as with GCS. Raises ApiError 416.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if found is None or found.groups() == ("", "") or (found[1] and found[2] and int(found[2]) < int(found[1])):
        return None
    first, last = found.groups()
    if not first:
        first, last = str(max(size - int(last), 0)), ""
    if int(first) >= size or found.groups() == ("", "0"):
        raise ApiError(416, headers={"Content-Range": f"bytes */{size}"})
    return Span(int(first), min(int(last) + 1, size) if last else size)
