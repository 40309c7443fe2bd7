"""Clients' connections in virtual time: what gRPC is to `AppendStream` and `Ledger.Produce`.

Both ends are the shipped ones. A connection keeps its order and loses nothing while it lasts, as
TCP does; it may break, tell nothing any more in one direction, or outlive its server unnoticed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

import grpc
import grpc.aio

from dledger.calls.service import handlers_of
from dledger.common.metrics import NodeMetrics
from dledger.door.contract import Arrival, BidiStream, Failed, Handlers, Headers, Pairs
from dledger.peers.handshake import ClientAddress
from dledger.peers.peers import Peers
from dledger.requests.config import GatewayConfig
from dledger.server.engine import NodeEngine
from dledger.server.gateway import Gateway
from dledger.types import NodeId
from dledger_sim.cluster import Cluster
from dledger_sim.loop import MS, ProcessLoop, S
from dledger_sim.no_links import NoLinks
from dledger_sim.process import Process

_PORT: Final = 8081
_METHOD: Final = "/dledger.v1.Ledger/Produce"
_LOOK_US: Final = 100 * MS
_METRICS: Final = NodeMetrics("simulated", "simulated")

Ended: TypeAlias = Exception | None
"""Why a call is over; None: it ended well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireOptions:
    """What happens to connections. Times in the names' units, simulated.

    Attributes:
        delay_ms: The longest delay of a message.
        room: Messages in one direction that were not read yet; then their sender waits.
        break_s: Mean life of a connection until it breaks; 0: it does not.
        mute_s: Mean life until the answers on it do not arrive any more.
    """

    delay_ms: int = 2
    room: int = 4
    break_s: float = 0.0
    mute_s: float = 0.0


def address_of(node: NodeId) -> str:
    """Return where clients reach a node."""
    return f"{node}:{_PORT}"


