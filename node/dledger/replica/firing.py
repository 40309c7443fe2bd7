"""Lets messages go that are due: the leader's loop over what is held.

It decides nothing that could not be decided twice: a message that is held no longer is passed over
when RELEASE_HELD is applied. So a leader may be gone at any moment, or be none any more without
knowing it, and the next one begins anew with what is held (`open_hours`): late messages are the
first that it lets go.

When a message is due is decided by the group's *date* (`dating`), and nowhere else: when the date
is its delivery time or later. While too few clocks are heard to tell the date, nothing goes. Run by
the node, over its `server.engine`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from dledger.broker.held_bucket import PIECE
from dledger.broker.held_refs import HOUR_MS, Kind
from dledger.broker.queue_positions import Payload
from dledger.broker.state import BrokerState
from dledger.common.metrics import NodeMetrics
from dledger.errors import (
    DiskFull,
    DledgerError,
    FaultyEntry,
    FeatureNotReady,
    LeadershipLost,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    StorageError,
)
from dledger.replica.open_hours import Due, OpenHour
from dledger.replica.releases import MAX_ROWS, Release, releases_of
from dledger.types import Entry

logger = logging.getLogger(__name__)

UNDER_WAY: Final = 4
"""Commands that are proposed before the first of them is applied."""
_LINE: Final = "held messages"
"""The line in which they wait: they share the log with clients, as one connection of them."""
_LOOK_S: Final = 0.05
"""How long it sleeps at most: what is held meanwhile may be due before all else."""
_IDLE_S: Final = 0.25
"""The same while nothing is held."""
_REST_S: Final = 1.0
"""After what cannot be done now."""
_READ_BYTES: Final = 4 << 20
"""Of payloads that are read for one step; a single one may be larger."""
_OPENS_AHEAD_MS: Final = 10_000
"""How long before an hour begins its messages are opened."""
_MOST_OPEN: Final = 1 << 21
"""Messages of several hours that are open at once, at 40 bytes each."""
_FOUND_AT_ONCE: Final = 64


class Leader(Protocol):
    """What is asked of the node; see `requests.engine.Engine`."""

    @property
    def state(self) -> BrokerState:
        """What is held, and what topics there are."""

    def is_leader(self) -> bool:
        """Whether it leads, and its state is current."""

    def date_ms(self) -> int | None:
        """The group's date; None while it is not known."""

    def submit(self, command: bytes, *, line: str = "") -> asyncio.Future[object]:
        """Queue a framed command."""

    async def read_entry(self, index: int) -> Entry:
        """Return a committed entry."""

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Begin to read entries that are asked for soon."""

    async def wait_leader_change(self, timeout_s: float) -> None:
        """Return when it may have begun to lead, or after the timeout."""


class Firing:
    """Lets go what is due, of one node while it leads.

    Attributes:
        overdue_ms: For how long the first message that is due, and was not let go yet, has been
            due; 0 on a node that does not lead.
    """

    def __init__(self, leader: Leader, metrics: NodeMetrics) -> None:
        self._leader, self._metrics = leader, metrics
        self._hours: dict[int, OpenHour] = {}
        self._again: list[Due] = []
        self._aside: list[Due] = []
        self._aside_until_s = 0.0
        self._pauses = 0
        self.overdue_ms = 0

    async def run(self) -> None:
        """Work for ever, while this node leads."""
        while True:
            self._forget()
            if not self._leader.is_leader():
                await self._leader.wait_leader_change(_REST_S)
                continue
            try:
                await self._lead()
            except (NotLeader, LeadershipLost):
                continue
            except DledgerError as error:
                logger.warning("messages that are due wait: %s", error)
                await asyncio.sleep(_REST_S)

    async def _lead(self) -> None:
        """Work while this node leads."""
        while self._leader.is_leader():
            held = self._leader.state.held
            if self._pauses != held.pauses:
                self._forget()
            date_ms = self._leader.date_ms()
            if date_ms is None or not held.count:
                self.overdue_ms = 0
                await asyncio.sleep(_IDLE_S)
            elif self._open_some(date_ms) or self._sort_some(date_ms):
                await asyncio.sleep(0)
            else:
                await self._fire(date_ms)

    async def _fire(self, date_ms: int) -> None:
        """Let go what comes next of what is due, or sleep."""
        self._come_back()
        taken = self._take(date_ms)
        first_ms = min((due.due_ms for due in (*taken, *self._aside)), default=date_ms)
        self.overdue_ms = date_ms - first_ms
        if taken:
            await self._let_go(taken)
        else:
            await asyncio.sleep(self._until_next_s(date_ms))

    # -- what is due -------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._hours.clear()
        self._again, self._aside = [], []
        self._pauses, self.overdue_ms = self._leader.state.held.pauses, 0

    def _open_some(self, date_ms: int) -> bool:
        """Open a piece of what is due by now, or soon; return whether there was one."""
        buckets = self._leader.state.held.buckets()
        present = date_ms // HOUR_MS
        for hour in [each for each in self._hours if each < present and self._is_over(each)]:
            del self._hours[hour]
        last = (date_ms + _OPENS_AHEAD_MS) // HOUR_MS
        for hour in sorted(each for each in buckets if each <= last):
            bucket, opened = buckets[hour], self._hours.get(hour)
            if opened is None:
                if not bucket.live or (self._hours and self._is_full()):
                    continue
                opened = self._hours[hour] = OpenHour(hour)
            if opened.opened < bucket.count:
                opened.open(bucket.columns(opened.opened // PIECE))
                return True
        return False

    def _is_over(self, hour: int) -> bool:
        bucket = self._leader.state.held.buckets().get(hour)
        return bucket is None or not bucket.live

    def _is_full(self) -> bool:
        return sum(hour.left for hour in self._hours.values()) >= _MOST_OPEN

    def _sort_some(self, date_ms: int) -> bool:
        return any(hour.sort(date_ms) for hour in self._hours.values())

    def _take(self, date_ms: int) -> list[Due]:
        """Return the next messages that are due, and may go; as many as are read in one step."""
        found, self._again = self._again, []
        for hour in sorted(self._hours):
            found += self._hours[hour].take(date_ms, most=max(0, MAX_ROWS - len(found)))
        taken = [*{due.ref: due for due in found if self._may_go(due)}.values()]
        payloads, size_bytes = set[Payload](), 0
        for at, due in enumerate(taken):
            if due.payload not in payloads:
                payloads.add(due.payload)
                size_bytes += due.payload.end - due.payload.start
            if at and size_bytes > _READ_BYTES:
                self._again = taken[at:]
                return taken[:at]
        return taken

    def _may_go(self, due: Due) -> bool:
        """Whether a message is held, for nothing but its time."""
        held, ref = self._leader.state.held, due.ref
        return held.holds(ref) and held.kind(ref) is Kind.TIMER and not held.is_waiting(ref)

    def _until_next_s(self, date_ms: int) -> float:
        """Return until when nothing that is open is due; a look comes before."""
        nexts = [hour.next_ms for hour in self._hours.values() if hour.next_ms is not None]
        ahead_ms = min(nexts, default=date_ms + HOUR_MS) - date_ms
        return min(max(ahead_ms, 1) / 1000, _LOOK_S)

    # -- what is done with it ----------------------------------------------------------------------

    async def _let_go(self, taken: Sequence[Due]) -> None:
        """Read messages, and propose that they go; those of which nothing comes are tried again.

        Raises:
            NotLeader, LeadershipLost: It does not lead any more.
        """
        entries = await self._read(taken)
        there = [due for due in taken if due.payload.index in entries]
        under_way: dict[asyncio.Future[object], Release] = {}
        try:
            for release in releases_of(there, entries, self._is_there):
                while len(under_way) >= UNDER_WAY:
                    await self._settle(under_way)
                under_way[self._leader.submit(release.command, line=_LINE)] = release
                await asyncio.sleep(0)
            while under_way:
                await self._settle(under_way)
        except (DiskFull, Overloaded, FeatureNotReady) as error:
            logger.info("messages that are due wait: %s", error)
            self._again = [*there, *self._again]
            await asyncio.sleep(_REST_S)
        finally:
            for each in under_way:
                each.add_done_callback(_note_seen)

    def _is_there(self, name: str, generation: int) -> bool:
        topic = self._leader.state.topics.get(name)
        return topic is not None and topic.generation == generation

    async def _settle(self, under_way: dict[asyncio.Future[object], Release]) -> None:
        """Wait until one of the commands is applied, and see what came of it.

        Raises:
            NotLeader, LeadershipLost: It does not lead any more.
            DiskFull, Overloaded: It was not taken.
        """
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            release, error = under_way.pop(each), each.exception()
            if isinstance(error, NotLeader | LeadershipLost | DiskFull | Overloaded):
                raise error
            if error is not None:  # its topic is gone by now, or so
                logger.warning("messages that are due could not be let go: %s", error)
                self._set_aside(release.taken)
            elif release.delivers:
                self._note(release.taken)
            else:
                self._metrics.held_dropped.inc(len(release.taken))

    def _note(self, taken: Sequence[Due]) -> None:
        self._metrics.held_delivered.inc(len(taken))
        date_ms = self._leader.date_ms()
        if date_ms is not None:
            late_ms = max(0, date_ms - min(due.due_ms for due in taken))
            self._metrics.held_late_seconds.observe(late_ms / 1000)

    # -- what cannot go now ------------------------------------------------------------------------

    def _set_aside(self, taken: Iterable[Due]) -> None:
        """Try these again a little later, so that nothing waits for them."""
        self._aside += taken
        self._aside_until_s = asyncio.get_running_loop().time() + _REST_S

    def _come_back(self) -> None:
        if self._aside and asyncio.get_running_loop().time() >= self._aside_until_s:
            self._again = [*self._aside, *self._again]
            self._aside = []

    async def _read(self, taken: Sequence[Due]) -> Mapping[int, Entry]:
        """Return the entries of messages, without those that cannot be read now.

        They are read in their own order, which is not that of the messages: most lie together.
        """
        entries, moved = dict[int, Entry](), set[int]()
        indexes = sorted({due.payload.index for due in taken})
        self._leader.read_ahead(indexes)
        for index in indexes:
            try:
                entries[index] = await self._leader.read_entry(index)
            except OffsetOutOfRange:
                moved.add(index)
            except (FaultyEntry, StorageError) as error:
                logger.warning("messages that are due wait for entry %d: %s", index, error)
                self._set_aside(due for due in taken if due.payload.index == index)
        if moved:
            await self._find([due for due in taken if due.payload.index in moved])
        return entries

    async def _find(self, moved: Sequence[Due]) -> None:
        """Look anew where messages lie that were copied forward since their hour was opened."""
        for at, due in enumerate(moved, 1):
            found = self._leader.state.held.find(due.ref)
            if found is not None:
                again = due._replace(payload=found.payload, row=found.row)
                self._again.append(again)
            if at % _FOUND_AT_ONCE == 0:
                await asyncio.sleep(0)


def _note_seen(proposed: asyncio.Future[object]) -> None:
    """Take note of what came of a command that nobody waits for any more."""
    if not proposed.cancelled():
        proposed.exception()
