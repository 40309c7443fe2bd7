"""The proxies: each direction by itself is passed on, held back, broken, or delayed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from e2e.harness.proxy import Network
from tests.waiting import eventually


@asynccontextmanager
async def echo_network() -> AsyncIterator[Network]:
    """Yield a network of nodes a and b, of which each answers every line with the same."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    servers = [await asyncio.start_server(echo, "127.0.0.1", 0) for _ in range(2)]
    ports = {n: [s.sockets[0].getsockname()[1]] for n, s in zip("ab", servers, strict=True)}
    network = Network(ports, random.Random(1))
    await network.start()
    yield network
    await network.close()
    for server in servers:
        server.close()
        await server.wait_closed()


class Line:
    """A connection from one node to another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, network: Network, dialler: str) -> Line:
        (port,) = network.routes(dialler).values()  # there is one peer, with one port
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, text: bytes) -> None:
        self.writer.write(text + b"\n")

    async def answer(self, within_s: float = 5.0) -> bytes:
        async with asyncio.timeout(within_s):
            return (await self.reader.readline()).rstrip()

    async def is_silent(self) -> bool:
        try:
            await self.answer(0.2)
        except TimeoutError:
            return True
        return False


async def test_bytes_pass_both_ways() -> None:
    """Without a fault."""
    async with echo_network() as network:
        line = await Line.dial(network, "a")

        line.send(b"one")

        assert await line.answer() == b"one"
        line.writer.close()


async def test_a_cut_direction_holds_its_bytes_back_until_it_is_healed() -> None:
    """And then they arrive, late and in order."""
    async with echo_network() as network:
        line = await Line.dial(network, "a")
        network.cut([("a", "b")])
        line.send(b"one")
        line.send(b"two")
        assert await line.is_silent()

        network.heal()

        assert await line.answer() == b"one"
        assert await line.answer() == b"two"
        line.writer.close()


async def test_a_cut_direction_leaves_the_other_one_alone() -> None:
    """What b says to a still arrives."""
    async with echo_network() as network:
        network.cut([("a", "b")])
        line = await Line.dial(network, "b")

        line.send(b"one")

        assert await line.answer() == b"one"
        line.writer.close()


async def test_a_cut_of_both_layers_also_holds_back_what_acknowledges_the_other_direction() -> None:
    """As lost packets do."""
    async with echo_network() as network:
        network.cut([("a", "b")], both_layers=True)
        line = await Line.dial(network, "b")

        line.send(b"one")

        assert await line.is_silent()
        network.heal()
        assert await line.answer() == b"one"
        line.writer.close()


async def test_a_reset_breaks_connections_and_refuses_new_ones() -> None:
    """As a firewall does."""
    async with echo_network() as network:
        line = await Line.dial(network, "a")
        line.send(b"one")
        await line.answer()

        network.cut([("a", "b")], reset=True)

        with pytest.raises(ConnectionError):
            await line.answer()
        again = await Line.dial(network, "a")
        with pytest.raises(ConnectionError):
            await again.answer()


async def test_a_delayed_direction_delivers_late_and_in_order() -> None:
    """The delay is for each piece; many are under way at once."""
    async with echo_network() as network:
        line = await Line.dial(network, "a")
        network.delay(0.3, 0.2)
        loop = asyncio.get_running_loop()
        started_s = loop.time()

        for number in range(5):
            line.send(b"%d" % number)
            await asyncio.sleep(0.01)
        answers = [await line.answer() for _ in range(5)]

        assert answers == [b"0", b"1", b"2", b"3", b"4"]
        assert loop.time() - started_s >= 0.6
        line.writer.close()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_fault_of_the_network_is_counted_where_it_hits(reset: bool) -> None:
    """Bytes held back, connections broken and refused; not a direction that nobody takes."""
    async with echo_network() as network:
        line = await Line.dial(network, "a")
        line.send(b"one")
        await line.answer()
        network.cut([("b", "a")], reset=reset)
        assert network.hits == 0

        network.cut([("a", "b")], reset=reset)
        line.send(b"two")
        await eventually(lambda: network.hits)

        before = network.hits
        network.heal()
        other = await Line.dial(network, "a")
        network.delay(0.01, 0.0)
        other.send(b"three")
        assert await other.answer(30) == b"three"
        assert network.hits > before
        for each in (line, other):
            each.writer.close()
