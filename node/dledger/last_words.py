"""What a leader whose disk has failed still says. A pure decision, for the driver."""

from __future__ import annotations

from dledger.raft.core import Raft
from dledger.raft.messages import TimeoutNow
from dledger.types import Role


def last_words(core: Raft) -> TimeoutNow | None:
    """Return the request to the best follower to campaign at once; None if we do not lead.

    It rests on no write of ours, and need not be granted: whoever has an older log loses. A
    follower that has everything wins; else the others' timeouts decide, as without it.
    """
    if core.role is not Role.LEADER:
        return None
    voters = core.membership.voter_ids - {core.id}
    match = {peer: each.match_index for peer, each in core.progress().items() if peer in voters}
    best = max(sorted(match), key=match.__getitem__, default=None)
    if best is None:
        return None
    return TimeoutNow(sender=core.id, recipient=best, term=core.term)
