"""A port for a test, with handlers that show what a caller can see of the door."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
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
    Stream,
    Unary,
)
from dledger.door.server import DoorServer
from dledger.door.tls import TlsCertificate
from tests.door.tls_client import certificate
from tests.waiting import eventually

PATIENCE_S = 20
LARGE_BYTES = 20 << 20
OVER_TLS = ContextVar("over_tls", default=False)
"""Whether ports and raw clients speak TLS where a test does not say."""


def by_coroutine(
    serve: Callable[[Headers, bytes], Awaitable[bytes]], max_request_bytes: int = 1 << 18
) -> Unary:
    """Return what serves a call of one message for one by *serve*."""

    async def run(headers: Headers, body: bytes, answer: Answer, fail: Fail) -> None:
        try:
            answer(await serve(headers, body))
        except Failed as failed:
            fail(failed.code, failed.message, failed.trailers)

    def begin(headers: Headers, body: bytes, answer: Answer, fail: Fail) -> Cancel:
        task = asyncio.get_running_loop().create_task(run(headers, body, answer, fail))
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)
        return task.cancel

    return Unary(begin, max_request_bytes=max_request_bytes)


_TASKS = set[asyncio.Task[None]]()


@dataclass
class Seen:
    """Handlers for each way to call and to fail, and what they saw: one entry each time."""

    headers: list[Headers] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    held: list[tuple[Answer, Fail]] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def handlers(self, largest: int) -> Handlers:
        return {
            "/t/Echo": Unary(self._echo, max_request_bytes=largest),
            "/t/Small": Unary(self._echo, max_request_bytes=1024),
            "/t/Named": Unary(self._echo, max_request_bytes=1024, refusal=_named),
            "/t/Nameless": Unary(self._echo, max_request_bytes=1024, refusal=_nameless),
            "/t/Renamed": Unary(self._echo, max_request_bytes=1024, refusal=_renamed),
            "/t/Hold": Unary(self._hold, max_request_bytes=largest),
            "/t/Refuse": Unary(_refuse),
            "/t/Bug": Unary(_burst),
            "/t/Slowly": by_coroutine(self._slowly, largest),
            "/t/Raises": by_coroutine(_raises),
            "/t/Count": BidiStream(self._count),
            "/t/Push": BidiStream(self._push),
            "/t/Talk": BidiStream(self._talk, max_request_bytes=largest),
            "/t/Closed": BidiStream(_closed),
            "/t/Deaf": BidiStream(self._deaf),
        }

    def _echo(self, headers: Headers, body: bytes, answer: Answer, _: Fail) -> Cancel | None:
        self.headers.append(headers)
        answer(body)
        return None

    def _hold(self, _: Headers, __: bytes, answer: Answer, fail: Fail) -> Cancel | None:
        self.held.append((answer, fail))
        return lambda: self.cancelled.append("callback")

    async def _slowly(self, _: Headers, body: bytes) -> bytes:
        with self._noting("coroutine"):
            await self.go_on.wait()
        return body

    async def _count(self, _: Headers, stream: Stream) -> None:
        number, size = map(int, (await stream.read() or b"").split())
        with self._noting("stream"):
            for each in range(number):
                await stream.send(b"%d" % each + b"." * size)
                self.sent.append(each)

    async def _push(self, _: Headers, stream: Stream) -> None:
        number, size = map(int, (await stream.read() or b"").split())
        for each in range(number):
            stream.send_now(b"." * size)
            self.sent.append(each)

    async def _talk(self, headers: Headers, stream: Stream) -> None:
        self.headers.append(headers)
        with self._noting("bidi"):
            async for message in stream:
                self.read.append(message)
                await stream.send(b"got " + message[:32])

    async def _deaf(self, _: Headers, __: Stream) -> None:
        await self.go_on.wait()

    @contextlib.contextmanager
    def _noting(self, form: str) -> Iterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            self.cancelled.append(form)
            raise


def _named(refused: Failed) -> bytes:
    return f"{type(refused).__name__}: {refused.message}".encode()


def _nameless(refused: Failed) -> bytes:
    raise AttributeError(f"a bug: {refused.message}")


def _renamed(refused: Failed) -> bytes:
    raise Failed(Code.OUT_OF_RANGE, refused.message, ((b"renamed", b"yes"),))


def _refuse(headers: Headers, body: bytes, _: Answer, fail: Fail) -> Cancel | None:
    code = Code(int(headers.get(b"x-mq-code", "9")))
    fail(code, body.decode(), ((b"x-why", b"asked"), (b"x-raw-bin", b"AP8")))
    return None


def _burst(_: Headers, __: bytes, ___: Answer, ____: Fail) -> Cancel | None:
    raise RuntimeError("a bug")


async def _closed(_: Headers, __: Stream) -> None:
    raise Failed(Code.UNAVAILABLE, "closed", ((b"x-instead", b"elsewhere"),))


async def _raises(_: Headers, body: bytes) -> bytes:
    raise Failed(Code.NOT_FOUND, body.decode())


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

    async def unused(self) -> None:
        """Return when it has no connection."""
        await eventually(lambda: self.server.connections == 0)


@contextlib.asynccontextmanager
async def door(
    bounds: Bounds | None = None, tls: TlsCertificate | None = None, largest: int = LARGE_BYTES
) -> AsyncIterator[Door]:
    """Serve on a free port of the loopback; whatever a test does, nothing is left behind."""
    seen = Seen()
    tls = certificate() if tls is None and OVER_TLS.get() else tls
    server = DoorServer("127.0.0.1:0", seen.handlers(largest), bounds=bounds, tls=tls)
    await server.start()
    try:
        yield Door(server, seen)
    finally:
        await server.stop(0.1)
    assert server.connections == 0
    assert server.held_bytes == 0
    assert server.calls == 0
    port = server._port
    assert port.unfinished.taken == port.streams.taken == 0
