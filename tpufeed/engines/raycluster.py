"""Finding a Ray cluster, and being connected to it."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tpufeed.errors import MissingExtraError, OptionError

AUTO, LOCAL = "auto", "local"
_ADDRESS = "RAY_ADDRESS"
_CLIENT = "ray://"
_ANSWER_SECONDS = 5.0  # Ray itself would try for two minutes
_ADVICE = (
    "Start one (ray start --head on one host, ray start --address=HOST:6379 on the others), name the right one by "
    "--ray-address, or say --ray-address local for the cores of this host"
)

# The beginning of every HTTP/2 connection, with empty settings: what gRPC speaks answers with settings of its own.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_FRAME_BYTES, _TYPE_BYTE, _SETTINGS = 9, 3, 4


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Within it this process is connected to the cluster, and `ray` is what to use it with.

    Where the user has connected this process already, that connection is used, and stays.

    Raises:
        MissingExtraError: Ray is not installed.
        OptionError: no cluster there, or one of another version of Ray or Python.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    if ray.is_initialized():
        yield ray
        return
    _check_answers(address)
    with _own_sigterm():
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise OptionError(f"Ray at {address!r}: {' '.join(str(error).split())}. {_ADVICE}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raises OptionError where nothing that may be Ray answers at `address`."""
    found = _resolve(address)
    if found is None:
        return
    host, colon, port = found.removeprefix(_CLIENT).rpartition(":")
    if not colon or not port.isdecimal():
        raise OptionError(f"--ray-address {address!r} is no address; write it like 10.0.0.5:6379, or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in ("0", ""):
                _greet(connection)
    except (OSError, OverflowError) as error:
        named = address if address == found else f"{address} ({found})"
        raise OptionError(f"no Ray cluster answers at {named}: {error}. {_ADVICE}") from error


def _resolve(address: str) -> str | None:
    """As HOST:PORT what `auto` stands for; None where only Ray knows, or a cluster is to be started."""
    if address == AUTO and os.environ.get(_ADDRESS):
        address = os.environ[_ADDRESS]
    if address == LOCAL:
        return None
    if address != AUTO:
        return address
    try:
        from ray._private.services import canonicalize_bootstrap_address

        found: str | None = canonicalize_bootstrap_address(AUTO)
    except (ImportError, TypeError):  # another version of Ray
        return None
    except ConnectionError as error:
        raise OptionError(f"this host is in no Ray cluster. {_ADVICE}") from error
    return found


def _greet(connection: socket.socket) -> None:
    """Raises OSError where what has taken the connection is no gRPC: a dashboard, say."""
    connection.sendall(_GREETING)
    answer = b""
    while len(answer) < _FRAME_BYTES:
        more = connection.recv(_FRAME_BYTES - len(answer))
        if not more:
            break
        answer += more
    if len(answer) < _FRAME_BYTES or answer[_TYPE_BYTE] != _SETTINGS:
        raise OSError("what answers there is no Ray. Its own port is 6379 by default; 8265 is the dashboard's")


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray takes the signal for itself when it connects; who started us has said what it should do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
