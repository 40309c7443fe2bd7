"""A port with TLS: grpcio's client, a certificate that changes, callers that do not speak it."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from functools import cache

import grpc
import grpc.aio
import pytest

from dledger.door.bounds import Bounds
from dledger.door.tls import TlsCertificate
from dledger.rpc.mutual_tls import Pair
from dledger.server.client_certificate import self_signed
from tests.door.ports import Door, door
from tests.waiting import eventually

QUICK = Bounds(tick_s=0.02)
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
