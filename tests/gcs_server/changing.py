"""Calls that change, join, copy or remove objects."""

from dataclasses import replace
from datetime import UTC, datetime

from tests.gcs_server.calls import Call, json_body, mapping
from tests.gcs_server.conditions import conditions
from tests.gcs_server.errors import ApiError, missing_object
from tests.gcs_server.messages import Response, json_response
from tests.gcs_server.objects import StoredObject
from tests.gcs_server.resources import object_resource, object_response, writable_attributes
from tests.gcs_server.vault import Vault

_MOST_SOURCES = 32


def delete(vault: Vault, call: Call) -> Response:
    demands = conditions(call.query, call.request.headers)

    def step(live: StoredObject | None) -> None:
        demands.check(_of_generation(live, call, call.query.get("generation")))

    vault.buckets.change(call.bucket, call.name, step)
    return Response(204)


def patch(vault: Vault, call: Call) -> Response:
    """New attributes: a PATCH keeps those that it does not name, a PUT does not."""
    asked, demands = json_body(call.request), conditions(call.query, call.request.headers)

    def step(live: StoredObject | None) -> StoredObject:
        live = _of_generation(live, call, call.query.get("generation"))
        demands.check(live)
        kept = live.attributes if call.request.method == "PATCH" else {}
        return replace(
            live,
            attributes=writable_attributes(asked, kept),
            metageneration=live.metageneration + 1,
            updated=datetime.now(UTC),
        )

    stored = vault.buckets.change(call.bucket, call.name, step)
    assert stored is not None
    return object_response(stored, call.request.base)


def compose(vault: Vault, call: Call) -> Response:
    asked = json_body(call.request)
    sources = asked.get("sourceObjects")
    if not isinstance(sources, list) or not 1 <= len(sources) <= _MOST_SOURCES:
        raise ApiError(400, f"The number of source components provided must be between 1 and {_MOST_SOURCES}.")
    parts = [_source(vault, call, mapping(source)) for source in sources]
    draft = StoredObject(
        call.bucket,
        call.name,
        b"".join(part.data for part in parts),
        0,
        attributes=writable_attributes(mapping(asked.get("destination"))),
        components=sum(part.components or 1 for part in parts),
    )
    stored = vault.store(draft, conditions(call.query, call.request.headers))
    return object_response(stored, call.request.base)


def copy(vault: Vault, call: Call) -> Response:
    """Rewrite (always done in one call) and copy."""
    live = _of_generation(vault.buckets.live(call.bucket, call.name), call, call.query.get("sourceGeneration"))
    conditions(call.query, {}, "ifSource").check(live)
    vault.buckets.bucket(call.target[0])
    attributes = writable_attributes(json_body(call.request), live.attributes)
    draft = StoredObject(*call.target, live.data, 0, attributes=attributes, components=live.components)
    stored = vault.store(draft, conditions(call.query, call.request.headers))
    if "/copyTo/b/" in call.request.path:
        return object_response(stored, call.request.base)
    size = str(len(stored.data))
    done = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
    return json_response({**done, "resource": object_resource(stored, call.request.base)})


def _source(vault: Vault, call: Call, source: dict[str, object]) -> StoredObject:
    """A component of a compose."""
    named = replace(call, name=str(source.get("name", "")))
    live = _of_generation(vault.buckets.live(call.bucket, named.name), named, source.get("generation"))
    demanded = {key: str(value) for key, value in mapping(source.get("objectPreconditions")).items()}
    conditions(demanded, {}).check(live)
    return live


def _of_generation(live: StoredObject | None, call: Call, generation: object) -> StoredObject:
    """Raises ApiError 404 where it is not there, or where another generation was asked for."""
    if live is None or str(generation or live.generation) != str(live.generation):
        raise missing_object(call.bucket, call.name)
    return live
