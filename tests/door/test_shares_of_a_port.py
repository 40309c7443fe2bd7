"""What a stranger cannot take, at another address or one's own: room is shared when it is full."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import ngh2
import pytest

from dledger.door import places
from dledger.door.addresses import Addresses
from dledger.door.bounds import UNFINISHED_BYTES, Bounds
from dledger.door.tls import TlsCertificate
from tests.door.ports import Door, door
from tests.door.raw import DATA, PREFACE, SETTINGS, RawClient, frame, prefixed, raw_client
from tests.door.test_bounds_of_a_port import call
from tests.door.test_tls_port import echoes, pairs
from tests.waiting import eventually

QUICK = Bounds(tick_s=0.02)
CALM = ngh2.ErrorCode.ENHANCE_YOUR_CALM
STRANGER = "127.0.0.2"
UNKNOWN = 0x55
WINDOW_UPDATE = 8
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


async def serves(port: Door, source: str = "127.0.0.1") -> bool:
    """Whether somebody who comes now is served."""
    async with raw_client(port.port, source) as client:
        await client.hello()
        return await client.status(await call(client, "/t/Echo", prefixed(2) + b"hi")) == (0, b"")


async def opened(client: RawClient, path: str, bodies: Sequence[bytes]) -> list[int]:
    """Begin calls that do not end, one after the other; return them when the port has them."""
    await client.hello()
    streams = [await call(client, path, body, end=False) for body in bodies]
    done = await call(client, "/t/Echo", prefixed(0))
    assert await client.status(done) == (0, b"")
    return streams


@pytest.mark.found
@pytest.mark.parametrize("source", ["127.0.0.1", STRANGER])
async def test_who_holds_all_calls_of_a_port_loses_his_oldest_to_a_newcomer(source: str) -> None:
    """They cost him 15 bytes each, and everybody was refused; at his own address as at others."""
    async with door(replace(QUICK, calls=9)) as port, raw_client(port.port, source) as stranger:
        streams = await opened(stranger, "/t/Echo", [b""] * 8)
        more = [await call(stranger, "/t/Echo", b"", end=False) for _ in range(4)]
        await stranger.event(ngh2.ResponseReceived, streams[2])  # so the port has them all

        assert await serves(port)
        ended = [await stranger.status(each) for each in streams[:3]]
        assert {code for code, _ in ended} == {EXHAUSTED}
        assert b"others need the room" in ended[0][1]
        stranger.h2.send_data(more[-1], prefixed(2) + b"ok", end_stream=True)
        await stranger.flush()
        assert await stranger.status(more[-1]) == (0, b"")


@pytest.mark.found
async def test_streams_that_wait_go_after_what_has_not_arrived() -> None:
    """Of the address with most of them, and the oldest; who has one keeps it."""
    async with (
        door(replace(QUICK, calls=8)) as port,
        raw_client(port.port) as honest,
        raw_client(port.port, STRANGER) as stranger,
    ):
        (mine,) = await opened(honest, "/t/Talk", [prefixed(0)])
        streams = await opened(stranger, "/t/Deaf", [prefixed(0)] * 6)
        unfinished = await call(stranger, "/t/Echo", b"", end=False)
        assert await serves(port)
        assert (await stranger.status(unfinished))[0] == EXHAUSTED
        await call(stranger, "/t/Deaf", prefixed(0), end=False)
        assert await serves(port)
        assert (await stranger.status(streams[0]))[0] == EXHAUSTED

        honest.h2.send_data(mine, prefixed(2) + b"on", end_stream=True)
        await honest.flush()
        assert await honest.status(mine) == (0, b"")


@pytest.mark.found
async def test_requests_that_never_become_whole_are_bounded_by_themselves() -> None:
    """However many: what has stood still longest goes, and what fits beside it is served."""
    bounds = replace(QUICK, unfinished_bytes=10 * (UNFINISHED_BYTES + 2_000))
    half = prefixed(4_000) + bytes(1_000)
    async with door(bounds) as port, raw_client(port.port) as client:
        streams = await opened(client, "/t/Echo", [half] * 4)
        client.h2.send_data(streams[0], bytes(2_900), end_stream=False)  # it moves
        await client.flush()
        late = [await call(client, "/t/Echo", half, end=False) for _ in range(8)]
        assert (await client.status(streams[1]))[0] == EXHAUSTED
        client.h2.send_data(streams[0], bytes(100), end_stream=True)
        client.h2.send_data(late[-1], bytes(3_000), end_stream=True)
        await client.flush()

        assert await client.status(streams[0]) == (0, b"")
        assert await client.status(late[-1]) == (0, b"")
        assert await serves(port)


@pytest.mark.found
async def test_a_part_of_a_frame_counts_as_a_request_that_is_not_whole() -> None:
    """The library keeps it; 4,000 connections with 64 KiB each were counted nowhere."""
    bounds = replace(QUICK, unfinished_bytes=100_000)
    async with door(bounds) as port, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(port.port)) for _ in range(3)]
        for client in clients:
            await client.hello()
            stream = await call(client, "/t/Echo", b"", end=False)
            await client.raw(frame(DATA, stream, bytes(60_000))[:50_000])
        gone = await clients[0].goaway()

        assert gone is not None
        assert gone.code == CALM
        assert await serves(port)


@pytest.mark.found
async def test_a_call_keeps_only_headers_that_somebody_reads() -> None:
    """A name of four fields takes four bytes on the wire, and 16 KiB here for 30 s."""
    kept = ((b"x-mq-client-id", b"c"), (b"x-mq-anything", b"1"), (b"authorization", b"t"))
    async with door(QUICK) as port, raw_client(port.port) as client:
        await client.hello()
        more = ((b"x-large", b"v" * 12_000), (b"x-dledger-host", b"ipv4:10.0.0.1"))
        stream = client.request("/t/Echo", *more, *kept)
        client.h2.send_data(stream, prefixed(0), end_stream=True)
        await client.flush()

        assert await client.status(stream) == (0, b"")
        assert port.seen.headers[0].fields == {b":path": b"/t/Echo", **dict(kept)}


@pytest.mark.parametrize("path", ["/t/Echo", "/t/Talk"])
async def test_a_call_that_waits_keeps_no_usual_header_either(path: str) -> None:
    """One that has come whole has them while it is served, and nobody is told of them."""
    async with door(QUICK) as port, raw_client(port.port) as client:
        (waits,) = await opened(client, path, [b""])
        client.h2.send_data(waits, prefixed(0), end_stream=True)
        await client.flush()

        assert await client.status(waits) == (0, b"")
        seen = port.seen.headers
        assert [b"te" in each.fields for each in seen] == [True, False]
        assert all({name for name, _ in each.pairs} == {b":path"} for each in seen)


@pytest.mark.found
async def test_headers_that_are_kept_are_bounded_and_count() -> None:
    """4 KiB of a call, refused by name; of streams, which may wait for long, all together."""
    bounds = replace(QUICK, stream_header_bytes=20_000)
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello()
        large = client.request("/t/Echo", (b"x-mq-name", b"v" * 4_100))
        client.h2.send_data(large, prefixed(0), end_stream=True)
        streams = [client.request("/t/Deaf", (b"x-mq-name", b"v" * 3_500)) for _ in range(7)]
        for each in streams:
            client.h2.send_data(each, prefixed(0), end_stream=False)
        await client.flush()

        status, why = await client.status(large)
        assert status == EXHAUSTED
        assert why.endswith(b"together; the limit is 4096")
        assert (await client.status(streams[0]))[0] == EXHAUSTED
        assert await serves(port)


@pytest.mark.found
async def test_an_idle_connection_of_who_has_most_goes_for_a_newcomer() -> None:
    """With few files one address had all connections of a port, and nobody else got in."""
    async with door(replace(QUICK, connections=4)) as port, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(port.port, STRANGER)) for _ in "123"]
        honest = await stack.enter_async_context(raw_client(port.port))
        for client in (honest, *clients):
            await client.hello()
        await call(clients[0], "/t/Hold", prefixed(0))
        await eventually(lambda: port.seen.held)
        assert await serves(port)
        gone = await clients[1].goaway()

        assert gone is not None
        assert gone.code == 0  # its client may come again
        assert await honest.status(await call(honest, "/t/Echo", prefixed(0))) == (0, b"")
        port.seen.held[0][0](b"")


@pytest.mark.found
async def test_a_busy_connection_goes_if_its_address_has_most_and_another_comes() -> None:
    """It has no idle one; of its own address nobody comes then."""
    async with door(replace(QUICK, connections=3)) as port, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(port.port, STRANGER)) for _ in "123"]
        for client in clients:
            await client.hello()
            await call(client, "/t/Hold", prefixed(0))
        await eventually(lambda: len(port.seen.held) == 3)
        async with raw_client(port.port, STRANGER) as own:
            assert await own.goaway() is None

        assert await serves(port)
        assert await clients[0].goaway() is not None


@pytest.mark.found
async def test_new_connections_have_a_rate_by_address() -> None:
    """A handshake that is recorded once costs its sender nothing."""
    async with door(replace(QUICK, arrivals=(3, 1))) as port:
        got = []
        for _ in range(4):
            async with raw_client(port.port, STRANGER) as client:
                await client.raw(PREFACE + frame(SETTINGS, 0))
                got.append(await client.more())

        assert got == [True, True, True, False]
        assert await serves(port)


@pytest.mark.found
async def test_refused_calls_have_a_rate_by_address() -> None:
    """The address counts, whatever the connection; who is served elsewhere does not notice."""
    async with door(replace(QUICK, refusals=(3, 1))) as port:
        for calls in (3, 1):
            async with raw_client(port.port, STRANGER) as client:
                await client.hello()
                for _ in range(calls + 1):
                    await call(client, "/t/Nothing", prefixed(0))
                gone = await client.goaway()

                assert gone is not None
                assert gone.why == b"too many calls of its address were refused"
        assert await serves(port)


@pytest.mark.found
@pytest.mark.parametrize("kind", [UNKNOWN, WINDOW_UPDATE])
async def test_frames_without_effect_have_a_rate_by_address(kind: int) -> None:
    """Of no known kind, which the library does not tell, and windows, which it does."""
    bounds = replace(QUICK, idle_bytes=(20_000, 1), frame_bytes=16 << 10)
    payload = (1).to_bytes(4, "big") if kind == WINDOW_UPDATE else b""
    async with door(bounds) as port:
        async with raw_client(port.port, STRANGER) as client:
            await client.hello()
            await client.raw(frame(kind, 0, payload) * 5_000)
            gone = await client.goaway()

            assert gone is not None
            assert gone.why == b"too many frames of its address have no effect"
        async with raw_client(port.port, STRANGER) as again:
            assert await again.goaway() is None  # it has to wait
        assert await serves(port)


@pytest.mark.found
@pytest.mark.parametrize("in_trailers", [False, True])
async def test_headers_that_nobody_reads_have_a_rate_by_address(in_trailers: bool) -> None:
    """Each is a byte on the wire. A port of 3.6 million of them lost its node the lead."""
    fields = [(b"a", b"x" * 100)] * 100
    async with door(replace(QUICK, idle_bytes=(100_000, 1))) as port:
        async with raw_client(port.port, STRANGER) as client:
            await client.hello()
            for _ in range(20):
                if in_trailers:
                    stream = await call(client, "/t/Deaf", prefixed(0), end=False)
                    client.h2.send_trailers(stream, fields)
                else:
                    client.request("/t/Deaf", *fields)
            await client.flush()
            gone = await client.goaway()

            assert gone is not None
            assert gone.why == b"too many header fields of its address are read by nobody"
        assert await serves(port)


async def test_headers_as_clients_send_them_are_no_flood() -> None:
    """Thirty fields, and a token, which is read, in each call."""
    fields = [(b"x-trace-%d" % number, b"v" * 15) for number in range(24)]
    bounds = replace(QUICK, idle_bytes=(1, 1))
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello()
        for _ in range(20):
            stream = client.request("/t/Echo", (b"authorization", b"t" * 3_000), *fields)
            client.h2.send_data(stream, prefixed(0), end_stream=True)
            await client.flush()

            assert await client.status(stream) == (0, b"")


@pytest.mark.found
async def test_who_is_served_is_not_ended_for_others_of_its_address() -> None:
    """A stranger behind the same NAT: windows that go with answers are counted with those."""
    bounds = replace(QUICK, idle_bytes=(20_000, 1), frame_bytes=16 << 10)
    windows = frame(WINDOW_UPDATE, 0, (1).to_bytes(4, "big")) * 512
    async with door(bounds) as port, raw_client(port.port) as honest:
        await honest.hello()
        async with raw_client(port.port) as stranger:
            await stranger.hello()
            await stranger.raw(windows * 10)
            assert await stranger.goaway() is not None
        for _ in range(200):
            stream = await call(honest, "/t/Echo", prefixed(2) + b"hi")
            assert (await honest.status(stream))[0] == 0
        await honest.raw(windows)

        stream = await call(honest, "/t/Echo", prefixed(2) + b"hi")
        assert (await honest.status(stream))[0] == 0


@pytest.mark.found
def test_who_has_many_addresses_leaves_others_theirs() -> None:
    """Each had a rate of its own: 32 addresses took all of a node's time."""
    bounds = replace(QUICK, all_arrivals=(6, 1), apart_arrivals=(2, 1))
    known = Addresses(bounds)
    comes = [2, 2, 2, 3, 3, 3, 2, 2, 2, 3, 3, 3, 4, 4, 4]

    got = [known.of(f"192.0.2.{number}").may_connect(0.0) for number in comes]

    assert got == [*[True] * 8, False, True, True, False, True, True, False]
    assert not known.of("192.0.2.4").may_connect(0.9)
    assert known.of("192.0.2.4").may_connect(2.0)


