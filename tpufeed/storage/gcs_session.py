"""One authenticated HTTP session with Google Cloud Storage for all stores and threads of a process."""

import http.client
import importlib.util
import os
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpufeed.errors import AccessError, MissingExtraError, StoreError
from tpufeed.storage.gcs_errors import (
    ANONYMOUS,
    EMULATOR_VARIABLE,
    LOGIN,
    USER_PROJECT_VARIABLE,
    Target,
    broken,
    error_of,
)
from tpufeed.storage.gcs_retrying import Patience, TransientError

_POOL_CONNECTIONS = 128  # requests keeps 10 by default and throws the eleventh thread's away after each request
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_sessions: dict[tuple[int, str, str], "GcsSession"] = {}
_locks: dict[int, threading.Lock] = {}  # one a process: a lock that is held during a fork is never freed in the child


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request.

    Attributes:
        method: of HTTP.
        url: all of it, or its path at the service.
        params: of the query.
        headers: besides those of authentication.
        body: bytes, or pieces with a length.
        accept: statuses from 300 on that are no errors.
    """

    method: str
    url: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes | memoryview] = b""
    accept: tuple[int, ...] = ()


def check_installed() -> None:
    """Raises MissingExtraError where the client library is missing; imports nothing of it."""
    try:
        found = importlib.util.find_spec("google.cloud.storage")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise MissingExtraError("google-cloud-storage", "gcs")


def open_session() -> "GcsSession":
    """This process's session; a forked child makes its own, as two processes cannot share a connection."""
    key = os.getpid(), os.environ.get(EMULATOR_VARIABLE, ""), os.environ.get(USER_PROJECT_VARIABLE, "")
    with _locks.setdefault(os.getpid(), threading.Lock()):
        if key not in _sessions:
            _sessions[key] = GcsSession()
        return _sessions[key]


class GcsSession:
    """Sends single requests; thread-safe.

    Attributes:
        credentials: of google.auth; None is anonymous.
        endpoint: the service's URL, without a slash at its end.
        user_project: the project to be billed for requests, or "".
    """

    def __init__(self, credentials: Any = None) -> None:
        self.credentials = _default_credentials() if credentials is None else credentials
        self._session, self.endpoint = _connect(self.credentials)
        self.user_project = os.environ.get(USER_PROJECT_VARIABLE, "")

    @property
    def identity(self) -> str:
        """Whom the service sees, as far as it is known here."""
        if self.credentials is None:
            return ANONYMOUS
        for attribute in ("service_account_email", "account"):
            found = getattr(self.credentials, attribute, None)
            if isinstance(found, str) and found:
                return "the machine's service account" if found == "default" else found
        return f"your {type(self.credentials).__module__} credentials"

    @contextmanager
    def answer(self, request: Request, target: Target, patience: Patience) -> Iterator[Any]:
        """The answer to a request, a `requests.Response` whose body is still to be read, inside of the context.

        Raises:
            TransientError: what failed may succeed when tried again.
            UnauthorizedError: `refresh` the credentials.
            PreconditionError: the object is of another generation.
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
                allow_redirects=False,  # 308 is an upload's way to say that it goes on
            )
            with response:
                if response.status_code >= 300 and response.status_code not in request.accept:
                    raise error_of(response.status_code, response.headers, response.text, target, self.identity)
                assert isinstance(response, requests.Response)
                yield response

    def surroundings(self) -> tuple[ssl.SSLContext, str | None]:
        """The certificates that this session goes by and the proxy that it goes through, for another client."""
        import certifi
        from requests.utils import select_proxy

        found = self._session.merge_environment_settings(self.endpoint, {}, True, None, None)
        where = Path(certifi.where() if found["verify"] is True else found["verify"])
        files, folder = (None, where) if where.is_dir() else (where, None)
        context = ssl.create_default_context(cafile=files, capath=folder)
        return context, select_proxy(self.endpoint, found["proxies"])

    def refresh(self, target: Target) -> None:
        """Get a new token, where there are credentials. Raises TransientError, AccessError."""
        if self.credentials is not None:
            from google.auth.transport.requests import Request as AuthRequest

            with _faults(target):
                self.credentials.refresh(AuthRequest())


@contextmanager
def _faults(target: Target) -> Iterator[None]:
    """The one place where errors of sockets, urllib3, requests and google.auth become ours."""
    import requests
    import urllib3
    from google.auth import exceptions

    try:
        yield
    except StoreError:  # these are OSErrors, too
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
    """What google.auth finds, or None: public buckets can be read without."""
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
    """A session of google.auth and the service's URL, of which the client library knows the rules."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    if credentials is None:
        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]  # google.auth types but part of itself
    # No statuses: it would refresh and send again by itself, and the body of an upload may be half read by then.
    session = AuthorizedSession(credentials, refresh_status_codes=())  # type: ignore[no-untyped-call]  # likewise
    session.auth = lambda request: request  # or else ~/.netrc is read for each request and wins over the token
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_connections=8, pool_maxsize=_POOL_CONNECTIONS, max_retries=0))
    try:
        endpoint = Client(project="<none>", credentials=credentials, _http=session).api_endpoint.rstrip("/")
    except ValueError as error:  # the credentials are another universe's, or for TLS on both sides
        raise AccessError(f"the credentials do not fit Google Cloud Storage as it is set up here: {error}") from error
    return session, endpoint if "://" in endpoint else f"http://{endpoint}"
