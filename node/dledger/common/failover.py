"""Measures how long each phase of a failover took, as the new leader saw it.

Pure: the driver reports events with their times (monotonic seconds); nothing here reads a clock.
"""

from __future__ import annotations

from typing import Final

from dledger.common.status import FailoverRecord
from dledger.types import NodeId

CAUSES: Final = ("Bootstrap", "Transfer", "ConnectionLost", "ElectionTimeout")
"""What starts an election, as far as the node that wins it can tell."""


def failover_line(record: FailoverRecord) -> str:
    """Return a record as ``dledger status`` shows it."""
    return (
        f"won term {record.term} from {record.from_id or 'nobody'} ({record.cause}): "
        f"detected in {record.detected_ms} ms, elected in {record.elected_ms} ms, "
        f"first ack in {record.first_ack_ms} ms"
    )


class FailoverTimer:
    """Collects the times of a failover on the node that wins the election."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._leader: NodeId | None = None
        self._last_word_s = 0.0
        self._lost_s: float | None = None
        self._cause = "Bootstrap"
        self._elected: tuple[float, int, int] | None = None
        self.record: FailoverRecord | None = None

    def heard_from_leader(self, leader: NodeId, now_s: float) -> None:
        """Note a message from the current leader."""
        self._leader, self._last_word_s, self._lost_s = leader, now_s, None

    def leader_lost(self, cause: str, now_s: float) -> None:
        """Note that the leader is lost; only the first call counts."""
        if self._lost_s is None:
            self._lost_s, self._cause = now_s, cause

    def elected(self, term: int, now_s: float, at_ms: int) -> None:
        """Note that this node won the election."""
        self._elected = (now_s, term, at_ms)
        if self._lost_s is None:
            self._lost_s = now_s

    def first_commit(self, now_s: float) -> FailoverRecord | None:
        """Note the first commit of this node's term; returns the record once."""
        if self._elected is None:
            return None
        elected_s, term, at_ms = self._elected
        lost_s = elected_s if self._lost_s is None else self._lost_s
        last_word_s = min(self._last_word_s or lost_s, lost_s)
        self.record = FailoverRecord(
            from_id=self._leader or "",
            to_id=self._node_id,
            term=term,
            cause=self._cause,
            detected_ms=_ms(lost_s - last_word_s),
            elected_ms=_ms(elected_s - lost_s),
            first_ack_ms=_ms(now_s - elected_s),
            at_ms=at_ms,
        )
        self._elected, self._leader, self._lost_s = None, self._node_id, None
        return self.record


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
