"""What all connections of a server share."""

import threading
from dataclasses import dataclass, field

from tests.gcs_server.authority import Authority
from tests.gcs_server.faults import FaultScript
from tests.gcs_server.records import Log
from tests.gcs_server.vault import Vault


@dataclass(slots=True)
class Settings:
    """How the server behaves to all; changed while it runs. 0 is no delay and no limit.

    Attributes:
        latency_ms: of every request.
        connection_bytes_per_second: of each connection, each way.
    """

    latency_ms: float = 0.0
    connection_bytes_per_second: float = 0.0

    def __post_init__(self) -> None:
        if self.latency_ms < 0 or self.connection_bytes_per_second < 0:
            raise ValueError("latency_ms and connection_bytes_per_second are 0 or more")


@dataclass(slots=True)
class World:
    """A vault, and what the tests do to it. All of it is thread-safe; settings are replaced, not written to."""

    vault: Vault
    settings: Settings = field(default_factory=Settings)
    faults: FaultScript = field(default_factory=FaultScript)
    log: Log = field(default_factory=Log)
    authority: Authority = field(default_factory=Authority)
    stopping: threading.Event = field(default_factory=threading.Event)
