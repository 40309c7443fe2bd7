"""What a node makes of messages that its core refused: a counter, and now and then a log line.

Owned by the driver. Each is a fault of a member, of this node, or the work of a forger.
"""

from __future__ import annotations

import logging
from typing import Final

from dledger.common.metrics import DIVERGED, TERM_JUMP, NodeMetrics
from dledger.raft.ready import Divergence, TermJump
from dledger.replica.log_clock import Clock
from dledger.types import NodeId

logger = logging.getLogger(__name__)

_EVERY_S: Final = 10.0


class RefusalLog:
    """Counts them all, and tells the first of each kind in ten seconds."""

    def __init__(self, own_id: NodeId, *, clock: Clock, metrics: NodeMetrics) -> None:
        self._own_id, self._clock, self._metrics = own_id, clock, metrics
        self._told_s: dict[str, float] = {}

    def note(self, refused: Divergence | TermJump | None) -> None:
        """Take note of a message that was refused, if there was one."""
        if refused is None:
            return
        reason = DIVERGED if isinstance(refused, Divergence) else TERM_JUMP
        self._metrics.refused(reason)
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s.get(reason, -_EVERY_S) >= _EVERY_S:
            self._told_s[reason] = now_s
            logger.error("node %s: %s: %s", self._own_id, reason, _sentence(refused))


def _sentence(refused: Divergence | TermJump) -> str:
    if isinstance(refused, TermJump):
        return f"a message of term {refused.term} from {refused.sender!r}, out of reach of ours"
    return (
        f"entry {refused.index} of {refused.peer!r}, or one before it, is another than here: "
        f"chain {refused.theirs:#010x}, here {refused.ours:#010x}; nothing of it counts"
    )
