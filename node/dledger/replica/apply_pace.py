"""When a follower applies what is committed: at once if anybody waits for it here, else by the way.

To apply small entries one by one, whenever each is committed, costs a follower more than to apply
as many in a row: between two of them the processor's caches go to others (ADR 38). So they wait for
the next heartbeat, which a follower waits for anyway to hear that the newest entry is committed, or
until there are 16 KiB of them. A leader applies at once, and so does who becomes or has none.
Owned by the driver.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.raft.core import Raft
from dledger.replica.reads import AppliedWaiters
from dledger.types import Role


class ApplyPace:
    """Tells the core whether it hands small entries over as soon as they are committed.

    Attributes:
        later: What the core was told last.
        is_due: Whether all that is committed is to be applied, however little it is.
    """

    def __init__(self, core: Raft, waiters: AppliedWaiters) -> None:
        self._core, self._waiters = core, waiters
        self._awaited: list[Callable[[], bool]] = []
        self.is_due = True
        self.later = False

    def listens(self, awaited: Callable[[], bool]) -> None:
        """Ask *awaited*, too, whether anybody waits."""
        self._awaited.append(awaited)

    def due(self) -> None:
        """Let all that is committed be applied next, in as many pieces as it takes."""
        self.is_due = True
        if self.later:
            self.later = False
            self._core.apply_later(later=False)

    def settled(self) -> None:
        """Take note that it was."""
        self.is_due = False

    def look(self) -> None:
        """Decide anew; before each Ready."""
        state = self._core.state
        follows = state.role is Role.FOLLOWER and state.leader is not None
        later = follows and not self.is_due and not self._waiters
        for awaited in self._awaited if later else ():
            later = later and not awaited()
        if later is not self.later:
            self.later = later
            self._core.apply_later(later=later)
