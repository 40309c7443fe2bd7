"""What costs the node and not the caller: handshakes, connections, refused calls, empty frames."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from dledger.common.limits import MAX_BODY_BYTES
from dledger.rpc.rocketmq_stubs import definition
from e2e.harness.checks import Check
from e2e.harness.rocketmq_calls import send_request
from e2e.hostile import frames
from e2e.hostile.frames import END_HEADERS, END_STREAM, HEADERS, frame
from e2e.hostile.judging import held
from e2e.hostile.scene import Scene
from e2e.hostile.talk import Talk, by_talks, dial

_CONNECTIONS: Final = 32
_A_PIECE: Final = 64
"""Calls or frames that are written at once."""
_STREAMS: Final = 192
"""Calls under way on one: fewer than a port allows."""
_PACKED: Final = "packed"
_PACKED_BODIES: Final = 16
"""Written at once: 64 KiB."""
_OPEN: Final = 32
"""Connections of a churn that are open at a time."""


def busy(scene: Scene) -> list[Check]:
    """B00: nobody is attacked, by a process that is as busy: what two cores are worth."""
    turns, end_s = 0, time.monotonic() + scene.seconds
    while time.monotonic() < end_s:
        turns += 1
    return [held("b00: turns", turns, "some", turns > 0)]


def hellos(scene: Scene) -> list[Check]:
    """B04: one recorded ClientHello, on connection after connection."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = scene.tls_context().wrap_bio(incoming, outgoing, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    made = _churn(scene, outgoing.read())
    return [held("b04h: handshakes begun", made, "some", made > 0)]


def connections(scene: Scene) -> list[Check]:
    """B06: connections that greet and are gone."""
    made = _churn(scene, frames.PREFACE + frames.settings() + frame(frames.SETTINGS, frames.ACK, 0))
    return [held("b06c: connections", made, "some", made > 0)]


def _churn(scene: Scene, greeting: bytes) -> int:
    """Connect, say *greeting* and leave, as fast as it goes; return how often."""
    made, open_ = 0, deque[socket.socket]()
    end_s, address = time.monotonic() + scene.seconds, scene.address(scene.leader)
    while time.monotonic() < end_s:
        connection = socket.socket()
        connection.settimeout(1.0)
        with contextlib.suppress(OSError):
            connection.bind((scene.source(made), 0))
            connection.connect(address)
            connection.send(greeting)
        made += 1
        open_.append(connection)
        if len(open_) > _OPEN:
            open_.popleft().close()
    for each in open_:
        each.close()
    return made


@by_talks
async def refused_calls(scene: Scene) -> list[Check]:
    """B06: calls of no method and GETs, whole, as fast as they are refused."""
    unknown = frames.headers(b"Nothing")
    get = b"\x82\x86\x84" + frames.literal(b":authority", b"x")

    def piece(number: int) -> bytes:
        first = 2 * _A_PIECE * number + 1
        streams = range(first, first + 2 * _A_PIECE, 2)
        flags = END_HEADERS | END_STREAM
        return b"".join(frame(HEADERS, flags, n, get if n & 2 else unknown) for n in streams)

    return await _flood(scene, "b06: refused calls", piece, _STREAMS)


@by_talks
async def empty_frames(scene: Scene) -> list[Check]:
    """B06: frames that mean nothing: of no kind, priorities, windows a byte wider."""
    kinds = (
        frame(frames.UNKNOWN, 0, 0, b"x"),
        frame(frames.PRIORITY, 0, 9, b"\0\0\0\0\1"),
        frame(frames.WINDOW, 0, 0, struct.pack(">I", 1)),
    )

    def piece(number: int) -> bytes:
        return kinds[number % len(kinds)] * _A_PIECE

    return await _flood(scene, "b06f: frames", piece, 0)


@by_talks
async def packed_bodies(scene: Scene) -> list[Check]:
    """B11: good messages whose bodies are 4 KiB and inflate to 4 MiB, as fast as they are taken."""
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, _PACKED, 4)
    request = send_request(_PACKED, "", gzip.compress(bytes(MAX_BODY_BYTES)))
    properties = request.messages[0].system_properties
    properties.body_encoding = definition.Encoding.GZIP
    ids = itertools.count()

    def piece(number: int) -> bytes:
        out, first = b"", 2 * _PACKED_BODIES * number + 1
        for stream in range(first, first + 2 * _PACKED_BODIES, 2):
            properties.message_id = f"packed-{next(ids)}"
            out += frames.call(stream, b"SendMessage", request.SerializeToString())
        return out

    return await _flood(scene, "b11g: bodies", piece, _STREAMS, _PACKED_BODIES)


class _Asker(Talk):
    """One that knows how many of its calls were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = 0
        self.more = asyncio.Event()

    def on_frame(self, one: frames.Frame) -> None:
        """Count an end."""
        if one.kind == HEADERS and one.flags & END_STREAM:
            self.answered += 1
            self.more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake whoever waits."""
        super().connection_lost(exc)
        self.more.set()

    async def until_answered(self, count: int) -> None:
        """Wait for so many ends, or for this one's."""
        while self.answered < count and not self.closed:
            self.more.clear()
            await self.more.wait()


async def _flood(
    scene: Scene, what: str, piece: Callable[[int], bytes], under_way: int, calls: int = _A_PIECE
) -> list[Check]:
    """Let some connections send piece after piece, with at most so many calls without an answer.

    One that is ended is begun again; 0: nothing is answered. A piece is of so many *calls*.
    """
    counts, reasons = [0, 0], set[bytes]()
    end_s = asyncio.get_running_loop().time() + scene.seconds

    async def one(number: int) -> None:
        while asyncio.get_running_loop().time() < end_s:
            talk: _Asker | None = await dial(scene, scene.leader, number, _Asker)
            if talk is None:
                await asyncio.sleep(0.01)
                continue
            counts[1] += 1
            for turn in itertools.count():
                await talk.room()
                if under_way:
                    await talk.until_answered((turn + 1) * calls - under_way)
                if talk.closed or asyncio.get_running_loop().time() >= end_s:
                    break
                talk.write(piece(turn))
                counts[0] += calls
                await asyncio.sleep(0)
            reasons.add(talk.reason)
            talk.close()

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(scene.seconds + 1):
            await asyncio.gather(*(one(number) for number in range(_CONNECTIONS)))
    sent, made = counts
    told = b" | ".join(sorted(reasons)).decode("ascii", "replace")
    return [held(what, f"{sent} on {made} connections {told}".rstrip(), "some", sent > 0)]
