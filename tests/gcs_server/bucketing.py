"""Calls about buckets."""

from tests.gcs_server.calls import Call, json_body, mapping
from tests.gcs_server.messages import Response, json_response
from tests.gcs_server.objects import Bucket
from tests.gcs_server.resources import bucket_resource
from tests.gcs_server.vault import Vault


def stat(vault: Vault, call: Call) -> Response:
    return json_response(bucket_resource(vault.buckets.bucket(call.bucket), call.request.base))


def create(vault: Vault, call: Call) -> Response:
    asked = json_body(call.request)
    bucket = Bucket(str(asked.get("name", "")), bool(mapping(asked.get("billing")).get("requesterPays")))
    return json_response(bucket_resource(vault.buckets.create(bucket), call.request.base))


def delete(vault: Vault, call: Call) -> Response:
    vault.buckets.remove_bucket(call.bucket)
    return Response(204)


def page(vault: Vault, call: Call) -> Response:
    items = [bucket_resource(bucket, call.request.base) for bucket in vault.buckets]
    return json_response({"kind": "storage#buckets", "items": items})
