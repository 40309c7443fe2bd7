"""What a stranger can take up of a port: headers, calls, bytes, connections, streams, polls.

All of it by the protocol, from one address or from many, and none of it ever ends by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable
from typing import Final

import grpc

from dledger.rpc.rocketmq_stubs import definition, service
from e2e.harness.checks import Check
from e2e.harness.rocketmq_calls import code_name, receive_request
from e2e.hostile import frames
from e2e.hostile.frames import END_HEADERS, HEADERS, NEWEST, POST, frame, put_in_table, refer_to
from e2e.hostile.judging import held
from e2e.hostile.scene import ROCKET, Scene, caller, field_of
from e2e.hostile.talk import STREAMS, Talk, by_talks, close_all, dial_all, until

HEADER_CONNECTIONS: Final = 128
CALL_CONNECTIONS: Final = 129
"""One more than the port's 32,768 calls need."""
BYTE_CONNECTIONS: Final = 7
FILLED_CONNECTIONS: Final = 2_000
IDLE_CONNECTIONS: Final = 200
"""More than a port with 1,024 files has."""
TELEMETRY_CONNECTIONS: Final = 160
TELEMETRY_STREAMS: Final = 64
"""A node's 10,000, by as many as one connection may have."""
POLL_CONNECTIONS: Final = 44
POLLS: Final = 250
FOLLOWER_CONNECTIONS: Final = 20
_AGAIN_A_S: Final = 500
_TURN_S: Final = 0.05
_SETTLE_S: Final = 2.0


