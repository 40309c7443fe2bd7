"""Where the nodes of a group are: directories and ports on loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
_FIRST_PORT: Final = 20_000
_END_PORT: Final = 32_000
"""Below the range from which the kernel takes the ports of outgoing connections."""
_PORTS_PER_SEAT: Final = 5


class Link(Enum):
    """How peers are led to a link that can be cut, instead of to the node itself."""

    NONE = "not at all"
    BY_PORT = "by another port"
    BY_HOST = "by another address of loopback, where a node tells the port it listens on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One node's place.

    Attributes:
        index: Its number in the group, from 0.
        directory: Its own, on the disk that is measured.
        client_port: Where clients come.
        peer_port: Where it listens for its peers.
        http_port: Probes and metrics.
        replication_port: Where entries come from its peers, in a system that has such a port.
        link_host: Where its peers find it: the node itself, or a link that leads to it.
        link_port: The port there.
    """

    index: int
    directory: Path
    client_port: int
    peer_port: int
    http_port: int
    replication_port: int
    link_host: str
    link_port: int

    @property
    def name(self) -> str:
        """Its name in the group."""
        return f"n{self.index}"

    @property
    def linked_ports(self) -> tuple[tuple[int, int], ...]:
        """Which port of the link leads to which port of the node."""
        by_host = self.link_host != HOST
        others = ((self.replication_port, self.replication_port),) if by_host else ()
        return ((self.link_port, self.peer_port), *others)

    @property
    def own_address(self) -> str:
        """Where it listens for its peers."""
        return f"{HOST}:{self.peer_port}"

    @property
    def link_address(self) -> str:
        """Where its peers find it."""
        return f"{self.link_host}:{self.link_port}"


def take_seats(root: Path, link: Link = Link.NONE, *, count: int = 3) -> tuple[Seat, ...]:
    """Return places for *count* nodes below *root*, at ports that are free now."""
    ports = free_ports(count * _PORTS_PER_SEAT)
    return tuple(_seat(root, index, ports[index::count], link) for index in range(count))


def _seat(root: Path, index: int, ports: Sequence[int], link: Link) -> Seat:
    client, peer, http, replication, other = ports
    return Seat(
        index=index,
        directory=root / f"n{index}",
        client_port=client,
        peer_port=peer,
        http_port=http,
        replication_port=replication,
        link_host=f"127.0.1.{index + 1}" if link is Link.BY_HOST else HOST,
        link_port=other if link is Link.BY_PORT else peer,
    )


def free_ports(count: int) -> list[int]:
    """Return *count* ports on which nobody listens; two benches begin at different ones."""
    found = _free_ports()
    return [next(found) for _ in range(count)]


def _free_ports() -> Iterator[int]:
    span = _END_PORT - _FIRST_PORT
    start = os.getpid() * 97 % span
    for offset in range(span):
        port = _FIRST_PORT + (start + offset) % span
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        yield port
