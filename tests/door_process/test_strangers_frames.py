"""A door that sends what is no frame loses its link; the node goes on, and keeps nothing of it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.message import Message
from dledger.calls.service import handlers_of, resumed_of
from dledger.common.replay_mark import ReplayMark
from dledger.door.bounds import Bounds
from dledger.door_process import frames
from dledger.door_process.frames import AckBatch, Client, DoorKind, SendBatch
from dledger.door_process.node_end import NodeEnd
from dledger.link.calls_in import ServedPort
from dledger.link.connection import Link
from dledger.link.frames import HEADER, Kind, Opening, Resumes, opening, packed
from dledger.rocketmq.send_requests import Origin, encoded
from dledger.server.door_batches import DoorBatches
from dledger.server.wiring import services_of
from dledger.types import Typed
from tests.requests import memory_group as made
from tests.requests.memory_group import MemoryGroup
from tests.waiting import eventually

COMMAND = encoded(Origin("client-1", "t", ""), [Message(message_id="1", body=b"body")])
MARKED = encoded(
    Origin("client-1", "t", "", ReplayMark(bytes(16), 1)), [Message(message_id="1", body=b"body")]
)
TYPED = encoded(
    Origin("client-1", "t", ""),
    [Message(message_id="1", body=b"body", typed=Typed(message_group="g"))],
)
PEER = "ipv4:127.0.0.1:1"
CLIENT = Client(PEER, "client-1", None, ((b"x-mq-client-id", b"client-1"),))


def a_send(**other: Any) -> SendBatch:
    return SendBatch(1, 8192, 1, CLIENT, COMMAND)._replace(**other)


def an_opening(**other: Any) -> Opening:
    pairs = ((b":path", b"/a/B"), (b"x-mq-client-id", b"client-1"))
    return Opening(0, 0, Resumes.NO, 1, None, PEER, pairs, b"")._replace(**other)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[MemoryGroup, NodeEnd, socket.socket, list[str]]]:
    """A node's end, and the socket that a door would have."""
    async with made.memory_group() as group:
        parts = group.nodes[0].parts
        services = services_of(parts)
        lost: list[str] = []
        end = NodeEnd(
            [ServedPort(handlers=handlers_of(services), resumed=resumed_of(services))],
            tuple(handlers_of(services)),
            DoorBatches(parts),
            Bounds(),
            on_ready=lambda: None,
            on_pong=lambda _: None,
            on_lost=lost.append,
        )
        mine, its = socket.socketpair()
        await Link.open(mine, lambda: end.link)
        its.setblocking(False)
        with its:
            yield group, end, its, lost


BAD = {
    "no kind": packed(Kind.ANSWER, 1),
    "too large": HEADER.pack(1 << 30, Kind.OPEN, 1),
    "no call": packed(Kind.OPEN, 1, b"short"),
    "no such method": opening(1, an_opening(method=999)),
    "no such port": opening(1, an_opening(port=7)),
    "twice": opening(1, an_opening()) * 2,
    "no stream": opening(1, an_opening(body=None)),
    "what no batch has": opening(1, an_opening(resumes=Resumes.UNKNOWN)),
    "no batch": packed(DoorKind.SEND, 1, b"short"),
    "no command": frames.sending(1, a_send(command=b"")),
    "another command": frames.sending(1, a_send(command=frame(CommandType.SET_SECRET, b"{}"))),
    "two commands": frames.sending(1, a_send(command=COMMAND * 2)),
    "a torn command": frames.sending(1, a_send(command=COMMAND[:-1])),
    "a newer command": frames.sending(
        1, a_send(command=COMMAND.replace(b"\x01\x00\x08\x00", b"\x02\x00\x08\x00", 1))
    ),
    "another client": frames.sending(1, a_send(client=CLIENT._replace(client_id="client-2"))),
    "the mark of a replay": frames.sending(1, a_send(command=MARKED)),
    "what only some types of topics know": frames.sending(1, a_send(command=TYPED)),
    "too many calls": frames.sending(1, a_send(calls=2)),
    "no handles": packed(DoorKind.ACK, 1, bytes(16)),
    "no credit": packed(Kind.CREDIT, 1, b"1"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_frame_ends_the_link(name: str) -> None:
    """And nothing else."""
    async with linked() as (group, end, its, lost):
        started = 0
        if name == "no credit":  # needs a call that waits
            methods = end._methods
            stream = methods.index("/apache.rocketmq.v2.MessagingService/Telemetry")
            its.send(opening(1, an_opening(method=stream, body=None)))
            started = 1
        await asyncio.get_running_loop().sock_sendall(its, BAD[name])
        await eventually(lambda: bool(lost))

        assert len(end) == 0, started
        await eventually(lambda: group.nodes[0].parts.context.admission.taken == 0)
        assert len(group.log) == 0


async def test_no_bytes_harm_the_node() -> None:
    """Sound frames in any order, with damage: at most the link ends."""
    rng = random.Random(37)
    loop = asyncio.get_running_loop()
    for _ in range(60):
        async with linked() as (group, end, its, lost):
            parts = []
            for number in range(rng.randrange(1, 12)):
                method = rng.randrange(len(end._methods) + 1)
                body = rng.choice((None, b"", rng.randbytes(20)))
                parts.append(
                    rng.choice(
                        (
                            opening(number, an_opening(method=method, body=body)),
                            frames.sending(number, a_send(connection=rng.randrange(3))),
                            frames.acking(number, AckBatch(9, CLIENT, "g", "t", [["handle"]])),
                            packed(
                                rng.choice((*Kind, *DoorKind)), rng.randrange(12), rng.randbytes(8)
                            ),
                        )
                    )
                )
            data = bytearray(b"".join(parts))
            for _ in range(rng.randrange(3)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            await loop.sock_sendall(its, bytes(data))
            await asyncio.sleep(0.01)
            its.close()
            await _all_is_given_back(group, end, lost)


async def _all_is_given_back(group: MemoryGroup, end: NodeEnd, lost: list[str]) -> None:
    """Return when the link has ended, and holds nothing of its node."""
    await eventually(lambda: bool(lost))
    await eventually(lambda: len(end) == 0)
    await eventually(lambda: group.nodes[0].parts.context.admission.taken == 0)
