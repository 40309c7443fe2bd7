"""A handler that has nothing to do leaves, and what it left goes on with its call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from dledger.door.contract import BidiStream, Code, Failed, Headers, Rest, Stream
from dledger.door.server import DoorServer
from tests.door.raw import RawClient, prefixed, raw_client
from tests.waiting import eventually


@dataclass
class _Left:
    """What a handler left."""

    handler: _Handler
    stream: Stream
    reads: bool = True
    waits: int = 0
    drops: int = 0
    fails: bool = False

    def wait(self) -> None:
        self.waits += 1

    def drop(self) -> None:
        self.drops += 1

    async def serve(self) -> Rest | None:
        return await self.handler.serve_on(self)


@dataclass
class _Handler:
    """Answers what comes, one message at a time, and leaves."""

    left: list[_Left] = field(default_factory=list)
    reads: bool = True
    served: int = 0

    def has_served(self, times: int) -> bool:
        return self.served >= times

    async def serve(self, headers: Headers, stream: Stream) -> Rest | None:
        del headers
        self.left.append(_Left(self, stream, self.reads))
        return self.left[-1]

    async def serve_on(self, left: _Left) -> Rest | None:
        self.served += 1
        if left.fails:
            raise Failed(Code.ABORTED, "so it is")
        message = await left.stream.read()
        if message is None:
            return None
        await left.stream.send(message)
        return left


@asynccontextmanager
async def _served(handler: _Handler) -> AsyncIterator[tuple[DoorServer, RawClient]]:
    server = DoorServer("127.0.0.1:0", {"/t/Left": BidiStream(handler.serve)})
    await server.start()
    try:
        async with raw_client(int(server.address.rpartition(":")[2])) as client:
            await client.hello()
            yield server, client
    finally:
        await server.stop(0)


async def test_a_handler_that_has_left_answers_each_message_and_ends_with_its_client() -> None:
    handler = _Handler()
    async with _served(handler) as (_, client):
        stream = client.request("/t/Left")
        for number in range(3):
            client.h2.send_data(stream, prefixed(1) + b"%d" % number, end_stream=number == 2)
            await client.flush()
            await eventually(partial(handler.has_served, number + 1))

        assert (await client.status(stream))[0] == 0

    assert handler.left[0].waits >= 3
    assert not handler.left[0].drops


async def test_nothing_runs_for_a_call_whose_handler_has_left() -> None:
    handler = _Handler(reads=False)
    async with _served(handler) as (server, client):
        before = len(asyncio.all_tasks())
        for _ in range(50):
            client.request("/t/Left")
        await client.flush()
        await eventually(lambda: len(handler.left) == 50)
        await eventually(lambda: all(each.waits for each in handler.left))
        await eventually(lambda: len(asyncio.all_tasks()) <= before)

        assert server.calls == 50


@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "about to go on"])
async def test_what_waits_for_a_client_that_goes_away_is_dropped_once(begun: bool) -> None:
    """Also if it was to go on, and had no turn of the event loop yet."""
    handler = _Handler(reads=False)
    async with _served(handler) as (server, client):
        stream = client.request("/t/Left")
        await client.flush()
        await eventually(lambda: bool(handler.left and handler.left[0].waits))
        left = handler.left[0]
        if begun:
            (connection,) = server._connections
            call = connection._calls._open[stream]
            left.stream.go_on()
            connection._calls._cancel(call, Code.CANCELLED, "gone")
        client._writer.transport.abort()
        await eventually(lambda: not server.connections)
        await asyncio.sleep(0.02)

        assert (left.drops, handler.served) == (1, 0)


async def test_what_was_left_may_fail_its_call() -> None:
    handler = _Handler(reads=False)
    async with _served(handler) as (_, client):
        stream = client.request("/t/Left")
        client.h2.send_data(stream, prefixed(1) + b"x", end_stream=False)
        await client.flush()
        await eventually(lambda: bool(handler.left and handler.left[0].waits))
        handler.left[0].fails = True
        handler.left[0].stream.go_on()
        handler.left[0].stream.go_on()  # nothing is left that waits

        assert (await client.status(stream))[0] == Code.ABORTED
    assert (handler.served, handler.left[0].drops) == (1, 0)
