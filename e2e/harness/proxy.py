"""The network between nodes: TCP proxies whose connections are steered by direction.

A connection's direction is who dialled whom: `Network.start` gives each ordered pair proxies of its
own; `Links` has one for all peers of a node, and asks the kernel whose a connection is.

A node dials each of a peer's ports through the proxy of (itself, peer) to it, and its messages
travel in that direction only; what comes back on the same connection acknowledges. A direction that
is cut holds its bytes back until it is healed, as a network does that loses packets, or breaks the
connections and refuses new ones, as a firewall does. Bounded: at most `_CHUNKS` pieces wait, then
TCP does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from e2e.harness.nodes import NodeSpec
from e2e.harness.ports import HOST
from e2e.harness.processes import socket_inode, sockets_of, tcp_table
from e2e.harness.tasks import cancelled, meanwhile

Direction: TypeAlias = tuple[str, str]

_CHUNK_BYTES: Final = 64 << 10
_CHUNKS: Final = 64
_START_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How one direction is.

    Attributes:
        cut: Nothing passes.
        reset: Being cut, it breaks connections instead of holding bytes back.
        both_layers: It also governs what acknowledges the opposite direction.
        delay_s: Each piece arrives so much later.
        jitter_s: And up to so much more; the order stays.
    """

    cut: bool = False
    reset: bool = False
    both_layers: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0


GOOD: Final = Condition()


