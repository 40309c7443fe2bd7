"""Each bound of a port, met by a client that speaks HTTP/2 frame by frame and breaks it."""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import replace

import grpc
import grpc.aio
import ngh2
import pytest

from dledger.door.bounds import Bounds
from dledger.door.server import DoorServer
from tests.door.ports import Door, door
from tests.door.raw import (
    CONTINUATION,
    DATA,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Goaway,
    RawClient,
    frame,
    prefixed,
    raw_client,
)
from tests.waiting import eventually

CALM = ngh2.ErrorCode.ENHANCE_YOUR_CALM
QUICK = Bounds(tick_s=0.02)
SMALL_WINDOWS = replace(QUICK, streams=8, stream_window_bytes=16 << 10)


async def serves(port: Door) -> bool:
    """Whether a sound client is served, on a connection of its own."""
    async with raw_client(port.port) as client:
        await client.hello()
        stream = client.request("/t/Echo")
        client.h2.send_data(stream, prefixed(2) + b"hi", end_stream=True)
        await client.flush()
        return await client.status(stream) == (0, b"")


ENDS = 0x1
"""The flag END_STREAM."""


async def call(client: RawClient, path: str, body: bytes, *, end: bool = True) -> int:
    """Begin a call with these bytes of its body."""
    stream = client.request(path)
    client.h2.send_data(stream, body, end_stream=end)
    await client.flush()
    return stream


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: door\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        bytes(range(256)) * 40,
        PREFACE + b"\xff" * 400,
        PREFACE + frame(SETTINGS, 0) + frame(DATA, 7, b"nobody's"),
        PREFACE + frame(SETTINGS, 0) + frame(HEADERS, 1, b"\xff" * 50, flags=4),
        PREFACE + frame(SETTINGS, 0) + frame(PING, 0, b"short"),
        PREFACE + frame(SETTINGS, 0) + struct.pack(">I", 1 << 20)[1:] + b"\0\0\0\0\0\1",
    ],
    ids=["http1", "tls", "bytes", "no-settings", "no-stream", "hpack", "ping-size", "frame-size"],
)
async def test_garbage_ends_its_own_connection_only(garbage: bytes) -> None:
    """And at once; another connection does not notice."""
    async with door() as port, raw_client(port.port) as other, raw_client(port.port) as client:
        await other.hello()
        await client.raw(garbage)
        goaway = await client.goaway()
        stream = await call(other, "/t/Echo", prefixed(0))

        assert goaway is None or goaway.code != 0
        assert await other.status(stream) == (0, b"")


@pytest.mark.parametrize("begin", [b"", PREFACE[:10], PREFACE, PREFACE + frame(SETTINGS, 0)])
async def test_a_connection_that_does_not_begin_is_dropped(begin: bytes) -> None:
    """Without preface, without SETTINGS, or without acknowledging ours."""
    async with door(replace(QUICK, handshake_s=0.5)) as port, raw_client(port.port) as client:
        await client.raw(begin)
        client.flush = _say_nothing
        await client.goaway()
        await port.unused()

        assert await serves(port)


async def _say_nothing() -> None:
    """Stand in for what would acknowledge."""


async def test_headers_beyond_what_was_announced_are_refused() -> None:
    """In bytes and in fields, with both numbers; the connection goes on."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        large = client.request("/t/Echo", (b"x-large", b"v" * (17 << 10)))
        many = client.request("/t/Echo", *((b"x-%d" % n, b"") for n in range(150)))
        client.h2.send_data(large, prefixed(0), end_stream=True)
        client.h2.send_data(many, prefixed(0), end_stream=True)
        await client.flush()

        assert (await client.status(large))[0] == 8
        assert b"limits are 128 and 16384" in (await client.status(many))[1]
        assert port.seen.headers == []
        assert await client.status(await call(client, "/t/Echo", prefixed(0))) == (0, b"")


async def test_huge_headers_end_the_connection() -> None:
    """More than twice the limit is not even taken in."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        client.request("/t/Echo", (b"x-large", b"v" * (40 << 10)))
        await client.flush()
        goaway = await client.goaway()

        assert goaway is not None
        assert goaway.code == CALM
        assert await serves(port)


