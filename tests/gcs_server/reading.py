"""Calls that change nothing."""

from tests.gcs_server.calls import Call
from tests.gcs_server.conditions import conditions
from tests.gcs_server.errors import missing_object
from tests.gcs_server.messages import Response, json_response
from tests.gcs_server.objects import StoredObject
from tests.gcs_server.ranges import requested_span
from tests.gcs_server.resources import object_headers, object_response, page_resource
from tests.gcs_server.vault import Vault


def read(vault: Vault, call: Call) -> Response:
    """The bytes, or of a HEAD the headers."""
    stored = _wanted(vault, call)
    size, headers, generation = len(stored.data), object_headers(stored), str(stored.generation)
    span = requested_span(call.request.headers.get("range", ""), size)
    if call.request.method == "HEAD" or span is None:
        return Response(200, headers, stored.data, generation)
    headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{size}"
    return Response(206, headers, memoryview(stored.data)[span.start : span.stop], generation)


def stat(vault: Vault, call: Call) -> Response:
    return object_response(_wanted(vault, call), call.request.base)


def page(vault: Vault, call: Call) -> Response:
    return json_response(page_resource(vault.buckets.page(call.bucket, call.query), call.request.base))


def _wanted(vault: Vault, call: Call) -> StoredObject:
    """The live object, if it is of the generation and as the conditions demand. Raises ApiError 304, 404, 412."""
    live = vault.buckets.live(call.bucket, call.name)
    if live is None or call.query.get("generation", str(live.generation)) != str(live.generation):
        raise missing_object(call.bucket, call.name)
    conditions(call.query, call.request.headers).check(live, reading=True)
    return live
