"""What all connections of a server share, its certificates among it."""

import shutil
import ssl
import tempfile
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.gcs_server.faults import FaultScript, Log
from tests.gcs_server.objects import Vault

HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class Authority:
    """Makes its certificates when first asked, in a temporary folder that `close` removes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._context: ssl.SSLContext | None = None

    def speaks_for(self, host: str) -> bool:
        return host in HOSTS

    def certificate_file(self) -> Path:
        """What a client must trust (PEM)."""
        with self._lock:
            return self._made() / "ca.pem"

    def context(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self._made() / "leaf.pem")
                self._context = context
            return self._context

    def close(self) -> None:
        with self._lock:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = self._context = None

    def _made(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="gcs-server-"))
            _write_certificates(self._folder)
        return self._folder


def _write_certificates(folder: Path) -> None:
    """ca.pem, and leaf.pem with its key."""
    from cryptography import x509  # it comes with google-auth
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.now(UTC)

    def unsigned(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
        return (
            x509.CertificateBuilder(*reversed(names))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=7))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    authority, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    root = (
        unsigned("tpufeed test CA", "tpufeed test CA", authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(authority, hashes.SHA256())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    certificate = (
        unsigned(HOSTS[0], "tpufeed test CA", leaf.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = leaf.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "ca.pem").write_bytes(root.public_bytes(pem))
    (folder / "leaf.pem").write_bytes(certificate.public_bytes(pem) + secret)


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
