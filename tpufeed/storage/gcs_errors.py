"""What an answer of Google Cloud Storage that is no success means, and what the reader of the message can do."""

import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tpufeed.errors import AccessError, ObjectNotFoundError, StoreError
from tpufeed.storage.gcs_retrying import ChecksumError, TransientError, UnauthorizedError, UnreachableError

EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
USER_PROJECT_VARIABLE = "TPUFEED_GCS_USER_PROJECT"
ANONYMOUS = "an anonymous caller"
LOGIN = (
    "log in with `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS name a service "
    "account's key"
)
_CREATE, _LIST = "storage.objects.create", "storage.objects.list"
_MISMATCH = re.compile(r"(crc32c|md5|hash|checksum).*match", re.IGNORECASE | re.DOTALL)
_PROXIES = "https_proxy", "http_proxy", "all_proxy"
_VARIABLES = EMULATOR_VARIABLE, "API_ENDPOINT_OVERRIDE", *_PROXIES, *map(str.upper, _PROXIES)
_NO_SUCH_NAME = socket.EAI_NONAME, socket.EAI_NODATA  # EAI_AGAIN is a name server that does not answer now
_MESSAGE_CHARACTERS = 500
_LONGEST_RETRY_AFTER_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about, for messages.

    Attributes:
        where: URL of the object, or of the folder that is listed.
        bucket: its name.
        permission: what the caller needs, as storage.objects.get.
    """

    where: str
    bucket: str
    permission: str


class PreconditionError(Exception):
    """HTTP 412: the object is not of the generation that the request wants."""


def error_of(status: int, headers: Mapping[str, str], text: str, target: Target, identity: str) -> Exception:
    """The error that an answer stands for: one to try again after, or a StoreError to raise.

    Args:
        status: of HTTP.
        headers: of the answer, without regard to case.
        text: its body.
        target: what the request was about.
        identity: who made it.
    """
    found = _message_of(text)
    if status in (408, 429) or status >= 500:
        return TransientError(f"HTTP {status}: {found}", _retry_after_seconds(headers))
    if status == 400 and target.permission == _CREATE and _MISMATCH.search(found):
        return ChecksumError(f"HTTP {status}: {found}")
    if status == 401:
        return UnauthorizedError(found)
    if status == 412:
        return PreconditionError(found)
    return _refusal(status, found, target, identity)


def broken(error: Exception, target: Target) -> Exception:
    """The error that a broken connection stands for, whatever library has noticed it."""
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return StoreError(f"{target.where}: the server's certificate is not trusted: {error}")
    host, port, variable = _address(causes)
    named = f"{host}, which {variable} names," if variable else host
    for cause in causes:
        if isinstance(cause, socket.gaierror) and cause.errno in _NO_SUCH_NAME:
            return UnreachableError(f"the host {named} cannot be resolved: {cause.strerror}")
        if isinstance(cause, ConnectionRefusedError) and variable == EMULATOR_VARIABLE:
            return UnreachableError(f"the host {named} takes no connections at port {port}. Is the emulator running?")
    return TransientError(f"{type(error).__name__}: {error}")


def denied(target: Target, identity: str, found: str) -> AccessError:
    """HTTP 403, or a 401 that fresh credentials do not help."""
    if identity == ANONYMOUS:
        advice = f"there are no credentials: {LOGIN}"
    else:
        advice = (
            f"{target.permission} is probably missing: grant {identity} roles/storage.objectUser on the bucket "
            f"{target.bucket}, or {LOGIN}"
        )
    return AccessError(f"{target.where}: access denied to {identity}: {found}; {advice}")


def _refusal(status: int, found: str, target: Target, identity: str) -> StoreError:
    if status == 400 and found.startswith("Bucket is a requester pays bucket"):  # whatever its name
        return AccessError(
            f"{target.where}: the bucket {target.bucket} lets the requester pay: set {USER_PROJECT_VARIABLE} to the "
            f"project to be billed ({found})"
        )
    if status == 403:
        return denied(target, identity, found)
    if status == 404 and target.permission in (_LIST, _CREATE):
        return StoreError(f"{target.where}: the bucket {target.bucket} does not exist ({found})")
    if status == 404:  # or no such bucket: see GcsFolder.check_bucket
        return ObjectNotFoundError(f"{target.where}: no such object")
    return StoreError(f"{target.where}: HTTP {status}: {found}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what has caused it; urllib3 and requests keep some causes among their arguments only."""
    waiting, seen = [error], set[int]()
    while waiting:
        cause = waiting.pop(0)
        if id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            further = cause.__cause__, cause.__context__, *cause.args
            waiting += [each for each in further if isinstance(each, BaseException)]


def _address(causes: Sequence[BaseException]) -> tuple[str, str, str]:
    """The host and port that were not reached, as urllib3 or aiohttp has them, and the variable that names the host."""
    for cause in causes:
        for holder in (cause, getattr(cause, "conn", None)):
            host = getattr(holder, "host", None)
            if host:
                variable = next((name for name in _VARIABLES if host in os.environ.get(name, "")), "")
                return str(host), str(getattr(holder, "port", "")), variable
    return "", "", ""


def _message_of(text: str) -> str:
    """The service's own words: JSON from most of its interfaces, plain text from downloads, HTML from proxies."""
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        error = json.loads(text)["error"]
        text = error.get("message") or error["errors"][0]["message"]
    text = " ".join(str(text).split()) or "no reason given"
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}..."


def _retry_after_seconds(headers: Mapping[str, str]) -> float:
    try:  # a date instead of seconds needs clocks that agree: the usual pause does for it
        return min(max(0.0, float(headers.get("Retry-After", "0"))), _LONGEST_RETRY_AFTER_SECONDS)
    except ValueError:
        return 0.0
