"""Reports on the Raft core: role changes, phases of a failover, refused messages.

Owned by the driver. It reads the core after every step, and decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dledger.common.failover import FailoverTimer
from dledger.common.metrics import CONTRADICTED, DIVERGED, TERM_JUMP, NodeMetrics
from dledger.common.status import FailoverRecord
from dledger.raft.core import Raft
from dledger.raft.messages import AppendRequest, HeartbeatRequest, Message, TimeoutNow
from dledger.raft.ready import Contradiction, Divergence, Refusal, RoleChange, TermJump
from dledger.replica.log_clock import Clock, LogClock
from dledger.types import NodeId, Role

logger = logging.getLogger(__name__)


_OF_A_LEADER: Final = (AppendRequest, HeartbeatRequest)


class RoleObserver:
    """Follows role, term and leader of one core.

    Attributes:
        knows_start: Whether the core's initial role was recorded; later changes have a cause.
    """

    def __init__(
        self, core: Raft, *, clock: Clock, log_clock: LogClock, metrics: NodeMetrics
    ) -> None:
        self._core, self._clock, self._log_clock, self._metrics = core, clock, log_clock, metrics
        self._timer = FailoverTimer(core.id)
        self._seen: tuple[Role, int, NodeId | None] = (Role.FOLLOWER, 0, None)
        self._term_applied = 0
        self.knows_start = False

    @property
    def last_failover(self) -> FailoverRecord | None:
        """The newest change of leader that this node won."""
        return self._timer.record

    @property
    def serves(self) -> bool:
        """Whether this node leads and has applied an entry of its own term.

        Before that its state machine may lack entries that the old leader acknowledged.
        """
        state = self._core.state
        return state.role is Role.LEADER and self._term_applied == state.term

    def receiving(self, message: Message) -> None:
        """Record a message before the core steps it: a sign that the leader is alive or gone."""
        if isinstance(message, _OF_A_LEADER) and message.term >= self._core.state.term:
            self._timer.heard_from_leader(message.sender, self._clock.monotonic_s())
        elif isinstance(message, TimeoutNow):
            self.leader_lost("Transfer")

    def leader_lost(self, cause: str) -> None:
        """Record the first sign that the leader is gone; *cause* is one of `failover.CAUSES`."""
        self._timer.leader_lost(cause, self._clock.monotonic_s())

    def changed(self, change: RoleChange | None) -> Role | None:
        """Record role, term and leader; return the previous role if any of them has changed.

        Args:
            change: The newest reason that the core gave since the last call, if any.
        """
        self.knows_start = True
        core, before = self._core, self._seen
        self._seen = (core.role, core.term, core.leader)
        if self._seen == before:
            return None
        logger.info(
            "node %s: %s -> %s, term %d, leader %s, last index %d: %s",
            core.id, before[0].value, core.role.value, core.term, core.leader, core.last_index,
            change.cause.value if change else "as it started",
        )  # fmt: skip
        if core.role is not Role.LEADER:
            self._log_clock.follows(led=core.leader is not None)
        if core.role is Role.LEADER:
            self._log_clock.lead()
            self._timer.elected(core.term, self._clock.monotonic_s(), self._clock.unix_ms())
        elif core.role is Role.PRE_CANDIDATE:
            self.leader_lost("ElectionTimeout")
        return before[0]

    def applied(self, term: int) -> bool:
        """Record the term of an applied entry; return whether this node starts serving now."""
        if term == self._term_applied or term != self._core.state.term:
            return False
        self._term_applied = term
        if self._core.role is not Role.LEADER:
            return False
        record = self._timer.first_commit(self._clock.monotonic_s())
        if record is not None:
            self._metrics.elected(record)
            logger.info("failover complete: %s", record)
        return True


class ChangeSignal:
    """Wakes all callers that wait for the next role change. On the event loop only."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # ordered, unlike a set

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after *timeout_s*."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            # Not wait_for: before Python 3.12 it loses a cancellation that arrives with the result.
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return
        finally:
            del self._waiters[waiter]

    def notify(self) -> None:
        """Wake all current waiters."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


_REASONS: Final[dict[type[Refusal], tuple[str, float]]] = {
    Divergence: (DIVERGED, 10.0),
    Contradiction: (CONTRADICTED, 60.0),
    TermJump: (TERM_JUMP, 10.0),
}
"""What a refusal is called, and how many seconds pass before it is told again."""


class RefusalLog:
    """Counts the messages that the core refused, and logs the first of each kind in a while.

    Each points to a faulty member, a fault of this node, or a forged message.
    """

    def __init__(self, own_id: NodeId, *, clock: Clock, metrics: NodeMetrics) -> None:
        self._own_id, self._clock, self._metrics = own_id, clock, metrics
        self._told_s: dict[str, float] = {}

    def note(self, refused: Refusal | None) -> None:
        """Record a refused message, if there was one."""
        if refused is None:
            return
        reason, every_s = _REASONS[type(refused)]
        self._metrics.refused(reason)
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s.get(reason, -every_s) >= every_s:
            self._told_s[reason] = now_s
            logger.error("node %s: %s: %s", self._own_id, reason, _sentence(refused))


def _sentence(refused: Refusal) -> str:
    if isinstance(refused, Contradiction):
        return (
            f"leader {refused.peer!r} has another entry {refused.index}, of term "
            f"{refused.theirs_term}, than the one of term {refused.ours_term} that is committed "
            "here: a member that had it has forgotten it (a disk that was put back?), and messages "
            "that were acknowledged are missing there. This node keeps its log, takes nothing from "
            "that leader, and does not heal by itself: see docs/promises.md, P6"
        )
    if isinstance(refused, TermJump):
        return f"a message of term {refused.term} from {refused.sender!r}, out of reach of ours"
    return (
        f"entry {refused.index} of {refused.peer!r}, or one before it, is another than here: "
        f"chain {refused.theirs:#010x}, here {refused.ours:#010x}; nothing of it counts"
    )
