"""The node's end of a door's link: frames of a door that strangers have taken over, or none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from random import Random
from typing import ClassVar, Final

from dledger.broker.message import Message
from dledger.calls.admission import AdmissionControl
from dledger.calls.service import handlers_of, resumed_of
from dledger.door.bounds import Bounds
from dledger.door_process import frames
from dledger.door_process.frames import AckBatch, Client, DoorKind, SendBatch
from dledger.door_process.node_end import NodeEnd
from dledger.link.calls_in import LARGEST_FRAME_BYTES, CallsIn, ServedPort
from dledger.link.frames import (
    BrokenFraming,
    Inbox,
    Kind,
    Opening,
    Resumes,
    credit,
    opening,
    packed,
)
from dledger.link.leader import RelayPort
from dledger.peers.replication_port import ReplicationPort
from dledger.rocketmq.send_requests import Origin, encoded
from dledger.server.door_batches import DoorBatches
from dledger.server.wiring import ClientParts, services_of
from tests.door.conversations import Wire
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Broken, Target
from tests.requests import memory_group as made

_PEER: Final = "ipv4:192.0.2.1:1"
_COMMAND: Final = encoded(Origin("client", "t", ""), [Message(message_id="1", body=b"body")])
_PAIRS: Final = ((b":path", b"/t/T"), (b"x-mq-client-id", b"client"))
_ROUNDS: Final = 200
_LINKS: Final = 256
"""After so many the node is a new one, as in `doors`."""


def _client(rng: Random, name: str) -> Client:
    """Return whose a batch is: with a deadline that has passed, or headers, or without."""
    return Client(_PEER, name, rng.choice((None, 0.0, 1e9)), _PAIRS[: rng.randrange(3)])


class DoorLinks(Target):
    """Any frames in any order: at most the link ends, and nothing of it is left at the node."""

    name = "door-links"
    refuses = ()
    _KINDS: ClassVar = (*Kind, *DoorKind)

    def __init__(self) -> None:
        logging.getLogger("dledger").setLevel(logging.CRITICAL + 1)
        self._loop = asyncio.new_event_loop()
        self._links = 0
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._made = made.memory_group()
        parts = (await self._made.__aenter__()).nodes[0].parts
        self._end, self._admission = self._ends_of(parts)

    def _ends_of(self, parts: ClientParts) -> tuple[Callable[[], CallsIn], AdmissionControl]:
        """Return what makes the node's end of a link, and the room for what comes over it."""
        services = services_of(parts)
        port = ServedPort(handlers=handlers_of(services), resumed=resumed_of(services))

        def end() -> NodeEnd:
            return NodeEnd([port], tuple(port.handlers), DoorBatches(parts), Bounds())

        return end, parts.context.admission

    async def _stop(self) -> None:
        await self._made.__aexit__(None, None, None)

    def close(self) -> None:
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    def draw(self, rng: Random) -> bytes:
        return b"".join(self._frame(rng) for _ in range(rng.randrange(1, 10)))

    def _frame(self, rng: Random) -> bytes:
        number = rng.randrange(6)
        match rng.randrange(5):
            case 0:
                method, resumes = rng.randrange(30), rng.choice(tuple(Resumes))
                body = rng.choice((None, None, b"", rng.randbytes(30)))
                deadline_s = rng.choice((None, 0.0, 1e9))
                call = Opening(0, method, resumes, 1, deadline_s, _PEER, _PAIRS, body)
                return opening(number, call)
            case 1:
                command = _COMMAND if rng.random() < 0.6 else mutated(rng, _COMMAND)
                client = rng.choice(("client", "client", "other"))
                return frames.sending(
                    number, SendBatch(rng.randrange(3), 9000, 1, _client(rng, client), command)
                )
            case 2:
                handles = [["AgAA"] * rng.randrange(1, 3)]
                return frames.acking(
                    number, AckBatch(9000, _client(rng, "client"), "g", "t", handles)
                )
            case 3:
                return credit(number, rng.randrange(1 << 17))
            case _:
                return packed(rng.choice(self._KINDS), number, rng.randbytes(rng.randrange(20)))

    def mutate(self, rng: Random, data: bytes) -> bytes:
        return mutated(rng, data)

    def feed(self, data: bytes) -> Hashable:
        said = self._loop.run_until_complete(self._talk(data))
        self._links += 1
        if self._links % _LINKS == 0:
            self._loop.run_until_complete(self._stop())
            self._loop.run_until_complete(self._start())
        return said

    def _may_end(self, data: bytes) -> bool:
        """Whether a link may end for what came over it."""
        del data
        return True

    async def _talk(self, data: bytes) -> Hashable:
        end = self._end()
        wire = Wire()
        end.link.connection_made(wire)
        end.link.data_received(data)
        await asyncio.sleep(0)
        closed = wire.closed
        if closed and not self._may_end(data):
            raise Broken("a link ended, although the size of each frame was right")
        end.link.connection_lost(None)
        for _ in range(_ROUNDS):
            if not (end._tasks or self._admission.taken):
                break
            await asyncio.sleep(0)
        if len(end) or self._admission.taken:
            raise Broken("a link that is lost leaves something behind")
        return closed, min(len(wire.sent).bit_length(), 12)


class RelayLinks(DoorLinks):
    """The same of a follower's link to its leader, which ends for a frame's size alone."""

    name = "relay-links"

    def _ends_of(self, parts: ClientParts) -> tuple[Callable[[], CallsIn], AdmissionControl]:
        replication = ReplicationPort(lambda *_: None, lambda _: None)
        return RelayPort(
            handlers_of(services_of(parts, peer_port=True)), replication
        ).end, parts.context.peer_intake

    def _may_end(self, data: bytes) -> bool:
        try:
            Inbox(LARGEST_FRAME_BYTES).feed(data)
        except BrokenFraming:
            return True
        return False