async def test_headers_in_endless_pieces_end_the_connection() -> None:
    """CVE-2024-27316: CONTINUATION frames that never end a header block."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        await client.raw(frame(HEADERS, 1) + frame(CONTINUATION, 1) * 100)
        goaway = await client.goaway()

        assert goaway is None or goaway.code == CALM
        assert await serves(port)


async def test_frames_that_say_nothing_end_the_connection() -> None:
    """Empty DATA frames cost their client nothing, and no window holds them."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream = await call(client, "/t/Deaf", b"", end=False)
        await client.raw(frame(DATA, stream) * 30_000)
        goaway = await client.goaway()

        assert goaway is None or goaway.code == CALM
        assert await serves(port)


async def test_a_message_is_refused_by_its_declared_size() -> None:
    """Before any of it is kept: the client has sent five bytes, and declared 4 GiB."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream = await call(client, "/t/Small", prefixed((1 << 32) - 1), end=False)
        status, message = await client.status(stream)
        reset = await client.event(ngh2.StreamReset, stream)

        assert status == 8
        assert message == b"the request has 4294967295 bytes; the limit of this method is 1024"
        assert isinstance(reset, ngh2.StreamReset)
        assert reset.error_code == 0  # the answer is good, only the rest of the request is unwanted
        assert port.server.held_bytes == 0


@pytest.mark.parametrize(("flag", "status"), [(1, 12), (2, 13), (255, 13)])
async def test_a_message_with_a_flag_is_refused_by_name(flag: int, status: int) -> None:
    """1 is compression, which is named with what is supported; others are nothing."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream = await call(client, "/t/Echo", prefixed(3, flag) + b"abc")

        assert (await client.status(stream))[0] == status
        answer = await client.event(ngh2.ResponseReceived, stream)
        assert isinstance(answer, ngh2.ResponseReceived)
        assert ((b"grpc-accept-encoding", b"identity") in answer.headers) == (flag == 1)


async def test_what_is_not_grpc_gets_an_http_status() -> None:
    """A browser, or a proxy's probe, reads that."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream = client.request("/t/Echo", kind=b"application/json")
        client.h2.send_data(stream, b"{}", end_stream=True)
        get = client.h2.send_request(
            (
                (b":method", b"GET"),
                (b":scheme", b"http"),
                (b":authority", b"door"),
                (b":path", b"/"),
            ),
            end_stream=True,
        )
        await client.flush()
        found = [
            dict((await client.event(ngh2.ResponseReceived, each)).headers)[b":status"]
            for each in (stream, get)
        ]

    assert found == [b"415", b"405"]


@pytest.mark.parametrize("value", [b"", b"5", b"123456789S", b"-1S", b"1 S", b"1s"])
async def test_a_malformed_timeout_is_refused(value: bytes) -> None:
    """It is at most eight digits and a unit."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream = client.request("/t/Echo", (b"grpc-timeout", value))
        client.h2.send_data(stream, prefixed(0), end_stream=True)
        await client.flush()

        assert (await client.status(stream))[0] == 13


@pytest.mark.parametrize("value", [b"99999999H", b"99999999n", b"1S"])
async def test_a_timeout_of_any_length_is_taken(value: bytes) -> None:
    """Up to eleven thousand years."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream = client.request("/t/Echo", (b"grpc-timeout", value))
        client.h2.send_data(stream, prefixed(0), end_stream=True)
        await client.flush()

        assert await client.status(stream) == (0, b"")


async def test_a_deadline_of_nothing_has_passed() -> None:
    """The handler is not waited for."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream = client.request("/t/Hold", (b"grpc-timeout", b"0n"))
        client.h2.send_data(stream, prefixed(0), end_stream=True)
        await client.flush()

        assert (await client.status(stream))[0] == 4


