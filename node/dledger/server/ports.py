"""Which of a node's ports serves what."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.server.config import Settings
from dledger.server.gateway import Gateway
from dledger.server.servers import MAX_CLIENT_STREAMS, Listener
from dledger.server.tls import key_and_chain


def listeners(
    settings: Settings, gateway: Gateway, peer_services: Sequence[grpc.GenericRpcHandler]
) -> list[Listener]:
    """Return the ports of a node: clients in plain text, peers, and clients over TLS if it is on.

    Args:
        settings: The node's.
        gateway: Serves clients, at the peer port those whose node sent them on.
        peer_services: What the peer port serves besides.
    """
    host = settings.listen_host
    clients = Listener(
        address=f"{host}:{settings.client_port}",
        handlers=gateway.handlers(),
        max_request_bytes=MAX_CLIENT_FRAME_BYTES,
        max_streams=MAX_CLIENT_STREAMS,
    )
    peers = Listener(
        address=f"{host}:{settings.peer_port}",
        handlers=[*peer_services, *gateway.handlers(peer_port=True)],
        max_request_bytes=MAX_CLIENT_FRAME_BYTES,  # that clients sent; peers' entries go elsewhere
    )
    return [clients, peers, *([_encrypted(settings, gateway)] if settings.client_tls_port else [])]


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
        tls=pair,
    )