class Network:
    """All proxies of a group, and how each direction is now.

    Attributes:
        hits: How many pieces and connections were held back, broken, refused or delayed so far:
            whether a cut was on the way that nodes take is not for whoever cuts to say.
    """

    def __init__(self, ports: Mapping[str, Sequence[int]], rng: random.Random) -> None:
        self._listens = ports
        self._rng = rng
        self.hits = 0
        self._conditions: dict[Direction, Condition] = {}
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._connections: dict[Direction | None, set[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._proxies: dict[Direction, dict[int, int]] = {
            (dialler, listener): {}
            for dialler in ports
            for listener in ports
            if dialler != listener
        }

    async def start(self) -> None:
        """Listen for every ordered pair, and each of the listener's ports."""
        for direction in self._proxies:
            await self._listen(direction)

    async def _listen(self, direction: Direction) -> None:
        for port in self._listens[direction[1]]:
            proxy = await self.listen((HOST, 0), port, lambda _: direction)
            self._proxies[direction][port] = proxy

    async def close(self) -> None:
        """Break everything."""
        for server in self._servers:
            server.close()
        for direction in self._connections:
            self._break(direction)
        await cancelled(*self._tasks)

    def routes(self, dialler: str) -> dict[int, int]:
        """Return by which port *dialler* reaches each of its peers' ports."""
        own = [proxies for (a, _), proxies in self._proxies.items() if a == dialler]
        return {port: proxy for proxies in own for port, proxy in proxies.items()}

    def cut(
        self, directions: Sequence[Direction], *, reset: bool = False, both_layers: bool = False
    ) -> None:
        """Let nothing pass in these directions."""
        for direction in directions:
            self._set(direction, Condition(cut=True, reset=reset, both_layers=both_layers))

    def delay(self, delay_s: float, jitter_s: float) -> None:
        """Delay all directions."""
        for direction in self._proxies:
            self._set(direction, Condition(delay_s=delay_s, jitter_s=jitter_s))

    def heal(self) -> None:
        """Let everything pass; what was held back arrives now."""
        self._conditions.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def _set(self, direction: Direction, condition: Condition) -> None:
        self._conditions[direction] = condition
        self._changed.set()
        self._changed = asyncio.Event()
        if condition.reset:
            self.hits += len(self._connections.get(direction, ()))
            self._break(direction)

    def _condition(self, direction: Direction | None) -> Condition:
        return GOOD if direction is None else self._conditions.get(direction, GOOD)

    def _break(self, direction: Direction | None) -> None:
        for writer in tuple(self._connections.get(direction, ())):
            _reset(writer)

    # -- connections ----------------------------------------------------------------------------

    async def listen(
        self,
        address: tuple[str, int],
        port: int,
        direction_of: Callable[[asyncio.StreamWriter], Direction | None],
    ) -> int:
        """Lead connections that come to *address* on to *port*; return the port listened on.

        A connection without a direction, a client's, always passes.
        """

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(
                self._carry(direction_of(writer), port, reader, writer)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(accept, *address, limit=_CHUNK_BYTES)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _carry(
        self,
        direction: Direction | None,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Join one accepted connection with one to the listener until either ends."""
        condition = self._condition(direction)
        try:
            if condition.cut and condition.reset:
                self.hits += 1
                raise ConnectionResetError
            upstream, out = await asyncio.open_connection(HOST, port, limit=_CHUNK_BYTES)
        except OSError:
            _reset(writer)
            return
        pair = {writer, out}
        connections = self._connections.setdefault(direction, set())
        connections |= pair
        try:
            await self._both(
                self._pump(reader, out, direction, acknowledges=False),
                self._pump(upstream, writer, direction and direction[::-1], acknowledges=True),
            )
        finally:
            connections -= pair
            for each in pair:
                each.transport.abort()

    async def _both(self, *pumps: Coroutine[None, None, None]) -> None:
        """Run both ways until one of them ends."""
        tasks = [asyncio.create_task(pump) for pump in pumps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(*tasks)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction | None,
        *,
        acknowledges: bool,
    ) -> None:
        """Pass bytes on in order, each piece when its direction lets it."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            async with meanwhile(self._fill(reader, waiting, direction)):
                while True:
                    due_s, data = await waiting.get()
                    await asyncio.sleep(max(0.0, due_s - loop.time()))
                    await self._passable(direction, acknowledges=acknowledges)
                    if not data:
                        return
                    writer.write(data)
                    await writer.drain()

    async def _fill(
        self,
        reader: asyncio.StreamReader,
        waiting: asyncio.Queue[tuple[float, bytes]],
        direction: Direction | None,
    ) -> None:
        """Read pieces, with the time at which each is due; an empty one is the end."""
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            try:
                data = await reader.read(_CHUNK_BYTES)
            except OSError:
                data = b""
            condition = self._condition(direction)
            delay_s = condition.delay_s + self._rng.uniform(0, condition.jitter_s)
            self.hits += bool(data and delay_s)
            await waiting.put((loop.time() + delay_s, data))

    async def _passable(self, direction: Direction | None, *, acknowledges: bool) -> None:
        while True:
            condition = self._condition(direction)
            if not condition.cut or (acknowledges and not condition.both_layers):
                return
            self.hits += 1
            await self._changed.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset rather than an orderly end."""
    socket_ = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Links:
    """One proxy for all peers of each node, in a thread of its own, for nodes of any system.

    A cut is silence, as from a switch that fails: no byte and no end of a connection passes in
    either direction, and new connections hang. Which node a connection comes from is read from the
    kernel's table of sockets. A connection from elsewhere, a client's, is never cut.

    Args:
        specs: The nodes; peers connect to ``link_address``.
        pids: Returns the present process id of each node.
    """

    def __init__(self, specs: Sequence[NodeSpec], pids: Callable[[], Sequence[int]]) -> None:
        self._specs = specs
        self._pids = pids
        self._loop = asyncio.new_event_loop()
        self._network = Network({}, random.Random())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        """Listen at every node's link ports."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_S)

    async def _listen(self) -> None:
        for spec in self._specs:
            for link_port, port in spec.linked_ports:
                direction_of = partial(self._direction, spec, link_port)
                await self._network.listen((spec.link_host, link_port), port, direction_of)

    def cut(self, index: int) -> None:
        """Let nothing pass from and to one node until `heal`."""
        name = self._specs[index].name
        others = [spec.name for spec in self._specs if spec.index != index]
        directions = [pair for other in others for pair in ((name, other), (other, name))]
        cut = partial(self._network.cut, directions, both_layers=True)
        self._loop.call_soon_threadsafe(cut)

    def heal(self) -> None:
        """Let everything pass; what was sent meanwhile arrives now."""
        self._loop.call_soon_threadsafe(self._network.heal)

    def stop(self) -> None:
        """End all connections and the thread."""
        asyncio.run_coroutine_threadsafe(self._network.close(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _direction(
        self, target: NodeSpec, link_port: int, writer: asyncio.StreamWriter
    ) -> Direction | None:
        inode = socket_inode(tcp_table(), writer.get_extra_info("peername")[1], link_port)
        for spec, pid in zip(self._specs, self._pids(), strict=False):
            if inode is not None and inode in sockets_of(pid):
                return spec.name, target.name
        return None
