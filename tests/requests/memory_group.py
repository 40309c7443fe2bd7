"""Nodes without disks and consensus: one shared log in memory, and a leader by decree.

Only for tests of what stands on the `Engine` protocol. Commands proposed in one turn of the event
loop share an entry, as they do under the real driver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from dledger.broker.state import BrokerState
from dledger.calls.grpc_server import by_grpc
from dledger.calls.service import handlers_of
from dledger.client import Client
from dledger.common.metrics import NodeMetrics
from dledger.door.server import DoorServer
from dledger.door.tls import TlsCertificate
from dledger.errors import DledgerError, LeadershipLost, NotLeader, Unavailable
from dledger.link.follower import RelayLinks
from dledger.link.leader import RelayPort
from dledger.peers.replication_port import ReplicationPort
from dledger.replica.proposals import Command, closed
from dledger.requests.config import RequestConfig
from dledger.requests.engine import ClientEndpoint
from dledger.server.client_tasks import ClientTasks
from dledger.server.config import GRPC, NATIVE
from dledger.server.node_report import load_of
from dledger.server.wiring import ClientParts, forwarded_services_of, services_of, wire
from dledger.services.dead_letter_admin import DeadLetterAdminServicer
from dledger.services.group_admin import GroupAdminServicer
from dledger.services.held_admin import HeldAdminServicer
from dledger.services.topic_admin import TopicAdminServicer
from dledger.services.transaction_admin import TransactionAdminServicer
from dledger.types import Entry, EntryKind, Member, NodeId
from dledger_sim.no_links import NoLinks
from tests.requests.linked_door import LinkedDoor
from tests.waiting import eventually

WAIT_S = 30.0
"""For what should come at once: far more than it takes, so that only what never comes fails."""
SOON_S = 2.0
"""For a client that is to give up within its test: what a busy machine does answer takes less."""
client_server = NATIVE
"""What serves the client ports of groups that are made from now on; `each_server` sets it.

With gRPC's, followers call their leaders, too; with the others they have links to them."""
DOOR = "door"
"""As a third: our server behind the link of a door process, though in this one."""
HOST = "127.0.0.1"
OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_ping_strikes", 0),  # as a node's: followers ping while they wait
)


class MemoryEngine:
    """One node of a `MemoryGroup`."""

    def __init__(self, group: MemoryGroup, number: int) -> None:
        self._members = group
        self.number = number
        self.group = "orders"
        self.node_id = NodeId(f"id-{number}")
        self.state = BrokerState()
        self.listeners: list[Callable[[], None]] = []
        self._changes: set[asyncio.Future[None]] = set()
        self.proposals = 0

    def is_leader(self) -> bool:
        return self._members.leader == self.number and self._members.serves

    def leader(self) -> Member | None:
        number = self._members.leader
        if number is None:
            return None
        address = f"127.0.0.1:{self._members.nodes[number].peer_port}"
        return Member(id=NodeId(f"id-{number}"), name=f"orders-{number}", address=address)

    def endpoints(self) -> Sequence[ClientEndpoint]:
        return [
            ClientEndpoint(
                node_id=node.engine.node_id,
                name=f"orders-{node.engine.number}",
                host="127.0.0.1",
                port=node.port,
                tls_port=node.tls_port,
                heard=self.hears(node.engine.node_id),
            )
            for node in self._members.nodes
        ]

    def knows_members(self) -> bool:
        return True

    def hears(self, node_id: NodeId) -> bool:
        return int(node_id.removeprefix("id-")) not in self._members.silent

    def submit(self, command: Command, **_: str) -> asyncio.Future[object]:
        if not self.is_leader():
            raise NotLeader(None)
        if self._members.refuse is not None:
            raise self._members.refuse
        self.proposals += 1
        return asyncio.ensure_future(self._members.commit(command))  # a test's is a coroutine

    def check(self, kind: int) -> None:
        del kind
        if not self.is_leader():
            raise NotLeader(None)

    async def propose(self, command: bytes) -> object:
        return await self.submit(command)

    async def read_entry(self, index: int) -> Entry:
        return self._members.log[index - 1]

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """All is in memory."""

    async def read_index(self) -> int:
        if not self.is_leader():
            raise NotLeader(None)
        return len(self._members.log)

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        assert index <= len(self._members.log)

    async def wait_leader_change(self, timeout_s: float) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.add(change)
        await asyncio.wait((change,), timeout=timeout_s)
        self._changes.discard(change)

    def leader_changed(self) -> None:
        for change in self._changes:
            if not change.done():
                change.set_result(None)

    def hand_over(self, target: NodeId) -> bool:
        self._members.elect(int(target.removeprefix("id-")))
        return True

    def now_ms(self) -> int:
        return self._members.now_ms()

    def lived_ms(self) -> int:
        return self._members.now_ms() - self.state.leapt_ms

    def date_ms(self) -> int | None:
        return self._members.date_ms()

    def holding_refusal(self) -> str:
        return self.state.held.full

    def on_applied(self, listener: Callable[[], None], awaited: Callable[[], bool]) -> None:
        self.listeners.append(listener)

    def apply(self, entry: Entry) -> list[object]:
        results = self.state.apply(entry)
        for listener in self.listeners:
            listener()
        return results


