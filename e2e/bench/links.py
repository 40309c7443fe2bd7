"""The links between the nodes of a group, as TCP proxies that can be cut.

Every node's peers are told a port that leads through here. A cut is silence, as from a switch that
fails: no byte and no end of a connection passes in either direction, and new connections hang.
Which node a connection comes from is read from the kernel's table of sockets, so that it works
for any system. A connection from elsewhere, a client's, is never cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.bench.seats import HOST, Seat

_PIECE: Final = 64 << 10
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_START_S: Final = 10.0


class Links:
    """Runs the proxies of a group in a thread of its own.

    Args:
        seats: The nodes' places; peers connect to ``link_address``.
        pids: Returns the present process id of each node.
    """

    def __init__(self, seats: Sequence[Seat], pids: Callable[[], Sequence[int]]) -> None:
        self._seats = seats
        self._pids = pids
        self._loop = asyncio.new_event_loop()
        self._flows = [asyncio.Event() for _ in seats]
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        """Listen at every node's link ports."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_S)

    async def _listen(self) -> None:
        for seat, flow in zip(self._seats, self._flows, strict=True):
            flow.set()
            for link_port, port in seat.linked_ports:
                accept = self._accept(seat, link_port, port)
                self._servers.append(await asyncio.start_server(accept, seat.link_host, link_port))

    def cut(self, index: int) -> None:
        """Let nothing pass from and to one node until `heal`."""
        self._loop.call_soon_threadsafe(self._flows[index].clear)

    def heal(self) -> None:
        """Let everything pass; what was sent meanwhile arrives now."""
        for flow in self._flows:
            self._loop.call_soon_threadsafe(flow.set)

    def stop(self) -> None:
        """End all connections and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        await _ended(self._tasks)

    def _accept(self, target: Seat, link_port: int, port: int) -> Callable[..., None]:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            source = self._source(writer.get_extra_info("peername")[1], link_port)
            flows = [] if source is None else [self._flows[source], self._flows[target.index]]
            task = self._loop.create_task(_serve(port, flows, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accepted

    def _source(self, port: int, link_port: int) -> int | None:
        tables = (line for table in _TABLES for line in _lines(table))
        inode = socket_inode(tables, port, link_port)
        owners = {pid: index for index, pid in enumerate(self._pids())}
        return None if inode is None else _owner(inode, owners)


async def _serve(
    port: int,
    flows: Sequence[asyncio.Event],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Join a connection with one to *port* while bytes may flow, until either ends."""
    with contextlib.closing(writer), contextlib.suppress(OSError):
        await _passes(flows)
        to_reader, to_writer = await asyncio.open_connection(HOST, port)
        with contextlib.closing(to_writer):
            loop = asyncio.get_running_loop()
            pumps = [
                loop.create_task(_pump(reader, to_writer, flows)),
                loop.create_task(_pump(to_reader, writer, flows)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _ended(pumps)


async def _ended(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: Sequence[asyncio.Event]
) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            await _passes(flows)
            writer.write(piece)
            await writer.drain()
    await _passes(flows)


async def _passes(flows: Sequence[asyncio.Event]) -> None:
    while not all(flow.is_set() for flow in flows):
        for flow in flows:
            await flow.wait()


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text("ascii").splitlines()[1:]
    except FileNotFoundError:
        return []


def socket_inode(table: Iterable[str], port: int, remote_port: int) -> str | None:
    """Return the inode of the socket between two ports, from lines of ``/proc/net/tcp``."""
    for line in table:
        fields = line.split()
        ports = [int(fields[column].rpartition(":")[2], 16) for column in (1, 2)]
        if ports == [port, remote_port]:
            return fields[9]
    return None


def _owner(inode: str, owners: Mapping[int, int]) -> int | None:
    for pid, index in owners.items():
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        return index
    return None
