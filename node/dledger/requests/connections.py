"""Closing a client's connection, which gRPC lets only the client do: its socket is shut down."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Final

_OPEN_FILES: Final = Path("/proc/self/fd")
_PEER: Final = re.compile(r"ipv[46]:(?P<host>.+):(?P<port>\d+)")


def close_connection(peer: str) -> bool:
    """Shut down this process' socket that is connected to *peer*; return whether there is one.

    Args:
        peer: What ``context.peer()`` says, such as ``ipv4:10.0.0.7:40312``.

    gRPC then ends the connection's calls and frees what it holds for them. Looks at every open
    file of the process, so it is nothing for each request.
    """
    wanted = _address(peer)
    if wanted is None:
        return False
    for path in _OPEN_FILES.iterdir():
        with contextlib.suppress(OSError):  # no socket, none that is connected, or closed meanwhile
            copy = os.dup(int(path.name))
            try:
                if _shut_down(copy, wanted):
                    return True
            finally:
                os.close(copy)
    return False


def _shut_down(file: int, wanted: tuple[str, int]) -> bool:
    connection = socket.socket(fileno=file)
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        host, port = connection.getpeername()[:2]
        if (_plain(host), port) != wanted:
            return False
        connection.shutdown(socket.SHUT_RDWR)
    finally:
        connection.detach()
    return True


def _address(peer: str) -> tuple[str, int] | None:
    match = _PEER.fullmatch(peer.replace("%5B", "[").replace("%5D", "]"))
    return (_plain(match["host"].strip("[]")), int(match["port"])) if match else None


def _plain(host: str) -> str:
    """Return an address in its one form; an IPv4 address in IPv6's clothes as itself."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
