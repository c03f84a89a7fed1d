"""Buckets and objects as the JSON and the headers that GCS gives for them."""

from datetime import datetime
from urllib.parse import quote

from tests.gcs_server.hashes import crc_text, hash_header, md5_text
from tests.gcs_server.messages import Response, json_response
from tests.gcs_server.objects import Bucket, Page, StoredObject

# What a client may set, besides `metadata` (its own names and values).
WRITABLE = (
    "contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl", "customTime",
    "storageClass", "metadata", "temporaryHold", "eventBasedHold",
)  # fmt: skip
_OCTETS = "application/octet-stream"


def bucket_resource(bucket: Bucket, base: str) -> dict[str, object]:
    resource: dict[str, object] = {
        "kind": "storage#bucket",
        "id": bucket.name,
        "name": bucket.name,
        "selfLink": f"{base}/storage/v1/b/{bucket.name}",
        "projectNumber": "0",
        "metageneration": "1",
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        "timeCreated": _time(bucket.created),
        "updated": _time(bucket.created),
        "etag": "CAE=",
    }
    if bucket.requester_pays:
        resource["billing"] = {"requesterPays": True}
    return resource


def object_resource(stored: StoredObject, base: str) -> dict[str, object]:
    path = f"b/{stored.bucket}/o/{quote(stored.name, safe='')}"
    resource: dict[str, object] = {
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
        "selfLink": f"{base}/storage/v1/{path}",
        "mediaLink": f"{base}/download/storage/v1/{path}?generation={stored.generation}&alt=media",
        "name": stored.name,
        "bucket": stored.bucket,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        "contentType": _OCTETS,
        "storageClass": "STANDARD",
        "size": str(len(stored.data)),
        "crc32c": crc_text(stored.crc),
        "etag": _etag(stored),
        "timeCreated": _time(stored.created),
        "updated": _time(stored.updated),
        "timeStorageClassUpdated": _time(stored.created),
        **stored.attributes,
    }
    if stored.md5 is not None:
        resource["md5Hash"] = md5_text(stored.md5)
    if stored.components:
        resource["componentCount"] = stored.components
    return resource


def object_response(stored: StoredObject, base: str) -> Response:
    answer = json_response(object_resource(stored, base))
    answer.generation = str(stored.generation)
    return answer


def page_resource(page: Page, base: str) -> dict[str, object]:
    """A listing; GCS leaves out what is empty."""
    resource: dict[str, object] = {"kind": "storage#objects"}
    if page.token:
        resource["nextPageToken"] = page.token
    if page.prefixes:
        resource["prefixes"] = page.prefixes
    if page.objects:
        resource["items"] = [object_resource(stored, base) for stored in page.objects]
    return resource


def object_headers(stored: StoredObject) -> dict[str, str]:
    """The headers of a read of the object, whole or in part: hashes and lengths are the whole object's."""
    attributes = stored.attributes
    headers = {
        "Content-Type": str(attributes.get("contentType", _OCTETS)),
        "Accept-Ranges": "bytes",
        "ETag": f'"{_etag(stored)}"',
        "Last-Modified": stored.updated.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Hash": hash_header(stored.crc, stored.md5),
        "X-Goog-Stored-Content-Length": str(len(stored.data)),
        "X-Goog-Stored-Content-Encoding": str(attributes.get("contentEncoding", "identity")),
        "X-Goog-Storage-Class": str(attributes.get("storageClass", "STANDARD")),
    }
    for key, name in (
        ("contentEncoding", "Content-Encoding"),
        ("cacheControl", "Cache-Control"),
        ("contentDisposition", "Content-Disposition"),
        ("contentLanguage", "Content-Language"),
    ):
        if attributes.get(key):
            headers[name] = str(attributes[key])
    own = attributes.get("metadata") or {}
    assert isinstance(own, dict)
    return headers | {f"x-goog-meta-{key}": quote(str(value), safe=" /:;,.=+") for key, value in own.items()}


def writable_attributes(asked: dict[str, object], kept: dict[str, object] | None = None) -> dict[str, object]:
    """What of `asked` a client may set, over what is `kept`: null removes, also one name of `metadata`."""
    kept = kept or {}
    found = {**kept, **{key: value for key, value in asked.items() if key in WRITABLE}}
    own = asked.get("metadata", {})
    if isinstance(own, dict):
        found["metadata"] = {**(kept.get("metadata") or {}), **own}
        found["metadata"] = {key: value for key, value in found["metadata"].items() if value is not None}
    return {key: value for key, value in found.items() if value or value is False}


def _etag(stored: StoredObject) -> str:
    return f"{stored.generation:x}/{stored.metageneration:x}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
