"""Rounds of compaction, by callers who know nothing of each other, of leaders, or of time.

Each reads and decides as the job does (`job`), tells whoever leads queue by queue and part by part,
and proves what it is asked to. Some are told twice at once, some stop between two calls, and what
was decided is kept and said again later, to another leader or to a group that was forced since. A
leader may refuse what a caller says, but must never find it untrue: `compacted` checks what comes
of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dledger.errors import DledgerError, InvalidArgument, NotLeader, Unavailable
from dledger.replica.compacting import Claim
from dledger.replica.compactor import Compacted
from dledger.types import NodeId
from dledger_sim.checkers import ViolationError
from dledger_sim.loop import MS, ProcessLoop, S
from dledger_sim.process import Process

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster
    from dledger_sim.job import Decided

_CALLERS: Final = 2
_REST_US: Final = (20 * MS, 400 * MS)
_PAUSE_US: Final = 200 * MS
_PATIENCE_S: Final = 2.0
_CALL_S: Final = (0.01, 0.2, 5.0)
"""How long the leader may work for one call: a short one ends half way."""
_RANGES: Final = (5, 40, 1 << 18)
"""Offsets that one call decides."""
_AGAIN_MS: Final = (0, 0, 500, 3_600_000)
_KEPT: Final = 6
"""Decisions that are kept to be told again."""
_MOST_TRIES: Final = 12
_STOPS: Final = 0.15
_TOLD_TWICE: Final = 0.2
_TOLD_AGAIN: Final = 0.4
_NO_PROOFS: Final[Mapping[int, int]] = {}


class Caller:
    """Someone outside of the group, on an event loop of its own, who asks nodes.

    Attributes:
        running: Whether it begins anything new.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.rng = cluster.random(name)
        self.loop = ProcessLoop(cluster.clock, job_us=lambda: (MS, MS))
        self.running = False
        self._leader: NodeId | None = None

    def begin(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Do each of *works* again and again from now on."""
        self.running = True
        for work in works:
            self.loop.run(lambda work=work: self.loop.create_task(self._repeat(work)))

    def stop(self) -> None:
        """Begin nothing new; what is under way goes on."""
        self.running = False

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        await self.sleep(*_REST_US)
        while self.running:
            await work()
            await self.sleep(*_REST_US)

    async def sleep(self, least_us: int, most_us: int) -> None:
        """Let some time pass."""
        await asyncio.sleep(self.rng.randint(least_us, most_us) / S)

    async def ask(self, work: Callable[[Process], Awaitable[object]]) -> object:
        """Have the leader do something, as far as it is known; return what it answers.

        Raises:
            Unavailable: There was no answer.
            DledgerError: This was the answer.
        """
        answered: asyncio.Future[object] = self.loop.create_future()

        def finish(answer: object) -> None:
            if not answered.done():
                answered.set_result(answer)

        node = self._leader or self.rng.choice(self.cluster.nodes())
        self.cluster.have(node, work, lambda answer: self.loop.run(finish, answer))
        self._leader = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                answer = await answered
        except TimeoutError:
            raise Unavailable("no answer") from None
        if isinstance(answer, DledgerError):
            self._leader = answer.leader if isinstance(answer, NotLeader) else None
            raise answer
        self._leader = node
        return answer


class Rounds(Caller):
    """All who have topics compacted."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "rounds")
        self._decided: list[Decided] = []

    def start(self) -> None:
        """Begin rounds from now on."""
        self.begin(*[self._round] * _CALLERS)

    async def _round(self) -> None:
        """Read, decide and tell; or tell what was decided some time ago."""
        if self._decided and self.rng.random() < _TOLD_AGAIN:
            decided = self.rng.choice(self._decided)
        elif (fresh := await self._decide()) is not None:
            decided = fresh
            self._remember(fresh)
        else:
            return
        if self.rng.random() < _TOLD_TWICE:
            self.loop.create_task(self._tell(decided))
        await self._tell(decided)

    def _remember(self, decided: Decided) -> None:
        """Keep it, in place of any other: some are told again when they are very old."""
        if len(self._decided) < _KEPT:
            self._decided.append(decided)
        else:
            self._decided[self.rng.randrange(_KEPT)] = decided

    async def _decide(self) -> Decided | None:
        from dledger_sim.job import RoundOver, decide  # noqa: PLC0415, Arrow: few runs need it

        def any_node() -> Process:
            if not (up := self.cluster.up()):
                raise RoundOver("nobody is up")
            return self.rng.choice(up)

        try:
            return await decide(any_node, lambda: self.sleep(1, _PAUSE_US))
        except RoundOver as reason:
            self.cluster.note(f"a round ends: {reason}")
            return None

    async def _tell(self, decided: Decided) -> None:
        """Tell all that was decided; perhaps not to the end."""
        size, again_in_ms = self.rng.choice(_RANGES), self.rng.choice(_AGAIN_MS)
        for (generation, queue_id), decision in decided.queues.items():
            for part in decision.parts(size):
                if self.rng.random() < _STOPS:
                    return
                claim = Claim(
                    as_of_index=decided.as_of_index,
                    as_of_chain=decided.as_of_chain,
                    topic=decided.topics[generation],
                    generation=generation,
                    queue_id=queue_id,
                    first=part.first,
                    to=part.to,
                    stays=part.stays,
                    alone=part.alone,
                    again_in_ms=again_in_ms,
                )
                if not await self._say(claim, decision.beaten_by):
                    return

    async def _say(self, claim: Claim, beaten_by: Callable[[int], int | None]) -> bool:
        """Say it until it is done; return False if it cannot be, so that the rest is not either."""
        proofs = _NO_PROOFS
        for _ in range(_MOST_TRIES):
            try:
                done = await self._compact(replace(claim, proofs=proofs))
            except Unavailable:
                await self.sleep(1, _PAUSE_US)
                continue
            except InvalidArgument as error:
                raise ViolationError(f"what a round says is taken for a lie: {error}") from error
            except DledgerError as error:
                self.cluster.note(f"a round as of {claim.as_of_index} is refused: {error}")
                return False
            if not done.ask:
                return True
            proofs = {offset: _proof(beaten_by, offset) for offset in done.ask}
        return False

    async def _compact(self, claim: Claim) -> Compacted:
        timeout_s = self.rng.choice(_CALL_S)
        done = await self.ask(lambda node: node.compactor.compact(claim, timeout_s=timeout_s))
        assert isinstance(done, Compacted), "a claim was made"  # noqa: S101
        return done


def _proof(beaten_by: Callable[[int], int | None], offset: int) -> int:
    by = beaten_by(offset)
    if by is None:
        raise ViolationError(f"a leader asks for a proof of {offset}, which was to stay")
    return by
