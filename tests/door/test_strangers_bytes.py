"""Bytes that are nearly right: whatever arrives, a connection ends in order, and holds nothing."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from dledger.door.bounds import Held
from dledger.door.connection import Connection
from dledger.door.port import Port
from tests.door.conversations import NARROW, Wire, conversation, damaged
from tests.door.ports import Seen
from tests.waiting import eventually

RUNS = 200
"""Of each seed; a fifth of a millisecond each."""


@pytest.mark.parametrize("seed", range(8))
async def test_damaged_conversations_end_in_order(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """None meets a fault of ours; afterwards there is no call, no byte and no task left."""
    rng = random.Random(seed)
    seen = Seen()
    port = Port(
        handlers={path.encode(): each for path, each in seen.handlers(1 << 20).items()},
        bounds=NARROW,
        held=Held(50_000),
        needs_alpn=False,
    )
    caplog.set_level(logging.ERROR)
    for _ in range(RUNS):
        lost: list[Connection] = []
        connection = Connection(
            port, "ipv4:192.0.2.1:1", on_made=lambda _: None, on_lost=lost.append
        )
        wire = Wire()
        connection.connection_made(wire)
        rest = damaged(conversation(rng), rng)
        while rest and not wire.closed:
            size = rng.choice((1, 9, 50, 1 << 14))
            connection.data_received(rest[:size])
            rest = rest[size:]
            match rng.randrange(12):
                case 0:
                    connection.pause_writing()
                case 1:
                    connection.resume_writing()
                case 2:
                    connection.drain()
                case 3 | 4 | 5:
                    await asyncio.sleep(0)
        if rng.random() < 0.3:
            connection.end()
        connection.connection_lost(None)
        for answer, _ in seen.held:
            answer(b"late")
        seen.held.clear()
        assert lost == [connection]
        assert (port.calls, port.held.bytes) == (0, 0)
    await eventually(lambda: not port.tasks)

    assert [each for each in caplog.records if each.name == connection.__module__] == []
