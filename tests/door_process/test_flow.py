"""A client that does not read holds up its own call; a node that does not, its client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from dledger.door.bounds import Bounds
from dledger.door.contract import BidiStream, Cancel, Handlers, Headers, Stream, Unary
from dledger.door.server import DoorServer
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.frames import AckBatch, SendBatch
from dledger.door_process.node_end import Batches, NodeEnd, Settle
from dledger.door_process.process import handlers_of
from dledger.door_process.supervisor import methods_of
from dledger.link.calls_in import ServedPort
from dledger.link.connection import Link
from tests.waiting import eventually

CHUNK = 16 << 10
MANY = 4_000
WINDOW = Bounds().stream_window_bytes


class _NoBatches(Batches):
    def leads(self) -> bool:
        return False

    def send(self, batch: SendBatch, settle: Settle) -> Cancel:
        raise NotImplementedError

    def ack(self, batch: AckBatch, settle: Settle) -> Cancel:
        raise NotImplementedError


@dataclass
class Node:
    """Handlers that stream, and what they have done."""

    sent: int = 0
    read: int = 0
    cancelled: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def handlers(self) -> Handlers:
        return {
            "/t/Push": BidiStream(self._push),
            "/t/Deaf": BidiStream(self._deaf),
            "/t/Echo": Unary(lambda _, body, answer, __: answer(body)),
        }

    async def _push(self, _: Headers, stream: Stream) -> None:
        try:
            for _n in range(MANY):
                await stream.send(bytes(CHUNK))
                self.sent += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _deaf(self, _: Headers, stream: Stream) -> None:
        await self.go_on.wait()
        async for message in stream:
            self.read += len(message)
        await stream.send(b"%d" % self.read)


@asynccontextmanager
async def served(node: Node) -> AsyncIterator[tuple[grpc.aio.Channel, NodeEnd]]:
    """These handlers behind a door's link, and a channel to the door."""
    lost: list[str] = []
    handlers = node.handlers()
    end = NodeEnd(
        [ServedPort(handlers=handlers, resumed={})],
        tuple(handlers),
        _NoBatches(),
        Bounds(),
        on_ready=lambda: None,
        on_pong=lambda _: None,
        on_lost=lost.append,
    )
    door = DoorEnd(control=lambda *_: None, on_lost=lost.append)
    server = DoorServer("127.0.0.1:0", handlers_of(door, 0, methods_of(handlers), {}))
    mine, its = socket.socketpair()
    await Link.open(mine, lambda: end.link)
    await Link.open(its, lambda: door.link)
    await server.start()
    options = (("grpc.http2.lookahead_bytes", 4096), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        yield channel, end
    await server.stop(0)
    end.link.close("over")
    await eventually(lambda: len(lost) == 2)


async def test_a_client_that_does_not_read_holds_up_its_own_call() -> None:
    """The handler stops after what windows and buffers take; others are answered meanwhile."""
    node = Node()
    async with served(node) as (channel, end):
        call = channel.stream_stream("/t/Push")()
        await call.done_writing()
        await call.read()
        before = -1
        while before != node.sent:
            before = node.sent
            await asyncio.sleep(0.2)
        echoed = await channel.unary_unary("/t/Echo")(b"meanwhile")

        assert echoed == b"meanwhile"
        assert node.sent < MANY // 2
        call.cancel()
        await eventually(lambda: node.cancelled == 1 and len(end) == 0)


async def test_a_client_that_reads_gets_everything() -> None:
    """In as many turns as it takes."""
    node = Node()
    async with served(node) as (channel, end):
        call = channel.stream_stream("/t/Push")()
        await call.done_writing()
        got = [len(each) async for each in call]

        assert got == [CHUNK] * MANY
        await eventually(lambda: len(end) == 0)


async def test_a_handler_that_does_not_read_holds_up_its_client() -> None:
    """No more of a stream is kept at the node than its window and a message."""
    node = Node()
    async with served(node) as (channel, end):
        call = channel.stream_stream("/t/Deaf")()

        async def write() -> None:
            for _ in range(MANY):
                await call.write(bytes(CHUNK))
            await call.done_writing()

        writing = asyncio.ensure_future(write())
        await eventually(lambda: len(end) == 1)
        (held,) = end._calls.values()
        await eventually(lambda: held.unconsumed >= WINDOW)
        assert held.unconsumed < WINDOW + CHUNK
        assert not writing.done()
        node.go_on.set()
        await writing

        assert await call.read() == b"%d" % (MANY * CHUNK)
