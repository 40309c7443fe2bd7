"""Whole nodes that speak mutual TLS with each other: they serve, and strangers get nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dledger.client import AdminClient
from dledger.client.secure_admin_client import SecureAdminClient
from dledger_operator.cluster.issuing import Pair
from tests.system.live_nodes import LiveNodes, eventually
from tests.system.peer_certificates import Mounted

NAMES = ("orders-0", "orders-1", "orders-2")
STATUS = "/dledger.v1.Admin/Status"


class SecureNodes(LiveNodes):
    """Nodes with certificates."""

    def __init__(self, directory: Path, mounted: Mounted) -> None:
        super().__init__(directory, peer_tls_dir=str(mounted.path))
        self.mounted = mounted

    def admin(self, number: int, timeout_s: float = 10) -> AdminClient:
        pair = self.mounted.issue("operator")
        return SecureAdminClient(
            self.peer_address(number),
            name=f"orders-{number}",
            trusted=self.mounted.trusted,
            chain=pair.chain,
            key=pair.key,
            timeout_s=timeout_s,
        )


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SecureNodes]:
    """Three nodes with certificates, not started yet."""
    mounted = Mounted(tmp_path / "peer-tls")
    mounted.write({name: mounted.member(name) for name in NAMES})
    group = SecureNodes(tmp_path, mounted)
    yield group
    await group.stop()


async def call(channel: grpc.aio.Channel, path: str = STATUS) -> grpc.StatusCode:
    """Call a method with nothing; return the status."""
    try:
        await channel.unary_unary(path)(b"", timeout=3)
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        await channel.close()
    return grpc.StatusCode.OK


async def test_a_group_with_certificates_serves_through_any_node(nodes: SecureNodes) -> None:
    """Requests to followers are forwarded over TLS, and entries go by the TLS port."""
    await nodes.found(0, 1, 2)
    for number in range(3):
        async with nodes.client(number) as client:
            await client.append("t", [b"x"])
    leader = await nodes.leader()
    await eventually(
        lambda: all(
            nodes.status(n).commit_index == nodes.status(leader).commit_index for n in range(3)
        )
    )
    links = [link for node in nodes.nodes.values() for link in node._peers._links.values()]
    await eventually(lambda: all(link.connected and link._control.connected for link in links))
