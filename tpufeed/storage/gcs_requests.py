"""Requests to Google Cloud Storage: retries, errors, answers, sessions, and the folder of a store."""

import errno
import http.client
import importlib.util
import json
import logging
import os
import random
import re
import socket
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec

from tpufeed.errors import (
    AccessError,
    MissingExtraError,
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
    UnavailableError,
    install_command,
    mask_secrets,
)
from tpufeed.storage.store import check_name

_logger = logging.getLogger(__name__)
# The system's generator: a seeded one gives all workers the same pauses, and the global one is the user's.
_random = random.SystemRandom()
_TRIES_BEFORE_A_WARNING = 3
EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
GRPC_EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST_GRPC"  # its name in Google's own conformance tests
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
_NO_SUCH_NAME = socket.EAI_NONAME, socket.EAI_NODATA
_NO_NETWORK = errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH
_MESSAGE_CHARACTERS = 500
_LONGEST_RETRY_AFTER_SECONDS = 3600.0
_POOL_CONNECTIONS = 128  # requests keeps 10 by default, and discards an eleventh thread's after each request
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_sessions: dict[tuple[int, str, str], "GcsSession"] = {}
_locks: dict[int, threading.Lock] = {}  # by process: a lock that is held during a fork is never freed in the child
FIELDS = "name,size,generation,crc32c"
_KNOWN_LOCATION_TYPES = "region", "dual-region", "multi-region", ""
T = TypeVar("T")
Send = Callable[["Request"], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Patience:
    """Waiting times of a request, in seconds."""

    deadline_seconds: float = 120  # give up a call after this time without progress
    first_pause_seconds: float = 1  # the longest pause before the second try. It doubles with each further one
    longest_pause_seconds: float = 32  # ends the doubling. A pause that the server asks for is added
    unreachable_seconds: float = 10  # the deadline if a name does not resolve or no emulator runs
    connect_seconds: float = 10  # limit for a connection, and for sending each piece of an upload
    read_seconds: float = 30  # limit for the next bytes


class TransientError(Exception):
    """A try of a call failed. The next may succeed, after the time that the server asks for."""

    def __init__(self, message: str, retry_after_seconds: float = 0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnreachableError(TransientError):
    """There is no such host, or no server there: more often a wrong address than a passing fault."""


class OfflineError(UnreachableError):
    """No name server answers, or there is no way to the host: a passing fault if the bucket has answered before."""


class ChecksumError(TransientError):
    """Other bytes arrived than were sent: all must be sent again."""


class UnauthorizedError(Exception):
    """HTTP 401: the token is not valid, or no longer."""


class Tries:
    """The tries of one call: how many failed, and how long to wait before the next."""

    def __init__(self, target: "Target", patience: Patience, was_online: bool) -> None:
        self._target, self._patience, self._was_online = target, patience, was_online
        self._started = self._moved = time.monotonic()
        self._unreachable_since: float | None = None
        self.failed = self._in_a_row = 0
        self.renew = False  # renew the credentials before the next try
        self._renewed = False  # renewed since the last progress

    def progress(self) -> None:
        """Reset the deadline and the pauses, as new bytes came through."""
        self._moved = time.monotonic()
        self._in_a_row = 0
        self._renewed = False
        self._unreachable_since = None

    def pause_after(self, error: TransientError | UnauthorizedError, identity: str) -> float:
        """Return how many seconds to wait before the next try.

        Raises:
            UnavailableError: there is no time left for another try.
            AccessError: the credentials of `identity` were refreshed, but are refused again.
        """
        if isinstance(error, UnauthorizedError):
            if self._renewed:
                raise denied(self._target, identity, f"HTTP 401: {error}") from error
            self._renewed = self.renew = True
            return 0
        self.failed += 1
        self._in_a_row += 1
        now = time.monotonic()
        left = self._moved + self._patience.deadline_seconds - now
        is_unreachable = isinstance(error, UnreachableError) and not (
            isinstance(error, OfflineError) and self._was_online
        )
        if is_unreachable:
            self._unreachable_since = now if self._unreachable_since is None else self._unreachable_since
            left = min(left, self._unreachable_since + self._patience.unreachable_seconds - now)
        else:
            self._unreachable_since = None
        if left <= 0:
            raise UnavailableError(
                f"{self._target.where}: gave up after {self.failed} tries in {now - self._started:.1f} s, the last "
                f"{now - self._moved:.1f} s without progress. The last error: {error}"
            ) from error
        doublings = min(self._in_a_row - 1, 30)  # a float would overflow
        longest = min(self._patience.longest_pause_seconds, self._patience.first_pause_seconds * 2**doublings)
        # Drawn from zero on: workers that failed together spread over the whole pause instead of returning together.
        pause = min(error.retry_after_seconds + _random.uniform(0, longest), left)
        # A host that cannot be reached is an error within seconds, with all details.
        is_quiet = is_unreachable or self._in_a_row < _TRIES_BEFORE_A_WARNING
        level = logging.INFO if is_quiet else logging.WARNING
        said, where = mask_secrets(str(error)), self._target.where
        _logger.log(level, "%s: try %d failed, the next is in %.1f s: %s", where, self.failed, pause, said)
        return pause


@dataclass(frozen=True, slots=True)
class Target:
    """Subject of a request, for messages."""

    where: str  # URL of the object, or of the folder that is listed
    bucket: str
    permission: str  # needed by the caller, like storage.objects.get


class UnexpectedError(StoreError):
    """The answer is not that of an ordinary bucket. `persist` looks up the kind of the bucket."""


class PreconditionError(Exception):
    """HTTP 412: the object is not of the generation that the request wants."""


def error_of(status: int, headers: Mapping[str, str], text: str, target: Target, identity: str) -> Exception:
    """Return the error for an HTTP status: one that allows another try, or a StoreError to raise.

    `headers` ignore case, `text` is the body, and `identity` the caller.
    """
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        # JSON from most interfaces of the service, plain text from downloads, HTML from proxies.
        error = json.loads(text)["error"]
        text = error.get("message") or error["errors"][0]["message"]
    found = " ".join(str(text).split()) or "no reason given"
    found = found if len(found) <= _MESSAGE_CHARACTERS else f"{found[:_MESSAGE_CHARACTERS]}..."
    where = target.where
    made: Exception
    if status in (408, 429) or (status >= 500 and status != 501):  # 501: the service does not do that at all
        try:  # a date instead of seconds would need clocks that agree: use the usual pause
            seconds = min(max(0.0, float(headers.get("Retry-After", "0"))), _LONGEST_RETRY_AFTER_SECONDS)
        except ValueError:
            seconds = 0.0
        made = TransientError(f"HTTP {status}: {found}", seconds)
    elif status == 400 and target.permission == _CREATE and _MISMATCH.search(found):
        made = ChecksumError(f"HTTP {status}: {found}")
    elif status == 400 and found.startswith("Bucket is a requester pays bucket"):  # whatever its name
        made = AccessError(
            f"{where}: the bucket {target.bucket} makes the requester pay: set {USER_PROJECT_VARIABLE} to the project "
            f"to bill ({found})"
        )
    elif status == 401:
        made = UnauthorizedError(found)
    elif status == 403:
        made = denied(target, identity, found)
    elif status == 404 and target.permission in (_LIST, _CREATE):
        made = StoreError(
            f"{where}: the bucket {target.bucket} does not exist ({found}). Create it, or correct the URL"
        )
    elif status == 404:  # or there is no such bucket, see GcsFolder.check_bucket
        made = ObjectNotFoundError(f"{where}: no such object")
    elif status == 412:
        made = PreconditionError(found)
    else:
        made = UnexpectedError(f"{where}: HTTP {status}: {found}")
    return made


def broken(error: Exception, target: Target) -> Exception:
    """Return our error for a broken connection of any library."""
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return StoreError(f"{target.where}: the server's certificate is not trusted: {error}")
    host = port = variable = ""
    for cause in causes:  # urllib3 and aiohttp keep the unreachable host in different places
        holders: tuple[Any, ...] = cause, getattr(cause, "conn", None)
        holder = next((each for each in holders if getattr(each, "host", None)), None)
        if holder is not None:
            host, port = str(holder.host), str(getattr(holder, "port", ""))
            variable = next((name for name in _VARIABLES if host in os.environ.get(name, "")), "")
            break
    named = f"{host}, which {variable} names," if variable else host
    advice = f"correct {variable}" if variable else "connect this machine to the internet"
    for cause in causes:
        if isinstance(cause, socket.gaierror) and cause.errno in (*_NO_SUCH_NAME, socket.EAI_AGAIN):
            kind = UnreachableError if cause.errno in _NO_SUCH_NAME else OfflineError
            return kind(f"the host {named} cannot be resolved: {cause.strerror}; {advice}")
        if isinstance(cause, OSError) and cause.errno in _NO_NETWORK:
            return OfflineError(f"no way leads to the host {named}: {cause.strerror}; {advice}")
        if isinstance(cause, ConnectionRefusedError) and variable == EMULATOR_VARIABLE:
            return UnreachableError(f"the host {named} refuses connections at port {port}. Is the emulator running?")
    return TransientError(f"{type(error).__name__}: {error}")


def denied(target: Target, identity: str, found: str) -> AccessError:
    """Return the error for HTTP 403, or for a 401 with fresh credentials."""
    if identity == ANONYMOUS:
        advice = f"there are no credentials: {LOGIN}"
    else:
        advice = (
            f"{target.permission} is probably missing: grant {identity} roles/storage.objectUser on the bucket "
            f"{target.bucket}, or {LOGIN}"
        )
    return AccessError(f"{target.where}: access denied to {identity}: {found}; {advice}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes. urllib3 and requests keep some causes only in their arguments."""
    waiting, seen = [error], set[int]()
    while waiting:
        cause = waiting.pop(0)
        if id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            further = cause.__cause__, cause.__context__, *cause.args
            waiting += [each for each in further if isinstance(each, BaseException)]


def to_crc32c(text: str) -> int:
    """Parse a CRC-32C. Raises ValueError."""
    data = b64decode(text, validate=True)
    if len(data) != 4:
        raise ValueError(f"{text!r} is not a CRC-32C in base64")
    return int.from_bytes(data, "big")


def from_crc32c(crc32c: int) -> str:
    """Format a CRC-32C."""
    return b64encode(crc32c.to_bytes(4, "big")).decode()


def crc32c_of(headers: Mapping[str, str], where: str) -> int | None:
    """Return the CRC-32C of the whole stored object, from X-Goog-Hash. Raises StoreError."""
    found = re.search(r"(?:^|,) *crc32c=([^,]*)", headers.get("X-Goog-Hash", ""))
    try:
        return None if found is None else to_crc32c(found[1].strip())
    except ValueError as error:
        raise StoreError(f"{where}: the header X-Goog-Hash is {headers['X-Goog-Hash']!r:.200}") from error


class Resource(msgspec.Struct, frozen=True):
    """One object, as the JSON API describes it."""

    name: str  # in its bucket
    generation: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")]
    size: Annotated[int, msgspec.Meta(ge=-1)] = -1  # some servers omit the zero of empty objects
    crc32c: str = ""  # in base64, empty if the server has none

    def __post_init__(self) -> None:
        if self.crc32c:
            to_crc32c(self.crc32c)
        if self.size < 0:
            if self.crc32c != from_crc32c(0):
                raise ValueError("Object missing required field `size`")
            msgspec.structs.force_setattr(self, "size", 0)


class Layout(msgspec.Struct, frozen=True, rename="camel"):
    """Place and kind of a bucket, from storageLayout of the JSON API."""

    location: str = ""
    location_type: str = ""


class Page(msgspec.Struct, frozen=True):
    """One page of a listing. `token` requests the next one, if any."""

    items: list[Resource] = []
    prefixes: list[str] = []
    token: str = msgspec.field(default="", name="nextPageToken")


# Not strict, as integers in the answers are texts.
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind, strict=False) for kind in (Resource, Layout, Page)
}


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request."""

    method: str
    url: str  # the whole URL, or its path at the service
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # without those of authentication
    body: bytes | Iterable[bytes | memoryview] = b""  # an iterable has a length as well
    accept: tuple[int, ...] = ()  # statuses from 300 on that are not errors


def check_installed() -> None:
    """Raise MissingExtraError if the client library is missing, without importing it."""
    with suppress(ModuleNotFoundError):
        if importlib.util.find_spec("google.cloud.storage") is not None:
            return
    raise MissingExtraError("google-cloud-storage", "gcs")


@cache
def has_grpc() -> bool:
    """Return true if the packages of gRPC are installed, without importing them."""
    return all(importlib.util.find_spec(package) for package in ("grpc", "grpc_status", "proto"))


class GcsSession:
    """An HTTP session with the service that sends single requests. Thread-safe."""

    def __init__(self) -> None:
        self.credentials = _default_credentials()  # None: anonymous
        self._session, self.endpoint = _connect(self.credentials)
        self.user_project = os.environ.get(USER_PROJECT_VARIABLE, "")  # the project to bill, or ""
        self.layouts: dict[str, Layout | None] = {}  # known layouts by bucket

    @property
    def identity(self) -> str:
        """The caller as the service sees it, for messages."""
        if self.credentials is None:
            return ANONYMOUS
        for attribute in ("service_account_email", "account"):
            found = getattr(self.credentials, attribute, None)
            if isinstance(found, str) and found:
                return "the machine's service account" if found == "default" else found
        return f"your {type(self.credentials).__module__} credentials"

    @contextmanager
    def answer(self, request: Request, target: Target, patience: Patience) -> Iterator[Any]:
        """Send a request, and yield the answer, a `requests.Response` with its body unread.

        Raises:
            TransientError: another try may succeed.
            UnauthorizedError: `refresh` the credentials.
            PreconditionError: the object has another generation.
            StoreError: any other refusal.
        """
        import requests

        url = request.url if "://" in request.url else self.endpoint + request.url
        billed = {"userProject": self.user_project} if self.user_project else {}
        with _faults(target):
            response = self._session.request(
                request.method,
                url,
                params={**request.params, **billed} if url != request.url else request.params,
                headers=dict(request.headers),
                data=request.body,
                timeout=(patience.connect_seconds, patience.read_seconds),
                stream=True,
                allow_redirects=False,  # 308 means that an upload continues
            )
            with response:
                if response.status_code >= 300 and response.status_code not in request.accept:
                    raise error_of(response.status_code, response.headers, response.text, target, self.identity)
                assert isinstance(response, requests.Response)
                yield response

    def surroundings(self) -> tuple[ssl.SSLContext, str | None]:
        """Return the certificates and the proxy of this session, for use by another client."""
        import certifi
        from requests.utils import select_proxy

        found = self._session.merge_environment_settings(self.endpoint, {}, True, None, None)
        where = Path(certifi.where() if found["verify"] is True else found["verify"])
        files, folder = (None, where) if where.is_dir() else (where, None)
        context = ssl.create_default_context(cafile=files, capath=folder)
        return context, select_proxy(self.endpoint, found["proxies"])

    def refresh(self, target: Target) -> None:
        """Get a new token if there are credentials. Raises TransientError, AccessError."""
        if self.credentials is not None:
            from google.auth.transport.requests import Request as AuthRequest

            with _faults(target):
                self.credentials.refresh(AuthRequest())


@contextmanager
def _faults(target: Target) -> Iterator[None]:
    """Turn errors of sockets, urllib3, requests and google.auth into ours."""
    import requests
    import urllib3
    from google.auth import exceptions

    try:
        yield
    except StoreError:  # these are OSErrors as well
        raise
    except exceptions.TransportError as error:
        raise broken(error, target) from error
    except exceptions.GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise TransientError(f"{type(error).__name__}: {error}") from error
        raise AccessError(f"{target.where}: the credentials do not work: {error}; {LOGIN}") from error
    except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
        if isinstance(error, ValueError) and not isinstance(error, requests.exceptions.JSONDecodeError):
            raise StoreError(f"{target.where}: {type(error).__name__}: {error}") from error  # a malformed URL
        raise broken(error, target) from error


def _default_credentials() -> Any:
    """Return the credentials that google.auth finds, or None: public buckets can be read without any."""
    if os.environ.get(EMULATOR_VARIABLE):
        return None
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return google.auth.default(scopes=[_SCOPE])[0]
    except DefaultCredentialsError as error:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise AccessError(f"the file that GOOGLE_APPLICATION_CREDENTIALS names cannot be used: {error}") from error
        return None


def _connect(credentials: Any) -> tuple[Any, str]:
    """Return a google.auth session, and the service's URL by the rules of the client library."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    if credentials is None:
        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]  # google.auth types but part of itself
    # No statuses: else it refreshes and sends again by itself, when the body of an upload may be half consumed.
    session = AuthorizedSession(credentials, refresh_status_codes=())  # type: ignore[no-untyped-call]  # likewise
    session.auth = lambda request: request  # else ~/.netrc is read for each request, and overrides the token
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_connections=8, pool_maxsize=_POOL_CONNECTIONS, max_retries=0))
    try:
        # Used only for its rules of endpoints. With a project it looks up no other: that may ask a metadata server.
        endpoint = Client(project="<none>", credentials=credentials, _http=session).api_endpoint.rstrip("/")
    except ValueError as error:  # the credentials belong to another universe, or are for mutual TLS
        raise AccessError(f"the credentials do not fit the settings of Google Cloud Storage here: {error}") from error
    return session, endpoint if "://" in endpoint else f"http://{endpoint}"


