"""Whole nodes on real disks and ports, in one event loop: what processes run, without them."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dledger.client import AdminClient, Client
from dledger.common.status import MemberStatus, NodeStatus
from dledger.server.config import Settings
from dledger.server.node import Node
from dledger.types import Member, NodeId
from e2e.harness.ports import free_port_range
from tests.broker.next_version import NEXT, NextState
from tests.waiting import eventually

GROUP_ID = "11111111-2222-3333-4444-555555555555"
T = TypeVar("T")


class LiveNodes:
    """Nodes by name (``orders-0`` …), each on the ports and the directory of its number.

    Those that are *newer* when they start are of a made-up next version.
    """

    def __init__(self, directory: Path, **settings: Any) -> None:
        self._directory = directory
        self._settings = settings
        self._port = free_port_range()
        self.nodes: dict[int, Node] = {}
        self.ended: dict[int, BaseException] = {}
        self.newer: set[int] = set()

    def where(self, **settings: Any) -> LiveNodes:
        """Return these nodes, none of them started yet, with other settings."""
        self._settings |= settings
        return self

    def settings(self, number: int) -> Settings:
        settings = Settings(
            name=f"orders-{number}",
            group="orders",
            group_id=GROUP_ID,
            data_dir=self.data(number),
            advertise_host="127.0.0.1",
            listen_host="127.0.0.1",
            client_port=self._port + number,
            client_tls_port=0,
            peer_port=self._port + 200 + number,
            replication_port=0,
            http_port=self._port + 300 + number,
            tick_ms=40,
            segment_bytes=4 << 20,
            leader_follows_clients=False,
        )
        return replace(settings, **self._settings)

    def data(self, number: int) -> Path:
        return self._directory / f"orders-{number}"

    @property
    def client_addresses(self) -> list[str]:
        """Return where clients reach the running nodes, by number."""
        return [f"127.0.0.1:{self._port + number}" for number in sorted(self.nodes)]

    def client_address(self, number: int) -> str:
        return f"127.0.0.1:{self._port + number}"

    def client(self, number: int, timeout_s: float = 10) -> Client:
        return Client(self.client_address(number), timeout_s=timeout_s)

    def admin(self, number: int, timeout_s: float = 10) -> AdminClient:
        return AdminClient(self.peer_address(number), timeout_s=timeout_s)

    def peer_address(self, number: int) -> str:
        return f"127.0.0.1:{self._port + 200 + number}"

    def member(self, number: int) -> Member:
        """Return a running node as a member."""
        node_id = self.nodes[number].node_id
        return Member(id=node_id, name=f"orders-{number}", address=self.peer_address(number))

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            on_fatal = lambda error, number=number: self.ended.__setitem__(number, error)  # noqa: E731
            version: dict[str, Any] = (
                {"features": NEXT, "state": NextState()} if number in self.newer else {}
            )
            node = Node(self.settings(number), on_fatal=on_fatal, **version)
            self.nodes[number] = node
            await node.start()

    async def found(self, *numbers: int) -> int:
        """Start these nodes and found a group of them; return the leader's number."""
        await self.start(*numbers)
        async with self.admin(numbers[0]) as admin:
            await admin.bootstrap(GROUP_ID, [self.member(number) for number in numbers])
        leader = await self.leader()
        await eventually(lambda: self._all_follow(numbers, leader))
        return leader

    async def stop(self, *numbers: int) -> None:
        stopping = [self.nodes.pop(number) for number in numbers or tuple(self.nodes)]
        await asyncio.gather(*(node.stop() for node in stopping))

    def wipe(self, number: int) -> None:
        """Lose the disk of a stopped node."""
        shutil.rmtree(self.data(number))

    async def leader(self) -> int:
        return (await eventually(self._leader))[0]

    def status(self, number: int) -> NodeStatus:
        return self.nodes[number].status()

    def row(self, asked: int, node_id: NodeId) -> MemberStatus | None:
        """Return what node *asked* says of a member."""
        rows = self.status(asked).members
        return next((row for row in rows if row.member.id == node_id), None)

    def role(self, asked: int, node_id: NodeId) -> str:
        row = self.row(asked, node_id)
        return row.role if row else ""

    async def found_with_topic(self, topic: str) -> None:
        """Found a group of one node, with a topic of one queue."""
        await self.found(0)
        async with self.client(0) as client:
            await client.create_topic(topic, queues=1)

    async def voters(self, count: int) -> None:
        """Wait until the leader's final membership has so many voters and no learners."""
        await eventually(lambda: self._has_voters(count))

    def _has_voters(self, count: int) -> bool:
        leader = self._leader()
        if not leader:
            return False
        rows = self.status(leader[0]).members
        return len(rows) == count and all(row.voter for row in rows)

    def _leader(self) -> tuple[int] | None:
        leading = [n for n, node in self.nodes.items() if node.engine.is_leader()]
        return (leading[0],) if leading else None

    def _all_follow(self, numbers: tuple[int, ...], leader: int) -> bool:
        """Whether each knows the leader, and has the founding entry."""
        leader_id = self.nodes[leader].node_id
        return all(
            self.status(number).leader_id == leader_id
            and self.row(number, self.nodes[number].node_id) is not None
            for number in numbers
        )
