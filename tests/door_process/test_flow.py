"""A client that does not read holds up its own call; a node that does not, its client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import ngh2

from dledger.door.bounds import Bounds
from dledger.door.contract import BidiStream, Cancel, Handlers, Headers, Rest, Stream, Unary
from dledger.door.server import DoorServer
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.frames import AckBatch, SendBatch
from dledger.door_process.node_end import Batches, NodeEnd, Settle
from dledger.door_process.process import handlers_of
from dledger.door_process.supervisor import methods_of
from dledger.link.calls_in import ServedPort
from dledger.link.connection import Link
from tests.door.raw import prefixed, raw_client
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
    address: str = ""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def handlers(self) -> Handlers:
        return {
            "/t/Push": BidiStream(self._push),
            "/t/Deaf": BidiStream(self._deaf),
            "/t/Mirror": BidiStream(lambda _, stream: _Mirror(stream).serve()),
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


@dataclass
class _Mirror:
    """Sends back what comes, and waits without a coroutine, as polls do."""

    stream: Stream
    reads: bool = True

    def wait(self) -> None:
        pass

    def drop(self) -> None:
        pass

    async def serve(self) -> Rest | None:
        while (message := self.stream.read_now()) is not None:
            await self.stream.send(message)
        return None if self.stream.is_readable else self


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
    node.address = server.address
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


def _has_nobody_at_work() -> bool:
    """Whether no coroutine serves a call, at either end."""
    return not any("_guarded" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_streams_that_wait_have_no_coroutine_at_either_end() -> None:
    """Found: 10,000 of them took 85 MiB of a door. What comes goes on, from either side."""
    node, hi = Node(), prefixed(2) + b"hi"
    async with served(node) as (_, end), raw_client(int(node.address.rpartition(":")[2])) as client:
        await client.hello()
        streams = [client.request("/t/Mirror") for _ in range(20)]
        for _turn in range(3):
            for each in streams:
                client.h2.send_data(each, hi, end_stream=False)
            await client.flush()
            await eventually(lambda: len(end) == len(streams) and _has_nobody_at_work())
        client.h2.send_data(streams[0], b"", end_stream=True)
        for each in streams[1:]:
            client.h2.reset_stream(each, 8)
        await client.flush()

        assert await client.status(streams[0]) == (0, b"")
        await eventually(lambda: len(end) == 0 and _has_nobody_at_work())
    echoed = [e.data for e in client.events if isinstance(e, ngh2.DataReceived)]
    assert b"".join(echoed) == 3 * hi  # of the others nothing is read
