"""Real ``dledger node`` processes on loopback: where each is, its settings, and its Admin API."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from dledger.client import AdminClient
from dledger.common.status import NodeStatus
from dledger.errors import DledgerError
from dledger.types import Member, NodeId
from e2e.harness.ports import HOST, free_ports
from e2e.harness.processes import Command

_T = TypeVar("_T")
_PORTS_PER_NODE: Final = 5
_STATUS_S: Final = 1.0


class Link(Enum):
    """How peers are led to a link that can be cut, instead of to the node itself."""

    NONE = "not at all"
    BY_PORT = "by another port"
    BY_HOST = "by another address of loopback, where a node tells the port it listens on"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """Where one node of a group is.

    Attributes:
        index: Its number in the group, from 0.
        name: In the group.
        directory: Its own.
        client_port: Where clients come.
        peer_port: Where it listens for its peers.
        http_port: Probes and metrics.
        replication_port: Where entries come from its peers, in a system that has such a port.
        link_host: Where its peers find it: the node itself, or a link that leads to it.
        link_port: The port there.
    """

    index: int
    name: str
    directory: Path
    client_port: int
    peer_port: int
    http_port: int
    replication_port: int
    link_host: str
    link_port: int

    @property
    def linked_ports(self) -> tuple[tuple[int, int], ...]:
        """Which port of the link leads to which port of the node."""
        by_host = self.link_host != HOST
        others = ((self.replication_port, self.replication_port),) if by_host else ()
        return ((self.link_port, self.peer_port), *others)

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"{HOST}:{self.client_port}"

    @property
    def own_address(self) -> str:
        """Where it listens for its peers."""
        return f"{HOST}:{self.peer_port}"

    @property
    def link_address(self) -> str:
        """Where its peers find it."""
        return f"{self.link_host}:{self.link_port}"


def allocate(
    root: Path, link: Link = Link.NONE, *, count: int = 3, prefix: str = "n"
) -> tuple[NodeSpec, ...]:
    """Return *count* nodes with directories below *root*, at ports that are free now."""
    ports = free_ports(count * _PORTS_PER_NODE)
    found = []
    for index in range(count):
        client, peer, http, replication, other = ports[index::count]
        found.append(
            NodeSpec(
                index=index,
                name=f"{prefix}{index}",
                directory=root / f"{prefix}{index}",
                client_port=client,
                peer_port=peer,
                http_port=http,
                replication_port=replication,
                link_host=f"127.0.1.{index + 1}" if link is Link.BY_HOST else HOST,
                link_port=other if link is Link.BY_PORT else peer,
            )
        )
    return tuple(found)


def node_command(
    spec: NodeSpec,
    settings: Mapping[str, object],
    *,
    arguments: Sequence[str] = ("-m", "dledger", "node"),
    python: Path = Path(sys.executable),
    environment: Mapping[str, str] | None = None,
) -> Command:
    """Return how a node is started.

    Args:
        spec: Where; its data are in ``data`` below its directory.
        settings: By their names in the node's config; they go before what *spec* says.
        arguments: Of *python*.
        python: The interpreter.
        environment: What else is added to ours.
    """
    told = {
        "name": spec.name,
        "data_dir": spec.directory / "data",
        "advertise_host": HOST,
        "listen_host": HOST,
        "client_port": spec.client_port,
        "client_tls_port": 0,
        "peer_port": spec.peer_port,
        "replication_port": spec.replication_port,
        "http_port": spec.http_port,
        **settings,
    }
    variables = {f"DLEDGER_{key.upper()}": str(value) for key, value in told.items()}
    return Command((python, *arguments), {**(environment or {}), **variables})


async def status_of(admin: AdminClient) -> NodeStatus | None:
    """Return what a node says of itself; None if it does not answer."""
    with contextlib.suppress(DledgerError):
        return await admin.status()
    return None


def member_of(status: NodeStatus, address: str) -> Member:
    """Return a node, as its peers know it at *address*."""
    return Member(id=NodeId(status.node_id), name=status.name, address=address)


def status(address: str) -> NodeStatus | None:
    """Do what `status_of` does, for who has no event loop."""

    async def ask() -> NodeStatus | None:
        async with AdminClient(address, timeout_s=_STATUS_S) as admin:
            return await status_of(admin)

    return finished(ask())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop for all of this process's calls: gRPC does not outlive one unharmed."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="calls", daemon=True).start()
    return loop


def finished(work: Coroutine[Any, Any, _T]) -> _T:
    """Return what *work* comes to, run on the loop of all of this process's blocking calls."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()
