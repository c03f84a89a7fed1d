"""Uploads: in one request, or resumable."""

import contextlib

from tests.gcs_server.calls import Call, json_body
from tests.gcs_server.conditions import conditions
from tests.gcs_server.errors import ApiError
from tests.gcs_server.hashes import expected_hashes
from tests.gcs_server.messages import Response, json_response
from tests.gcs_server.multipart import split_multipart
from tests.gcs_server.objects import StoredObject
from tests.gcs_server.resources import object_headers, object_resource, object_response, writable_attributes
from tests.gcs_server.uploads import Upload, content_range
from tests.gcs_server.vault import Vault


def write(vault: Vault, call: Call) -> Response:
    """An object whole: media, multipart, or a PUT of the XML API."""
    request = call.request
    if call.query.get("uploadType") == "multipart":
        metadata, content_type, data = split_multipart(request)
    else:
        metadata, content_type, data = {}, request.headers.get("content-type", ""), request.body
        own = {key[12:]: value for key, value in request.headers.items() if key.startswith("x-goog-meta-")}
        metadata = {"metadata": own} if own else {}
    attributes = writable_attributes({"contentType": content_type, **metadata})
    draft = StoredObject(call.bucket, _name(call), data, 0, attributes=attributes)
    expected = expected_hashes(request.headers, metadata)
    stored = vault.store(draft, conditions(call.query, request.headers), expected)
    if call.dialect == "json":
        return object_response(stored, request.base)
    headers = object_headers(stored)
    kept = ("ETag", "X-Goog-Generation", "X-Goog-Metageneration", "X-Goog-Hash", "X-Goog-Stored-Content-Length")
    return Response(200, {name: headers[name] for name in kept}, generation=str(stored.generation))


def start(vault: Vault, call: Call) -> Response:
    """Open a resumable upload; its preconditions hold now, and again when it ends."""
    request = call.request
    metadata = json_body(request)
    demands = conditions(call.query, request.headers)
    demands.check(vault.buckets.live(call.bucket, _name(call)))
    upload = Upload(
        call.bucket,
        call.name,
        writable_attributes({"contentType": request.headers.get("x-upload-content-type", ""), **metadata}),
        demands,
        expected_hashes(request.headers, metadata),
    )
    key = vault.uploads.start(upload)
    where = f"{request.base}/upload/storage/v1/b/{call.bucket}/o?uploadType=resumable&upload_id={key}"
    if project := call.query.get("userProject"):
        where += f"&userProject={project}"
    return Response(200, {"Location": where, "X-GUploader-UploadID": key})


def proceed(vault: Vault, call: Call) -> Response:
    """A chunk, or the question how much is held. What ended stays answered as it was."""
    request = call.request
    upload = vault.uploads.get(call.query["upload_id"])
    span = content_range(request.headers.get("content-range", ""), len(request.body))
    with upload.lock:
        if upload.result is None:
            if span.start is not None:
                upload.take(request.body, span.start, final=span.total == span.start + len(request.body))
            if span.total is None or upload.held_bytes < span.total:
                return Response(308, upload.range_headers())
            if upload.held_bytes > span.total:
                raise ApiError(400, f"The upload holds {upload.held_bytes} bytes, its Content-Range says {span.total}.")
            draft = StoredObject(upload.bucket, upload.name, upload.data(), 0, attributes=upload.attributes)
            stored = vault.store(draft, upload.conditions, upload.expected | expected_hashes(request.headers, {}))
            upload.result = object_resource(stored, request.base)
            upload.pieces.clear()
        answer = json_response(upload.result)
        answer.generation = str(upload.result["generation"])
        return answer


def keep_partial(vault: Vault, call: Call) -> None:
    """A chunk's request broke off: keep of `call.request.body` what GCS would, whole multiples of 256 KiB."""
    request = call.request
    first = request.headers.get("content-range", "bytes 0-").removeprefix("bytes ").partition("-")[0]
    with contextlib.suppress(ApiError):
        upload = vault.uploads.get(call.query["upload_id"])
        with upload.lock:
            if upload.result is None:
                upload.take(request.body, int(first), final=False)


def cancel(vault: Vault, call: Call) -> Response:
    vault.uploads.cancel(call.query["upload_id"])
    return Response(499)


def _name(call: Call) -> str:
    if not call.name or len(call.name.encode()) > 1024:
        raise ApiError(400, "The object name is longer than 1024 bytes." if call.name else "Required", "required")
    return call.name
