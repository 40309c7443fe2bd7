"""The certificate of the port where clients speak TLS: the configured one, or one made now.

The Java, Go, C# and C++ RocketMQ SDKs use TLS by default and accept any certificate, so a port with
a self-signed one serves them without configuration. A configured one is read again when its files
change, as a mounted Secret's do when it is renewed; connections that are open stay.

What is wrong with the files is told, and keeps a node neither from starting nor from its other
ports: the last sound pair is shown, and without one the TLS port takes nobody until there is one.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dledger.door.tls import TlsCertificate
from dledger.rpc.callers import leaf_of
from dledger.rpc.mutual_tls import Pair, read_pair, written

logger = logging.getLogger(__name__)

_LIFETIME: Final = datetime.timedelta(days=3650)
_DAY: Final = "%Y-%m-%d %H:%M UTC"


@dataclass(frozen=True, slots=True)
class Shown:
    """A pair that can be shown, and from when until when it holds, in Unix seconds."""

    pair: Pair
    begins_s: float
    ends_s: float

    def fault(self, now_s: float) -> str:
        """Return why clients that verify it do not take it now; empty: they may."""
        if now_s >= self.ends_s:
            return f"it ended at {_said(self.ends_s)}"
        return f"it begins at {_said(self.begins_s)}" if now_s < self.begins_s else ""


class ClientCertificate:
    """What the port shows.

    Args:
        cert_file: Path of the chain, PEM; empty for a self-signed certificate.
        key_file: Path of its key.
        name: Common name of a self-signed certificate.
        host: IPv4 address it is for.
        now_s: The time of day, in Unix seconds.

    Attributes:
        is_mounted: Whether files are configured.
        shown: What the next connection sees; None: there was nothing to show yet.
        fault: What is wrong with the files, and what is done meanwhile; empty if nothing is.
    """

    def __init__(
        self,
        cert_file: str,
        key_file: str,
        *,
        name: str,
        host: str,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._files = Path(cert_file), Path(key_file)
        self._now_s = now_s
        self._seen: object = None
        self._mounted: Shown | None = None
        self._unreadable = ""
        self._looking = threading.Lock()
        self.is_mounted = bool(cert_file)
        self.shown: Shown | None = None
        self.fault = ""
        if self.is_mounted:
            self.refresh()
        else:
            self.shown = _with_dates(self_signed(name, host))

    def refresh(self) -> None:
        """Take what is in the files if it is sound; on any thread, two `stat` calls as a rule.

        A pair that has ended never takes the place of one that has not.
        """
        if not self.is_mounted:
            return
        with self._looking:
            if (seen := written(*self._files)) != self._seen:
                self._seen = seen
                self._read()
            now_s, before, mounted = self._now_s(), self.shown, self._mounted
            if mounted is not None and (
                before is None or not mounted.fault(now_s) or before.fault(now_s)
            ):
                self.shown = mounted
            if before is not None and self.shown is not before:
                logger.info("clients are shown the new certificate of %s", self._files[0])
            self._tell(now_s)

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return credentials for a server, which follow the files; None: there is nothing yet."""
        self.refresh()
        given = self.shown
        if given is None:
            return None

        def newest() -> grpc.ServerCertificateConfiguration | None:
            """Return what a handshake shows if it differs from the last one's; gRPC's thread."""
            nonlocal given
            self.refresh()
            if self.shown is given or self.shown is None:
                return None
            given = self.shown
            return _configuration(given.pair)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(given.pair), newest, require_client_authentication=False
        )

    def following(self) -> TlsCertificate:
        """Return the certificate for a server of ours, which follows the files."""
        return _Following(self)

    def _read(self) -> None:
        self._mounted, self._unreadable = None, ""
        try:
            self._mounted = _with_dates(read_pair(*self._files))
        except (OSError, ValueError) as error:
            self._unreadable = str(error)

    def _tell(self, now_s: float) -> None:
        """Say what is wrong, once for each thing that is."""
        of_mounted = self._mounted.fault(now_s) if self._mounted else ""
        fault = self._unreadable or (of_mounted and f"{self._files[0]}: {of_mounted}")
        if fault and self.shown is None:
            fault += "; the port for TLS takes nobody until there is one"
        elif fault and self.shown is self._mounted:
            fault += "; clients are shown it all the same"
        elif fault:
            fault += "; clients are shown the last sound one"
        if fault and fault != self.fault:
            logger.error("no new certificate for clients: %s", fault)
        self.fault = fault


class _Following(TlsCertificate):
    """Looks for a newer pair before each handshake."""

    def __init__(self, certificate: ClientCertificate) -> None:
        super().__init__()
        self._certificate = certificate
        self._given: Shown | None = None
        self.refresh()

    def refresh(self) -> None:
        self._certificate.refresh()
        shown = self._certificate.shown
        if shown is not None and shown is not self._given:
            self._given = shown
            self.replace(shown.pair.chain, shown.pair.key)


def _said(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime(_DAY)


def _with_dates(pair: Pair) -> Shown:
    """Return a pair with its dates. Raises ValueError if it has none that can be read."""
    leaf = leaf_of(pair.chain)
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return Shown(pair, begins.timestamp(), ends.timestamp())


def _configuration(pair: Pair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)])


def self_signed(name: str, host: str) -> Pair:
    """Return a certificate for an IPv4 address."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    alternatives = [x509.DNSName(name), x509.IPAddress(ipaddress.IPv4Address(host))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)
