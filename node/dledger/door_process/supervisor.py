"""Starts a node's door processes, watches them, replaces those that end or hang, and drains them.

All doors accept from the same listening sockets, which the node binds: so a connection that waits
for a door that dies is accepted by the next. While no door runs, clients wait there, too, and the
node is not ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dledger.calls.service import Resumed
from dledger.common.backoff import Backoff
from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.common.listening import BACKLOG, bound_address, listening
from dledger.door.bounds import UNFINISHED_BYTES, Bounds
from dledger.door.contract import Handlers, Unary
from dledger.door.grpc_format import PREFIX_BYTES
from dledger.door.tls import TlsCertificate
from dledger.door_process.frames import DoorKind
from dledger.door_process.node_end import Batches, NodeEnd
from dledger.door_process.setup import CHAIN_BYTES, GRACE
from dledger.link.calls_in import ServedPort
from dledger.link.connection import Link
from dledger.link.frames import packed

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
LOOKS: Final = 8
"""So many PINGs in a row without an answer mean that a door hangs. They are counted, so that a node
that was paused itself does not blame its doors."""
_STARTS_S: Final = 60.0
"""How long a new door may take to serve."""
_CALM_S: Final = 60.0
"""A door that has served for so long is replaced at once."""
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_EXITS_S: Final = 2.0
"""How long the end of a process that has closed its link may take."""
_LAST_WORDS_S: Final = 8.0
"""What stopping may take beyond its grace; see `door.server.DoorServer.stop`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorPort:
    """One client port that doors serve.

    Attributes:
        address: ``HOST:PORT``.
        handlers: By path; the same paths at all ports.
        resumed: See `link.calls_in.ServedPort`.
        tls: Its certificate; None: the port is plain text.
    """

    address: str
    handlers: Handlers
    resumed: Mapping[str, Resumed]
    tls: TlsCertificate | None = None


