"""Where the nodes of a group are: directories and ports on loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
_FIRST_PORT: Final = 20_000
_END_PORT: Final = 32_000
"""Below the range from which the kernel takes the ports of outgoing connections."""
_PORTS_PER_SEAT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One node's place.

    Attributes:
        index: Its number in the group, from 0.
        directory: Its own, on the disk that is measured.
        client_port: Where clients come.
        peer_port: Where it listens for its peers.
        http_port: Probes and metrics.
        link_port: What its peers are told instead of *peer_port*: a link that can be cut leads
            from there to it. The same as *peer_port* where there are no such links.
    """

    index: int
    directory: Path
    client_port: int
    peer_port: int
    http_port: int
    link_port: int

    @property
    def name(self) -> str:
        """Its name in the group."""
        return f"n{self.index}"

    def known_to(self, other: Seat) -> int:
        """Return the port at which *other* reaches this node; itself, it knows its own."""
        return self.peer_port if other.index == self.index else self.link_port


def take_seats(root: Path, *, linked: bool, count: int = 3) -> tuple[Seat, ...]:
    """Return places for *count* nodes below *root*, at ports that are free now."""
    ports = free_ports(count * _PORTS_PER_SEAT)
    return tuple(_seat(root, index, ports[index::count], linked=linked) for index in range(count))


def _seat(root: Path, index: int, ports: Sequence[int], *, linked: bool) -> Seat:
    client, peer, http, link = ports
    return Seat(
        index=index,
        directory=root / f"n{index}",
        client_port=client,
        peer_port=peer,
        http_port=http,
        link_port=link if linked else peer,
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
