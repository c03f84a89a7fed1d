"""The tests' own door, /_control/...: neither logged nor slowed, and no fault strikes there."""

from dataclasses import asdict, replace
from urllib.parse import unquote

from tests.gcs_server.calls import json_body
from tests.gcs_server.conditions import Conditions
from tests.gcs_server.errors import ApiError, missing_object, response
from tests.gcs_server.faults import Fault
from tests.gcs_server.messages import Request, Response, json_response
from tests.gcs_server.objects import Bucket, StoredObject
from tests.gcs_server.world import World


def control(world: World, request: Request) -> Response:
    """Carry out what a `GcsServer` asks for."""
    parts = [unquote(part) for part in request.path.split("/")[2:]]
    try:
        if parts[0] == "objects" and len(parts) > 1:
            return _object(world, request, parts[1], "/".join(parts[2:]))
        return json_response(_command(world, request, parts))
    except ApiError as error:
        return response(error, "json")
    except (TypeError, ValueError) as error:
        return response(ApiError(400, str(error)), "json")


def _command(world: World, request: Request, parts: list[str]) -> object:
    result: object = None
    match (request.method, *parts):
        case ("GET", "log"):
            result = [asdict(record) for record in world.log.records()]
        case ("DELETE", "log"):
            world.log.clear()
        case ("POST", "faults"):
            world.faults.add(Fault(**json_body(request)))
        case ("DELETE", "faults"):
            world.faults.clear()
        case ("POST", "settings"):
            world.settings = replace(world.settings, **json_body(request))
        case ("POST", "buckets"):
            world.vault.buckets.create(Bucket(**json_body(request)), replace_rules=True)
        case ("GET", "authority"):
            result = str(world.authority.certificate_file())
        case ("GET", "uploads"):
            result = len(world.vault.uploads)
        case _:
            raise ApiError(404, f"{request.method} {request.path}: no such control")
    return result


def _object(world: World, request: Request, bucket: str, name: str) -> Response:
    buckets = world.vault.buckets
    if request.method == "PUT":
        attributes: dict[str, object] = {"contentType": request.headers.get("content-type", "application/octet-stream")}
        draft = StoredObject(bucket, name, request.body, 0, attributes=attributes)
        return json_response(str(world.vault.store(draft, Conditions()).generation))
    if not name:
        return json_response(list(buckets.bucket(bucket).names))
    live = buckets.live(bucket, name)
    if live is None:
        raise missing_object(bucket, name)
    if request.method == "DELETE":
        buckets.change(bucket, name, lambda _: None)
        return json_response(None)
    return Response(200, {"X-Goog-Generation": str(live.generation)}, live.data)