def shared_out(bounds: Bounds, processes: int) -> Bounds:
    """Return the bounds of one of so many doors, which do not know of each other.

    So an address has as much as at one port: of each its part.
    """
    largest = MAX_CLIENT_FRAME_BYTES + PREFIX_BYTES

    def part(rate: tuple[int, int]) -> tuple[int, int]:
        return -(-rate[0] // processes), -(-rate[1] // processes)

    return dataclasses.replace(
        bounds,
        connections=-(-bounds.connections // processes),
        calls=-(-bounds.calls // processes),
        handshakes=-(-bounds.handshakes // processes),
        held_bytes=max(bounds.held_bytes // processes, largest),
        unfinished_bytes=max(bounds.unfinished_bytes // processes, largest + UNFINISHED_BYTES),
        stream_header_bytes=-(-bounds.stream_header_bytes // processes),
        arrivals=part(bounds.arrivals),
        all_arrivals=part(bounds.all_arrivals),
        refusals=part(bounds.refusals),
        all_refusals=part(bounds.all_refusals),
        idle_bytes=part(bounds.idle_bytes),
        all_idle_bytes=part(bounds.all_idle_bytes),
    )


def methods_of(handlers: Handlers) -> list[tuple[str, bool, int]]:
    """Return the methods as a door is told of them; see `process.handlers_of`."""
    return [
        (path, isinstance(each, Unary), each.max_request_bytes) for path, each in handlers.items()
    ]


class DoorProcesses:
    """The doors of one node; a server of its client ports (`door.contract.ClientServer`).

    Args:
        ports: The client ports.
        processes: How many doors.
        batches: Carries out batches.
        bounds: The limits of a port.
        on_restart: Called for each door that is replaced.

    Raises:
        OSError: An address, which the message names, is taken or not this machine's.
    """

    def __init__(
        self,
        ports: Sequence[DoorPort],
        processes: int,
        batches: Batches,
        *,
        bounds: Bounds | None = None,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self.ports, self.batches = ports, batches
        self.bounds = shared_out(bounds or Bounds(), processes)
        self.methods = tuple(ports[0].handlers)
        self.served = [ServedPort(handlers=p.handlers, resumed=p.resumed) for p in ports]
        self._on_restart = on_restart
        self.listening: list[socket.socket] = []
        try:
            for port in ports:
                self.listening.append(listening(port.address))
        except OSError:
            self._close()
            raise
        self.addresses = [bound_address(each) for each in self.listening]
        self._doors = [_Door(self, number) for number in range(processes)]
        self._keepers: list[asyncio.Task[None]] = []
        self.stopping = False
        self.grace_s = 0.0

    @property
    def serving(self) -> int:
        """How many doors serve now."""
        return sum(door.serves for door in self._doors)

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [door.process.pid for door in self._doors if door.process is not None]

    @property
    def under_way(self) -> int:
        """Calls and batches that the node has of all doors."""
        return sum(len(door.end) for door in self._doors if door.end is not None)

    @property
    def problem(self) -> str:
        """Why clients cannot be served; empty: they can."""
        return "" if self.serving else "no door process serves the client ports yet, see its log"

    async def start(self) -> None:
        """Listen, and start the doors; they serve a moment later."""
        for each in self.listening:
            each.listen(BACKLOG)
        self._keepers = [asyncio.create_task(self._keep(door)) for door in self._doors]

    async def stop(self, grace_s: float) -> None:
        """Take no new connections; let the doors finish as `door.server` does, then end them."""
        self.stopping, self.grace_s = True, grace_s
        self._close()
        for door in self._doors:
            door.drain()
        if self._keepers:
            await asyncio.wait(self._keepers)

    async def _keep(self, door: _Door) -> None:
        """Run a door, and replace it when it ends: at once, then after pauses that grow."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, at_once=True, calm_s=_CALM_S)
        while not self.stopping:
            since_s = loop.time()
            try:
                why = await door.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next may start
                why = f"it cannot be started: {error!r}"
            if self._is_stopping():
                return
            self._on_restart()
            pause_s = backoff.next_s(lasted_s=loop.time() - since_s)
            logger.error(
                "door process %d ended, its clients connect again: %s; the next starts in %g s",
                door.number,
                why,
                pause_s,
            )
            await door.pause(pause_s)

    def _is_stopping(self) -> bool:
        return self.stopping

    def _close(self) -> None:
        for each in self.listening:
            each.close()


class _Door:
    """One door process after the other, with one number.

    Attributes:
        serves: Whether the present one serves.
        process: The present one; None: there is none.
        end: Its link.
    """

    def __init__(self, owner: DoorProcesses, number: int) -> None:
        self._owner, self.number = owner, number
        self.serves = False
        self.process: subprocess.Popen[bytes] | None = None
        self.end: NodeEnd | None = None
        self._woken = asyncio.Event()
        self._lost: asyncio.Future[str] | None = None
        self._pings = self._answered = 0
        self._shown: dict[int, tuple[bytes, bytes]] = {}

    def drain(self) -> None:
        """Let `run` look whether the node stops."""
        self._woken.set()

    async def pause(self, pause_s: float) -> None:
        """Wait, but not for longer than until the node stops."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), pause_s)

    async def run(self) -> str:
        """Run one process to its end; return why it ended."""
        loop, owner = asyncio.get_running_loop(), self._owner
        mine, its = socket.socketpair()
        self._lost = lost = loop.create_future()
        self._pings = self._answered = 0
        self._shown.clear()
        try:
            with its:
                # Not by the event loop: uvloop forks, with all that gRPC has to say about it.
                # And not in a thread, since the door dies with the thread that started it.
                self.process = process = subprocess.Popen(  # noqa: S603, ASYNC220
                    [sys.executable, "-m", "dledger.door_process", "--link", str(its.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(its.fileno(), *(each.fileno() for each in owner.listening)),
                )
        except BaseException:
            mine.close()
            raise
        try:
            self.end = end = NodeEnd(
                owner.served,
                owner.methods,
                owner.batches,
                owner.bounds,
                on_ready=self._ready,
                on_pong=self._pong,
                on_lost=lost.set_result,
            )
            await Link.open(mine, lambda: end.link)
            self._show_certificates(end)
            end.link.send(packed(DoorKind.SETUP, self.number, self._setup()))
            why = await self._watch(end, lost)
        finally:
            if self.end is not None and not lost.done():
                self.end.link.abort("the node ends it")

            self.serves, self.process, self.end = False, None, None
            code = await asyncio.to_thread(_reaped, process, _EXITS_S if lost.done() else 0.0)
        return f"{why} (exit {code})"

    async def _watch(self, end: NodeEnd, lost: asyncio.Future[str]) -> str:
        """Return once the process is gone, hangs or has drained."""
        loop, owner = asyncio.get_running_loop(), self._owner
        starts_until_s = loop.time() + _STARTS_S
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            while not owner.stopping:
                await asyncio.wait((lost, woken), timeout=TICK_S, return_when=_FIRST)
                if lost.done():
                    return lost.result()
                if self._pings - self._answered >= LOOKS:
                    return f"it has not answered {LOOKS} times: it hangs, and is killed"
                if not self.serves and loop.time() > starts_until_s:
                    return f"it did not serve within {_STARTS_S:g} s, and is killed"
                self._pings += 1
                end.link.send(packed(DoorKind.PING, self._pings))
                self._show_certificates(end)
        finally:
            woken.cancel()
        end.link.send(packed(DoorKind.DRAIN, 0, GRACE.pack(owner.grace_s)))
        await asyncio.wait((lost,), timeout=owner.grace_s + _LAST_WORDS_S)
        return lost.result() if lost.done() else "it did not stop in time, and is killed"

    def _ready(self) -> None:
        self.serves = True
        logger.info("door process %d serves the client ports", self.number)

    def _pong(self, number: int) -> None:
        self._answered = max(self._answered, min(number, self._pings))

    def _show_certificates(self, end: NodeEnd) -> None:
        """Give the process each port's certificate, if it has not the present one."""
        for number, port in enumerate(self._owner.ports):
            if port.tls is None:
                continue
            port.tls.refresh()
            shown = (port.tls.chain, port.tls.key)
            if port.tls.chain and self._shown.get(number) != shown:
                self._shown[number] = shown
                head = CHAIN_BYTES.pack(len(port.tls.chain))
                end.link.send(packed(DoorKind.CERTIFICATE, number, head, *shown))

    def _setup(self) -> bytes:
        owner, root = self._owner, logging.getLogger()
        formatter = root.handlers[0].formatter if root.handlers else None
        handlers = owner.ports[0].handlers
        setup: dict[str, Any] = {
            "listening": [each.fileno() for each in owner.listening],
            "tls": [number for number, port in enumerate(owner.ports) if port.tls is not None],
            "methods": methods_of(handlers),
            "bounds": dataclasses.asdict(owner.bounds),
            "log_level": root.getEffectiveLevel(),
            "log_format": (formatter and formatter._fmt) or logging.BASIC_FORMAT,  # noqa: SLF001
        }
        return json.dumps(setup).encode()


def _reaped(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """Return the exit code of a process, which is killed if it has not ended by then."""
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


_FIRST: Final = asyncio.FIRST_COMPLETED