@dataclass
class Node:
    """An engine, what serves clients there, and its ports."""

    engine: MemoryEngine
    parts: ClientParts
    tasks: ClientTasks
    links: RelayLinks | None = None
    servers: list[Any] = field(default_factory=list)
    port: int = 0
    tls_port: int = 0
    peer_port: int = 0


class MemoryGroup:
    """The nodes, their shared log, and the knobs of a test: leader, clock, lost outcomes."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.log: list[Entry] = []
        self.leader: int | None = None
        self.serves = True
        self.clock_skew_ms = 0
        self.lose_outcomes = 0
        self.refuse: DledgerError | None = None
        self.silent: set[int] = set()
        self._batch: list[tuple[Command, asyncio.Future[object]]] = []

    @property
    def addresses(self) -> list[str]:
        """The client addresses of all nodes."""
        return [f"127.0.0.1:{node.port}" for node in self.nodes]

    async def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """Return what a queue holds at the first node, in order."""
        async with Client(self.addresses[0]) as client:
            return [stored.record.body async for stored in client.read(topic, queue_id)]

    async def polls(self, count: int = 1, *, at: int | None = None) -> None:
        """Return when that many consumers and readers wait for a message, at one node or any."""
        nodes = self.nodes if at is None else [self.nodes[at]]
        await eventually(lambda: sum(load_of(node.parts).waiting_polls for node in nodes) == count)

    async def linked(self) -> None:
        """Return when each follower that keeps a link to the leader has it."""
        leader = self.nodes[self.leader or 0].engine
        followers = [node for node in self.nodes if node.engine is not leader]
        waiting = [node.links for node in followers if node.links is not None]
        if waiting and (member := leader.leader()) is not None:
            await eventually(lambda: all(each.to(member) is not None for each in waiting))

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.clock_skew_ms

    def date_ms(self) -> int | None:
        """As a group of which all clocks are heard and right."""
        return self.now_ms()

    def elect(self, number: int | None, *, serves: bool = True) -> None:
        """Make a node the leader, one that serves or does not yet; or leave the group without."""
        self.leader, self.serves = number, serves
        for node in self.nodes:
            node.engine.leader_changed()

    async def ask(self, node_id: NodeId, path: str, request: bytes, timeout_s: float) -> bytes:
        """Call a method of a node's peer port."""
        port = self.nodes[int(node_id.removeprefix("id-"))].peer_port
        async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
            try:
                return bytes(await channel.unary_unary(path)(request, timeout=timeout_s))
            except grpc.aio.AioRpcError as error:
                raise Unavailable(str(error)) from error

    def commit(self, command: Command) -> Awaitable[object]:
        """Have a command committed with the others of this turn of the event loop."""
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if not self._batch:
            asyncio.get_running_loop().call_soon(self._commit_batch)
        self._batch.append((command, result))
        return result

    def _commit_batch(self) -> None:
        batch, self._batch = self._batch, []
        entry = Entry(
            term=1,
            index=len(self.log) + 1,
            kind=EntryKind.DATA,
            timestamp_ms=self.now_ms(),
            crc32c=0,
            data=b"".join(closed(command) for command, _ in batch),
        )
        self.log.append(entry)
        answers: list[list[object]] = [node.engine.apply(entry) for node in self.nodes]
        for (_, result), answer in zip(batch, answers[self.leader or 0], strict=True):
            if result.done():
                continue
            if isinstance(answer, DledgerError):
                result.set_exception(answer)
            elif self.lose_outcomes:
                self.lose_outcomes -= 1
                result.set_exception(LeadershipLost("lost by the test, after it was committed"))
            else:
                result.set_result(answer)


