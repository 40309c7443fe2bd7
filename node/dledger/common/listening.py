"""Sockets of the ports that clients call, made before anything else is; the standard library alone.

Whoever makes one may be a small process that outlives those which accept (`sidecar.parent`).
"""

from __future__ import annotations

import socket
from typing import Final

BACKLOG: Final = 1024


def bound_address(bound: socket.socket) -> str:
    """Return ``HOST:PORT`` of a socket; the port is never 0."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening(address: str) -> socket.socket:
    """Return a socket that is bound to *address*, and does not listen yet.

    Raises:
        OSError: The address, which the message names, is taken or not this machine's.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        bound.bind((host, int(port)))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    return bound
