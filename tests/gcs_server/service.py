"""The API: a call in, a response out. Knows no sockets and no faults."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.gcs_server import bucketing, changing, reading, writing
from tests.gcs_server.calls import Call
from tests.gcs_server.errors import ApiError, response
from tests.gcs_server.messages import Response
from tests.gcs_server.vault import Vault

_OPERATIONS: Mapping[str, Callable[[Vault, Call], Response]] = MappingProxyType(
    {
        "read": reading.read,
        "stat": reading.stat,
        "list": reading.page,
        "write": writing.write,
        "start": writing.start,
        "chunk": writing.proceed,
        "query": writing.proceed,
        "cancel": writing.cancel,
        "delete": changing.delete,
        "patch": changing.patch,
        "compose": changing.compose,
        "copy": changing.copy,
        "bucket.stat": bucketing.stat,
        "bucket.create": bucketing.create,
        "bucket.delete": bucketing.delete,
        "bucket.list": bucketing.page,
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
