"""Connections in virtual time: of clients to nodes, and of followers to their leader.

Both ends are the shipped ones. A connection keeps its order and loses nothing while it lasts, as
TCP does; it may break, tell nothing any more in one direction, or outlive its server unnoticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc.aio

from dledger.requests.config import RequestConfig
from dledger.rpc.metadata import pairs
from dledger.rpc.peer_tls import PeerChannel, PeerTls
from dledger.types import NodeId
from dledger_sim import pipes
from dledger_sim.call import Asked, SimCall
from dledger_sim.cluster import Cluster
from dledger_sim.front import PORT, Front
from dledger_sim.loop import MS, ProcessLoop
from dledger_sim.process import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class WireOptions:
    """What happens to connections. Times in the names' units, simulated.

    Attributes:
        delay_ms: The longest delay of a message.
        room: Messages in one direction that were not read yet; then their sender waits.
        break_s: Mean life of a connection until it breaks; 0: it does not.
        mute_s: Mean life until the answers on it do not arrive any more.
        link_break_s: Mean life of a follower's link to its leader; 0: as long as both ends'.
        unread: Part of the entries that cannot be read when a consumer is to get them.
        has_rule: Whether each request passes a rule; see `front.Shares`.
    """

    delay_ms: int = 2
    room: int = 4
    break_s: float = 0.0
    mute_s: float = 0.0
    link_break_s: float = 0.0
    unread: float = 0.0
    has_rule: bool = False


def address_of(node: NodeId) -> str:
    """Return where clients reach a node."""
    return f"{node}:{PORT}"


class Wire:
    """All connections of a run.

    Attributes:
        broken: What was seen that must never be.
        links: How many links followers have had.
    """

    def __init__(self, cluster: Cluster, options: WireOptions, config: RequestConfig) -> None:
        self.cluster, self.options = cluster, options
        self.rng = cluster.random("wire")
        self.broken: list[str] = []
        self._links_rng = cluster.random("links")
        self._config = config
        self._fronts: dict[NodeId, tuple[int, Front]] = {}
        self._calls = self._numbers = self.links = 0

    def front_of(self, process: Process) -> Front:
        """Return what serves at a running process; it begins with the first who asks."""
        life, front = self._fronts.get(process.id, (0, None))
        if front is None or life != process.lives:
            process.loop.dial = partial(
                pipes.connect,
                self.cluster,
                self._links_rng,
                process,
                self._take,
                self.options.link_break_s,
            )
            front = Front(
                self.cluster,
                process,
                self._config,
                partial(_Channel, self, process),
                self.broken.append,
                is_faulty=self._is_faulty,
                has_rule=self.options.has_rule,
            )
            self._fronts[process.id] = process.lives, front
            process.loop.run(front.tasks.start)
        return front

    def _is_faulty(self) -> bool:
        unread = 0.0 if self.cluster.calm else self.options.unread
        return bool(unread) and self._links_rng.random() < unread

    def fronts(self) -> Sequence[Front]:
        """Return those that are up."""
        processes = self.cluster.processes
        return [
            front
            for node, (life, front) in self._fronts.items()
            if node in processes and processes[node].is_up and processes[node].lives == life
        ]

    def _take(self, node: NodeId) -> asyncio.BaseProtocol | None:
        """Return what takes a connection of another node."""
        process = self.cluster.processes.get(node)
        if process is None or not process.is_up:
            return None
        self.links += 1
        return self.front_of(process).port.take()

    def next_peer(self) -> str:
        """Return what a node calls the other end of the next call: each has its own connection."""
        self._calls += 1
        return f"simulated:{self._calls}"

    def next_number(self) -> int:
        """Return the number of the next call."""
        self._numbers += 1
        return self._numbers

    def connect(self, loop: ProcessLoop, address: str) -> SimConnection:
        """Return a client's way to a node."""
        return SimConnection(self, loop, NodeId(address.partition(":")[0]))

    def delay_us(self) -> int:
        """Draw how long a message is on its way."""
        longest_ms = 1 if self.cluster.calm else self.options.delay_ms
        return self.rng.randint(MS // 10, longest_ms * MS)


class SimConnection:
    """A way from one client to one node; see `produce_call.Connection`."""

    def __init__(self, wire: Wire, loop: ProcessLoop, node: NodeId) -> None:
        self._wire, self._loop, self._node = wire, loop, node
        self._calls: list[SimCall] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for call in self._calls:
            call.cancel()

    def produce(self, requests: AsyncIterable[bytes], timeout_s: float | None = None) -> SimCall:
        """Begin a stream."""
        asked = Asked(timeout_s=timeout_s)
        call = SimCall(self._wire, self._loop, self._node, requests, asked)
        self._calls.append(call)
        return call


class _Channel(PeerChannel):
    """A node's channel to another one's port for peers: calls that `SimCall` carries."""

    def __init__(
        self, wire: Wire, process: Process, address: str, name: str, tls: PeerTls | None
    ) -> None:
        del tls
        self.address, self.name = address, name
        self._wire, self._process = wire, process

    def unary_unary(self, path: str) -> Callable[..., _PeerCall]:
        """Return a method that takes and returns bytes."""
        return partial(self._call, path)

    unary_stream = unary_unary

    def _call(
        self, path: str, request: bytes, metadata: Any = (), timeout: float | None = None
    ) -> _PeerCall:
        asked = Asked(
            path=path,
            pairs=pairs(tuple(metadata)),
            timeout_s=timeout,
            peer=f"ipv4:{self._process.id}:1",
            member=self._process,
        )
        node = NodeId(self.address.partition(":")[0])
        return _PeerCall(SimCall(self._wire, self._process.loop, node, one(request), asked))

    def retire(self) -> None:
        """Do nothing: there is no connection."""

    async def close(self) -> None:
        """Do nothing."""


class _PeerCall:
    """A call as `grpc.aio` gives it to whoever calls."""

    def __init__(self, call: SimCall) -> None:
        self._call, self._answers = call, aiter(call)

    def __hash__(self) -> int:
        return hash(self._call)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __await__(self) -> Generator[Any, None, bytes]:
        return anext(self._answers).__await__()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answers

    async def read(self) -> Any:
        return await anext(self._answers, grpc.aio.EOF)

    def cancel(self) -> None:
        self._call.cancel()


async def one(request: bytes) -> AsyncIterator[bytes]:
    """Yield a call's one message."""
    yield request