@pytest.mark.parametrize("body", [prefixed(10) + b"half", prefixed(10)[:3]])
async def test_a_torn_message_is_refused(body: bytes) -> None:
    """In the middle of it, and of its prefix."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()

        assert await client.status(await call(client, "/t/Echo", body)) == (
            13,
            b"the request ends inside a message",
        )


async def test_calls_beyond_the_announced_number_are_refused() -> None:
    """As HTTP/2 has it: REFUSED_STREAM, so a client may send them again."""
    async with door(replace(QUICK, streams=4)) as port, raw_client(port.port) as client:
        client.h2.initiate_connection()
        streams = [client.request("/t/Hold") for _ in range(6)]
        for stream in streams:
            client.h2.send_data(stream, prefixed(0), end_stream=True)
        await client.flush()
        reset = [await client.event(ngh2.StreamReset, each) for each in streams[4:]]

        assert {each.error_code for each in reset} == {ngh2.ErrorCode.REFUSED_STREAM}
        assert len(port.seen.held) == 4


async def test_calls_beyond_what_a_port_may_have_are_refused() -> None:
    """Of all connections; with a code that tells clients to back off."""
    async with door(replace(QUICK, calls=1)) as port, raw_client(port.port) as client:
        await client.hello()
        first = await call(client, "/t/Hold", prefixed(0))
        await eventually(lambda: port.seen.held)
        async with raw_client(port.port) as other:
            await other.hello()
            assert (await other.status(await call(other, "/t/Echo", prefixed(0))))[0] == 8
        port.seen.held[0][0](b"")

        assert await client.status(first) == (0, b"")
        assert await serves(port)


async def test_rapid_resets_end_the_connection() -> None:
    """CVE-2023-44487: each call is dropped before it is answered, so no stream limit is met."""
    async with door(replace(QUICK, resets=(50, 1))) as port, raw_client(port.port) as client:
        await client.hello()
        for _ in range(200):
            stream = client.request("/t/Hold")
            client.h2.send_data(stream, prefixed(0), end_stream=True)
            out = client.h2.data_to_send()
            await client.raw(out + frame(RST_STREAM, stream, struct.pack(">I", 8)))

        assert await client.goaway() == Goaway(CALM, b"it resets too many calls")
        assert len(port.seen.cancelled) <= 51
        assert await serves(port)


async def test_resets_that_a_client_provokes_count_as_well() -> None:
    """CVE-2025-8671: it has the server reset its calls, by frames that are wrong on them."""
    async with door(replace(QUICK, resets=(50, 1))) as port, raw_client(port.port) as client:
        await client.hello()
        for _ in range(200):
            stream = client.request("/t/Hold", (b"content-length", b"1"))
            await client.raw(client.h2.data_to_send() + frame(DATA, stream, prefixed(0)))

        assert await client.goaway() == Goaway(CALM, b"it resets too many calls")
        assert await serves(port)


@pytest.mark.parametrize("kind", [PING, SETTINGS])
async def test_a_flood_of_pings_ends_the_connection(kind: int) -> None:
    """Each asks for an acknowledgement, and there is nothing else in between."""
    async with door(replace(QUICK, pings=(20, 1))) as port, raw_client(port.port) as client:
        await client.hello()
        one = frame(kind, 0, b"8 bytes." if kind == PING else b"")
        for _ in range(100):
            await client.raw(one)
        goaway = await client.goaway()

        assert goaway is None or goaway.code == CALM
        await port.unused()
        assert await serves(port)


async def test_a_few_pings_too_many_are_answered_by_name() -> None:
    """The words are those that gRPC's clients know, and slow down by (proposal A8)."""
    async with door(replace(QUICK, pings=(20, 1))) as port, raw_client(port.port) as client:
        await client.hello()
        await client.raw(frame(PING, 0, b"8 bytes.") * 25)

        assert await client.goaway() == Goaway(CALM, b"too_many_pings")


async def test_pings_between_answers_are_no_flood() -> None:
    """Clients of gRPC measure a connection by a PING for each piece that they read."""
    async with door(replace(QUICK, pings=(3, 1))) as port, raw_client(port.port) as client:
        await client.hello()
        for _ in range(20):
            client.h2.ping(b"8 bytes.")
            assert await client.status(await call(client, "/t/Echo", prefixed(0))) == (0, b"")


async def test_a_silent_client_is_asked_and_stays_if_it_answers() -> None:
    """As long as it does."""
    bounds = replace(QUICK, ping_after_s=0.03, ping_s=10)
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello()
        for _ in range(4):
            client.events.clear()
            await client.event(ngh2.PingReceived)

        assert port.server.connections == 1


async def test_a_client_that_is_gone_is_cut() -> None:
    """Its machine lost power: there is no answer, and no end."""
    bounds = replace(QUICK, ping_after_s=0.03, ping_s=0.05)
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello()
        client.flush = _say_nothing
        await port.unused()


