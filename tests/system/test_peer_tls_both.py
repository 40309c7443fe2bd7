"""A group in plain text gets to TLS while it runs: first both are accepted, then TLS alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from dledger.client import Client, Record
from dledger.errors import DledgerError, InvalidArgument
from dledger.peers.handshake import Handshake
from dledger.peers.peer_link import PeerLink
from dledger_operator.decisions.certificates import LEAF_S
from tests.system.peer_certificates import Mounted
from tests.system.secure_nodes import NAMES, STATUS, SecureNodes, call, handshake, peer_tls
from tests.waiting import eventually


class Writer:
    """Writes numbers one after the other through any node, each until it is acknowledged."""

    def __init__(self, nodes: SecureNodes) -> None:
        self.written = 0
        self._nodes, self._stop = nodes, asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def goes_on(self) -> None:
        """Wait until it has written some more."""
        before = self.written
        await eventually(lambda: self.written > before + 10)

    async def stop(self) -> None:
        """End it."""
        self._stop.set()
        await self._task

    async def _run(self) -> None:
        at = 0
        while not self._stop.is_set():
            address = self._nodes.client_address(at)
            # The same client: a number is known by its id if it was stored before.
            async with Client(address, timeout_s=5, client_id="writer") as client:
                with contextlib.suppress(DledgerError):
                    while not self._stop.is_set():
                        text = str(self.written)
                        await client.append("t", [Record(body=text.encode(), message_id=text)])
                        self.written += 1
            at = (at + 1) % 3


async def test_a_plain_group_gets_to_tls_by_one_restart_of_each_node(tmp_path: Path) -> None:
    """Under writes. Both are accepted meanwhile; at the end plain text is refused for good."""
    mounted = Mounted(tmp_path / "peer-tls")
    pairs = {name: mounted.member(name) for name in NAMES}
    mounted.write(pairs, mode="both")
    nodes = SecureNodes(tmp_path, mounted)
    nodes.plain = {0, 1, 2}
    await nodes.found(0, 1, 2)
    writer = Writer(nodes)
    try:
        for number in range(3):
            await nodes.stop(number)
            nodes.plain.discard(number)
            await nodes.start(number)
            await eventually(lambda: in_sync(nodes))
            await writer.goes_on()
        await eventually(lambda: not any(link.is_plain for link in links_of(nodes)))
        await plain_text_ends(nodes, lambda: mounted.write(pairs))
        await writer.goes_on()
    finally:
        await writer.stop()
    await eventually(lambda: in_sync(nodes))
    assert sorted(await read_all(nodes)) == list(range(writer.written))
    await nodes.stop()


async def plain_text_ends(nodes: SecureNodes, require: Callable[[], None]) -> None:
    """Require TLS: what was open in plain text ends, and nothing is accepted in it any more."""
    assert shown(nodes, "dledger_peer_plain_text_accepted") == {1}
    insecure = grpc.aio.insecure_channel(nodes.peer_address(0))
    await insecure.unary_unary(STATUS)(b"", timeout=3)
    require()
    await eventually(lambda: not any(peer_tls(nodes, n).takes_plain for n in nodes.nodes))
    await eventually(lambda: insecure.get_state() is not grpc.ChannelConnectivity.READY)
    await insecure.close()
    said = Handshake.decode(handshake(nodes, sender=1, name="orders-1"))
    for number, node in nodes.nodes.items():
        plain = grpc.aio.insecure_channel(nodes.peer_address(number))
        assert await call(plain) is grpc.StatusCode.UNAVAILABLE
        port = node._peers.replication
        with port.admitted(said) as given:
            assert not await keeps_plain(port.number, given.token)

    await eventually(lambda: shown(nodes, "dledger_peer_plain_text_accepted") == {0})
    ends_s = shown(nodes, "dledger_peer_certificate_expiry_timestamp_seconds")
    assert {round(end_s - time.time(), -5) for end_s in ends_s} == {round(LEAF_S, -5)}


def shown(nodes: SecureNodes, metric: str) -> set[float]:
    """Return what the nodes' metrics say."""
    found = [
        node._metrics.registry.get_sample_value(
            metric, {"group": "orders", "node": f"orders-{number}"}
        )
        for number, node in nodes.nodes.items()
    ]
    return {value for value in found if value is not None}


async def read_all(nodes: SecureNodes) -> list[int]:
    """Return all numbers in the topic."""
    found: list[int] = []
    async with nodes.client(0) as client:
        for queue in range(8):
            with contextlib.suppress(InvalidArgument):  # there are fewer queues
                found += [
                    int(each.record.body)
                    async for each in client.read("t", queue, linearizable=True)
                ]
    return found


def links_of(nodes: SecureNodes) -> list[PeerLink]:
    """Return every node's links to the others."""
    return [link for node in nodes.nodes.values() for link in node._peers._links.values()]


def in_sync(nodes: SecureNodes) -> bool:
    """Whether all voters are connected and have all that is committed."""
    leader = nodes._leader()
    if not leader:
        return False
    rows = nodes.status(leader[0]).members
    ids = [node.node_id for node in nodes.nodes.values()]
    return len(ids) == len(rows) and all(
        row.member.id == nodes.nodes[leader[0]].node_id or (row.connected and row.lag < 100)
        for row in rows
    )


async def keeps_plain(port: int, token: bytes) -> bool:
    """Whether the replication port keeps a connection in plain text that sends a token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(token)
        async with asyncio.timeout(4):
            with contextlib.suppress(OSError):
                await reader.read(1 << 16)
        return False
    except TimeoutError:
        return True
    finally:
        writer.transport.abort()