class Wire:
    """All connections of a run."""

    def __init__(self, cluster: Cluster, options: WireOptions, config: GatewayConfig) -> None:
        self.cluster, self.options = cluster, options
        self.rng = cluster.random("wire")
        self._config = config
        self._handlers: dict[tuple[NodeId, int], Handlers] = {}
        self._calls = 0

    def handlers_of(self, process: Process) -> Handlers:
        """Return what serves clients at a running process, by path."""
        life = (process.id, process.lives)
        if life not in self._handlers:
            self._handlers[life] = handlers_of(self.gateway_of(process).services())
        return self._handlers[life]

    def gateway_of(self, process: Process) -> Gateway:
        """Build what clients talk to at a running process."""
        peers = Peers(process.id, cast("Any", None))
        for other in self.cluster.processes:
            peers.endpoints[other] = _clients(other)
        engine = NodeEngine(
            group="simulated",
            name=process.member.name,
            node_id=process.id,
            state=process.state.broker,
            peers=peers,
            clients=_clients(process.id),
        )
        engine.attach(process.driver)
        return Gateway(engine, self._config, NoLinks(), metrics=_METRICS)

    def next_peer(self) -> str:
        """Return what a node calls the other end of the next call: each has its own connection."""
        self._calls += 1
        return f"simulated:{self._calls}"

    def connect(self, loop: ProcessLoop, address: str) -> SimConnection:
        """Return a client's way to a node."""
        return SimConnection(self, loop, NodeId(address.partition(":")[0]))

    def delay_us(self) -> int:
        """Draw how long a message is on its way."""
        longest_ms = 1 if self.cluster.calm else self.options.delay_ms
        return self.rng.randint(MS // 10, longest_ms * MS)


def _clients(node: NodeId) -> ClientAddress:
    return ClientAddress(host=node, port=_PORT, tls_port=0)


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
        call = SimCall(self._wire, self._loop, self._node, requests, timeout_s)
        self._calls.append(call)
        return call


class _Way:
    """One direction: in order, each message some time after it was sent, few at a time."""

    def __init__(self, wire: Wire, arrive: Callable[[Any], None]) -> None:
        self._wire, self._arrive = wire, arrive
        self._newest_us = 0
        self.unread = 0
        self.dead = False
        self._room: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        return self.unread >= self._wire.options.room

    def send(self, what: Any) -> None:
        clock = self._wire.cluster.clock
        at_us = max(clock.now_us + self._wire.delay_us(), self._newest_us)
        self._newest_us = at_us
        self.unread += 1
        clock.after(at_us - clock.now_us, lambda: None if self.dead else self._arrive(what))

    def read(self) -> None:
        """Note that one was read; whoever waits for room hears of it."""
        self.unread -= 1
        waiting, self._room = self._room, []
        for wake in waiting:
            wake()

    def when_room(self, wake: Callable[[], None]) -> None:
        self._room.append(wake)


class _Inbox:
    """What has arrived at one end and was not taken yet."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop
        self._items: deque[Any] = deque()
        self._arrived = loop.create_future()

    def put(self, item: Any) -> None:
        """Take what arrives, from outside of any loop."""
        self._items.append(item)
        self._loop.run(self._wake)

    def _wake(self) -> None:
        if not self._arrived.done():
            self._arrived.set_result(None)

    async def get(self) -> Any:
        while not self._items:
            self._arrived = self._loop.create_future()
            await self._arrived
        return self._items.popleft()


@dataclass(frozen=True, slots=True)
class _End:
    reason: Ended


class SimCall:
    """One stream, both ends of it; see `produce_call.Call`."""

    def __init__(
        self,
        wire: Wire,
        loop: ProcessLoop,
        node: NodeId,
        requests: AsyncIterable[bytes],
        timeout_s: float | None,
    ) -> None:
        self._wire, self._loop, self._node = wire, loop, node
        self._to_client = _Way(wire, self._at_client)
        self._to_server = _Way(wire, self._at_server)
        self._answers = _Inbox(loop)
        self._over = False
        self._process: Process | None = None
        self._life = 0
        self._task: asyncio.Task[None] | None = None
        self._requests: _Inbox | None = None
        self._to_server.send(_BEGIN)
        self._pumping = loop.create_task(self._pump(requests))
        if timeout_s is not None:
            loop.call_later(timeout_s, self._end, _status("DEADLINE_EXCEEDED", "too late"))
        self._watch()
        self._let_fail()

    # -- the client's end ------------------------------------------------------------------------

    async def _pump(self, requests: AsyncIterable[bytes]) -> None:
        async for request in requests:
            while self._to_server.is_full:
                room = self._loop.create_future()
                self._to_server.when_room(partial(self._loop.run, _finish, room))
                await room
            self._to_server.send(request)
        self._to_server.send(_END_OF_REQUESTS)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            item = await self._answers.get()
            if item is _CANCELLED:
                raise asyncio.CancelledError
            if isinstance(item, _End):
                self._close()
                if item.reason is not None:
                    raise item.reason
                return
            self._to_client.read()
            yield item

    def cancel(self) -> object:
        """End it from the client's side; the server hears of it later."""
        if not self._over:
            self._close()
            self._wire.cluster.clock.after(self._wire.delay_us(), self._cancel_server)
            self._answers.put(_CANCELLED)
        return True

    def _close(self) -> None:
        self._over = True
        self._pumping.cancel()

    def _end(self, reason: Ended) -> None:
        """Let the client see that it is over."""
        if not self._over:
            self._answers.put(_End(reason))

    def _at_client(self, item: Any) -> None:
        if not self._over:
            self._answers.put(item)

    # -- the server's end ------------------------------------------------------------------------

    def _at_server(self, item: Any) -> None:
        if item is _BEGIN:
            self._to_server.read()
            self._accept()
        elif self._is_served and self._requests is not None:
            self._requests.put(item)

    @property
    def _is_served(self) -> bool:
        process = self._process
        return process is not None and process.is_up and process.lives == self._life

    def _accept(self) -> None:
        process = self._wire.cluster.processes.get(self._node)
        if process is None or not process.is_up:
            self._wire.cluster.clock.after(
                self._wire.delay_us(), lambda: self._end(_status("UNAVAILABLE", "refused"))
            )
            return
        self._process, self._life = process, process.lives
        self._requests = _Inbox(process.loop)
        process.loop.run(self._begin_serving, process)

    def _begin_serving(self, process: Process) -> None:
        self._task = process.loop.create_task(self._serve(process))

    async def _serve(self, process: Process) -> None:
        peer = self._wire.next_peer()
        headers = Headers((), {}, peer=peer, connection=0, deadline_s=None)
        handler, ended = self._wire.handlers_of(process)[_METHOD], None
        if not isinstance(handler, BidiStream):
            raise TypeError(f"{_METHOD} is no stream")
        try:
            await handler.serve(headers, _ServerEnd(self, process))
        except Failed as failed:
            ended = _status(failed.code.name, failed.message, failed.trailers)
        self._to_client.send(_End(ended))

    async def read_request(self) -> bytes | None:
        """Return the next request; None behind the last."""
        assert self._requests is not None, "it was accepted"  # noqa: S101
        item = await self._requests.get()
        if item is _END_OF_REQUESTS:
            return None
        self._to_server.read()
        return bytes(item)

    async def answer(self, process: Process, message: bytes) -> None:
        """Send an answer once there is room for it."""
        while self._to_client.is_full:
            room = process.loop.create_future()
            self._to_client.when_room(partial(process.loop.run, _finish, room))
            await room
        self._to_client.send(message)

    def _cancel_server(self) -> None:
        self._to_server.dead = True
        if self._is_served and self._task is not None and self._process is not None:
            self._process.loop.run(self._task.cancel)

    # -- what goes wrong -------------------------------------------------------------------------

    def _watch(self) -> None:
        """Reset a connection whose server lives another life: it does not know it any more."""
        if self._over:
            return
        process = self._process
        if process is not None and process.is_up and process.lives != self._life:
            self._break()
        self._wire.cluster.clock.after(_LOOK_US, self._watch)

    def _let_fail(self) -> None:
        options, rng, clock = self._wire.options, self._wire.rng, self._wire.cluster.clock
        for mean_s, fault in ((options.break_s, self._break), (options.mute_s, self._mute)):
            if mean_s and not self._wire.cluster.calm:
                clock.after(int(rng.expovariate(1 / mean_s) * S), fault)

    def _break(self) -> None:
        """Break the connection: what is on its way is lost, and each end hears of it some time."""
        if self._over or self._to_client.dead:
            return
        self._to_client.dead = self._to_server.dead = True
        clock, rng = self._wire.cluster.clock, self._wire.rng
        clock.after(rng.randint(1, S // 4), lambda: self._end(_status("UNAVAILABLE", "broken")))
        clock.after(rng.randint(1, S), self._cancel_server)

    def _mute(self) -> None:
        """Let no answer arrive any more, until the connection breaks at last."""
        if not self._over and not self._wire.cluster.calm:
            self._to_client.dead = True
            after_us = self._wire.rng.randint(1, 2 * S)
            self._wire.cluster.clock.after(after_us, self._break_muted)

    def _break_muted(self) -> None:
        self._to_client.dead = False
        self._break()


_BEGIN: Final = object()
_END_OF_REQUESTS: Final = object()
_CANCELLED: Final = object()


class _ServerEnd:
    """A stream as its handler has it. Implements `contract.Stream`."""

    def __init__(self, call: SimCall, process: Process) -> None:
        self._call, self._process = call, process

    async def read(self) -> bytes | None:
        """Return the next request."""
        return await self._call.read_request()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.read()) is not None:
            yield message

    async def send(self, message: bytes) -> None:
        """Send an answer."""
        await self._call.answer(self._process, message)

    def send_now(self, message: bytes) -> None:
        """Refuse: the simulated wire has to be waited for."""
        raise NotImplementedError

    def prove(self, arrival: Arrival) -> None:
        """Tell nothing: no simulated client asks for what this is for."""


def _status(name: str, details: str, trailing: Pairs = ()) -> Any:
    metadata = grpc.aio.Metadata(*((key.decode(), value.decode()) for key, value in trailing))
    return grpc.aio.AioRpcError(grpc.StatusCode[name], grpc.aio.Metadata(), metadata, details)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
