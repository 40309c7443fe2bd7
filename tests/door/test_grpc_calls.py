"""What grpcio's own client sees of the door: each form of a call, and each way that one ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.door.bounds import Bounds
from dledger.door.contract import Code
from tests.door.ports import LARGE_BYTES, Door, door
from tests.waiting import eventually

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)


@contextlib.asynccontextmanager
async def called(
    bounds: Bounds | None = None, *options: tuple[str, int], compression: Any = None
) -> AsyncIterator[tuple[Door, grpc.aio.Channel]]:
    """A door, and a channel to it."""
    async with (
        door(bounds) as port,
        grpc.aio.insecure_channel(
            port.address, options=(*OPTIONS, *options), compression=compression
        ) as channel,
    ):
        yield port, channel


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """Return how a call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 70_000, LARGE_BYTES])
async def test_a_body_of_any_size_comes_back(size: int) -> None:
    """In one frame, at a frame's edge, past a stream's window, and at the method's limit."""
    body = b"x" * size
    async with called() as (_, channel):
        answer = await channel.unary_unary("/t/Echo")(body)

    assert len(answer) == size


async def test_many_large_bodies_at_once_all_arrive() -> None:
    """More than a connection's window: they become complete in turn, none waits for ever."""
    async with called() as (port, channel):
        echo = channel.unary_unary("/t/Echo")
        answers = await asyncio.gather(*(echo(bytes(6 << 20)) for _ in range(14)))

        assert {len(answer) for answer in answers} == {6 << 20}
        await eventually(lambda: port.server.held_bytes == 0)


async def test_a_thousand_calls_at_once_are_all_answered() -> None:
    """The client keeps those beyond the announced 256."""
    async with called() as (_, channel):
        echo = channel.unary_unary("/t/Echo")
        answers = await asyncio.gather(*(echo(b"%d" % n) for n in range(1000)))

    assert answers == [b"%d" % n for n in range(1000)]


async def test_a_handler_sees_metadata_and_who_calls() -> None:
    """Text, bytes, the client's address, and the time that is left."""
    async with called() as (port, channel):
        echo = channel.unary_unary("/t/Echo")
        metadata = (("x-mq-client-id", "c1"), ("x-mq-raw-bin", b"\x00\xff\x10"))
        await echo(b"", metadata=metadata, timeout=30)
        await echo(b"")
    first, second = port.seen.headers

    assert first.get(b"x-mq-client-id") == "c1"
    assert first.binary(b"x-mq-raw-bin") == b"\x00\xff\x10"
    assert first.peer.startswith("ipv4:127.0.0.1:")
    assert first.connection == second.connection
    assert first.deadline_s is not None
    assert second.deadline_s is None


async def test_details_and_trailing_metadata_arrive_whatever_is_in_them() -> None:
    """The message is percent-encoded on the wire, and decoded by the client."""
    message = "100 % gone:\n\ttopic „Bestellungen” → \x00 é"
    async with called() as (_, channel):
        refuse = channel.unary_unary("/t/Refuse")
        error = await failure(refuse(message.encode(), metadata=(("x-mq-code", "5"),)))

    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert error.details() == message
    assert dict(error.trailing_metadata()) == {"x-why": "asked", "x-raw-bin": b"\x00\xff"}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/t/Nothing", grpc.StatusCode.UNIMPLEMENTED),
        ("/t/Bug", grpc.StatusCode.UNKNOWN),
        ("/t/Raises", grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_a_call_fails_alone(path: str, code: grpc.StatusCode) -> None:
    """With its code; the next one on the same connection is served."""
    async with called() as (_, channel):
        error = await failure(channel.unary_unary(path)(b"why"))
        answer = await channel.unary_unary("/t/Echo")(b"next")

    assert error.code() == code
    assert answer == b"next"


async def test_a_message_above_its_methods_limit_is_refused_by_name() -> None:
    """By its declared size; the client learns both numbers, and goes on."""
    async with called() as (_, channel):
        error = await failure(channel.unary_unary("/t/Small")(bytes(3 << 20)))
        answer = await channel.unary_unary("/t/Small")(bytes(1024))

    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "the request has 3145728 bytes; the limit of this method is 1024"
    assert len(answer) == 1024


async def test_a_protocol_may_name_the_refusal_itself() -> None:
    """RocketMQ's clients look for a code in the answer, not for gRPC's."""
    async with called() as (port, channel):
        answer = await channel.unary_unary("/t/Named")(bytes(3 << 20))
        error = await failure(channel.unary_unary("/t/Renamed")(bytes(3 << 20)))

        sentence = "the request has 3145728 bytes; the limit of this method is 1024"
        assert answer == f"TooLarge: {sentence}".encode()
        assert (error.code(), error.details()) == (grpc.StatusCode.OUT_OF_RANGE, sentence)
        assert ("renamed", "yes") in tuple(error.trailing_metadata() or ())
        assert port.seen.headers == []


async def test_a_protocol_that_cannot_name_it_fails_its_call_alone() -> None:
    """A bug of ours: the other calls of the connection go on."""
    async with called() as (_, channel):
        held = channel.unary_unary("/t/Echo")
        error = await failure(channel.unary_unary("/t/Nameless")(bytes(3 << 20)))

        assert error.code() is grpc.StatusCode.UNKNOWN
        assert await held(b"still") == b"still"


@pytest.mark.found
async def test_a_stream_that_is_refused_at_once_says_why() -> None:
    """found: a client that had not written yet was told INTERNAL, and not who leads."""
    async with called() as (_, channel):
        for _ in range(50):
            call = channel.stream_stream("/t/Closed")(iter((b"first",)))
            error = await failure(call.read())

            assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "closed")
            assert ("x-instead", "elsewhere") in tuple(error.trailing_metadata() or ())


