"""Sizes as people write them."""

import re
from decimal import Decimal

from tpufeed.errors import OptionError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_size(text: str | int) -> int:
    """Bytes of "64MB", "1GiB" or 1048576. Raises OptionError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = None if match is None else _UNITS.get(match.group(2).lower())
    if match is None or unit is None:
        raise OptionError(f"{text!r} is no size; write it like 64MB or 128MiB")
    return int(Decimal(match.group(1)) * unit)  # a float would overflow
