"""What a sound client sends, and what becomes of it on a bad day; and a transport to feed it to."""

from __future__ import annotations

import asyncio
import random
import struct

import ngh2

from dledger.door.bounds import Bounds
from tests.door.raw import prefixed

NARROW = Bounds(
    streams=5,
    stream_window_bytes=4000,
    promised_bytes=5000,
    wide_window_bytes=9000,
    wide_bytes=10_000,
    resets=(20, 1),
)
"""Bounds that a few damaged frames reach."""


class Wire(asyncio.Transport):
    """A transport without a network, which can be full."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

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
