"""Who has commands of its own committed, for topics that it makes if they are not there.

Whoever does not know what came of a command asks again, as SDKs do; a client of this kind gives up
after a while, so what it was not told may be so or not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from dledger.errors import DledgerError, NotLeader, Refused
from dledger_sim.loop import MS
from dledger_sim.process import Process
from dledger_sim.rounds import Caller

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster

_MOST_TRIES: Final = 20
_MOST_LEADERS: Final = 4
_PAUSE_US: Final = 300 * MS


class Asker(Caller):
    """One of them; *making* are the commands that make what it needs."""

    def __init__(self, cluster: Cluster, name: str, *making: bytes) -> None:
        super().__init__(cluster, name)
        self._making = making

    async def commit(self, command: bytes, *, grows: bool = True) -> object | None:
        """Have a command committed, asking until it is; None: nobody said so."""
        return await self.have(partial(propose, command=command, grows=grows))

    async def find(self, work: Callable[[Process], Awaitable[object]]) -> object:
        """Have the leader do something once, where it can be found. Raises as `ask`."""
        for _ in range(_MOST_LEADERS):
            try:
                return await self.ask(work)
            except NotLeader:
                await self.sleep(1, _PAUSE_US // 10)
        return await self.ask(work)

    async def have(self, work: Callable[[Process], Awaitable[object]]) -> object | None:
        """Have the leader do something, asking until it is done; None: nobody said so."""
        for _ in range(_MOST_TRIES):
            try:
                return await self.ask(work)
            except Refused:
                await self._make()
            except DledgerError:
                await self.sleep(1, _PAUSE_US)
        return None

    async def _make(self) -> None:
        for command in self._making:
            try:
                await self.ask(partial(propose, command=command, grows=True))
            except DledgerError:
                await self.sleep(1, _PAUSE_US)


async def propose(process: Process, *, command: bytes, grows: bool) -> object:
    """Have a node's driver commit a command."""
    return await process.driver.propose(command, grows=grows)