async def test_a_large_request_in_small_pieces_is_no_flood() -> None:
    """Most reads bring nothing but a part of a frame, which is no frame without effect."""
    bounds = replace(QUICK, idle_bytes=(2, 1), frame_bytes=64 << 10)
    async with door(bounds) as port, raw_client(port.port) as client:
        await client.hello()
        stream = client.request("/t/Echo")
        await client.flush()
        body = prefixed(50_000) + bytes(50_000)
        whole = frame(DATA, stream, body, 0x1)
        for start in range(0, len(whole), 5_000):
            await client.raw(whole[start : start + 5_000])
            await asyncio.sleep(0)

        assert await client.status(stream) == (0, b"")


@pytest.mark.found
@pytest.mark.parametrize("source", ["127.0.0.1", STRANGER])
async def test_a_handshake_that_does_not_go_on_makes_room(source: str) -> None:
    """At once for others, and soon for one's own address."""
    pair, _ = pairs()
    bounds = replace(QUICK, handshakes=3, handshake_s=60)
    async with door(bounds, TlsCertificate(pair.chain, pair.key)) as port:
        silent = [
            await asyncio.open_connection("127.0.0.1", port.port, local_addr=(source, 0))
            for _ in range(3)
        ]
        await eventually(lambda: port.server.connections == 3)
        assert await echoes(port, pair.chain)
        reader, _ = silent[0]

        assert not await reader.read()
        for _, writer in silent:
            writer.close()


