"""A client port of ours from its first byte on: HTTP/2 and gRPC's frames, or neither."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from random import Random
from typing import Final

from dledger.door.bounds import Held
from dledger.door.connection import Connection
from dledger.door.port import Port
from tests.door.conversations import NARROW, Wire, conversation, damaged
from tests.door.ports import Seen
from tests.fuzz.target import Broken, Target

_PARTS: Final = (1, 9, 50, 1 << 14)
_ROUNDS: Final = 50


class Http2(Target):
    """Any bytes to a connection: it ends in order, and holds nothing afterwards.

    The first byte of an input says in which parts the rest arrives.
    """

    name = "http2"
    refuses = ()

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._faults = _Faults()
        logging.getLogger("dledger.door").addHandler(self._faults)
        self._seen = Seen()
        handlers = {path.encode(): each for path, each in self._seen.handlers(1 << 20).items()}
        held = Held(50_000)
        self._port = Port(handlers=handlers, bounds=NARROW, held=held, needs_alpn=False)

    def close(self) -> None:
        logging.getLogger("dledger.door").removeHandler(self._faults)
        self._loop.close()

    def draw(self, rng: Random) -> bytes:
        return bytes([rng.randrange(256)]) + damaged(conversation(rng), rng)

    def feed(self, data: bytes) -> Hashable:
        if not data:
            return "nothing"
        self._faults.found.clear()
        said = self._loop.run_until_complete(self._talk(data[1:], data[0]))
        faults = [one for one in self._faults.found if "the handler" not in one]
        if faults:
            raise Broken(f"a connection meets a fault of our own: {faults[0][:200]}")
        if self._port.calls or self._port.held.bytes or self._port.tasks:
            raise Broken("a connection that is lost leaves something behind")
        return said

    async def _talk(self, rest: bytes, how: int) -> Hashable:
        lost: list[Connection] = []
        connection = Connection(
            self._port, "ipv4:192.0.2.1:1", on_made=lambda _: None, on_lost=lost.append
        )
        wire = Wire()
        connection.connection_made(wire)
        part = _PARTS[how % len(_PARTS)]
        while rest and not wire.closed:
            connection.data_received(rest[:part])
            rest = rest[part:]
            if how & 4:
                await asyncio.sleep(0)
        if how & 8 and not wire.closed:
            connection.drain()
        if how & 16:
            connection.end()
        closed = wire.closed
        connection.connection_lost(None)
        for answer, _ in self._seen.held:
            answer(b"late")
        self._seen.held.clear()
        for _ in range(_ROUNDS):
            if not self._port.tasks:
                break
            await asyncio.sleep(0)
        return closed, min(len(wire.sent).bit_length(), 12)


class _Faults(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.name.endswith((".connection", ".calls")):
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
