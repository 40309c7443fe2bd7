"""How a simulated node asks its peers for entries that its own disk has lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dledger.errors import Unavailable
from dledger.peers.records import whole_entries
from dledger.types import Entry, NodeId
from dledger_sim.clock import Clock
from dledger_sim.links import Links
from dledger_sim.process import Process

_TIMEOUT_S: Final = 1.0
_MAX_BYTES: Final = 64 << 10


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
                found = whole_entries(other.log, first, last, _MAX_BYTES)
                self._carry(peer, own, lambda: loop.run(_resolve, answer, found))

        self._carry(own, peer, serve)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await answer
        except TimeoutError as error:
            raise Unavailable(f"{peer} does not answer") from error

    def _carry(self, sender: NodeId, recipient: NodeId, arrive: Callable[[], None]) -> None:
        for delay_us in self._links.delays_us(sender, recipient):
            self._clock.after(delay_us, arrive)


def _resolve(answer: asyncio.Future[tuple[Entry, ...]], found: tuple[Entry, ...]) -> None:
    if not answer.done():
        answer.set_result(found)
