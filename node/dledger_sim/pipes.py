"""Plain connections between nodes in virtual time: what TCP is to the link of a follower.

Each end is a protocol on the event loop of its process. Bytes come in order and none is lost while
the connection lasts; where a partition stops them they wait, as TCP has it. It breaks by itself, or
when one of its ends has died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from dledger.peers import replication_port
from dledger.peers.replication_port import ReplicationPort
from dledger.types import NodeId
from dledger_sim.cluster import Cluster
from dledger_sim.loop import MS, S
from dledger_sim.process import Process
from dledger_sim.ways import Way

_LOOK_US: Final = 100 * MS
_HEARD_WITHIN_US: Final = S // 2
_END: Final = object()


class PlainPort(ReplicationPort):
    """The port at which a node takes links: the shipped one without its socket."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None, lambda _: None)

    @property
    def number(self) -> int:
        """Any."""
        return 1

    def take(self) -> asyncio.BufferedProtocol:
        """Return what takes a connection that is new."""
        return replication_port._Connection(self)  # noqa: SLF001 - which asyncio builds else


class _End(asyncio.Transport):
    """One end of a connection, as its protocol has it."""

    def __init__(self, pipe: Pipe, process: Process) -> None:
        super().__init__()
        self.process, self.life = process, process.lives
        self.protocol: asyncio.BaseProtocol | None = None
        self.is_over = False
        self.way: Way
        self._pipe = pipe

    @property
    def lives(self) -> bool:
        """Whether the process that opened it still runs."""
        return self.process.is_up and self.process.lives == self.life

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return nothing."""
        del name
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is room for what a test sends."""
        del high, low

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self.is_over

    def write(self, data: Any) -> None:
        """Send bytes."""
        if not self.is_over:
            self.way.send(bytes(data))

    def close(self) -> None:
        """End it once what was written has arrived."""
        if not self.is_over:
            self.way.send(_END)
            self.on_lost(None)

    def abort(self) -> None:
        """End it now; the other end hears of it."""
        if not self.is_over:
            self._pipe.end(self)

    def on_lost(self, error: Exception | None) -> None:
        """Tell the protocol, soon, that it is over."""
        if not self.is_over:
            self.is_over = True
            if self.lives and self.protocol is not None:
                self.process.loop.call_soon(self.protocol.connection_lost, error)

    def receive(self, item: Any) -> None:
        """Give the protocol what has arrived."""
        if self.is_over or self.protocol is None:
            return
        if item is _END:
            self.on_lost(None)
        elif isinstance(self.protocol, asyncio.BufferedProtocol):
            _feed(self.protocol, item)
        elif isinstance(self.protocol, asyncio.Protocol):
            self.protocol.data_received(item)


class Pipe:
    """A connection, from its opening at *client* to its end."""

    def __init__(
        self, cluster: Cluster, rng: Random, client: Process, server: Process, break_s: float
    ) -> None:
        self._cluster, self._rng = cluster, rng
        self.client, self.server = _End(self, client), _End(self, server)
        for end, other in ((self.client, self.server), (self.server, self.client)):
            end.way = Way(
                cluster.clock,
                self._delay_us,
                partial(self._arrive, other),
                passes=partial(cluster.links.reaches, end.process.id, other.process.id),
            )
        if break_s and not cluster.calm:
            cluster.clock.after(int(rng.expovariate(1 / break_s) * S), self.break_off)
        self._watch()

    def _delay_us(self) -> int:
        longest_ms = 1 if self._cluster.calm else self._cluster.options.delay_ms
        return self._rng.randint(MS // 10, longest_ms * MS)

    def _arrive(self, end: _End, item: Any) -> None:
        if end.lives:
            end.process.loop.run(end.receive, item)

    def end(self, by: _End) -> None:
        """End it at one end; the other hears of it, and nothing else that was on its way."""
        other = self.server if by is self.client else self.client
        self._kill()
        by.on_lost(None)
        self._hear(other, ConnectionResetError("by the other end"))

    def break_off(self) -> None:
        """Break it: each end hears of that some time."""
        if not self._kill():
            return
        for end in (self.client, self.server):
            self._hear(end, ConnectionResetError("by the network"))

    def _kill(self) -> bool:
        alive = not self.client.way.dead
        self.client.way.dead = self.server.way.dead = True
        return alive

    def _hear(self, end: _End, error: Exception) -> None:
        def hear() -> None:
            if end.lives:
                end.process.loop.run(end.on_lost, error)

        self._cluster.clock.after(self._rng.randint(1, _HEARD_WITHIN_US), hear)

    def _watch(self) -> None:
        ends = (self.client, self.server)
        if self.client.way.dead or all(end.is_over for end in ends):
            return
        if not all(end.lives for end in ends):
            self.break_off()
            return
        self._cluster.clock.after(_LOOK_US, self._watch)


async def connect(  # noqa: PLR0917 - bound by `wire`, then called by the loop
    cluster: Cluster,
    rng: Random,
    client: Process,
    take: Callable[[NodeId], asyncio.BaseProtocol | None],
    break_s: float,
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """Connect a process to another one; what it awaits may never come, as behind a partition.

    Args:
        cluster: All processes.
        rng: Draws delays.
        client: Who connects.
        take: Returns what takes a new connection at a node; None: nobody does.
        break_s: The mean life of the connection.
        factory: Builds the client's protocol.
        host: The node to connect to.

    Raises:
        ConnectionRefusedError: Nobody listens there.
    """
    node, loop = NodeId(host), client.loop
    made: asyncio.Future[Pipe | None] = loop.create_future()

    def settle(pipe: Pipe | None) -> None:
        if not made.done():
            made.set_result(pipe)

    def answer(pipe: Pipe | None) -> None:
        cluster.clock.after(rng.randint(1, 2 * MS), lambda: loop.run(settle, pipe))

    def accept() -> None:
        if not cluster.links.talks(client.id, node):
            return
        protocol, server = take(node), cluster.processes.get(node)
        if protocol is None or server is None:
            answer(None)
            return
        pipe = Pipe(cluster, rng, client, server, break_s)
        pipe.server.protocol = protocol
        server.loop.run(protocol.connection_made, pipe.server)
        answer(pipe)

    cluster.clock.after(rng.randint(1, 2 * MS), accept)
    pipe = await made
    if pipe is None:
        raise ConnectionRefusedError(f"nobody listens at {host}")
    pipe.client.protocol = protocol = factory()
    protocol.connection_made(pipe.client)
    return pipe.client, protocol


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give bytes to a protocol that has its own buffer, as asyncio does."""
    while data:
        space = memoryview(protocol.get_buffer(len(data)))
        size = min(len(space), len(data))
        space[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
