"""A door as its process has it, and the node's end of its link, in one event loop.

Everything but the process is real, so suites can run behind a door at no cost.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from dledger.calls.service import Service, handlers_of, resumed_of
from dledger.door.bounds import Bounds
from dledger.door.server import DoorServer
from dledger.door.tls import TlsCertificate
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.node_end import NodeEnd
from dledger.door_process.process import batches_of
from dledger.door_process.process import handlers_of as door_handlers
from dledger.door_process.supervisor import methods_of
from dledger.link.calls_in import ServedPort
from dledger.link.connection import Link
from dledger.server.door_batches import DoorBatches
from dledger.server.wiring import ClientParts


class LinkedDoor:
    """One port of one door; started and stopped as a server is."""

    def __init__(
        self,
        parts: ClientParts,
        services: Sequence[Service],
        *,
        tls: TlsCertificate | None = None,
        batches: Any = None,
    ) -> None:
        handlers, bounds = handlers_of(services), Bounds()
        self.lost: list[str] = []
        self.node_end = NodeEnd(
            [ServedPort(handlers=handlers, resumed=resumed_of(services))],
            tuple(handlers),
            batches or DoorBatches(parts),
            bounds,
            on_ready=lambda: None,
            on_pong=lambda _: None,
            on_lost=self.lost.append,
        )
        self.door_end = DoorEnd(control=lambda *_: None, on_lost=self.lost.append)
        served = door_handlers(self.door_end, 0, methods_of(handlers), batches_of(self.door_end))
        self.server = DoorServer("127.0.0.1:0", served, bounds=bounds, tls=tls)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.server.address

    async def start(self) -> None:
        """Join both ends, and serve."""
        mine, its = socket.socketpair()
        await Link.open(mine, lambda: self.node_end.link)
        await Link.open(its, lambda: self.door_end.link)
        self.node_end.tell()
        await self.server.start()

    async def stop(self, grace_s: float) -> None:
        """Drain it, and part the ends."""
        await self.server.stop(grace_s)
        self.door_end.link.close("stopped")
