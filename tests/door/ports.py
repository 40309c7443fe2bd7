"""A port for a test, with handlers that show what a caller can see of the door."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from dledger.door.bounds import Bounds
from dledger.door.contract import (
    Answer,
    BidiStream,
    Cancel,
    Code,
    Fail,
    Failed,
    Handlers,
    Headers,
    ServerStream,
    Stream,
    Unary,
    UnaryCoroutine,
)
from dledger.door.server import DoorServer
from dledger.door.tls import TlsCertificate

PATIENCE_S = 20
LARGE_BYTES = 20 << 20


@dataclass
class Seen:
    """What the handlers saw: one entry each time."""

    headers: list[Headers] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    held: list[tuple[Answer, Fail]] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)


def handlers(seen: Seen) -> Handlers:
    """Return one handler for each way to call and to fail."""

    def echo(headers: Headers, body: bytes, answer: Answer, _: Fail) -> Cancel | None:
        seen.headers.append(headers)
        answer(body)
        return None

    def hold(_: Headers, body: bytes, answer: Answer, fail: Fail) -> Cancel | None:
        del body
        seen.held.append((answer, fail))
        return lambda: seen.cancelled.append("callback")

    def refuse(headers: Headers, body: bytes, _: Answer, fail: Fail) -> Cancel | None:
        code = Code(int(headers.get(b"x-code", "9")))
        fail(code, body.decode(), ((b"x-why", b"asked"), (b"x-raw-bin", b"AP8")))
        return None

    def burst(_: Headers, __: bytes, ___: Answer, ____: Fail) -> Cancel | None:
        raise RuntimeError("a bug")

    async def slowly(_: Headers, body: bytes) -> bytes:
        try:
            await seen.go_on.wait()
        except asyncio.CancelledError:
            seen.cancelled.append("coroutine")
            raise
        return body

    async def raises(_: Headers, body: bytes) -> bytes:
        raise Failed(Code.NOT_FOUND, body.decode())

    async def count(_: Headers, body: bytes, stream: Stream) -> None:
        number, size = map(int, body.split())
        try:
            for each in range(number):
                await stream.send(b"%d" % each + b"." * size)
                seen.sent.append(each)
        except asyncio.CancelledError:
            seen.cancelled.append("stream")
            raise

    async def push(_: Headers, body: bytes, stream: Stream) -> None:
        number, size = map(int, body.split())
        for each in range(number):
            stream.send_now(b"." * size)
            seen.sent.append(each)

    async def talk(_: Headers, stream: Stream) -> None:
        try:
            async for message in stream:
                seen.read.append(message)
                await stream.send(b"got " + message[:32])
        except asyncio.CancelledError:
            seen.cancelled.append("bidi")
            raise

    async def deaf(_: Headers, __: Stream) -> None:
        await seen.go_on.wait()

    return {
        "/t/Echo": Unary(echo, LARGE_BYTES),
        "/t/Small": Unary(echo, 1024),
        "/t/Hold": Unary(hold, LARGE_BYTES),
        "/t/Refuse": Unary(refuse),
        "/t/Bug": Unary(burst),
        "/t/Slowly": UnaryCoroutine(slowly, LARGE_BYTES),
        "/t/Raises": UnaryCoroutine(raises),
        "/t/Count": ServerStream(count),
        "/t/Push": ServerStream(push),
        "/t/Talk": BidiStream(talk, LARGE_BYTES),
        "/t/Deaf": BidiStream(deaf),
    }


@dataclass
class Door:
    """A running port."""

    server: DoorServer
    seen: Seen

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@contextlib.asynccontextmanager
async def door(
    bounds: Bounds | None = None, tls: TlsCertificate | None = None
) -> AsyncIterator[Door]:
    """Serve on a free port of the loopback; whatever a test does, nothing is left behind."""
    seen = Seen()
    server = DoorServer("127.0.0.1:0", handlers(seen), bounds=bounds, tls=tls)
    await server.start()
    try:
        yield Door(server, seen)
    finally:
        await server.stop(0.1)
    assert server.connections == 0
    assert server.held_bytes == 0


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the deadline is for what never comes."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)
