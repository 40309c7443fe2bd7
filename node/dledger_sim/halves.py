"""Who sends messages of transactions, and ends them: once, again, and sometimes both ways.

Whatever was told of the first end must be so: each committed message is in its queue once, none is
that was rolled back, and an end that is said again is told the same, whoever leads or believes so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from dledger.broker.commands import CancelHeld, CheckHeld, CreateTopic
from dledger.broker.held_commands import What, encode_produce_held, encode_release_held
from dledger.broker.held_refs import HELD_QUEUE, Fate, Kind, Ref
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import HeldCancelled, HeldReleased, Produced
from dledger.broker.topics import TRANSACTION
from dledger.errors import DledgerError, Refused
from dledger_sim.audit import ids_stored
from dledger_sim.checkers import ViolationError
from dledger_sim.loop import MS, S
from dledger_sim.process import START_MS, Process
from dledger_sim.rounds import Caller

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster

HALVES: Final = "halves"
_CLIENT: Final = "transactions"
_CHECK_MS: Final = 6_000
_SAID_AGAIN: Final = 0.5
_OTHERWISE: Final = 0.3
_CHECKED: Final = 0.3
_LEFT_OPEN: Final = 0.1
_MOST_TRIES: Final = 20
_PAUSE_US: Final = 300 * MS


class Halves(Caller):
    """All who send such messages.

    Attributes:
        ended: By message id, how each transaction has ended, as somebody was told.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, _CLIENT)
        self._made = 0
        self._generation = 0
        self.ended: dict[str, Fate] = {}

    def start(self) -> None:
        """Begin and end transactions from now on."""
        self.begin(self._work, self._work)

    async def _work(self) -> None:
        self._made += 1
        message_id = f"{self._made}"
        held = await self._ask(_encode_half(message_id, START_MS + self.cluster.clock.now_us // MS))
        if not isinstance(held, Produced):
            return
        if held.queue_ids != (HELD_QUEUE,):
            raise ViolationError(f"half {message_id} is told to be in queue {held.queue_ids}")
        ref, self._generation = Ref.unpack(held.offsets[0]), held.generation
        if self.rng.random() < _CHECKED:
            check = CheckHeld(refs=(ref,), next_ms=_CHECK_MS)
            await self._ask(check.encode(), grows=False)
        if self.rng.random() < _LEFT_OPEN:
            return
        await self.sleep(0, S)
        commits = self.rng.random() < 0.5
        ends = [commits]
        if self.rng.random() < _SAID_AGAIN:
            ends.append(commits)
        if self.rng.random() < _OTHERWISE:
            ends.append(not commits)
        for each in ends:
            await self._end(message_id, ref, commits=each)

    async def _end(self, message_id: str, ref: Ref, *, commits: bool) -> None:
        """Say an end; what it was told before, if anything, has to be told again."""
        wanted = Fate.DELIVERED if commits else Fate.CANCELLED
        if commits:
            command = encode_release_held(
                What.DELIVER, [ref], _columns(message_id), topic=HALVES, generation=self._generation
            )
        else:
            command = CancelHeld(refs=(ref,)).encode()
        answer = await self._ask(command, grows=commits)
        if not isinstance(answer, (HeldReleased, HeldCancelled)):
            return
        before = answer.before[0]
        if before is Fate.UNKNOWN:
            raise ViolationError(f"transaction {message_id} is forgotten within its hour")
        told = wanted if before is Fate.HELD else before
        if self.ended.setdefault(message_id, told) is not told:
            raise ViolationError(f"transaction {message_id} ended {self.ended[message_id]}, {told}")

    async def _ask(self, command: bytes, *, grows: bool = True) -> object | None:
        """Have a command committed, asking until it is; None: nobody said so."""
        for _ in range(_MOST_TRIES):
            try:
                return await self.ask(partial(_propose, command=command, grows=grows))
            except Refused:
                await self._make()
            except DledgerError:
                await self.sleep(1, _PAUSE_US)
        return None

    async def _make(self) -> None:
        command = CreateTopic(name=HALVES, type=TRANSACTION.name, queues=2).encode()
        try:
            await self.ask(partial(_propose, command=command, grows=True))
        except DledgerError:
            await self.sleep(1, _PAUSE_US)

    def audit(self, processes: Sequence[Process]) -> None:
        """Check that queues have what was committed, once, and nothing that was rolled back."""
        stored = list(ids_stored(processes, HALVES))
        if len(stored) > len(set(stored)):
            raise ViolationError("a message of a transaction is delivered twice")
        for message_id, fate in self.ended.items():
            if (message_id in stored) is not (fate is Fate.DELIVERED):
                raise ViolationError(f"transaction {message_id} ended {fate.name}, which is not so")


async def _propose(process: Process, *, command: bytes, grows: bool) -> object:
    return await process.driver.propose(command, grows=grows)


def _columns(message_id: str) -> Columns:
    return Columns(message_ids=[message_id], bodies=[b"."], born_at_ms=[0])


def _encode_half(message_id: str, right_ms: int) -> bytes:
    produce = encode_produce(_columns(message_id), client_id=_CLIENT, topic=HALVES)
    return encode_produce_held(Kind.HALF, [right_ms + _CHECK_MS], produce)
