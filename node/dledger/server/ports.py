"""Which services each port of a node has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import grpc

from dledger.calls.grpc_server import by_grpc
from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.rpc.callers import guarded
from dledger.rpc.peer_tls import PeerTls
from dledger.server.client_certificate import ClientCertificate
from dledger.server.config import NATIVE, Settings
from dledger.server.peer_front import PeerFront
from dledger.server.servers import MAX_CLIENT_STREAMS, ClientListener, Listener
from dledger.server.wiring import ClientParts, forwarded_services_of, services_of


def listeners(
    settings: Settings,
    parts: ClientParts,
    peer_services: Sequence[grpc.GenericRpcHandler],
    *,
    peer_tls: PeerTls | None = None,
    front: PeerFront | None = None,
    certificate: ClientCertificate | None = None,
) -> list[Listener | ClientListener]:
    """Return a node's ports: clients in plaintext, over TLS if enabled, and peers.

    Args:
        settings: The node's settings.
        parts: What serves clients, and forwarded client requests on the peer port.
        peer_services: The other services of the peer port.
        peer_tls: The certificates of the peer port; None: it is plain text, and believes anyone.
        front: Listens at the peer port instead, if plain text is accepted there beside TLS.
        certificate: What clients are shown over TLS; None: there is no port for that.
    """
    host = settings.listen_host
    services = [*peer_services, *forwarded_services_of(parts)]
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
            handlers=[guarded(each, lambda: peer_tls.group) for each in services],
            credentials=peer_tls.server_credentials(),
        )
        peers.append(proved)
    return [*_client_ports(settings, parts, certificate), *peers]


def client_certificate(settings: Settings) -> ClientCertificate | None:
    """Return what clients are shown over TLS; None if there is no port for that."""
    if not settings.client_tls_port:
        return None
    return ClientCertificate(
        settings.tls_cert_file,
        settings.tls_key_file,
        name=settings.name,
        host=settings.advertise_host,
    )


def _client_ports(
    settings: Settings, parts: ClientParts, certificate: ClientCertificate | None
) -> list[Listener | ClientListener]:
    build: Callable[..., Listener | ClientListener] = (
        _native if settings.client_server == NATIVE else _by_grpc
    )
    ports = [build(f"{settings.listen_host}:{settings.client_port}", parts, None)]
    if certificate is not None:
        address = f"{settings.listen_host}:{settings.client_tls_port}"
        ports.append(build(address, parts, certificate))
    return ports


def _native(
    address: str, parts: ClientParts, certificate: ClientCertificate | None
) -> ClientListener:
    return ClientListener(
        address=address,
        services=services_of(parts, tls=certificate is not None),
        tls=certificate.following() if certificate else None,
    )


def _by_grpc(address: str, parts: ClientParts, certificate: ClientCertificate | None) -> Listener:
    return Listener(
        address=address,
        handlers=[by_grpc(each) for each in services_of(parts, tls=certificate is not None)],
        max_request_bytes=MAX_CLIENT_FRAME_BYTES,
        max_streams=MAX_CLIENT_STREAMS,
        awaited=certificate.credentials if certificate else None,
    )
