"""Whole nodes with certificates, and callers of their peer ports: real ones and strangers."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio

from dledger.client import AdminClient, MutualTls
from dledger.peers.handshake import METADATA_KEY, Handshake, PeerAddress
from dledger.peers.replication_port import CONNECT_TOKEN_KEY
from dledger.rpc.peer_tls import PeerTls
from dledger.server.config import Settings
from dledger_operator.cluster.issuing import Pair
from tests.system.live_nodes import GROUP_ID, LiveNodes
from tests.system.peer_certificates import Mounted

NAMES = ("orders-0", "orders-1", "orders-2")
STATUS = "/dledger.v1.Admin/Status"


class SecureNodes(LiveNodes):
    """Nodes with certificates.

    Attributes:
        plain: Those that start without.
    """

    def __init__(self, directory: Path, mounted: Mounted) -> None:
        super().__init__(directory)
        self.mounted = mounted
        self.plain: set[int] = set()

    def settings(self, number: int) -> Settings:
        has = number not in self.plain
        return replace(super().settings(number), peer_tls_dir=str(self.mounted.path) if has else "")

    def admin(self, number: int, timeout_s: float = 10) -> AdminClient:
        if number in self.plain:
            return super().admin(number, timeout_s)
        pair = self.mounted.issue("operator")
        tls = MutualTls(
            name=f"orders-{number}",
            trusted=self.mounted.trusted,
            chain=pair.chain,
            key=pair.key,
        )
        return AdminClient(self.peer_address(number), timeout_s=timeout_s, tls=tls)


async def call(channel: grpc.aio.Channel, path: str = STATUS) -> grpc.StatusCode:
    """Call a method with nothing; return the status."""
    try:
        await channel.unary_unary(path)(b"", timeout=3)
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        await channel.close()
    return grpc.StatusCode.OK


def peer_tls(nodes: SecureNodes, number: int) -> PeerTls:
    """Return what a node has of the files of its certificate."""
    held = nodes.nodes[number]._peer_tls
    assert held is not None
    return held


def handshake(nodes: SecureNodes, *, sender: int, name: str) -> str:
    """Return the handshake of the node *sender* to node 0, as one called *name*."""
    return Handshake(
        group_id=GROUP_ID,
        sender_id=nodes.nodes[sender].node_id,
        sender_name=name,
        recipient_id=nodes.nodes[0].node_id,
        endpoint=PeerAddress(host="127.0.0.1", port=1),
    ).encode()


async def control(nodes: SecureNodes, pair: Pair | None, said: str) -> grpc.StatusCode:
    """Open a control stream to node 0; return how it ended, OK if it was accepted."""
    channel = nodes.mounted.channel(nodes.peer_address(0), "orders-0", pair)
    opened = channel.stream_stream("/dledger.v1.Peer/Control")(metadata=((METADATA_KEY, said),))
    try:
        async with asyncio.timeout(5):
            if CONNECT_TOKEN_KEY in dict(await opened.initial_metadata()):
                return grpc.StatusCode.OK
            return await opened.code()
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        opened.cancel()
        await channel.close()


async def keeps(mounted: Mounted, port: int, token: bytes, pair: Pair | None) -> bool:
    """Whether the replication port keeps a connection that sends a token."""
    context = ssl.create_default_context(cadata=mounted.trusted.decode())
    if pair is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(pair.chain + pair.key)
            file.flush()
            context.load_cert_chain(file.name)
    writer = None
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="orders-0"
        )
        writer.write(token)
        async with asyncio.timeout(2):
            await reader.read(1)
        return False
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
