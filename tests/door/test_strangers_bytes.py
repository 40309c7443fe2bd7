"""Bytes that are nearly right: whatever arrives, a connection ends in order, and holds nothing."""

from __future__ import annotations

import asyncio
import logging
import random
import struct

import ngh2
import pytest

from dledger.door.bounds import Bounds, Held
from dledger.door.connection import Connection
from dledger.door.port import Port
from tests.door.ports import Seen, until
from tests.door.raw import prefixed

RUNS = 200
"""Of each seed; a fifth of a millisecond each."""


class Wire(asyncio.Transport):
    """A transport without a network, which can be full."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def conversation(rng: random.Random) -> bytes:
    """Return what a sound client sends: some calls, in all forms, without waiting."""
    client = ngh2.Connection(ngh2.Role.CLIENT)
    client.initiate_connection()
    for _ in range(rng.randrange(1, 8)):
        path = rng.choice(("Echo", "Hold", "Slowly", "Count", "Talk", "Deaf", "Named", "Nothing"))
        stream = client.send_request(
            (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":authority", b"door"),
                (b":path", b"/t/" + path.encode()),
                (b"content-type", b"application/grpc"),
                (b"grpc-timeout", rng.choice((b"1S", b"1n", b"9"))),
                (b"x-some-bin", bytes(rng.choices(b"ab+/=", k=rng.randrange(40)))),
            )
        )
        for _ in range(rng.randrange(4)):
            size = rng.choice((0, 3, rng.randrange(3000)))
            client.send_data(stream, prefixed(size) + b"20 99".ljust(size)[:size])
        if rng.random() < 0.7:
            client.end_stream(stream) if rng.random() < 0.9 else client.reset_stream(stream)
        if rng.random() < 0.2:
            client.ping()
    return client.data_to_send()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return bytes of which a few are others, gone, twice, or in another place."""
    mutable = bytearray(data)
    for _ in range(rng.randrange(6)):
        at = rng.randrange(20, len(mutable))
        match rng.randrange(4):
            case 0:
                mutable[at] = rng.randrange(256)
            case 1:
                del mutable[at : at + rng.randrange(1, 30)]
            case 2:
                mutable[at:at] = mutable[at - rng.randrange(1, 20) : at]
            case _:
                kind = rng.randrange(12)
                size = rng.randrange(12)
                head = struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, rng.randrange(64), 1)
                mutable[at:at] = head + rng.randbytes(size)
        if len(mutable) <= 21:
            break
    return bytes(mutable)


@pytest.mark.parametrize("seed", range(8))
async def test_damaged_conversations_end_in_order(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """None meets a fault of ours; afterwards there is no call, no byte and no task left."""
    rng = random.Random(seed)
    seen = Seen()
    port = Port(
        handlers={path.encode(): each for path, each in seen.handlers(1 << 20).items()},
        bounds=Bounds(streams=5, stream_window_bytes=4000, promised_bytes=5000, resets=(20, 1)),
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
    await until(lambda: not port.tasks)

    assert [each for each in caplog.records if each.name == connection.__module__] == []