async def test_a_reader_that_takes_nothing_holds_a_stream_back() -> None:
    """Its handler waits; the node keeps little more than the bound of one stream."""
    async with door(QUICK) as port, raw_client(port.port) as client:
        await client.hello({ngh2.Setting.INITIAL_WINDOW_SIZE: 0})
        stream = await call(client, "/t/Count", prefixed(11) + b"100000 1000")
        await eventually(lambda: port.seen.sent)
        assert await serves(port)
        kept = port.seen.sent[-1] * 1000

        assert kept <= 2 * QUICK.unsent_stream_bytes
        client.h2.reset_stream(stream)
        await client.flush()
        await eventually(lambda: port.seen.cancelled == ["stream"])


@pytest.mark.found
async def test_a_large_answer_is_being_sent_until_it_is_taken() -> None:
    """found: a13r. Else who counts what is being sent counts nothing: 200 MiB of 200 streams."""
    async with door(QUICK) as port, raw_client(port.port) as client:
        await client.hello({ngh2.Setting.INITIAL_WINDOW_SIZE: 0})
        size = 2 * QUICK.unsent_stream_bytes
        stream = await call(client, "/t/Count", prefixed(8) + b"2 %d" % size)
        assert await serves(port)
        assert port.seen.sent == []

        client.h2.update_settings({ngh2.Setting.INITIAL_WINDOW_SIZE: 2 * size})
        await client.flush()
        assert (await client.status(stream))[0] == 0
        assert port.seen.sent == [0, 1]


async def test_a_stream_whose_reader_is_too_far_behind_is_reset() -> None:
    """If its handler does not wait: gRPC's name for that is RESOURCE_EXHAUSTED."""
    bounds = replace(QUICK, unsent_bytes=1 << 20)
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello({ngh2.Setting.INITIAL_WINDOW_SIZE: 0})
        stream = await call(client, "/t/Push", prefixed(9) + b"1000 9999")
        reset = await client.event(ngh2.StreamReset, stream)

        assert isinstance(reset, ngh2.StreamReset)
        assert reset.error_code == CALM
        assert len(port.seen.sent) <= (1 << 20) // 9999
        assert (await client.status(await call(client, "/t/Nothing", b"")))[0] == 12


async def test_answers_beyond_what_a_connection_may_have_unsent_are_reset() -> None:
    """Each call alone is small, and none of them can wait."""
    bounds = replace(QUICK, unsent_connection_bytes=100_000)
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello({ngh2.Setting.INITIAL_WINDOW_SIZE: 0})
        streams = [await call(client, "/t/Echo", prefixed(9000) + bytes(9000)) for _ in range(20)]
        reset = await client.event(ngh2.StreamReset, streams[-1])

        assert isinstance(reset, ngh2.StreamReset)
        assert reset.error_code == CALM
        resets = {each.stream_id for each in client.events if isinstance(each, ngh2.StreamReset)}
        assert not resets & {*streams[:9]}


async def test_a_request_may_end_with_trailers() -> None:
    """HTTP/2 has them, though gRPC's clients send none."""
    async with door(QUICK) as port, raw_client(port.port) as client:
        await client.hello()
        stream = client.request("/t/Echo")
        client.h2.send_data(stream, prefixed(0))
        client.h2.send_trailers(stream, ((b"x-late", b"1"),))
        await client.flush()

        assert await client.status(stream) == (0, b"")


async def test_an_answer_that_nobody_takes_is_dropped() -> None:
    """Window starvation: the call is answered, and its bytes would stay for ever."""
    bounds = replace(QUICK, stall_s=0.05)
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello({ngh2.Setting.INITIAL_WINDOW_SIZE: 0})
        stream = await call(client, "/t/Echo", prefixed(1000) + bytes(1000))
        reset = await client.event(ngh2.StreamReset, stream)

        assert isinstance(reset, ngh2.StreamReset)
        assert reset.error_code == CALM
        assert await serves(port)


async def test_a_client_whose_socket_takes_nothing_is_cut() -> None:
    """It opens all windows, asks for much, and never reads."""
    bounds = replace(QUICK, stall_s=0.1)
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello({ngh2.Setting.INITIAL_WINDOW_SIZE: (1 << 31) - 1})
        client.h2.set_local_window_size((1 << 31) - 1)
        await call(client, "/t/Count", prefixed(14) + b"100000 1000000"[:14])
        await port.unused()
        await eventually(lambda: port.seen.cancelled == ["stream"])


