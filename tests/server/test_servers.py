"""A node's gRPC servers: what a connection may have under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.server import servers
from dledger.server.servers import Listener, Servers
from e2e.harness.ports import HOST, free_ports
from tests.waiting import eventually

MOST = 8


class Held:
    """A method whose calls stay under way until they are let go."""

    def __init__(self) -> None:
        self.under_way = self.most = 0
        self.let_go = asyncio.Event()

    async def serve(self, request: bytes, _: object) -> bytes:
        """Answer what was asked, at last."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.let_go.wait()
        self.under_way -= 1
        return request

    @asynccontextmanager
    async def served(self, *, max_streams: int | None) -> AsyncIterator[str]:
        """Serve it; gives the address."""
        handler = grpc.unary_unary_rpc_method_handler(self.serve)
        (port,) = free_ports(1)
        listener = Listener(
            address=f"{HOST}:{port}",
            handlers=[grpc.method_handlers_generic_handler("test", {"Held": handler})],
            max_request_bytes=1024,
            max_streams=max_streams,
        )
        ports = Servers([listener])
        await ports.start()
        try:
            yield listener.address
        finally:
            await ports.stop(0)


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[Any]:
    """Give the method on a connection that is nobody else's."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel.unary_unary("/test/Held")


def calls(method: Any, count: int) -> list[asyncio.Future[bytes]]:
    return [asyncio.ensure_future(method(b"%d" % number, timeout=30)) for number in range(count)]


async def test_a_flood_waits_where_it_is_made_and_others_are_served() -> None:
    """None of its calls fails, none but so many are under way, and it takes nobody's place."""
    held = Held()
    async with (
        held.served(max_streams=MOST) as address,
        connection(address) as flooding,
        connection(address) as other,
    ):
        flood = calls(flooding, 10 * MOST)
        await eventually(lambda: held.under_way == MOST)
        others = calls(other, 2)
        await eventually(lambda: held.under_way == MOST + 2)
        held.let_go.set()

        answers = await asyncio.gather(*flood, *others)

    assert sorted(answers) == sorted(b"%d" % number for number in [*range(10 * MOST), 0, 1])
    assert held.most == MOST + 2


async def test_between_nodes_as_many_calls_are_under_way_as_come() -> None:
    """A follower sends the calls of all its clients on over one connection."""
    held = Held()
    async with held.served(max_streams=None) as address, connection(address) as method:
        forwarded = calls(method, 10 * MOST)
        await eventually(lambda: held.under_way == 10 * MOST)
        held.let_go.set()

        assert len(await asyncio.gather(*forwarded)) == 10 * MOST


@pytest.mark.found
async def test_a_compressed_request_is_refused_by_name() -> None:
    """found: S2. 20 KiB on the wire were 20 MiB at the node; other calls go on."""
    held = Held()
    held.let_go.set()
    async with held.served(max_streams=MOST) as address, connection(address) as method:
        with pytest.raises(grpc.aio.AioRpcError, match=r"(?s)UNIMPLEMENTED.*gzip") as refused:
            await method(bytes(1000), compression=grpc.Compression.Gzip, timeout=30)

        assert await method(bytes(1000), timeout=30) == bytes(1000)

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert held.most == 1


@pytest.mark.found
async def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """found: S14. It was borne for a minute or two, in the place of a client."""
    options = [(name, 100 if "handshake" in name else value) for name, value in servers._OPTIONS]
    monkeypatch.setattr(servers, "_OPTIONS", tuple(options))
    async with Held().served(max_streams=MOST) as address:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        async with asyncio.timeout(30):
            while await reader.read(1000):
                pass
        writer.close()
