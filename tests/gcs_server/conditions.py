"""Preconditions: what a client demands of the live object."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.gcs_server.errors import ApiError
from tests.gcs_server.objects import StoredObject


@dataclass(frozen=True, slots=True)
class Conditions:
    """Each is unset (None) or a number; generation 0 stands for "no live object"."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def check(self, live: StoredObject | None, reading: bool = False) -> None:
        """Raises ApiError: 412, or 304 where a read asked for anything but what there is."""
        generation, metageneration = (live.generation, live.metageneration) if live else (0, 0)
        if self.generation_match not in {None, generation} or self.metageneration_match not in {None, metageneration}:
            raise ApiError(412)
        if self.generation_not_match == generation or self.metageneration_not_match == metageneration:
            raise ApiError(304 if reading else 412)


def conditions(query: Mapping[str, str], headers: Mapping[str, str], kind: str = "if") -> Conditions:
    """Those of the query (JSON) and the headers (XML); `kind` is `ifSource` for the source of a copy."""
    names = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
    values = [_number(kind + name, query.get(kind + name)) for name in names]
    if kind == "if":
        for index, name in ((0, "x-goog-if-generation-match"), (2, "x-goog-if-metageneration-match")):
            if name in headers:
                values[index] = _number(name, headers[name])
    return Conditions(*values)


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise ApiError(400, f"Invalid value for {name}: '{text}'. It must be a non-negative integer.")
    return int(text)