async def test_unread_messages_are_held_by_the_window() -> None:
    """A client that sends to a handler that does not read can fill its stream, and no more."""
    async with door(SMALL_WINDOWS) as port, raw_client(port.port) as client:
        await client.hello()
        stream = await call(client, "/t/Deaf", (prefixed(100) + bytes(100)) * 10_000, end=False)
        await eventually(lambda: client.h2.stream_remote_window_size(stream) == 0)
        await eventually(lambda: port.server.held_bytes == SMALL_WINDOWS.stream_window_bytes)

        assert await client.status(await call(client, "/t/Echo", prefixed(0))) == (0, b"")
        assert port.server.held_bytes == SMALL_WINDOWS.stream_window_bytes


async def test_a_stream_of_large_messages_may_send_ahead() -> None:
    """As many of a connection as its wide windows have room for; others as before."""
    wide = 64 << 10
    bounds = replace(
        SMALL_WINDOWS, wide_window_bytes=wide, wide_bytes=wide - SMALL_WINDOWS.stream_window_bytes
    )
    message = prefixed(30_000) + bytes(30_000)
    async with door(bounds, largest=50_000) as port, raw_client(port.port) as client:
        await client.hello()
        await call(client, "/t/Deaf", message * 10, end=False)
        held = await _settled(port, client)
        await call(client, "/t/Deaf", message * 10, end=False)
        more = await _settled(port, client) - held

        assert len(message) + wide // 2 < held <= len(message) + wide
        assert len(message) <= more <= len(message) + SMALL_WINDOWS.stream_window_bytes


async def _settled(port: Door, client: RawClient) -> int:
    """Return what is held once the client has sent all that it may."""
    while True:
        held = port.server.held_bytes
        for _ in range(3):
            assert await client.status(await call(client, "/t/Echo", prefixed(0))) == (0, b"")
        if port.server.held_bytes == held:
            return held


async def test_a_large_request_is_told_all_its_room_at_once() -> None:
    """It would wait for a turn of the event loop each half window otherwise."""
    async with door(SMALL_WINDOWS, largest=200_000) as port, raw_client(port.port) as client:
        await client.hello()
        stream = await call(client, "/t/Echo", prefixed(200_000) + bytes(10), end=False)
        client.h2.send_data(stream, bytes(16 << 10), end_stream=False)
        await client.flush()
        await client.event(ngh2.WindowUpdated, stream)

        assert client.h2.stream_remote_window_size(stream) > 180_000


async def test_a_frame_may_be_larger_than_http_2_has_it_unasked() -> None:
    """It is announced."""
    async with door(QUICK) as port, raw_client(port.port) as client:
        await client.hello()
        stream = client.request("/t/Echo")
        await client.flush()
        await client.raw(frame(DATA, stream, prefixed(60_000) + bytes(60_000), ENDS))

        assert await client.status(stream) == (0, b"")


@pytest.mark.parametrize("kind", [DATA, HEADERS])
async def test_a_frame_larger_than_was_announced_ends_the_connection(kind: int) -> None:
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream = await call(client, "/t/Echo", b"", end=False)
        await client.raw(frame(kind, stream + 2 * (kind == HEADERS), bytes((256 << 10) + 1)))

        gone = await client.goaway()

        assert gone is not None
        assert gone.code == ngh2.ErrorCode.FRAME_SIZE_ERROR
        assert await serves(port)


@pytest.mark.parametrize("seed", range(6))
async def test_large_messages_never_wait_for_each_other_half_way(seed: int) -> None:
    """Whatever their sizes and forms are: some calls' messages together are beyond all windows.

    And some alone are beyond what is promised at once.
    """
    rng, largest = random.Random(seed), 400_000
    bounds = replace(SMALL_WINDOWS, promised_bytes=rng.choice((100_000, largest)))
    async with (
        door(bounds, largest=largest) as port,
        grpc.aio.insecure_channel(port.address) as channel,
    ):

        async def unary() -> None:
            size = rng.randrange(largest)
            assert len(await channel.unary_unary("/t/Echo")(bytes(size))) == size

        async def talk() -> None:
            sizes = [rng.choice((rng.randrange(100), rng.randrange(largest))) for _ in range(4)]
            stream = channel.stream_stream("/t/Talk")(bytes(size) for size in sizes)
            assert len([answer async for answer in stream]) == len(sizes)

        await asyncio.gather(*(rng.choice((unary, talk))() for _ in range(24)))


