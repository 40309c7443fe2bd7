"""The simulated network between processes: who can reach whom, and what becomes of a message.

`PeerRecords` is how a node asks its peers over it for entries that its own disk has lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Final

from dledger.errors import Unavailable
from dledger.peers.records import whole_entries
from dledger.types import Entry, NodeId
from dledger_sim.loop import MS, Clock
from dledger_sim.options import Options
from dledger_sim.process import Process

_MIN_DELAY_US = 100


class Links:
    """Loses, delays, doubles, reorders, cuts and clogs; one direction of each pair on its own."""

    def __init__(self, clock: Clock, options: Options, rng: Random, reports_rng: Random) -> None:
        self._clock = clock
        self._options = options
        self._rng = rng
        self._reports_rng = reports_rng
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._free_us: dict[tuple[NodeId, NodeId], int] = {}
        self._newest_us: dict[tuple[NodeId, NodeId], int] = {}
        self.calm = False

    def reaches(self, sender: NodeId, recipient: NodeId) -> bool:
        """Whether messages get through at the moment."""
        return (sender, recipient) not in self._cut

    def talks(self, one: NodeId, other: NodeId) -> bool:
        """Whether both ways are open."""
        return self.reaches(one, other) and self.reaches(other, one)

    def delays_us(self, sender: NodeId, recipient: NodeId) -> Sequence[int]:
        """Return after how long a message arrives: not at all, once, or twice."""
        if not self.reaches(sender, recipient):
            return ()
        if self.calm:
            return (self._in_order(sender, recipient, self._rng.randint(_MIN_DELAY_US, 2 * MS)),)
        options, rng = self._options, self._rng
        if options.loss and rng.random() < options.loss:
            return ()
        copies = 2 if options.duplicate and rng.random() < options.duplicate else 1
        return [self._delay_us(sender, recipient) for _ in range(copies)]

    def report_delays_us(self, sender: NodeId, recipient: NodeId) -> Sequence[int]:
        """Return the same for a member's report, which none of Raft's messages waits behind.

        It has a chance of its own, so that a world is the same whoever reports in it.
        """
        options, rng = self._options, self._reports_rng
        is_lost = not self.calm and options.loss and rng.random() < options.loss
        if is_lost or not self.reaches(sender, recipient):
            return ()
        return (rng.randint(_MIN_DELAY_US, (2 if self.calm else options.delay_ms) * MS),)

    def _delay_us(self, sender: NodeId, recipient: NodeId) -> int:
        options, rng = self._options, self._rng
        if options.straggle and rng.random() < options.straggle:
            delay_us = rng.randint(0, 1000 * MS)
        else:
            delay_us = rng.randint(_MIN_DELAY_US, options.delay_ms * MS)
        delay_us += max(0, self._free_us.get((sender, recipient), 0) - self._clock.now_us)
        return delay_us if options.reorder else self._in_order(sender, recipient, delay_us)

    def _in_order(self, sender: NodeId, recipient: NodeId, delay_us: int) -> int:
        link = (sender, recipient)
        at_us = max(self._clock.now_us + delay_us, self._newest_us.get(link, 0))
        self._newest_us[link] = at_us
        return at_us - self._clock.now_us

    def clog(self, sender: NodeId, recipient: NodeId, duration_us: int) -> None:
        """Let what is sent from now on arrive only after a while."""
        self._free_us[(sender, recipient)] = self._clock.now_us + duration_us

    def heal(self, nodes: Collection[NodeId] | None = None) -> None:
        """Let everyone of *nodes* (all, by default) reach everyone of them again."""
        self._cut = {
            (a, b) for a, b in self._cut if nodes is not None and not (a in nodes and b in nodes)
        }
        self._free_us.clear()
        self._newest_us.clear()

    def cut(self, paths: Collection[tuple[NodeId, NodeId]]) -> None:
        """Cut directions."""
        self._cut.update(paths)

    def reopen(self, paths: Collection[tuple[NodeId, NodeId]]) -> None:
        """Open directions again, whoever cut them."""
        self._cut.difference_update(paths)

    def partition(self, nodes: Sequence[NodeId]) -> str:
        """Cut the group in one of several ways; returns which."""
        self.heal()
        shape, paths = draw_partition(nodes, self._rng)
        self.cut(paths)
        return shape


def draw_partition(nodes: Sequence[NodeId], rng: Random) -> tuple[str, list[tuple[NodeId, NodeId]]]:
    """Draw a partition: its name and the directions that are cut."""
    order = list(nodes)
    rng.shuffle(order)
    first, last, rest = order[0], order[-1], order[1:]
    half = len(order) // 2
    some, others = order[:half], order[half:]
    across = [(a, b) for a in some for b in others]
    everyone = [(a, b) for a in order for b in order if a != b]
    shapes = {
        "split": across + [(b, a) for a, b in across],
        "one way": across,
        "one pair": [(first, last), (last, first)],
        "one link": [(first, last)],
        "deaf": [(other, first) for other in rest],
        "mute": [(first, other) for other in rest],
        "alone": [pair for other in rest for pair in ((other, first), (first, other))],
        "bridge": [pair for a in some for b in others[1:] for pair in ((a, b), (b, a))],
        "star": [(a, b) for a, b in everyone if first not in (a, b)],
        "ring": [(order[i], order[(i + 1) % len(order)]) for i in range(len(order))],
        "random": [pair for pair in everyone if rng.random() < 0.3],
    }
    shape = rng.choice(sorted(shapes))
    return f"{shape} of {','.join(order)}", shapes[shape]


_FETCH_TIMEOUT_S: Final = 1.0
_FETCH_BYTES: Final = 64 << 10


class PeerRecords:
    """Implements `dledger.replica.repair.Source` over the simulated network."""

    def __init__(
        self, process: Process, processes: Mapping[NodeId, Process], links: Links, clock: Clock
    ) -> None:
        self._process = process
        self._processes = processes
        self._links = links
        self._clock = clock

    def peers(self) -> Sequence[NodeId]:
        """Return who can be asked now: there is no link to those who were removed."""
        removed = self._process.driver.core.removal_index
        others = (one for one in self._processes.values() if one is not self._process)
        return [one.id for one in others if one.is_up and removed(one.id) is None]

    async def fetch(self, peer: NodeId, first: int, last: int) -> tuple[Entry, ...]:
        """Return entries of [first, last], as far as the peer has them; Unavailable, if lost."""
        answer: asyncio.Future[tuple[Entry, ...]] = asyncio.get_running_loop().create_future()
        own, loop = self._process.id, self._process.loop

        def serve() -> None:
            other = self._processes.get(peer)
            if other is not None and other.is_up:
                found = whole_entries(other.log, first, last, _FETCH_BYTES)
                self._carry(peer, own, lambda: loop.run(_resolve, answer, found))

        self._carry(own, peer, serve)
        try:
            async with asyncio.timeout(_FETCH_TIMEOUT_S):
                return await answer
        except TimeoutError as error:
            raise Unavailable(f"{peer} does not answer") from error

    def _carry(self, sender: NodeId, recipient: NodeId, arrive: Callable[[], None]) -> None:
        for delay_us in self._links.delays_us(sender, recipient):
            self._clock.after(delay_us, arrive)


def _resolve(answer: asyncio.Future[tuple[Entry, ...]], found: tuple[Entry, ...]) -> None:
    if not answer.done():
        answer.set_result(found)
