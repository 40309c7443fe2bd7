"""The certificate of the port where clients speak TLS: the configured one, or one made now.

The Java, Go, C# and C++ RocketMQ SDKs use TLS by default and accept any certificate, so a port with
a self-signed one serves them without configuration. A configured one is read again when its files
change, as a mounted Secret's do when it is renewed; connections that are open stay.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dledger.door.tls import TlsCertificate
from dledger.rpc.mutual_tls import Pair, read_pair, written

logger = logging.getLogger(__name__)

_LIFETIME: Final = datetime.timedelta(days=3650)


class ClientCertificate:
    """What the port shows.

    Args:
        cert_file: Path of the chain, PEM; empty for a self-signed certificate.
        key_file: Path of its key.
        name: Common name of a self-signed certificate.
        host: IPv4 address it is for.

    Raises:
        OSError: A configured file cannot be read, or the two are not a pair.
    """

    def __init__(self, cert_file: str, key_file: str, *, name: str, host: str) -> None:
        self._files = (Path(cert_file), Path(key_file)) if cert_file else None
        self._seen: object = None
        self._last_fault = ""
        if self._files is None:
            self._pair = self_signed(name, host)
            return
        self._seen = written(*self._files)
        try:
            self._pair = read_pair(*self._files)
        except ValueError as error:
            raise OSError(f"no certificate for clients: {error}") from error

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a server, which follow the files."""
        if self._files is None:
            return grpc.ssl_server_credentials([(self._pair.key, self._pair.chain)])
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._pair), self._newest, require_client_authentication=False
        )

    def following(self) -> TlsCertificate:
        """Return the certificate for a server of ours, which follows the files."""
        return _Following(self._pair, self._newer)

    def _newest(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what a handshake shows if it differs from the last one's; in gRPC's thread."""
        newer = self._newer()
        return None if newer is None else _configuration(newer)

    def _newer(self) -> Pair | None:
        if self._files is None or (seen := written(*self._files)) == self._seen:
            return None
        self._seen, before, fault = seen, self._pair, ""
        try:
            self._pair = read_pair(*self._files)
        except (OSError, ValueError) as error:
            fault = str(error)
        if fault and fault != self._last_fault:
            logger.error("clients are shown the last sound certificate: %s", fault)
        self._last_fault = fault
        if self._pair == before:
            return None
        logger.info("clients are shown the new certificate of %s", self._files[0])
        return self._pair


class _Following(TlsCertificate):
    """Looks for a newer pair before each handshake; that is two `stat` calls."""

    def __init__(self, pair: Pair, newer: Callable[[], Pair | None]) -> None:
        super().__init__(pair.chain, pair.key)
        self._newer = newer

    def refresh(self) -> None:
        newer = self._newer()
        if newer is not None:
            self.replace(newer.chain, newer.key)


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
