"""At the clients' port: what is small on the wire and large behind it, and HTTP/2 by hand."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc

from dledger.rpc.rocketmq_stubs import definition, service
from e2e.harness.checks import Check
from e2e.hostile.frames import frame, headers, literal
from e2e.hostile.judging import held
from e2e.hostile.scene import ROCKET, Scene, caller, field_of, in_threads, repeated
from e2e.hostile.talk import by_talks, dial

_MIB: Final = 1 << 20
_BOMB: Final = 19 * _MIB


def _number(message: Any, name: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[name].number)


def telemetry_bomb(size_bytes: int) -> bytes:
    """Return Settings with as many empty subscriptions as there is room for."""
    entries = repeated(_number(definition.Subscription, "subscriptions"), size_bytes)
    settings = field_of(_number(definition.Settings, "subscription"), entries)
    return field_of(_number(service.TelemetryCommand, "settings"), settings)


def bombs(size_bytes: int) -> dict[str, bytes]:
    """Return a request for each method that takes lists, and for one that ignores fields."""
    return {
        "Telemetry": telemetry_bomb(size_bytes),
        "SendMessage": repeated(1, size_bytes),
        "AckMessage": repeated(_number(service.AckMessageRequest, "entries"), size_bytes),
        "QueryRoute": b"\x78\x01" * (size_bytes // 2),
        "ReceiveMessage": b"\x0b" * (size_bytes // 2) + b"\x0c" * (size_bytes // 2),
    }


def _call(scene: Scene, node: int, method: str, raw: bytes, compression: grpc.Compression) -> str:
    with scene.channel(scene.endpoints[node]) as channel:
        call = channel.stream_stream(f"{ROCKET}{method}")
        try:
            for _ in call(
                iter([raw]), timeout=10, metadata=caller("bomber"), compression=compression
            ):
                return "answered"
        except grpc.RpcError as error:
            return str(error.code().name)
    return "ended"


def gzip_bombs(scene: Scene) -> list[Check]:
    """A01: 64 MiB of zeros, gzipped, four times at once."""
    bomb = bytes(64 * _MIB)
    said: list[str] = []

    def one(_: int) -> None:
        said.append(_call(scene, scene.leader, "SendMessage", bomb, grpc.Compression.Gzip))

    in_threads(4, one)
    return [held("a01: the bombs", sorted(set(said)), "refused", "answered" not in said)]


def protobuf_bombs(scene: Scene) -> list[Check]:
    """A12: 19 MiB of elements of two bytes, gzipped and plain, to each method once."""
    said = {}
    for method, raw in bombs(_BOMB).items():
        for compression in (grpc.Compression.Gzip, grpc.Compression.NoCompression):
            said[method, compression.name] = _call(scene, scene.leader, method, raw, compression)
    small = bombs(200 << 10)
    for method, raw in small.items():
        _call(scene, scene.leader, method, raw, grpc.Compression.NoCompression)
    compressed = {answer for (_, how), answer in said.items() if how == "Gzip"}
    return [held("a12: gzipped calls", sorted(compressed), "refused", "answered" not in compressed)]


def sustained(scene: Scene) -> list[Check]:
    """A12b: one such call after the other to each node."""
    raw, end_s = telemetry_bomb(_BOMB), time.monotonic() + scene.seconds
    counts = [0] * len(scene.endpoints)

    def one(node: int) -> None:
        while time.monotonic() < end_s:
            _call(scene, node, "Telemetry", raw, grpc.Compression.Gzip)
            counts[node] += 1

    in_threads(len(counts), one)
    return [held("a12b: calls", sum(counts), "some", sum(counts) > 0)]


@by_talks
async def http2(scene: Scene) -> list[Check]:
    """A17: rapid resets, floods of PING and SETTINGS, endless headers, frames that lie."""
    reset = struct.pack(">I", 8)
    count = 4_000
    cases: dict[str, Callable[[], Iterable[bytes]]] = {
        "rapid reset": lambda: (
            b"".join(
                frame(1, 4, n, headers(b"Telemetry")) + frame(3, 0, n, reset)
                for n in range(k, k + 200, 2)
            )
            for k in range(1, 2 * count, 200)
        ),
        "PING": lambda: (frame(6, 0, 0, b"12345678") * 500 for _ in range(count // 50)),
        "SETTINGS": lambda: (
            frame(4, 0, 0, struct.pack(">HI", 4, 65_535)) * 100 for _ in range(count // 50)
        ),
        "CONTINUATION": lambda: [
            frame(1, 0, 1, headers(b"Telemetry")),
            *[frame(9, 0, 1, literal(b"a", b"x" * 16_000))] * 500,
        ],
        "a frame of 16 MiB": lambda: [b"\xff\xff\xff\0\0\0\0\0\1" + bytes(16_000)] * 50,
        "DATA on no stream": lambda: [frame(0, 0, 999, b"x" * 1_000)] * 500,
        "a window beyond 2^31": lambda: [frame(8, 0, 0, struct.pack(">I", 0x7FFFFFFF))] * 10,
        "a message of 4 GiB": lambda: [
            frame(1, 4, 1, headers(b"SendMessage")),
            frame(0, 0, 1, b"\0\xff\xff\xff\xff" + bytes(1_000)),
        ],
        "noise": lambda: [os.urandom(500), b"GET / HTTP/1.1\r\n\r\n", bytes(500)],
    }
    sent = {}
    for name, pieces in cases.items():
        sent[name] = await _pump(scene, pieces())
    return [held("a17: pieces sent", sum(sent.values()), "some", sum(sent.values()) > 0)]


async def _pump(scene: Scene, pieces: Iterable[bytes]) -> int:
    """Send until the node closes; what it says is thrown away."""
    count, talk = 0, await dial(scene, scene.leader, 0)
    end_s = time.monotonic() + 4
    for piece in pieces:
        if talk is None or talk.closed or time.monotonic() > end_s:
            break
        talk.write(piece)
        await talk.room()
        await asyncio.sleep(0)
        count += 1
    if talk is not None:
        talk.close()
    return count
