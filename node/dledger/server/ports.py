"""Which services each port of a node has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import grpc

from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.rpc.callers import guarded
from dledger.rpc.peer_tls import PeerTls
from dledger.server.client_certificate import ClientCertificate
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
    certificate = ClientCertificate(
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
        credentials=certificate.credentials(),
    )
