"""What a leader whose disk has failed still says. A pure decision, for the driver."""

from __future__ import annotations

from dledger.raft.core import Raft
from dledger.raft.messages import TimeoutNow


def last_words(core: Raft) -> TimeoutNow | None:
    """Return the request to the best follower to campaign at once; None without one.

    It rests on no write of ours, and need not be granted: whoever has an older log loses. A
    follower that has everything wins; else the others' timeouts decide, as without it. It is the
    end of a hand-over without its beginning (thesis 3.10).
    """
    heir = core.heir()
    if heir is None:
        return None
    return TimeoutNow(sender=core.id, recipient=heir, term=core.term)
