"""The certificate of the port where clients speak TLS: the configured one, or one made now.

The Java, Go, C# and C++ RocketMQ SDKs use TLS by default and accept any certificate, so a port with
a self-signed one serves them without configuration. A configured one is read again when its files
change, as a mounted Secret's do when it is renewed; connections that are open stay.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import ssl
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dledger.rpc.mutual_tls import show

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
        self._seen = _signature(self._files)
        try:
            self._pair = _read(self._files)
        except ValueError as error:
            raise OSError(f"no certificate for clients: {error}") from error

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a server, which follow the files."""
        if self._files is None:
            return grpc.ssl_server_credentials([self._pair])
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._pair), self._newest, require_client_authentication=False
        )

    def _newest(self) -> Any:
        """Return what a handshake shows if it differs from the last one's; in gRPC's thread."""
        if self._files is None or (seen := _signature(self._files)) == self._seen:
            return None
        self._seen, before, fault = seen, self._pair, ""
        try:
            self._pair = _read(self._files)
        except (OSError, ValueError) as error:
            fault = str(error)
        if fault and fault != self._last_fault:
            logger.error("clients are shown the last sound certificate: %s", fault)
        self._last_fault = fault
        if self._pair == before:
            return None
        logger.info("clients are shown the new certificate of %s", self._files[0])
        return _configuration(self._pair)


def _configuration(pair: tuple[bytes, bytes]) -> Any:
    return grpc.ssl_server_certificate_configuration([pair])


def _read(files: tuple[Path, Path]) -> tuple[bytes, bytes]:
    """Return (key, chain). Raises OSError, ValueError (naming the files)."""
    of_chain, of_key = files
    chain, key = of_chain.read_bytes(), of_key.read_bytes()
    try:
        show(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), chain, key)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"{of_chain} and {of_key} are not a pair: {error}") from error
    return key, chain


def _signature(files: tuple[Path, Path]) -> object:
    """Return what differs after one of the files was written or replaced."""
    return tuple(map(_stat, files))


def _stat(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def self_signed(name: str, host: str) -> tuple[bytes, bytes]:
    """Return (private key, certificate) as PEM, for an IPv4 address."""
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
    return private, certificate.public_bytes(serialization.Encoding.PEM)
