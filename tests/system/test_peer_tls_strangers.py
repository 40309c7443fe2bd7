"""What strangers did to a group in plain text, tried on whole nodes with certificates.

Each is refused before anything that it says is believed; the true member, who says the same, is
not: so a stranger is refused for who it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from crc32c import crc32c

from dledger.peers.framing import prefix
from dledger.peers.handshake import METADATA_KEY, Handshake, PeerAddress
from dledger.peers.peer_codec import encode
from dledger.raft.messages import AppendRequest, Message, VoteRequest
from dledger.types import Entry, EntryKind
from dledger_operator.cluster.issuing import Pair
from tests.system.live_nodes import GROUP_ID
from tests.system.peer_certificates import Mounted, ended_certificate
from tests.system.secure_nodes import NAMES, SecureNodes, handshake
from tests.waiting import eventually

CONTROL = "/dledger.v1.Peer/Control"
SILENT = 80


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SecureNodes]:
    """Three nodes with certificates, not started yet."""
    mounted = Mounted(tmp_path / "peer-tls")
    mounted.write({name: mounted.member(name) for name in NAMES})
    group = SecureNodes(tmp_path, mounted)
    yield group
    await group.stop()


@dataclass(frozen=True)
class Stranger:
    """Somebody who is not orders-1.

    Attributes:
        pair: What it shows; None: nothing.
        is_plain: Whether it speaks no TLS at all.
    """

    pair: Pair | None = None
    is_plain: bool = False

    async def greets(self, nodes: SecureNodes, number: int, said: str) -> grpc.StatusCode:
        """Say a handshake to a node; return how it is refused, OK if it is not."""
        address = nodes.peer_address(number)
        channel = (
            grpc.aio.insecure_channel(address)
            if self.is_plain
            else nodes.mounted.channel(address, f"orders-{number}", self.pair)
        )
        call = channel.stream_stream(CONTROL)(metadata=((METADATA_KEY, said),))
        try:
            async with asyncio.timeout(5):
                await call.initial_metadata()
                return await call.code() if call.done() else grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            call.cancel()
            await channel.close()

    async def sends(self, nodes: SecureNodes, port: int, said: bytes) -> None:
        """Send to a replication port, and wait until the node ends the connection."""
        secure: dict[str, Any] = (
            {} if self.is_plain else {"ssl": self._context(nodes), "server_hostname": NAMES[0]}
        )
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, **secure)
            try:
                writer.write(said)
                async with asyncio.timeout(5):
                    while await reader.read(1 << 16):
                        pass
            finally:
                writer.transport.abort()

    def _context(self, nodes: SecureNodes) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=nodes.mounted.trusted.decode())
        if self.pair is not None:
            with tempfile.NamedTemporaryFile() as file:
                file.write(self.pair.chain + self.pair.key)
                file.flush()
                context.load_cert_chain(file.name)
        return context


def strangers(mounted: Mounted, path: Path) -> list[Stranger]:
    """Return all kinds: without TLS, without a certificate, with one of others, old or roleless."""
    other = Mounted(path)
    return [
        Stranger(is_plain=True),
        Stranger(),
        Stranger(other.member("orders-1")),
        Stranger(ended_certificate(mounted, "member/orders-1", "orders-1")),
        Stranger(mounted.issue("nobody", "orders-1")),
        Stranger(mounted.member("orders-2")),
        Stranger(mounted.issue("operator", "orders-1")),
    ]


REFUSED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED)


async def test_a06_a_strangers_greeting_leads_no_client_and_no_call_to_it(
    nodes: SecureNodes, tmp_path: Path
) -> None:
    """Routes stay, and no node calls the address that it named."""
    await nodes.found(0, 1, 2)
    await eventually(lambda: len(nodes.nodes[0].engine.endpoints()) == 3)
    before = nodes.nodes[0].engine.endpoints()
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)
        said = Handshake(
            group_id=GROUP_ID,
            sender_id=nodes.nodes[1].node_id,
            sender_name="orders-1",
            recipient_id=nodes.nodes[0].node_id,
            endpoint=PeerAddress(host="127.0.0.1", port=trap.getsockname()[1]),
        ).encode()

        for each in strangers(nodes.mounted, tmp_path / "other"):
            assert await each.greets(nodes, 0, said) in REFUSED, each
        member = Stranger(nodes.mounted.member("orders-1"))
        assert await member.greets(nodes, 0, said) is grpc.StatusCode.OK

        assert nodes.nodes[0].engine.endpoints() == before
        with pytest.raises(BlockingIOError):
            trap.accept()


async def test_a07_a_strangers_entries_and_votes_are_not_read(
    nodes: SecureNodes, tmp_path: Path
) -> None:
    """Not even with a token that was stolen; the same vote of the member itself counts."""
    await nodes.found(0, 1, 2)
    async with nodes.client(0) as client:
        await client.append("pay", [b"true"], queue_id=0)
    node = nodes.nodes[0]
    port = node._peers.replication
    said = Handshake.decode(handshake(nodes, sender=1, name="orders-1"))
    status = nodes.status(0)

    def frames(*messages: Message) -> bytes:
        return b"".join(prefix(frame) + frame for frame in map(encode, messages))

    def vote() -> VoteRequest:
        return VoteRequest(
            sender=said.sender_id,
            recipient=node.node_id,
            term=nodes.status(0).term + 1000,
            last_index=1 << 40,
            last_term=1 << 40,
            last_chain=0,
            transfer=True,
        )

    forged = AppendRequest(
        sender=said.sender_id,
        recipient=node.node_id,
        term=status.term,
        previous_index=status.last_index,
        previous_term=status.last_term,
        previous_chain=0,
        last_chain=0,
        commit_index=status.last_index + 1,
        entries=(
            Entry(
                term=status.term,
                index=status.last_index + 1,
                kind=EntryKind.DATA,
                timestamp_ms=int(time.time() * 1000),
                crc32c=crc32c(b"forged"),
                data=b"forged",
            ),
        ),
    )
    with port.admitted(said, "member/orders-1") as given:
        for each in strangers(nodes.mounted, tmp_path / "other"):
            await each.sends(nodes, port.number, given.token + frames(vote(), forged))
            assert await each.greets(nodes, 0, said.encode()) in REFUSED, each
            assert nodes.status(0).term == status.term, each
        member = Stranger(nodes.mounted.member("orders-1"))
        believed = asyncio.create_task(
            member.sends(nodes, port.number, given.token + frames(vote()))
        )
        await eventually(lambda: nodes.status(0).term > status.term)
        believed.cancel()
    async with nodes.client(0) as client:
        bodies = [each.record.body async for each in client.read("pay", 0, linearizable=True)]
    assert bodies == [b"true"]


async def test_a09_silent_connections_keep_no_member_out(nodes: SecureNodes) -> None:
    """Both followers come back while all places for callers without a certificate are taken."""
    leader = await nodes.found(0, 1, 2)
    port = nodes.nodes[leader]._peers.replication.number
    stop = asyncio.Event()

    async def hold() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                waiting = {asyncio.create_task(stop.wait()), asyncio.create_task(reader.read(1))}
                _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in pending:
                    each.cancel()
                writer.transport.abort()

    holding = [asyncio.create_task(hold()) for _ in range(SILENT)]
    followers = [number for number in range(3) if number != leader]
    try:
        for number in followers:
            await nodes.stop(number)
            await nodes.start(number)
            await eventually(partial(is_followed, nodes, number))
            async with nodes.client(leader) as client:
                await client.append("t", [b"x"])
    finally:
        stop.set()
        await asyncio.gather(*holding)


def is_followed(nodes: SecureNodes, number: int) -> bool:
    """Whether a node has a leader that reaches it."""
    leader = nodes._leader()
    row = leader and nodes.row(leader[0], nodes.nodes[number].node_id)
    return bool(row and row.connected)


async def test_a22_an_empty_node_joins_no_group_of_a_strangers(
    nodes: SecureNodes, tmp_path: Path
) -> None:
    """Nor its own group by a stranger's word; it is founded with it afterwards."""
    await nodes.start(0, 1, 2)
    for group_id in ("99999999-2222-3333-4444-555555555555", GROUP_ID):
        said = Handshake(
            group_id=group_id,
            sender_id=nodes.nodes[1].node_id,
            sender_name="orders-1",
            recipient_id=nodes.nodes[0].node_id,
            endpoint=PeerAddress(host="127.0.0.1", port=1),
        ).encode()
        for each in strangers(nodes.mounted, tmp_path / f"other-{group_id[:1]}"):
            assert await each.greets(nodes, 0, said) in REFUSED, each
    assert nodes.status(0).group_id == ""

    async with nodes.admin(0) as admin:
        await admin.bootstrap(GROUP_ID, [nodes.member(number) for number in range(3)])
    await nodes.leader()
    assert nodes.status(0).group_id == GROUP_ID