async def test_a_stream_that_nobody_writes_to_is_refused_all_the_same() -> None:
    """Shortly after."""
    async with called() as (_, channel):
        error = await failure(channel.stream_stream("/t/Closed")().read())

        assert error.details() == "closed"


async def test_compressed_messages_are_refused_by_name() -> None:
    """20 KiB can inflate to 20 MiB; what does is not looked at."""
    async with called(compression=grpc.Compression.Gzip) as (_, channel):
        error = await failure(channel.unary_unary("/t/Echo")(b"x" * 10_000))

    assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    assert ("grpc-accept-encoding", "identity") in tuple(error.trailing_metadata() or ()) or (
        "compressed" in (error.details() or "")
    )


@pytest.mark.parametrize(("path", "how"), [("/t/Hold", "callback"), ("/t/Slowly", "coroutine")])
async def test_a_deadline_ends_the_call_on_both_sides(path: str, how: str) -> None:
    """The handler is told, in its form."""
    async with called() as (port, channel):
        await channel.unary_unary("/t/Echo")(b"")  # or the time might pass before it is connected
        error = await failure(channel.unary_unary(path)(b"", timeout=0.5))
        await eventually(lambda: port.seen.cancelled == [how])

    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(("path", "how"), [("/t/Hold", "callback"), ("/t/Slowly", "coroutine")])
async def test_a_client_that_cancels_stops_the_handler(path: str, how: str) -> None:
    """Once; what the handler answers later is dropped."""
    async with called() as (port, channel):
        call = channel.unary_unary(path)(b"")
        # The echo is behind it on the same connection, so the call has arrived.
        await channel.unary_unary("/t/Echo")(b"")
        call.cancel()
        await eventually(lambda: port.seen.cancelled == [how])
        for answer, fail in port.seen.held:
            answer(b"late")
            fail(Code.INTERNAL, "late")

        assert await channel.unary_unary("/t/Echo")(b"next") == b"next"
        assert port.seen.cancelled == [how]


async def test_an_answer_may_come_later_and_counts_once() -> None:
    """From whatever calls back in the event loop."""
    async with called() as (port, channel):
        call = channel.unary_unary("/t/Hold")(b"")
        await eventually(lambda: port.seen.held)
        answer, fail = port.seen.held[0]
        answer(b"first")
        answer(b"second")
        fail(Code.INTERNAL, "third")

        assert await call == b"first"
    assert port.seen.cancelled == []


async def test_a_stream_of_answers_arrives_whole_and_in_order() -> None:
    """And ends with OK."""
    async with called() as (_, channel):
        call = channel.unary_stream("/t/Count")(b"500 1000")
        numbers = [int(answer.rstrip(b".")) async for answer in call]

        assert await call.code() == grpc.StatusCode.OK
    assert numbers == list(range(500))


async def test_a_stream_that_the_client_leaves_is_cancelled() -> None:
    """Its handler waits for room then, since the client reads no more."""
    async with called() as (port, channel):
        call = channel.unary_stream("/t/Count")(b"1000000 1000")
        await call.read()
        call.cancel()
        await eventually(lambda: port.seen.cancelled == ["stream"])

    assert len(port.seen.sent) < 1_000_000


async def test_both_directions_of_a_stream_are_open_at_once() -> None:
    """An answer for each message, before the next is sent; the end of one ends the other."""
    async with called() as (port, channel):
        call = channel.stream_stream("/t/Talk")()
        for number in range(20):
            await call.write(b"%d" % number)
            assert await call.read() == b"got %d" % number
        await call.write(bytes(9 << 20))
        await call.read()
        await call.done_writing()

        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
    assert len(port.seen.read[-1]) == 9 << 20


async def test_large_messages_of_a_stream_follow_each_other() -> None:
    """Each larger than the window of its stream, and sent without waiting for an answer."""
    sizes = [200_000, 5 << 20, 100_000, 100_000, 7 << 20, 3]
    async with called() as (port, channel):
        call = channel.stream_stream("/t/Talk")()
        for size in sizes:
            await call.write(bytes(size))
        await call.done_writing()
        answers = [answer async for answer in call]

    assert len(answers) == len(sizes)
    assert [len(message) for message in port.seen.read] == sizes


async def test_a_stream_of_messages_is_no_unary_call() -> None:
    """More than one message, and none, are refused with the code that gRPC has for it."""
    async with called() as (_, channel):
        for messages in ([b"a", b"b"], []):
            error = await failure(channel.stream_unary("/t/Echo")(iter(messages)))

            assert error.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_stopping_lets_a_running_call_finish() -> None:
    """Within its grace; a new connection is refused meanwhile."""
    async with called() as (port, channel):
        call = channel.unary_unary("/t/Slowly")(b"kept")
        await channel.unary_unary("/t/Echo")(b"")
        stopping = asyncio.create_task(port.server.stop(20))
        await eventually(lambda: port.server.connections == 1 and not stopping.done())
        port.seen.go_on.set()

        assert await call == b"kept"
        await stopping


async def test_stopping_cancels_what_outlasts_its_grace() -> None:
    """With a code that clients retry."""
    async with called() as (port, channel):
        call = channel.unary_unary("/t/Hold")(b"")
        await eventually(lambda: port.seen.held)
        await port.server.stop(0.05)
        error = await failure(call)

    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert port.seen.cancelled == ["callback"]


async def test_an_idle_connection_is_asked_to_go_and_comes_back() -> None:
    """The client does not notice."""
    async with called(Bounds(idle_s=0.05, tick_s=0.02)) as (port, channel):
        echo = channel.unary_unary("/t/Echo")
        await echo(b"")
        await port.unused()

        assert await echo(b"again") == b"again"
