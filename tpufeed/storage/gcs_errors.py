"""What an answer of Google Cloud Storage that is no success means, and what the reader of the message can do."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tpufeed.errors import AccessError, ObjectNotFoundError, StoreError
from tpufeed.storage.gcs_retrying import ChecksumError, TransientError, UnauthorizedError

USER_PROJECT_VARIABLE = "TPUFEED_GCS_USER_PROJECT"
ANONYMOUS = "an anonymous caller"
LOGIN = (
    "log in with `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS name a service "
    "account's key"
)
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
    if status == 400 and re.search(r"(crc32c|md5|hash|checksum).*match", found, re.IGNORECASE | re.DOTALL):
        return ChecksumError(f"HTTP {status}: {found}")
    if status == 401:
        return UnauthorizedError(found)
    if status == 412:
        return PreconditionError(found)
    return _refusal(status, found, target, identity)


def broken(error: Exception, target: Target) -> Exception:
    """The error that a broken connection stands for, whatever library has noticed it."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return StoreError(f"{target.where}: the server's certificate is not trusted: {error}")
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
    if "requester pays" in found.lower():
        return AccessError(
            f"{target.where}: the bucket {target.bucket} lets the requester pay: set {USER_PROJECT_VARIABLE} to the "
            f"project to be billed ({found})"
        )
    if status == 403:
        return denied(target, identity, found)
    if status == 404 and _is_about_bucket(found, target):
        return StoreError(f"{target.where}: the bucket {target.bucket} does not exist ({found})")
    if status == 404:
        return ObjectNotFoundError(f"{target.where}: no such object")
    return StoreError(f"{target.where}: HTTP {status}: {found}")


def _is_about_bucket(found: str, target: Target) -> bool:
    return target.permission in ("storage.objects.list", "storage.objects.create") or bool(
        re.search(r"bucket.*not exist", found, re.IGNORECASE)
    )


def _message_of(text: str) -> str:
    """The service's own words: JSON from most of its interfaces, plain text from downloads, HTML from proxies."""
    with suppress(ValueError, LookupError, TypeError):
        text = json.loads(text)["error"]["message"]
    text = " ".join(str(text).split()) or "no reason given"
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}..."


def _retry_after_seconds(headers: Mapping[str, str]) -> float:
    try:  # a date instead of seconds needs clocks that agree: the usual pause does for it
        return min(max(0.0, float(headers.get("Retry-After", "0"))), _LONGEST_RETRY_AFTER_SECONDS)
    except ValueError:
        return 0.0
