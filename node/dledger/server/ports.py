"""Which services each port of a node has, and the certificate of the TLS port."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.rpc.callers import guarded
from dledger.rpc.peer_tls import PeerTls
from dledger.server.config import Settings
from dledger.server.gateway import Gateway
from dledger.server.peer_front import PeerFront
from dledger.server.servers import MAX_CLIENT_STREAMS, Listener


def listeners(
    settings: Settings,
    gateway: Gateway,
    peer_services: Sequence[grpc.GenericRpcHandler],
    peer_tls: PeerTls | None = None,
    front: PeerFront | None = None,
) -> list[Listener]:
    """Return a node's ports: clients in plaintext, peers, and clients over TLS if enabled.

    Args:
        settings: The node's settings.
        gateway: Serves clients, and forwarded client requests on the peer port.
        peer_services: The other services of the peer port.
        peer_tls: The certificates of the peer port; None: it is plain text, and believes anyone.
        front: Listens at the peer port instead, if plain text is accepted there beside TLS.
    """
    host = settings.listen_host
    clients = Listener(
        address=f"{host}:{settings.client_port}",
        handlers=gateway.handlers(),
        max_request_bytes=MAX_CLIENT_FRAME_BYTES,
        max_streams=MAX_CLIENT_STREAMS,
    )
    services = [*peer_services, *gateway.handlers(peer_port=True)]
    at = f"{host}:{settings.peer_port}"
    plain = Listener(
        address=front.plain if front else at,
        handlers=services,
        max_request_bytes=MAX_CLIENT_FRAME_BYTES,  # that clients sent; peers' entries go elsewhere
    )
    peers = [plain] if front or not peer_tls else []
    if peer_tls:
        proved = replace(
            plain,
            address=front.encrypted if front else at,
            handlers=[guarded(each) for each in services],
            credentials=peer_tls.server_credentials(),
        )
        peers.append(proved)
    return [clients, *peers, *([_encrypted(settings, gateway)] if settings.client_tls_port else [])]


def _encrypted(settings: Settings, gateway: Gateway) -> Listener:
    pair = key_and_chain(
        settings.tls_cert_file,
        settings.tls_key_file,
        name=settings.name,
        host=settings.advertise_host,
    )
    return Listener(
        address=f"{settings.listen_host}:{settings.client_tls_port}",
        handlers=gateway.handlers(tls=True),
        max_request_bytes=MAX_CLIENT_FRAME_BYTES,
        max_streams=MAX_CLIENT_STREAMS,
        credentials=grpc.ssl_server_credentials([pair]),
    )


_LIFETIME: Final = datetime.timedelta(days=3650)


def key_and_chain(cert_file: str, key_file: str, *, name: str, host: str) -> tuple[bytes, bytes]:
    """Return (private key, certificate chain) as PEM: the configured pair, or one made now.

    The Java, Go, C# and C++ RocketMQ SDKs use TLS by default and accept any certificate, so a port
    with a self-signed one serves them without configuration.

    Args:
        cert_file: Path of the chain; empty for a self-signed certificate.
        key_file: Path of its key.
        name: Common name of a self-signed certificate.
        host: IPv4 address it is for.

    Raises:
        OSError: A configured file cannot be read.
    """
    if cert_file:
        return Path(key_file).read_bytes(), Path(cert_file).read_bytes()
    return _self_signed(name, host)


def _self_signed(name: str, host: str) -> tuple[bytes, bytes]:
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
