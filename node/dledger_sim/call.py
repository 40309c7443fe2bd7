"""One call in virtual time, both ends of it: what gRPC is between a client or a node and a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio

from dledger.door.contract import Arrival, AwaitedStream, Failed, Headers, Pairs
from dledger.types import NodeId
from dledger_sim.loop import MS, ProcessLoop, S
from dledger_sim.process import Process
from dledger_sim.ways import Inbox, Way

if TYPE_CHECKING:
    from dledger_sim.wire import Wire

PRODUCE_PATH: Final = "/dledger.v1.Ledger/Produce"
_LOOK_US: Final = 100 * MS
_BEGIN: Final = object()
_END_OF_REQUESTS: Final = object()
_CANCELLED: Final = object()

Ended: TypeAlias = Exception | None
"""Why a call is over; None: it ended well."""


@dataclass(frozen=True, slots=True)
class _End:
    reason: Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a node.

    Attributes:
        path: The method's.
        pairs: What goes before the messages.
        timeout_s: How long the client waits; None: for ever.
        peer: The client's connection; empty: one of its own.
        member: The node that asks, at the port for its peers; None: a client does.
    """

    path: str = PRODUCE_PATH
    pairs: Pairs = ()
    timeout_s: float | None = None
    peer: str = ""
    member: Process | None = field(default=None, repr=False)


class SimCall:
    """One call; see `produce_call.Call`."""

    def __init__(
        self,
        wire: Wire,
        loop: ProcessLoop,
        node: NodeId,
        requests: AsyncIterable[bytes],
        asked: Asked,
    ) -> None:
        self._wire, self._loop, self._node, self._asked = wire, loop, node, asked
        clock, room, member = wire.cluster.clock, wire.options.room, asked.member
        there = (lambda: True) if member is None else partial(self._passes, member.id, node)
        back = (lambda: True) if member is None else partial(self._passes, node, member.id)
        self._to_client = Way(clock, wire.delay_us, self._at_client, room=room, passes=back)
        self._to_server = Way(clock, wire.delay_us, self._at_server, room=room, passes=there)
        self._number = wire.next_number()
        self._answers = Inbox(loop)
        self._over = False
        self._process: Process | None = None
        self._life = 0
        self._task: asyncio.Task[None] | None = None
        self._requests: Inbox | None = None
        self._to_server.send(_BEGIN)
        self._pumping = loop.create_task(self._pump(requests))
        self._ends_s = None if asked.timeout_s is None else loop.time() + asked.timeout_s
        if asked.timeout_s is not None:
            loop.call_later(asked.timeout_s, self._expire)
        self._watch()
        self._let_fail()

    def __hash__(self) -> int:
        """Return what is the same in each run: calls are kept in sets."""
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def _passes(self, sender: NodeId, recipient: NodeId) -> bool:
        return self._wire.cluster.links.reaches(sender, recipient)

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

    def _expire(self) -> None:
        if not self._over:
            self._end(status_error("DEADLINE_EXCEEDED", "too late"))
            self._wire.cluster.clock.after(self._wire.delay_us(), self._cancel_server)

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
                self._wire.delay_us(), lambda: self._end(status_error("UNAVAILABLE", "refused"))
            )
            return
        self._process, self._life = process, process.lives
        self._requests = Inbox(process.loop)
        self._wire.front_of(process)
        process.loop.run(self._begin_serving, process)

    def _begin_serving(self, process: Process) -> None:
        if not self._to_server.dead:  # else it was given up while the process paused
            self._task = process.loop.create_task(self._serve(process))

    async def _serve(self, process: Process) -> None:
        asked, ended = self._asked, None
        peer = asked.peer or self._wire.next_peer()
        headers = Headers(
            asked.pairs, dict(asked.pairs), peer=peer, connection=0, deadline_s=self._ends_s
        )
        front = self._wire.front_of(process)
        end = _ServerEnd(self, process)
        try:
            await front.serve(asked.path, headers, end, of_member=asked.member is not None)
        except Failed as failed:
            ended = status_error(failed.code.name, failed.message, failed.trailers)
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
        """Send an answer once there is room for it; what is killed says nothing while it ends."""
        if process.loop.is_closed():
            return
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
        """Reset a connection whose server lives another life: it does not know it any more.

        And one whose client has died: its server hears of that.
        """
        if self._over:
            return
        if self._loop.is_closed():
            self._over = True
            self._cancel_server()
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
        broken = status_error("UNAVAILABLE", "broken")
        clock.after(rng.randint(1, S // 4), lambda: self._end(broken))
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


class _ServerEnd(AwaitedStream):
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


def status_error(name: str, details: str, trailing: Pairs = ()) -> Any:
    """Return what gRPC raises for a call that ended so."""
    metadata = grpc.aio.Metadata(*((key.decode(), value.decode()) for key, value in trailing))
    return grpc.aio.AioRpcError(grpc.StatusCode[name], grpc.aio.Metadata(), metadata, details)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
