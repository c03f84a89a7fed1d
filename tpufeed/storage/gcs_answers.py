"""What the service says of objects. Foreign servers leave fields out, so each one that is used is checked here."""

from typing import Annotated

import msgspec

from tpufeed.storage.gcs_crc32c import from_crc32c, to_crc32c


class Resource(msgspec.Struct, frozen=True):
    """One object, as the JSON API has it.

    Attributes:
        name: in its bucket.
        generation: digits.
        size: bytes. Servers that leave zeros out leave it out of empty objects.
        crc32c: of its bytes as Google writes it, or "" where the server has none.
    """

    name: str
    generation: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")]
    size: Annotated[int, msgspec.Meta(ge=-1)] = -1
    crc32c: str = ""

    def __post_init__(self) -> None:
        if self.crc32c:
            to_crc32c(self.crc32c)
        if self.size < 0:
            if self.crc32c != from_crc32c(0):
                raise ValueError("Object missing required field `size`")
            msgspec.structs.force_setattr(self, "size", 0)


class Page(msgspec.Struct, frozen=True):
    """One page of a listing; `token` asks for the next, where there is one."""

    items: list[Resource] = []
    prefixes: list[str] = []
    token: str = msgspec.field(default="", name="nextPageToken")
