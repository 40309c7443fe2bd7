"""Reads that need no log entry: a leader shows that it still leads, then names an index.

A round of heartbeats confirms every read that was asked before it began: when a quorum has
answered in our term, no later leader can have committed anything before the round began, so the
commit index of that moment covers all that was acknowledged by then. Reads gather while a round
is under way and share the next. Owned by `leader.Leader`. Source: thesis 6.4.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dledger.errors import Overloaded
from dledger.raft.ready import ConfirmedRead


@dataclass(frozen=True, slots=True)
class _Batch:
    round: int
    index: int
    contexts: tuple[int, ...]


class Reads:
    """The reads of one leader that are not confirmed yet; at most *limit*.

    Attributes:
        under_way: Those whose round has begun; false if there is none.
        round_due: Whether reads wait and no round is under way that they could follow.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: list[int] = []
        self.under_way: deque[_Batch] = deque()
        self.round_due = False
        self._count = 0

    def ask(self, context: int) -> None:
        """Let a read wait for the next round.

        Raises:
            Overloaded: Too many reads wait already.
        """
        if self._count >= self._limit:
            raise Overloaded(f"{self._count} reads wait to be confirmed; at most {self._limit} may")
        self._count += 1
        self._waiting.append(context)
        self.round_due = not self.under_way

    def round_begins(self, number: int, commit_index: int) -> None:
        """Let a round of heartbeats carry all that waits."""
        if self._waiting:
            self.under_way.append(_Batch(number, commit_index, tuple(self._waiting)))
            self._waiting.clear()
            self.round_due = False

    def round_confirmed(self, number: int) -> list[ConfirmedRead]:
        """Return the reads that a quorum's answers to round *number* confirm, oldest first."""
        confirmed: list[ConfirmedRead] = []
        while self.under_way and self.under_way[0].round <= number:
            batch = self.under_way.popleft()
            confirmed += [ConfirmedRead(context, batch.index) for context in batch.contexts]
        self._count -= len(confirmed)
        self.round_due = bool(self._waiting) and not self.under_way
        return confirmed
