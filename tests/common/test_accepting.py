"""Connections that come in the very turn in which nobody wants them any more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from dledger.common.accepting import accept, readable

WAIT_S = 30.0


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("after", range(5))
async def test_a_cancelled_accept_loses_no_connection(listening: socket.socket, after: int) -> None:
    """Whatever the turn: it was handed over, or the next who accepts has it."""
    task = asyncio.ensure_future(accept(listening))
    await turns(2)
    with socket.create_connection(listening.getsockname(), timeout=WAIT_S) as client:
        await turns(after)
        task.cancel()
        await asyncio.wait((task,))
        try:
            connection, address = task.result()
        except asyncio.CancelledError:
            connection, address = await asyncio.wait_for(accept(listening), WAIT_S)

        with connection:
            assert (address, connection.gettimeout()) == (client.getsockname(), 0.0)
            client.sendall(b"x")
            await asyncio.wait_for(readable(connection), WAIT_S)
            assert connection.recv(2) == b"x"


async def test_a_socket_closed_under_its_waiter_leaves_nothing_behind() -> None:
    """Its number is soon another socket's, which can be waited for."""
    for _ in range(3):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            task = asyncio.ensure_future(accept(listening))
            await turns(2)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_accept_says_is_the_callers(listening: socket.socket) -> None:
    """Of a socket that does not listen, here."""
    with socket.socket() as silent, pytest.raises(OSError, match="Invalid argument"):
        await accept(silent)
