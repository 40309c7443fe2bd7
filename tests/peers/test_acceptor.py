"""Who calls a peer port, and what the node does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from dledger.peers.acceptor import Acceptor

CALLERS = 50


async def test_a_line_of_callers_does_not_keep_the_node_from_its_work() -> None:
    """It has a turn after each of them."""
    greeted: list[int] = []
    turn = 0

    async def greet(connection: socket.socket) -> None:
        connection.close()
        greeted.append(turn)

    acceptor = Acceptor("a test's port", greet)
    with contextlib.ExitStack() as callers, socket.create_server(("127.0.0.1", 0)) as listening:
        for _ in range(CALLERS):
            callers.enter_context(socket.create_connection(listening.getsockname()))
        acceptor.start(listening)
        async with asyncio.timeout(30):
            while len(greeted) < CALLERS:
                turn += 1
                await asyncio.sleep(0)
        acceptor.close()
        await asyncio.sleep(0)

    assert len(set(greeted)) == CALLERS
