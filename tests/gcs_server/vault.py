"""All that the server keeps: buckets, and uploads under way."""

from dataclasses import dataclass, field, replace

from tests.gcs_server.conditions import Conditions
from tests.gcs_server.hashes import check_hashes, crc_of, md5_of
from tests.gcs_server.objects import Buckets, StoredObject
from tests.gcs_server.uploads import Uploads


@dataclass(frozen=True, slots=True)
class Vault:
    """Thread-safe.

    Attributes:
        md5: objects get one. Without, they look like composite objects, and large uploads take a third of the time.
    """

    md5: bool = True
    buckets: Buckets = field(default_factory=Buckets)
    uploads: Uploads = field(default_factory=Uploads)

    def store(self, draft: StoredObject, demands: Conditions, expected: dict[str, str] | None = None) -> StoredObject:
        """Put `draft` in the place of what `demands` allow to be replaced. Raises ApiError 400 or 412."""
        expected = expected or {}
        md5 = md5_of(draft.data) if "md5" in expected or (self.md5 and not draft.components) else None
        draft = replace(draft, crc=crc_of(draft.data), md5=md5)
        check_hashes(expected, draft.crc, md5)

        def step(live: StoredObject | None) -> StoredObject:
            demands.check(live)
            return draft

        stored = self.buckets.change(draft.bucket, draft.name, step)
        assert stored is not None
        return stored