class _Caller(Talk):
    """One that begins calls without a body."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 1
        self._first = b""

    def begin(self, count: int, first: bytes, again: bytes) -> None:
        """Begin so many calls: the very first puts its headers into the table of the node."""
        out = b""
        for _ in range(count):
            block = again if self._first else first
            self._first = block
            out += frame(HEADERS, END_HEADERS, self._next, block)
            self._next += 2
        self.write(out)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _tell(talks: Iterable[Talk]) -> str:
    """Return how many are left, and what the others were told."""
    known = list(talks)
    reasons = sorted({each.reason.decode("ascii", "replace") for each in known if each.reason})
    left = sum(not each.closed for each in known)
    return f"{left} of {len(known)} left {' | '.join(reasons)}".strip()


@by_talks
async def header_memory(scene: Scene) -> list[Check]:
    """B01: 32,768 calls, of 110 fields each, which are one byte each on the wire."""
    path = ROCKET.encode() + b"SendMessage"
    large = put_in_table(b"a", b"x" * 100)
    first = POST + put_in_table(b":path", path) + put_in_table(b":authority", b"x")
    first += put_in_table(b"content-type", b"application/grpc") + large + refer_to(NEWEST) * 109
    again = POST + refer_to(65) + refer_to(64) + refer_to(63) + refer_to(NEWEST) * 110
    talks: list[_Caller] = await dial_all(scene, [scene.leader], HEADER_CONNECTIONS, _Caller)
    end_s = _now_s() + scene.seconds
    for each in talks:
        each.begin(STREAMS, first, again)
        await asyncio.sleep(0)
    await until(end_s)
    close_all(talks)
    return [held("b01: connections", _tell(talks), "some", bool(talks))]


@by_talks
async def all_calls(scene: Scene) -> list[Check]:
    """B02: all calls of each port are held by calls whose body never comes, 15 bytes each."""
    path = ROCKET.encode() + b"SendMessage"
    first = POST + put_in_table(b":path", path) + put_in_table(b":authority", b"x")
    first += put_in_table(b"content-type", b"application/grpc")
    again = POST + refer_to(64) + refer_to(63) + refer_to(62)
    nodes = range(len(scene.endpoints))
    talks: list[_Caller] = await dial_all(scene, nodes, CALL_CONNECTIONS, _Caller)
    for each in talks:
        each.begin(STREAMS, first, again)
        await asyncio.sleep(0)
    end_s, made = _now_s() + scene.seconds, len(talks) * STREAMS
    new = asyncio.create_task(_ask_new_clients(scene, end_s - _SETTLE_S - 2))
    while _now_s() < end_s:
        left = int(_AGAIN_A_S * _TURN_S)
        for each in talks:
            if count := each.take_ended(left):
                each.begin(count, first, again)
                left -= count
                made += count
        await asyncio.sleep(_TURN_S)
    close_all(talks)
    return [
        held("b02: calls begun", f"{made}, {_tell(talks)}", "some", made > 0),
        *await new,
    ]  # fmt: skip


async def _ask_new_clients(scene: Scene, at_s: float) -> list[Check]:
    """Ask each node as a client that comes now."""
    await until(at_s)
    return await asyncio.to_thread(_send_to_each, scene)


def _send_to_each(scene: Scene) -> list[Check]:
    lines = []
    for node, endpoint in enumerate(scene.endpoints):
        with scene.channel(endpoint) as channel:
            said = scene.send(channel, "victim", f"new-at-{node}", b"x", client=f"new-{node}")
        lines.append(
            held(f"a client that comes to node {node} meanwhile", said, "OK", said == "OK")
        )
    return lines


@by_talks
async def held_bytes(scene: Scene) -> list[Check]:
    """B03: requests of 65,005 bytes of which 65,000 come, 1,792 at each node."""
    body = b"\0" + (65_000).to_bytes(4, "big") + bytes(64_995)
    block = frames.headers(b"SendMessage")
    nodes = range(len(scene.endpoints))
    talks: list[Talk] = await dial_all(scene, nodes, BYTE_CONNECTIONS)
    end_s = _now_s() + scene.seconds
    await asyncio.sleep(_SETTLE_S / 4)  # until the ports' windows are known to be wide
    for number in range(1, 2 * STREAMS, 2):
        for each in talks:
            await each.room()
            pieces = (body[at : at + 16_384] for at in range(0, len(body), 16_384))
            each.write(
                frame(HEADERS, END_HEADERS, number, block)
                + b"".join(frame(frames.DATA, 0, number, piece) for piece in pieces)
            )
        await asyncio.sleep(0)
    new = await _ask_new_clients(scene, end_s - _SETTLE_S)
    await until(end_s)
    close_all(talks)
    return [held("b03: connections", _tell(talks), "some", bool(talks)), *new]


@by_talks
async def filled_connections(scene: Scene) -> list[Check]:
    """B04: 2,000 connections, each filled with 240 KB of empty frames and silent from then on."""
    return await _fill(scene, "b04", frame(frames.UNKNOWN, 0, 0, bytes(16_000)) * 15)


@by_talks
async def used_connections(scene: Scene) -> list[Check]:
    """B04: 2,000 connections, each with a Heartbeat of 60 KB and silent from then on."""
    body = field_of(1_000, bytes(60_000))
    pieces = (frames.message(body)[at : at + 16_384] for at in range(0, len(body) + 5, 16_384))
    *parts, last = [*pieces]
    block = frames.headers(b"Heartbeat", ((b"x-mq-client-id", b"filler"),))
    call = frame(HEADERS, END_HEADERS, 1, block)
    call += b"".join(frame(frames.DATA, 0, 1, part) for part in parts)
    return await _fill(scene, "b04w", call + frame(frames.DATA, frames.END_STREAM, 1, last))


async def _fill(scene: Scene, name: str, filling: bytes) -> list[Check]:
    class Filled(Talk):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.write(filling)

    began_s = _now_s()
    talks: list[Talk] = await dial_all(scene, [scene.leader], FILLED_CONNECTIONS, Filled)
    await until(max(began_s + scene.seconds, _now_s() + _SETTLE_S))
    new = await _ask_new_clients(scene, 0)
    close_all(talks)
    return [held(f"{name}: connections", _tell(talks), "some", bool(talks)), *new]


@by_talks
async def all_connections(scene: Scene) -> list[Check]:
    """B10: 200 connections to each port of nodes that may open 1,024 files."""
    nodes = range(len(scene.endpoints))
    talks: list[Talk] = await dial_all(scene, nodes, IDLE_CONNECTIONS)
    end_s = _now_s() + scene.seconds
    new = await _ask_new_clients(scene, end_s - _SETTLE_S)
    await until(end_s)
    close_all(talks)
    return [held("b10: connections", _tell(talks), "some", bool(talks)), *new]


@by_talks
async def telemetry_streams(scene: Scene) -> list[Check]:
    """B12: all 10,000 Telemetry streams of a node."""
    settings = definition.Settings(client_type=definition.ClientType.PRODUCER)
    settings.publishing.SetInParent()
    body = service.TelemetryCommand(settings=settings).SerializeToString()
    talks: list[Talk] = await dial_all(scene, [scene.leader], TELEMETRY_CONNECTIONS)
    end_s = _now_s() + scene.seconds
    for number, each in enumerate(talks):
        each.write(
            b"".join(
                frames.call(2 * n + 1, b"Telemetry", body, client=b"s%d-%d" % (number, n),
                            ended=False)
                for n in range(TELEMETRY_STREAMS)
            )
        )  # fmt: skip
        await asyncio.sleep(_TURN_S / 2)
    await until(end_s - _SETTLE_S)
    said = await asyncio.to_thread(_telemetry, scene)
    await until(end_s)
    close_all(talks)
    return [
        held("b12t: connections", _tell(talks), "some", bool(talks)),
        held("b12t: Telemetry of a client that comes meanwhile", said, "OK", said == "OK"),
    ]


def _telemetry(scene: Scene) -> str:
    """Return what a new client's Telemetry is told first."""
    settings = definition.Settings(client_type=definition.ClientType.PRODUCER)
    settings.publishing.SetInParent()
    command = service.TelemetryCommand(settings=settings).SerializeToString()
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        stream = channel.stream_stream(f"{ROCKET}Telemetry")
        try:
            answer = next(iter(stream(iter([command]), timeout=5, metadata=caller("honest-new"))))
        except (grpc.RpcError, StopIteration) as error:
            return str(error)[:80]
        found = service.TelemetryCommand.FromString(answer)
        return str(definition.Code.Name(found.status.code))


