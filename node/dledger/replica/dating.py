"""Keeps the log's time by the date of the group. Owned by the driver, which calls `look` each tick.

The log's time goes on by itself (`log_clock`); the date comes from all members' clocks
(`group_date`). A leader whose log is behind the date proposes a LEAP; one whose log is ahead lets
its time run slower. Every member compares its own clock with the date: one that is apart is told,
and may lead, since nothing goes by it alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from dledger.common.metrics import NodeMetrics
from dledger.common.status import CLOCK_APART_MS
from dledger.replica.group_date import AHEAD_MS, LEAP_MS, group_date
from dledger.replica.log_clock import Clock, LogClock
from dledger.replica.reports import Reports
from dledger.types import Membership, NodeId, Role

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_ASK_EVERY_S: Final = 0.1
"""Meanwhile it asks more often than once a second: the others answer once they know the group."""
_UNDATED_S: Final = 3.0
"""How long the first leader of a new group holds its first entries back for the group's date."""


class CurrentMembership(Protocol):
    """Whose newest is asked for; see `raft.membership.MembershipStack`."""

    @property
    def current(self) -> Membership:
        """The newest."""


class DatedCore(Protocol):
    """What is asked of the core; see `raft.core.Raft`."""

    @property
    def id(self) -> NodeId:
        """This node."""

    @property
    def term(self) -> int:
        """Its term."""

    @property
    def role(self) -> Role:
        """Whether it leads."""

    @property
    def memberships(self) -> CurrentMembership:
        """Who votes."""


class Dating:
    """The dates of one node's group.

    Args:
        core: Who votes, and whether this node leads.
        clock: The node's own; its wall clock is one of those that make the date.
        log_clock: The log's time.
        reports: The other members' clocks.
        metrics: Counts the leaps.
        leap: Proposes a LEAP to a time, Unix milliseconds; returns its index, 0 if it cannot now.

    Attributes:
        apart_ms: How far this node's wall clock is ahead of the date (below 0: behind); None while
            too few clocks are heard.
        ahead_ms: How far a leader's log is ahead of the date; None as well on other nodes.
    """

    def __init__(
        self,
        core: DatedCore,
        *,
        clock: Clock,
        log_clock: LogClock,
        reports: Reports,
        metrics: NodeMetrics,
        leap: Callable[[int], int],
    ) -> None:
        self._core, self._clock, self._log_clock = core, clock, log_clock
        self._reports, self._metrics, self._leap = reports, metrics, leap
        self._next_s = clock.monotonic_s()
        self._next_ask_s = self._next_s
        self._led_s: float | None = None
        self._on_its_way = (0, 0)
        """Term and index of the newest LEAP; one of an earlier term may have been cut."""
        self._was_apart = False
        self.apart_ms: int | None = None
        self.ahead_ms: int | None = None

    def look(self, now_s: float, *, serves: bool, applied_index: int) -> None:
        """Do what is due; *serves* says whether this node leads and has applied its first entry."""
        self._log_clock.look()
        leads = self._core.role is Role.LEADER
        begins = leads and not self._log_clock.is_dated
        if begins and now_s >= self._next_ask_s:
            self._next_ask_s = now_s + _ASK_EVERY_S
            members = [each.id for each in self._core.memberships.current.members]
            self._reports.ask(members, term=self._core.term)
        self._led_s = (now_s if self._led_s is None else self._led_s) if leads else None
        if now_s < self._next_s and not begins:
            return
        self._next_s = now_s + _LOOK_EVERY_S
        date_ms = self._date(now_s)
        self._compare(date_ms)
        if self._led_s is not None and begins:
            # Not before all that its log has is applied: who has just started and leads has applied
            # nothing, and would take a log that has a time for one that has none.
            if serves and (date_ms is not None or now_s - self._led_s >= _UNDATED_S):
                self._log_clock.begin(date_ms or 0)
            return
        self.ahead_ms = self._log_clock.now_ms() - date_ms if leads and date_ms else None
        self._log_clock.is_slow = self.ahead_ms is not None and self.ahead_ms > AHEAD_MS
        term, index = self._on_its_way
        is_done = applied_index >= index or self._core.term != term
        if date_ms is not None and serves and is_done:
            self._leap_if_behind(date_ms)

    def date_ms(self) -> int | None:
        """Return the group's date as it is now, Unix ms; None while too few clocks are heard."""
        return self._date(self._clock.monotonic_s())

    def _leap_if_behind(self, date_ms: int) -> None:
        from_ms = self._log_clock.now_ms()
        if date_ms - from_ms < LEAP_MS or not (index := self._leap(date_ms)):
            return
        self._on_its_way = (self._core.term, index)
        self._metrics.leaps.inc()
        logger.warning(
            "node %s: the log's time leaps from %d to %d (Unix ms), by %.1f s: nobody lived "
            "through them, so no message and no lease is older for it",
            self._core.id, from_ms, date_ms, (date_ms - from_ms) / 1000,
        )  # fmt: skip

    def _date(self, now_s: float) -> int | None:
        membership = self._core.memberships.current
        clocks = {
            node_id: heard.report.unix_ms + int((now_s - heard.heard_s) * 1000)
            for node_id, heard in self._reports.heard().items()
        }
        clocks[self._core.id] = self._clock.unix_ms()
        return group_date(clocks, membership.voter_sets)

    def _compare(self, date_ms: int | None) -> None:
        self.apart_ms = None if date_ms is None else self._clock.unix_ms() - date_ms
        is_apart = self.apart_ms is not None and abs(self.apart_ms) > CLOCK_APART_MS
        if is_apart and not self._was_apart:
            logger.warning(
                "node %s: its clock is %.1f s %s the group's date: nothing goes by it alone, but "
                "set it right; see DledgerClockApart",
                self._core.id, abs(self.apart_ms or 0) / 1000,
                "ahead of" if (self.apart_ms or 0) > 0 else "behind",
            )  # fmt: skip
        if self.apart_ms is not None:
            self._was_apart = is_apart
