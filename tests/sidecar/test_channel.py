"""The channel in plain text, against the server of the client ports and against none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.door.contract import (
    Answer,
    BidiStream,
    Cancel,
    Code,
    Fail,
    Failed,
    Headers,
    Stream,
    Unary,
)
from dledger.door.server import DoorServer
from dledger.sidecar.channel import NOT_REACHED, Channel
from tests.waiting import eventually

MANY = 400
LARGE = 300 << 10


class Group:
    """What the calls of these tests are served by.

    Attributes:
        seen: The bodies of unary calls, in order.
        given_up: How many calls their client gave up.
    """

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.headers: list[Headers] = []
        self.given_up = 0
        self.server = DoorServer("127.0.0.1:0", self.handlers())

    def handlers(self) -> dict[str, Any]:
        return {
            "/s/Echo": Unary(self.echo, max_request_bytes=1 << 24),
            "/s/Refuse": Unary(self.refuse),
            "/s/Never": Unary(self.never),
            "/s/Count": BidiStream(self.count),
            "/s/Talk": BidiStream(self.talk),
        }

    def echo(self, headers: Headers, body: bytes, answer: Answer, fail: Fail) -> None:
        del fail
        self.headers.append(headers)
        self.seen.append(body)
        answer(body)

    def refuse(self, headers: Headers, body: bytes, answer: Answer, fail: Fail) -> None:
        del headers, body, answer
        fail(Code.PERMISSION_DENIED, "100 % not é")

    def never(self, headers: Headers, body: bytes, answer: Answer, fail: Fail) -> Cancel:
        del headers, body, answer, fail

        def cancel() -> None:
            self.given_up += 1

        return cancel

    async def count(self, headers: Headers, stream: Stream) -> None:
        """Answer one message by as many large ones as it says."""
        del headers
        asked = await stream.read()
        assert asked is not None
        for number in range(int(asked)):
            await stream.send(b"%d " % number + bytes(LARGE))

    async def talk(self, headers: Headers, stream: Stream) -> None:
        """Answer each message; end at "bye" in order, at "no" with a status."""
        del headers
        async for message in stream:
            if message == b"no":
                raise Failed(Code.ABORTED, "no")
            await stream.send(message.upper())
            if message == b"bye":
                return


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    """Return what serves."""
    made = Group()
    await made.server.start()
    yield made
    await made.server.stop(0)


@pytest.fixture
async def channel(group: Group) -> AsyncIterator[Channel]:
    """Return a channel to it."""
    made = Channel(group.server.address)
    yield made
    await made.close()


def unary(channel: Channel, name: str, body: bytes = b"x", timeout: float = 20) -> Any:
    """Make a call."""
    return channel.unary_unary(f"/s/{name}")(
        body, metadata=(("x-mq-client-id", "bob"),), timeout=timeout
    )


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return how a call fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_calls_go_in_their_order_with_their_metadata_and_deadline(
    group: Group, channel: Channel
) -> None:
    """Also those that waited for the connection, and more at once than the other side takes."""
    bodies = [b"%d" % number for number in range(MANY)]

    answers = await asyncio.gather(*(unary(channel, "Echo", body) for body in bodies))

    assert answers == bodies
    assert group.seen == bodies
    assert group.headers[0].text("x-mq-client-id") == "bob"
    assert group.headers[0].raw(b"grpc-timeout") == b"20000m"
    assert len({each.connection for each in group.headers}) == 1


async def test_large_messages_go_both_ways(channel: Channel) -> None:
    """Beyond every window and the socket's own room."""
    body = bytes(range(256)) * (9 << 12)

    assert await unary(channel, "Echo", body) == body


