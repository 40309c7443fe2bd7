"""Whose rollout goes on: one group at a time over all that an operator looks after.

A new image or a value of the chart is a rollout of every group. `stage` says where one group is, by
what is seen of it; `RolloutTurns` gives the turn to one that could go on now, lets it keep that
until it is whole, and gives it to none while a rollout is halted. Only a rollout's own next step
waits: what heals a pod that does not run, an operation, a lost disk never do.

What is remembered here may be lost: another operator finds from what it sees who is under way, who
has begun, and from the recorded conditions who is halted.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.disruptions import RestartPod, TransferLeader
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.plan import next_disruption
from dledger_operator.decisions.rollout import COMES_UP_S, coming_up, halted, is_rolling, rollout
from dledger_operator.decisions.starts import named_missing

PASSES_ON_S: Final = 2.0 * COMES_UP_S
"""A group that gets no further for so long, and is not halted, gives the turn to the next: what
holds it is not its new template, and others must not wait for it for ever."""
SETTLES_S: Final = 5.0
"""So long a new operator gives no turn to a group that has not begun: it may not have seen all."""

ONE_AT_A_TIME: Final = "one group is rolled out at a time"
"""The end of what a group is told that only has to wait until others are done."""

Key = tuple[str, str]
"""Namespace and name of a group."""


class Stage(Enum):
    """Where a group is with its rollout."""

    NONE = auto()
    """It has none, or takes no part in the turns."""
    WAITS = auto()
    """It has one, and something of its own comes first, or holds it."""
    READY = auto()
    """It could take its next step now."""
    UNDER_WAY = auto()
    """A pod is on its way to the new template."""
    HALTED = auto()
    """A pod does not come up with it."""


_STEPS: Final = frozenset({Stage.UNDER_WAY, Stage.HALTED})
"""Who comes to one of these, or goes on from it, has got further. That a step could be taken is
none: one that Kubernetes or a node refuses each time could be taken for ever."""


def stage(facts: Facts, now: str) -> Stage:
    """Return where a group is at the time *now* (RFC 3339), whatever its turn is."""
    group = facts.group
    if group.spec.paused or not group.takes_turns or not is_rolling(facts):
        return Stage.NONE
    if why := halted(facts, now):
        # What the group's spec names and nobody made is its own matter: no pod was harmed by it.
        return Stage.WAITS if why == named_missing(facts) else Stage.HALTED
    step = rollout(facts)
    if isinstance(step, RestartPod | TransferLeader):
        return Stage.READY if next_disruption(facts) == step else Stage.WAITS
    ending = any(facts.observed.pods[name].terminating for name in facts.older)
    return Stage.UNDER_WAY if ending or coming_up(facts) else Stage.WAITS


def is_begun(facts: Facts) -> bool:
    """Whether some pods run the new template, and others do not yet."""
    return 0 < len(facts.older) < len(facts.observed.pods)


class RolloutTurns:
    """Gives the turn to one group after the other.

    Args:
        monotonic_s: Tells the time.
        wake: Called with a group whose turn has come.
        settles_s: See `SETTLES_S`.
    """

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        wake: Callable[[Key], None] = lambda _: None,
        *,
        settles_s: float = SETTLES_S,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._wake = wake
        self._settled_s = monotonic_s() + settles_s
        self._holder: Key | None = None
        self._stages: dict[Key, Stage] = {}
        self._moved_s: dict[Key, float] = {}
        self._begun: set[Key] = set()
        self._passed: set[Key] = set()

    def remember(self, key: Key, reason: str) -> None:
        """Take what is recorded of a group's rollout, until it is looked at."""
        recorded = {Reason.ROLLING_OUT: Stage.UNDER_WAY, Reason.ROLLOUT_HALTED: Stage.HALTED}
        found = next((one for word, one in recorded.items() if word == reason), None)
        if found is not None and key not in self._stages:
            self._put(key, found)

    def ask(self, key: Key, found: Stage, *, has_begun: bool) -> str:
        """Take where a group is, and return whom it waits for; empty if it may go on."""
        if found is Stage.NONE:
            self._drop(key)
        else:
            self._begun = self._begun | {key} if has_begun else self._begun - {key}
            self._put(key, found)
        self._pass_on(asking=key)
        return self._said(key)

    def tell(self, key: Key) -> str:
        """Return what a group would be told now, if nothing of it has changed."""
        self._pass_on(asking=None)
        return self._said(key)

    def forget(self, key: Key) -> None:
        """Drop a group that is not looked after any more; the next has its turn."""
        self._drop(key)
        self._pass_on(asking=None)

    def _put(self, key: Key, found: Stage) -> None:
        """Record a stage; groups stand in line in the order in which they came."""
        before = self._stages.get(key)
        if before is not found and (before is None or {before, found} & _STEPS):
            self._moved_s[key] = self._monotonic_s()
            self._passed.discard(key)
        self._stages[key] = found

    def _drop(self, key: Key) -> None:
        self._stages.pop(key, None)
        self._moved_s.pop(key, None)
        self._begun.discard(key)
        self._passed.discard(key)

    def _pass_on(self, *, asking: Key | None) -> None:
        holder = self._holder
        if holder is not None and (holder not in self._stages or self._is_stuck(holder)):
            self._holder = None
            if (found := self._stages.pop(holder, None)) is not None:
                self._stages[holder] = found  # at the end of the line, begun or not
                self._passed.add(holder)
        if self._holder is None and (key := self._next()) is not None:
            self._holder = key
            self._moved_s[key] = self._monotonic_s()
            if key != asking:
                self._wake(key)

    def _is_stuck(self, key: Key) -> bool:
        return self._monotonic_s() - self._moved_s[key] >= PASSES_ON_S

    def _next(self) -> Key | None:
        """Return whose turn comes: those that have begun first, then as they came.

        Those come last that had it and got no further, until they do, and one after the other.
        """
        if self._find_halted() or self._under_way():
            return None
        ready = [key for key, found in self._stages.items() if found is Stage.READY]
        if self._monotonic_s() < self._settled_s:
            ready = [key for key in ready if key in self._begun]
        fresh = [key for key in ready if key not in self._passed]
        if not fresh:
            return next(iter(ready), None)
        return min(fresh, key=lambda key: key not in self._begun)

    def _find_halted(self) -> list[Key]:
        return [key for key, found in self._stages.items() if found is Stage.HALTED]

    def _under_way(self) -> list[Key]:
        rows = self._stages.items()
        return [key for key, one in rows if one is Stage.UNDER_WAY and not self._is_stuck(key)]

    def _said(self, key: Key) -> str:
        if self._stages.get(key) is not Stage.READY:
            return ""
        if stopped := self._find_halted():
            return f"waits for {'/'.join(stopped[0])}, whose rollout is halted"
        if key == self._holder:
            return ""
        others = [self._holder] if self._holder else self._under_way()
        if not others:
            return "waits until all groups have been looked at"
        return f"waits for {'/'.join(others[0])}: {ONE_AT_A_TIME}"
