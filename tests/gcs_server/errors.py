"""What GCS answers when it refuses, in its own words."""

import json
from xml.sax.saxutils import escape

from tests.gcs_server.messages import Response

_REASONS = {
    400: ("invalid", "InvalidArgument", "Invalid argument."),
    401: ("authError", "AuthenticationRequired", "Invalid Credentials"),
    403: ("forbidden", "AccessDenied", "The caller does not have storage.objects access to the resource."),
    404: ("notFound", "NoSuchKey", "Not Found"),
    408: ("requestTimeout", "RequestTimeout", "Request Timeout"),
    412: ("conditionNotMet", "PreconditionFailed", "At least one of the pre-conditions you specified did not hold."),
    416: ("requestedRangeNotSatisfiable", "InvalidRange", "The requested range cannot be satisfied."),
    429: ("rateLimitExceeded", "SlowDown", "The rate of requests to this object exceeds the limit. Reduce it."),
    500: ("internalError", "InternalError", "We encountered an internal error. Please try again."),
    502: ("badGateway", "BadGateway", "Bad Gateway"),
    503: ("backendError", "ServiceUnavailable", "We encountered an internal error. Please try again."),
    504: ("gatewayTimeout", "GatewayTimeout", "Gateway Timeout"),
}


class ApiError(Exception):
    """An answer that is no success; `headers` go with it."""

    def __init__(self, status: int, message: str = "", reason: str = "", headers: dict[str, str] | None = None):
        known = _REASONS.get(status, ("unknown", "Unknown", "Unknown"))
        self.status, self.message, self.reason = status, message or known[2], reason or known[0]
        self.code, self.headers = reason or known[1], dict(headers or {})
        super().__init__(f"{status} {self.reason}: {self.message}")


def missing_bucket() -> ApiError:
    error = ApiError(404, "The specified bucket does not exist.")
    error.code = "NoSuchBucket"
    return error


def missing_object(bucket: str, name: str) -> ApiError:
    return ApiError(404, f"No such object: {bucket}/{name}")


def response(error: ApiError, dialect: str) -> Response:
    """The answer in the dialect of the call: `json`, `media` (plain text, as GCS does for downloads) or `xml`."""
    if error.status in {304, 308}:
        return Response(error.status, error.headers)
    if dialect == "xml":
        body = "<?xml version='1.0' encoding='UTF-8'?>" + (
            f"<Error><Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message></Error>"
        )
        kind = "application/xml; charset=UTF-8"
    elif dialect == "media":
        body, kind = error.message, "text/html; charset=UTF-8"
    else:
        item = {"message": error.message, "domain": "global", "reason": error.reason}
        body = json.dumps({"error": {"code": error.status, "message": error.message, "errors": [item]}})
        kind = "application/json; charset=UTF-8"
    if error.status == 401:
        error.headers.setdefault("WWW-Authenticate", 'Bearer realm="https://accounts.google.com/"')
    return Response(error.status, {"Content-Type": kind, **error.headers}, body.encode())
