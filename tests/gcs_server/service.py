"""The API: a call in, a response out. Knows no sockets and no faults."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from tests.gcs_server.calls import Call, json_body, split_multipart
from tests.gcs_server.messages import (
    ApiError,
    Response,
    expected_crc,
    json_response,
    missing_object,
    requested_span,
    response,
)
from tests.gcs_server.objects import (
    StoredObject,
    Upload,
    Vault,
    conditions,
    content_range,
    object_headers,
    object_resource,
    object_response,
    page_resource,
    writable_attributes,
)


def read(vault: Vault, call: Call) -> Response:
    stored = _wanted(vault, call)
    size, headers, generation = len(stored.data), object_headers(stored), str(stored.generation)
    span = requested_span(call.request.headers.get("range", ""), size)
    if span is None:
        return Response(200, headers, stored.data, generation)
    headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{size}"
    return Response(206, headers, memoryview(stored.data)[span.start : span.stop], generation)


def stat(vault: Vault, call: Call) -> Response:
    return object_response(_wanted(vault, call), call.request.base)


def page(vault: Vault, call: Call) -> Response:
    return json_response(page_resource(vault.buckets.page(call.bucket, call.query), call.request.base))


def layout(vault: Vault, call: Call) -> Response:
    bucket = vault.buckets.bucket(call.bucket)
    hierarchical = {"enabled": bucket.location_type == "zone"}
    return json_response(
        {
            "kind": "storage#storageLayout",
            "bucket": bucket.name,
            "location": bucket.location,
            "locationType": bucket.location_type,
            "hierarchicalNamespace": hierarchical,
        }
    )


def _wanted(vault: Vault, call: Call) -> StoredObject:
    """The live object, if it is of the generation and as the conditions demand. Raises ApiError 404, 412."""
    live = vault.buckets.live(call.bucket, call.name)
    if live is None or call.query.get("generation", str(live.generation)) != str(live.generation):
        raise missing_object(call.bucket, call.name)
    conditions(call.query).check(live)
    return live


def write(vault: Vault, call: Call) -> Response:
    """An object whole: multipart."""
    request = call.request
    metadata, content_type, data = split_multipart(request)
    attributes = writable_attributes({"contentType": content_type, **metadata})
    draft = StoredObject(call.bucket, _name(call), data, 0, attributes=attributes)
    stored = vault.store(draft, conditions(call.query), expected_crc(request.headers, metadata))
    return object_response(stored, request.base)


def start(vault: Vault, call: Call) -> Response:
    """Open a resumable upload; its preconditions hold now, and again when it ends."""
    request = call.request
    metadata = json_body(request)
    demands = conditions(call.query)
    demands.check(vault.buckets.live(call.bucket, _name(call)))
    upload = Upload(
        call.bucket,
        call.name,
        writable_attributes({"contentType": request.headers.get("x-upload-content-type", ""), **metadata}),
        demands,
        expected_crc(request.headers, metadata),
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
            stored = vault.store(draft, upload.conditions, upload.expected or expected_crc(request.headers, {}))
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


def _name(call: Call) -> str:
    if not call.name or len(call.name.encode()) > 1024:
        raise ApiError(400, "The object name is longer than 1024 bytes." if call.name else "Required", "required")
    return call.name


def delete(vault: Vault, call: Call) -> Response:
    demands = conditions(call.query)

    def step(live: StoredObject | None) -> None:
        demands.check(_of_generation(live, call, call.query.get("generation")))

    vault.buckets.change(call.bucket, call.name, step)
    return Response(204)


def move(vault: Vault, call: Call) -> Response:
    """Give an object another name; the precondition is the target's."""
    source = _of_generation(vault.buckets.live(call.bucket, call.name), call, None)
    draft = replace(source, name=call.target, generation=0)
    stored = vault.store(draft, conditions(call.query))
    vault.buckets.change(call.bucket, call.name, lambda _: None)
    return object_response(stored, call.request.base)


def _of_generation(live: StoredObject | None, call: Call, generation: object) -> StoredObject:
    """Raises ApiError 404 where it is not there, or where another generation was asked for."""
    if live is None or str(generation or live.generation) != str(live.generation):
        raise missing_object(call.bucket, call.name)
    return live


_OPERATIONS: Mapping[str, Callable[[Vault, Call], Response]] = MappingProxyType(
    {
        "read": read,
        "stat": stat,
        "list": page,
        "layout": layout,
        "write": write,
        "start": start,
        "chunk": proceed,
        "query": proceed,
        "delete": delete,
        "move": move,
    }
)


def answer(vault: Vault, call: Call) -> Response:
    """Carry it out; refusals are answers too."""
    try:
        if call.bucket:
            _admit(vault, call)
        if call.operation not in _OPERATIONS:
            raise ApiError(404, f"{call.request.method} {call.request.path}: the server of the tests has no such.")
        return _OPERATIONS[call.operation](vault, call)
    except ApiError as error:
        return response(error, call.dialect)


def _admit(vault: Vault, call: Call) -> None:
    bucket = vault.buckets.bucket(call.bucket)
    if bucket.refuses:
        message = f"Caller does not have storage.objects access to the Google Cloud Storage bucket {bucket.name}."
        raise ApiError(bucket.refuses, message if bucket.refuses == 403 else "")
    project = call.query.get("userProject") or call.request.headers.get("x-goog-user-project")
    if bucket.requester_pays and not project:
        error = ApiError(400, "Bucket is a requester pays bucket but no user project provided.", "required")
        error.code = "UserProjectMissing"
        raise error