@pytest.mark.found
@pytest.mark.parametrize("has_gone", [True, False])
async def test_a_turn_to_greet_is_given_to_nobody_who_waits_no_more(
    monkeypatch: pytest.MonkeyPatch, has_gone: bool
) -> None:
    """Else it was lost: a crowd of 1,000 took 19 s for handshakes of a second of CPU."""
    monkeypatch.setattr(places, "PROMPT_S", 60.0 if has_gone else 0.1)
    bounds = Bounds(handshakes=1)
    room = places.Places(bounds, Addresses(bounds))
    first, second, third = filter(None, (room.enter("10.0.0.1", 0.0) for _ in "123"))
    await room.greet(first)
    waits = asyncio.create_task(room.greet(second))
    await asyncio.sleep(0)
    if has_gone:
        waits.cancel()
    await asyncio.wait((waits,))  # or it has waited long enough, and another one's has ended
    monkeypatch.setattr(places, "PROMPT_S", 60.0)
    late = asyncio.create_task(room.greet(third))
    await asyncio.sleep(0)

    room.end_greeting(first if has_gone else second)

    async with asyncio.timeout(10):
        await late


async def test_a_crowd_behind_one_address_gets_through_few_handshakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it at once, after a failover, say: nobody's handshake ends another's."""
    monkeypatch.setattr(places, "PROMPT_S", 60.0)  # however slow this machine is
    pair, _ = pairs()
    context = ssl.create_default_context(cadata=pair.chain.decode())
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    bounds = replace(QUICK, handshakes=2)
    async with door(bounds, TlsCertificate(pair.chain, pair.key)) as port:
        crowd = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", port.port, ssl=context) for _ in range(24))
        )
        for reader, writer in crowd:
            assert await reader.read(9)  # its SETTINGS
            writer.close()