@by_talks
async def waiting_polls(scene: Scene) -> list[Check]:
    """B12: 11,000 long polls at the leader, of a topic to which nothing comes."""
    return await _polls(scene, scene.leader, POLL_CONNECTIONS, "b12p")


@by_talks
async def polls_at_a_failover(scene: Scene) -> list[Check]:
    """B12: 5,000 long polls at a follower, whose leader is killed meanwhile."""
    return await _polls(scene, scene.follower(), FOLLOWER_CONNECTIONS, "b12k", kills=True)


async def _polls(
    scene: Scene, node: int, connections: int, name: str, *, kills: bool = False
) -> list[Check]:
    await asyncio.to_thread(_make_topic, scene, "strangers")
    request = receive_request("strangers", "strangers", limit=1, wait_s=60, invisible_s=30)
    body = request.SerializeToString()
    talks: list[Talk] = await dial_all(scene, [node], connections)
    end_s = _now_s() + scene.seconds
    for number, each in enumerate(talks):
        each.write(
            b"".join(
                frames.call(2 * n + 1, b"ReceiveMessage", body, client=b"p%d-%d" % (number, n))
                for n in range(POLLS)
            )
        )
        await asyncio.sleep(_TURN_S)
    if kills:
        await until(end_s - scene.seconds / 2)
        os.kill(scene.pids[scene.leader], signal.SIGKILL)
    await until(end_s - 4 * _SETTLE_S)
    lines = [await asyncio.to_thread(_waits, scene, node, name)]
    await until(end_s)
    close_all(talks)
    return [held(f"{name}: connections", _tell(talks), "some", bool(talks)), *lines]


def _make_topic(scene: Scene, name: str) -> None:
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, name, 8)


def _waits(scene: Scene, node: int, name: str) -> Check:
    """Poll an empty topic for two seconds as an honest consumer does: it waits, then is told."""
    request = receive_request("strangers", "honest", wait_s=2, invisible_s=30)
    began_s, said = time.monotonic(), ""
    with scene.channel(scene.endpoints[node]) as channel:
        poll = channel.unary_stream(f"{ROCKET}ReceiveMessage")
        try:
            raw = request.SerializeToString()
            for answer in poll(raw, timeout=8, metadata=caller("honest-poll")):
                found = service.ReceiveMessageResponse.FromString(answer)
                said = code_name(found) if found.HasField("status") else said
        except grpc.RpcError as error:
            said = str(error.code().name)
    took_s = time.monotonic() - began_s
    waited = said in ("OK", "MESSAGE_NOT_FOUND") and took_s > 1
    value = f"{said} after {took_s:.1f} s"
    return held(f"{name}: a poll of two seconds meanwhile", value, "it waits", waited)
