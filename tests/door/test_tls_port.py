"""A port with TLS: grpcio's client, a certificate that changes, callers that do not speak it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path

import grpc
import grpc.aio
import ngh2
import pytest

from dledger.door.bounds import Bounds
from dledger.door.tls import TlsCertificate
from dledger.door.tls_transport import BARREN_BYTES
from dledger.rpc.mutual_tls import Pair
from dledger.server.client_certificate import self_signed
from tests.door.ports import Door, door
from tests.door.raw import PREFACE, SETTINGS, frame, prefixed
from tests.door.tls_client import Sealer, TlsClient, certificate, client_context, pair, shaken
from tests.waiting import eventually

QUICK = Bounds(tick_s=0.02)
HELD = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"door"),
    (b":path", b"/t/Hold"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
OPTIONS = (("grpc.ssl_target_name_override", "door"),)


@cache
def pairs() -> tuple[Pair, Pair]:
    """Return two certificates of the same name."""
    return self_signed("door", "127.0.0.1"), self_signed("door", "127.0.0.1")


async def echoes(port: Door, trusted: bytes) -> bool:
    """Whether a new channel that trusts one certificate is served."""
    credentials = grpc.ssl_channel_credentials(trusted)
    async with grpc.aio.secure_channel(port.address, credentials, options=OPTIONS) as channel:
        call = channel.unary_unary("/t/Echo")(b"hi", timeout=5)
        return bool(await call.code() == grpc.StatusCode.OK)


async def test_a_certificate_is_replaced_while_connections_are_open() -> None:
    """Open ones stay, the next handshake shows the new one; what is no pair changes nothing."""
    old, new = pairs()
    certificate = TlsCertificate(old.chain, old.key)
    credentials = grpc.ssl_channel_credentials(old.chain)
    async with (
        door(QUICK, certificate) as port,
        grpc.aio.secure_channel(port.address, credentials, options=OPTIONS) as channel,
    ):
        echo = channel.unary_unary("/t/Echo")
        assert await echo(b"x" * 100_000) == b"x" * 100_000
        with pytest.raises(ssl.SSLError):
            certificate.replace(old.chain, new.key)
        assert await echoes(port, old.chain)
        certificate.replace(new.chain, new.key)

        assert await echoes(port, new.chain)
        assert not await echoes(port, old.chain)
        assert await echo(b"still") == b"still"


@pytest.mark.parametrize("alpn", [None, "http/1.1"])
async def test_a_client_that_does_not_choose_h2_is_refused(alpn: str | None) -> None:
    """ALPN tells HTTP/2 from what would only be garbage to it (RFC 9113, 3.2)."""
    context = ssl.create_default_context(cadata=pairs()[0].chain.decode())
    context.check_hostname = False
    if alpn:
        context.set_alpn_protocols([alpn])
    async with door(QUICK, TlsCertificate(pairs()[0].chain, pairs()[0].key)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=context)
        assert await reader.read() == b""
        writer.close()
        await port.unused()


async def test_a_handshake_that_does_not_come_is_counted_and_dropped() -> None:
    """It takes a connection's place, and gives it back."""
    bounds = replace(QUICK, connections=1, handshake_s=1.5)
    async with door(bounds, TlsCertificate(pairs()[0].chain, pairs()[0].key)) as port:
        _, silent = await asyncio.open_connection("127.0.0.1", port.port)
        await eventually(lambda: port.server.connections == 1)
        reader, second = await asyncio.open_connection("127.0.0.1", port.port)
        assert await reader.read() == b""
        await port.unused()
        silent.close()
        second.close()

        assert await echoes(port, pairs()[0].chain)


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: door\r\n\r\n",
        PREFACE + frame(SETTINGS, 0),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        b"\x15\x03\x01\x00\x02\x02\x28",
    ],
    ids=["http1", "http2", "hello", "alert"],
)
async def test_who_does_not_speak_tls_is_closed_at_once(
    first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Not after the time that a handshake has; and nobody can fill a log with that."""
    caplog.set_level(logging.INFO)
    async with door(QUICK, certificate()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(first)
        await reader.read()
        writer.close()
        await port.unused()
    assert caplog.records == []


async def test_half_a_client_hello_is_dropped_with_its_client_or_its_time() -> None:
    """Whichever comes first; the port does not wait for it when it stops."""
    bounds = replace(QUICK, handshake_s=0.2)
    client = TlsClient(client_context())
    client.receive(b"")
    hello = client.drain()
    for is_left in (True, False):
        async with door(bounds if not is_left else QUICK, certificate()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(hello[: len(hello) // 2])
            await eventually(lambda: port.server.connections == 1)
            if is_left:
                writer.write_eof()
            assert await reader.read() == b""
            await port.unused()
            writer.close()
    async with door(QUICK, certificate()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(hello[: len(hello) // 2])
        await eventually(lambda: port.server.connections == 1)
    writer.close()


async def test_a_port_says_that_nothing_was_cut_off() -> None:
    """Its close_notify is the last it sends: after that a client knows an end from a cut."""
    client = TlsClient(client_context(alpn="http/1.1"))
    async with door(QUICK, certificate()) as port:
        reader, writer = await shaken(port.port, client)
        client.receive(await reader.read())
        writer.close()
    assert client.is_over


@pytest.mark.parametrize("end", ["close_notify", "end of the socket", "reset", "damage"])
async def test_a_client_may_leave_as_it_likes(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its calls are cancelled, and nobody else notices; who reads on reads a close_notify."""
    caplog.set_level(logging.INFO)
    client = TlsClient(client_context())
    async with door(QUICK, certificate()) as port:
        reader, writer = await shaken(port.port, client)
        h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration())
        h2.initiate_connection({})
        stream = h2.send_request(HELD)
        h2.send_data(stream, prefixed(1) + b"x", end_stream=True)
        client.send(h2.data_to_send())
        writer.write(client.drain())
        await eventually(lambda: port.seen.held)
        match end:
            case "close_notify":
                client.end()
                writer.write(client.drain())
            case "end of the socket":
                writer.write_eof()
            case "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
                writer.transport.abort()
            case _:
                writer.write(bytes.fromhex("1703030020") + bytes(32))
        await port.unused()
        assert port.seen.cancelled == ["callback"]
        if end != "reset":
            with contextlib.suppress(ssl.SSLError):  # an alert, of what is damaged
                client.receive(await reader.read())
            assert client.is_over == (end != "damage")
        writer.close()
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []


async def test_a_flood_of_new_keys_ends_its_connection(tmp_path: Path) -> None:
    """Such frames are below HTTP/2, which cannot count them."""
    context = client_context()
    context.keylog_filename = str(tmp_path / "keys")
    async with door(QUICK, certificate()) as port:
        _, writer = await shaken(port.port, TlsClient(context))
        sealer = Sealer(tmp_path / "keys")
        writer.write(b"".join(sealer.key_update() for _ in range(BARREN_BYTES // 27 + 10)))

        await port.unused()
        writer.close()
        assert await echoes(port, pair().chain)