async def test_a_client_that_ignores_the_window_is_dropped() -> None:
    """What it sends beyond is not kept."""
    async with door(SMALL_WINDOWS) as port, raw_client(port.port) as client:
        await client.hello()
        stream = await call(client, "/t/Deaf", prefixed(1000), end=False)
        await client.raw(frame(DATA, stream, bytes(16 << 10)) * 80)
        goaway = await client.goaway()

        assert goaway is None or goaway.code == ngh2.ErrorCode.FLOW_CONTROL_ERROR
        assert await serves(port)


async def test_requests_beyond_what_a_port_may_hold_are_refused() -> None:
    """All connections together; what is refused is not kept, what is held goes on."""
    bounds = replace(QUICK, held_bytes=40_000)
    async with door(bounds) as port, raw_client(port.port) as one, raw_client(port.port) as two:
        await one.hello()
        await two.hello()
        first = await call(one, "/t/Hold", prefixed(30_000) + bytes(30_000))
        await eventually(lambda: port.seen.held)
        second = await call(two, "/t/Echo", prefixed(30_000) + bytes(30_000))

        assert (await two.status(second))[0] == 8
        port.seen.held[0][0](b"")
        assert await one.status(first) == (0, b"")
        assert port.server.held_bytes == 0


async def test_a_request_that_trickles_in_is_given_up() -> None:
    """The rest of a message, or the end of a request, does not come."""
    async with door(replace(QUICK, request_s=0.05)) as port, raw_client(port.port) as client:
        await client.hello()
        half = await call(client, "/t/Echo", prefixed(100) + b"half", end=False)
        silent = await call(client, "/t/Talk", b"", end=False)
        talk = await call(client, "/t/Talk", prefixed(100) + b"half", end=False)

        assert (await client.status(half))[0] == 4
        assert (await client.status(talk))[0] == 4
        client.h2.send_data(silent, prefixed(2) + b"hi", end_stream=True)
        await client.flush()
        assert await client.status(silent) == (0, b"")


async def test_a_request_that_waits_for_room_is_not_late() -> None:
    """The one that holds the room is; then the other has its whole time."""
    bounds = replace(SMALL_WINDOWS, promised_bytes=300_000, request_s=0.5)
    async with door(bounds, largest=200_000) as port, raw_client(port.port) as client:
        await client.hello()
        stuck = await call(client, "/t/Echo", prefixed(200_000) + bytes(20_000), end=False)
        await client.event(ngh2.WindowUpdated, stuck)
        second = await call(client, "/t/Echo", prefixed(200_000) + bytes(200_000))

        assert (await client.status(stuck))[0] == 4
        assert await client.status(second) == (0, b"")


async def test_connections_beyond_the_number_are_closed_at_once() -> None:
    """Of the address that has most, if all of them have calls; one that ends makes room."""
    async with door(replace(QUICK, connections=2)) as port:
        async with raw_client(port.port) as one, raw_client(port.port) as two:
            for client in (one, two):
                await client.hello()
                await call(client, "/t/Hold", prefixed(0))
            await eventually(lambda: len(port.seen.held) == 2)
            async with raw_client(port.port) as three:
                assert await three.goaway() is None
            assert port.server.connections == 2
        await port.unused()
        assert await serves(port)


async def test_a_port_that_stops_says_so_twice() -> None:
    """First that calls should go elsewhere, then, a round trip later, that it takes none."""
    async with door(QUICK) as port, raw_client(port.port) as client:
        await client.hello()
        stream = await call(client, "/t/Hold", prefixed(0))
        await eventually(lambda: port.seen.held)
        stopping = asyncio.create_task(port.server.stop(20))
        while len(_goaways(client)) < 2:
            assert await client.more()
        port.seen.held[0][0](b"")

        assert await client.status(stream) == (0, b"")
        assert _goaways(client) == [(1 << 31) - 1, stream]
        await client.goaway()
        await stopping


async def test_a_port_that_is_taken_is_named() -> None:
    """As is one that is not this machine's."""
    async with door() as port:
        with pytest.raises(OSError, match=f"cannot listen on {port.address}"):
            DoorServer(port.address, {})
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:0"):
        DoorServer("192.0.2.1:0", {})


def _goaways(client: RawClient) -> list[int]:
    events = (each for each in client.events if isinstance(each, ngh2.GoAwayReceived))
    return list(dict.fromkeys(each.last_stream_id for each in events))