class GcsFolder:
    """Objects below gs://bucket/folder, and requests on them. Thread-safe.

    `root` is the prefix of their keys, "folder/" or "". `count_retry` is called before each try but a call's first.
    """

    def __init__(self, url: str, patience: Patience, count_retry: Callable[[], None]) -> None:
        scheme, _, path = url.partition("://")
        self.url = f"{scheme}://{path.rstrip('/')}"
        self.bucket, _, folder = path.rstrip("/").partition("/")
        if not self.bucket:
            raise OptionError(f"{url} names no bucket. Write {scheme}://BUCKET or {scheme}://BUCKET/FOLDER")
        self.root = f"{check_name(folder)}/" if folder else ""
        self.patience, self.count_retry = patience, count_retry
        self.was_online = False  # true once the bucket is known to exist

    @property
    def session(self) -> GcsSession:
        """The session of this process. A forked child makes its own, as processes cannot share a connection."""
        key = os.getpid(), os.environ.get(EMULATOR_VARIABLE, ""), os.environ.get(USER_PROJECT_VARIABLE, "")
        with _locks.setdefault(os.getpid(), threading.Lock()):
            if key not in _sessions:
                _sessions[key] = GcsSession()
            return _sessions[key]

    def persist(
        self, where: str, permission: str, attempt: Callable[[Send, Tries], T], patience: Patience | None = None
    ) -> T:
        """Repeat `attempt` until it raises no TransientError, and return its result.

        Args:
            where: URL of the object or folder, for messages.
            permission: permission that the caller needs, like storage.objects.get.
            attempt: tries once to do all that is left.
            patience: overrides the folder's.

        Raises:
            StoreError: it cannot succeed, or patience has ended.
            PreconditionError: the service answered 412.
        """
        target = Target(where, self.bucket, permission)
        tries = Tries(target, patience or self.patience, self.was_online)

        def send(request: Request) -> AbstractContextManager[Any]:
            return self.session.answer(request, target, self.patience)

        while True:
            try:
                if tries.renew:
                    self.session.refresh(target)
                    tries.renew = False
                found = attempt(send, tries)
                self.was_online = True
                return found
            except ObjectNotFoundError:
                self.check_bucket()
                raise
            except UnexpectedError as error:
                kind = self._odd_kind()
                if not kind:
                    raise
                raise StoreError(f"{error}; {kind}") from error
            except (TransientError, UnauthorizedError) as error:
                time.sleep(tries.pause_after(error, self.session.identity))
                self.count_retry()

    def speaks_grpc(self) -> bool:
        """Return true if objects are read and written over gRPC: the bucket is zonal, and gRPC is installed.

        The first call looks up the bucket's layout. It asks an emulator only if that has a gRPC server. Raises
        UnavailableError.
        """
        if not has_grpc() or (os.environ.get(EMULATOR_VARIABLE) and not os.environ.get(GRPC_EMULATOR_VARIABLE)):
            return False
        layout = self._layout()
        return layout is not None and layout.location_type == "zone"

    def _layout(self, patience: Patience | None = None) -> Layout | None:
        """Return the bucket's layout, or None if the server does not tell it to this caller.

        All stores of a process share the answer. Raises UnavailableError.
        """
        layouts = self.session.layouts
        if self.bucket not in layouts:
            path = f"/storage/v1/b/{quote(self.bucket, safe='')}/storageLayout"

            def attempt(send: Send, _: Tries) -> Layout:
                try:
                    with send(Request("GET", path, {"prefix": self.root})) as response:
                        return self.decode(self.url, response.content, Layout)
                except UnexpectedError as error:  # for which `persist` would look up the layout
                    raise StoreError(str(error)) from error

            try:
                layouts[self.bucket] = self.persist(self.url, _LIST, attempt, patience)
            except UnavailableError:
                raise
            except StoreError:  # the caller may not ask, or an emulator does not know the request
                layouts[self.bucket] = None
        return layouts[self.bucket]

    def _odd_kind(self) -> str:
        """Return why the bucket is not an ordinary one, empty if it is, or if that is not known."""
        layout = None
        with suppress(UnavailableError):
            layout = self._layout(replace(self.patience, deadline_seconds=0))  # one try: an error waits to be raised
        if layout is None:
            return ""
        if layout.location_type == "zone":
            advice = "" if has_grpc() else f": {install_command('rapid')}"
            return (
                f"{self.bucket} is a zonal (Rapid) bucket in {layout.location}, whose objects are read and written "
                f"over gRPC{advice} (docs/gcs.md)"
            )
        if layout.location_type not in _KNOWN_LOCATION_TYPES:
            return (
                f"{self.bucket} is a bucket of location type {layout.location_type!r} in {layout.location}, which "
                "this version of tpufeed does not know. Use one in a region, a dual-region or a multi-region"
            )
        return ""

    def where(self, name: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.url}/{name}"

    def key(self, name: str) -> str:
        """Return the object's name in its bucket. Raises OptionError if it could lead out of the folder."""
        return self.root + check_name(name)

    def path(self, name: str = "", kind: str = "") -> str:
        """Return the path at the service of an object, or of all objects. `kind` is "/download" or "/upload"."""
        objects = f"{kind}/storage/v1/b/{quote(self.bucket, safe='')}/o"
        return f"{objects}/{quote(self.key(name), safe='')}" if name else objects

    def check_bucket(self) -> None:
        """Raise StoreError if there is no bucket: the answer for a missing object differs only in its words."""
        if not self.was_online:
            # A caller who may not list gets 403 for a missing object, so a caller who got 404 may list.
            params = {"prefix": self.root, "maxResults": "1", "fields": "nextPageToken"}
            with suppress(AccessError):
                self.call(self.url, "storage.objects.list", Request("GET", self.path(), params), Page)
            self.was_online = True

    def find(self, name: str, version: str = "") -> Resource:
        """Return the service's description of an object. Raises ObjectNotFoundError, ObjectChangedError."""
        check_name(name)
        params = {"fields": FIELDS, **({"generation": generation_of(version)} if version else {})}
        request = Request("GET", self.path(name), params)
        try:
            return self.call(self.where(name), "storage.objects.get", request, Resource)
        except ObjectNotFoundError as error:
            raise self.absence(name, version, error) from error

    def absence(self, name: str, version: str, error: ObjectNotFoundError) -> StoreError:
        """Return the error for an object that is missing, or has another generation than `version`."""
        self.check_bucket()
        if version:
            with suppress(ObjectNotFoundError):
                found = self.find(name).generation
                return ObjectChangedError(f"{self.where(name)}: it is generation {found} now, not {version}")
        return error

    def iter_pages(self, where: str, params: dict[str, str]) -> Iterator[Page]:
        """Yield the pages of a listing. Raises StoreError if the bucket does not exist."""
        token = ""
        while True:
            request = Request("GET", self.path(), {**params, **({"pageToken": token} if token else {})})
            page = self.call(where, "storage.objects.list", request, Page)
            yield page
            if not page.token:
                return
            if page.token == token:
                raise StoreError(f"{where}: the listing has no end: page {token!r} follows itself")
            token = page.token

    def call(self, where: str, permission: str, request: Request, kind: type[T]) -> T:
        """Return the JSON that answers a request, or its body if `kind` is bytes. Raises as `persist` does."""

        def attempt(send: Send, _: Tries) -> T:
            with send(request) as response:
                return response.content if kind is bytes else self.decode(where, response.content, kind)

        return self.persist(where, permission, attempt)

    def decode(self, where: str, content: bytes, kind: type[T]) -> T:
        """Parse the JSON of an answer.

        Raises:
            TransientError: it is not JSON, but perhaps a proxy's page.
            StoreError: a field is missing, or has another type.
        """
        try:
            answer: T = _DECODERS[kind].decode(content)
            return answer
        except msgspec.ValidationError as error:
            raise StoreError(
                f"{where}: {self.session.endpoint} does not answer like Google Cloud Storage: {error}"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransientError(f"the answer is not JSON: {error}") from error


def generation_of(version: str) -> str:
    """Return the generation that a version names. A version of another kind of store matches none."""
    return version if version.isascii() and version.isdigit() else "1"  # generations are microseconds since 1970
