"""A door process: serves the client ports until its node is gone, or asks it to go.

It is started by `supervisor`, with one end of the link and the ports' listening sockets. It has no
settings of its own: the first frames say what to serve.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import uvloop

from dledger.common.memory import collect_seldom, give_back_now_and_then, keep_blocks
from dledger.door.bounds import Bounds
from dledger.door.contract import Handlers
from dledger.door.server import DoorServer
from dledger.door.tls import TlsCertificate
from dledger.door_process.ack_batches import ACK_PATH, AckBatches
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.frames import DoorKind
from dledger.door_process.send_batches import SEND_PATH, SendBatches
from dledger.door_process.setup import CHAIN_BYTES, GRACE
from dledger.link.connection import Link
from dledger.link.frames import packed

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_EXIT_LOST: Final = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one door process; return its exit code."""
    parser = argparse.ArgumentParser(prog="dledger.door_process", description="Started by a node.")
    parser.add_argument("--link", type=int, required=True, help="file descriptor of the link")
    args = parser.parse_args(argv)
    # The link's end is the first sign that the node is gone; this is one that needs no event loop.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT):  # a terminal sends them to all; the node drains
        signal.signal(number, signal.SIG_IGN)
    keep_blocks()
    return uvloop.run(_run(socket.socket(fileno=args.link)))


async def _run(end: socket.socket) -> int:
    return await Process().run(end)


class Process:
    """The process: its servers, and its end of the link. Built on the running event loop."""

    def __init__(self) -> None:
        self._door = DoorEnd(control=self._control, on_lost=self._lost)
        self._certificates: dict[int, TlsCertificate] = {}
        self._servers: list[DoorServer] = []
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks = set[asyncio.Task[None]]()

    async def run(self, end: socket.socket) -> int:
        """Serve until the node asks to stop; return the exit code."""
        link = self._door.link
        await Link.open(end, lambda: link)
        return await self._ended

    def _control(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case DoorKind.CERTIFICATE:
                self._show(number, payload)
            case DoorKind.SETUP:
                self._run(self._serve(json.loads(payload)))
            case DoorKind.DRAIN:
                self._run(self._stop(*GRACE.unpack(payload)))
            case _:
                raise AssertionError(f"the node sends a frame of kind {kind}")

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = task.exception()
        if error is not None:
            logger.critical("this door process ends: %r", error)
            self._end(_EXIT_LOST)

    def _show(self, port: int, payload: bytes) -> None:
        """Take a TLS port's certificate, the first one or a newer."""
        (size,) = CHAIN_BYTES.unpack_from(payload)
        chain, key = payload[CHAIN_BYTES.size :][:size], payload[CHAIN_BYTES.size + size :]
        self._certificate_of(port).replace(chain, key)

    def _certificate_of(self, port: int) -> TlsCertificate:
        """Return that of a TLS port, which may be empty yet: the port takes nobody then."""
        return self._certificates.setdefault(port, TlsCertificate())

    async def _serve(self, setup: dict[str, Any]) -> None:
        logging.basicConfig(level=setup["log_level"], stream=sys.stderr, format=setup["log_format"])
        door = self._door
        door.bounds = bounds = _bounds(setup["bounds"])
        batches = batches_of(door)
        for number, descriptor in enumerate(setup["listening"]):
            server = DoorServer(
                socket.socket(fileno=descriptor),
                handlers_of(door, number, setup["methods"], batches),
                bounds=bounds,
                tls=self._certificate_of(number) if number in setup["tls"] else None,
            )
            self._servers.append(server)
            await server.start()
        collect_seldom()
        give_back_now_and_then()
        door.link.send(packed(DoorKind.READY, os.getpid()))

    async def _stop(self, grace_s: float) -> None:
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        self._end(0)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    def _lost(self, why: str) -> None:
        """Exit: without its node, a door can do nothing but keep clients from another one."""
        if not self._ended.done():
            logger.error("this door process ends, since its node is gone: %s", why)
            os._exit(_EXIT_LOST)


def batches_of(door: DoorEnd) -> Mapping[str, SendBatches | AckBatches]:
    """Return by path what the door does in batches, for all of its ports."""
    sends, acks = SendBatches(door), AckBatches(door)
    door.replies += [sends, acks]
    door.turns += [sends.flush, acks.flush]
    return {SEND_PATH: sends, ACK_PATH: acks}


def handlers_of(
    door: DoorEnd,
    port: int,
    methods: Sequence[tuple[str, bool, int]],
    batches: Mapping[str, SendBatches | AckBatches],
) -> Handlers:
    """Return what one port serves.

    Args:
        door: The end of the link.
        port: The port's number.
        methods: By their numbers: path, whether it takes one message for one, and how large.
        batches: By path, what tries a batch first.
    """
    handlers = {}
    for number, (path, unary, max_request_bytes) in enumerate(methods):
        handler = door.handler(port, number, path, unary=unary, max_request_bytes=max_request_bytes)
        first = batches.get(path)
        handlers[path] = first.before(handler, port, number) if first else handler
    return handlers


def _bounds(given: dict[str, Any]) -> Bounds:
    pairs = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
    return Bounds(**given | pairs)  # JSON has them as lists