async def test_a_status_is_told_with_its_sentence(channel: Channel) -> None:
    """As gRPC's own tells it."""
    assert await failure(unary(channel, "Refuse")) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "100 % not é",
    )
    code, _ = await failure(unary(channel, "Unknown"))
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_nobody_waits_for_is_given_up_there(
    group: Group, channel: Channel
) -> None:
    """At its deadline, and when its task is cancelled; others go on."""
    code, details = await failure(unary(channel, "Never", timeout=0.05))
    task = asyncio.ensure_future(unary(channel, "Never"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await eventually(lambda: group.given_up == 2, "both to be given up")
    assert (code, details) == (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert await unary(channel, "Echo") == b"x"
    assert not channel._under_way


async def test_nobody_there_is_no_call() -> None:
    """What was not sent may be sent elsewhere, whatever it is."""
    channel = Channel("127.0.0.1:9")

    code, details = await failure(unary(channel, "Echo"))

    assert code is grpc.StatusCode.UNAVAILABLE
    assert details.startswith(NOT_REACHED)
    await channel.close()


async def test_a_lost_connection_ends_its_calls_and_the_next_has_another(
    group: Group, channel: Channel
) -> None:
    """It may have been done: nothing says that it was not sent."""
    call = asyncio.ensure_future(failure(unary(channel, "Never")))
    await eventually(lambda: channel._connection is not None, "a connection")
    await asyncio.sleep(0.05)
    assert channel._connection is not None
    channel._connection._transport.abort()

    code, details = await call

    assert code is grpc.StatusCode.UNAVAILABLE
    assert not details.startswith(NOT_REACHED)
    assert await unary(channel, "Echo") == b"x"


async def test_a_server_that_goes_is_left_in_order() -> None:
    """What runs there finishes; what comes then finds the next one."""
    first = Group()
    await first.server.start()
    channel = Channel(first.server.address)
    talk = channel.stream_stream("/s/Talk")(metadata=())
    await talk.write(b"a")
    assert await talk.read() == b"A"
    stopping = asyncio.ensure_future(first.server.stop(5))
    connection = channel._connection
    assert connection is not None
    await eventually(lambda: not connection.is_open, "the word that it goes")
    await talk.write(b"bye")

    assert await talk.read() == b"BYE"
    assert await talk.read() is grpc.aio.EOF
    await stopping
    await eventually(connection._transport.is_closing, "its end")
    code, _ = await failure(unary(channel, "Echo"))
    assert code is grpc.StatusCode.UNAVAILABLE
    await channel.close()


async def test_a_stream_is_read_as_fast_as_its_reader_reads(channel: Channel) -> None:
    """No more of it comes than its window, and one that nobody reads takes none from others."""
    for _ in range(80):  # more than the connection's window in all
        idle = channel.unary_stream("/s/Count")(b"9", metadata=(), timeout=20)
        assert (await idle.read())[:2] == b"0 "
        assert len(idle._messages) <= 2
        idle.cancel()
    call = channel.unary_stream("/s/Count")(b"30", metadata=(), timeout=20)

    numbers = [int(message.split(b" ")[0]) async for message in call]

    assert numbers == list(range(30))


async def test_a_stream_is_read_and_written_before_there_is_a_connection(
    channel: Channel,
) -> None:
    """By two tasks, as Telemetry is: neither takes the other's turn."""
    call = channel.stream_stream("/s/Talk")(metadata=(), timeout=20)
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0)
    await call.write(b"a")
    await eventually(reading.done, "its answer")

    assert await reading == b"A"
    call.cancel()


async def test_a_stream_ends_with_its_status_or_when_it_is_left(channel: Channel) -> None:
    """As gRPC's own: an error is raised to who reads, one that is left reads no more."""
    call = channel.stream_stream("/s/Talk")(metadata=())
    await call.write(b"no")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    left = channel.stream_stream("/s/Talk")(metadata=())
    reading = asyncio.ensure_future(left.read())
    await left.write(b"a")
    assert await reading == b"A"
    reading = asyncio.ensure_future(left.read())
    await asyncio.sleep(0)
    left.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reading
    with pytest.raises(asyncio.InvalidStateError):
        await left.write(b"b")
    assert caught.value.code() is grpc.StatusCode.ABORTED


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_what_speaks_no_http_2_is_not_the_group(said: bytes) -> None:
    """Another service at the address, or one that closes."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        channel = Channel(f"{host}:{port}")
        code, _ = await failure(unary(channel, "Echo"))
        await channel.close()

    assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_channel_that_is_closed_lets_its_calls_finish(
    group: Group, channel: Channel
) -> None:
    """For so long as it is told; then they are over."""
    await unary(channel, "Echo")
    call = channel.stream_stream("/s/Talk")(metadata=())
    await call.write(b"a")
    closing = asyncio.ensure_future(channel.close(20))
    assert await call.read() == b"A"
    await call.write(b"bye")
    assert await call.read() == b"BYE"
    assert await call.read() is grpc.aio.EOF
    await closing

    never = Channel(group.server.address)
    waiting = asyncio.ensure_future(unary(never, "Never"))
    await asyncio.sleep(0.05)
    await never.close(0.01)
    with pytest.raises(asyncio.CancelledError):
        await waiting