@asynccontextmanager
async def memory_group(
    nodes: int = 1,
    config: RequestConfig | None = None,
    tls: tuple[bytes, bytes] | None = None,
    server: str | None = None,
) -> Any:
    """Serve a group of nodes on free ports by *server*, or `client_server`; the first one leads."""
    group, kind = MemoryGroup(), server or client_server
    for number in range(nodes):
        engine = MemoryEngine(group, number)
        links = None if kind == GRPC else RelayLinks(lambda _, port: (HOST, port), None)
        metrics = NodeMetrics(engine.group, engine.node_id)
        parts = wire(engine, config or RequestConfig(), links or NoLinks(), metrics, ask=group.ask)
        node = Node(engine, parts, ClientTasks(parts), links)
        node.port = await _serve_clients(node, kind)
        made = [
            TopicAdminServicer(engine, parts.context.resolver, metrics).handler(),
            GroupAdminServicer(engine, parts.messaging.clients.is_alive).handler(),
            DeadLetterAdminServicer(engine).handler(),
            TransactionAdminServicer(engine).handler(),
            HeldAdminServicer(engine).handler(),
        ]
        if links is not None:
            made.append(await _links_port(node))
        node.peer_port = await _serve(node, (*forwarded_services_of(node.parts), *made))
        if tls is not None:
            node.tls_port = await _serve_clients(node, kind, tls)
        group.nodes.append(node)
    group.elect(0)
    for node in group.nodes:
        node.tasks.start()
    await group.linked()
    try:
        yield group
    finally:
        for node in group.nodes:
            node.tasks.drain()
            for each in node.servers:
                await each.stop(0.2)
            await node.tasks.close()


async def _links_port(node: Node) -> Any:
    """Return the method by which other nodes get links to this one."""
    port = ReplicationPort(lambda *_: None, lambda _: None)
    port.bind(HOST, 0)
    await port.start()
    node.servers.append(_Stopped(port))
    return RelayPort(handlers_of(services_of(node.parts, peer_port=True)), port).handler()


class _Stopped:
    """A replication port as one of the servers."""

    def __init__(self, port: ReplicationPort) -> None:
        self._port = port

    async def stop(self, grace_s: float) -> None:
        del grace_s
        self._port.close()


async def _serve_clients(node: Node, kind: str, tls: tuple[bytes, bytes] | None = None) -> int:
    services = services_of(node.parts, tls=tls is not None)
    if kind == GRPC:
        credentials = None if tls is None else grpc.ssl_server_credentials([tls])
        return await _serve(node, [by_grpc(each) for each in services], credentials)
    certificate = None if tls is None else TlsCertificate(chain=tls[1], key=tls[0])
    server: Any
    if kind == DOOR:
        server = LinkedDoor(node.parts, services, tls=certificate)
    else:
        server = DoorServer("127.0.0.1:0", handlers_of(services), tls=certificate)
    await server.start()
    node.servers.append(server)
    return int(server.address.rpartition(":")[2])


async def _serve(node: Node, handlers: Any, credentials: Any = None) -> int:
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(handlers)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    node.servers.append(server)
    return int(port)
