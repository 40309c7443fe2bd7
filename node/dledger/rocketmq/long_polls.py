"""Long polls: which waiting consumer poll may propose a RECEIVE next.

The polls of one consumer group compete for each message, and polls that cannot be served should not
be woken. So they wait in lines, one for each (group, topic, queue id or any queue, filter), first
come, first served, whichever node they came to. A turn is the right to propose one RECEIVE. The
first poll of a line gets a turn only if there are more messages than the polls with a turn, whose
RECEIVE is not applied yet, will take. It must give the turn back, used or not; then the next poll
is considered. So one message costs a group one turn, however many polls wait; where the group's
filters differ, one for each that names it. Of very many polls that ask the same only the oldest
come here (`waiting_room`). Used by `receiving`.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import Final, TypeAlias

from dledger.broker.kept_messages import Codes
from dledger.broker.state_changes import StateChanges
from dledger.broker.topics import Topic
from dledger.common.herd import Herd
from dledger.common.limits import MAX_WAITING_POLLS
from dledger.common.shares import Entry, Share
from dledger.requests.engine import Engine
from dledger.rocketmq.expression_scans import ExpressionScans

ANY_QUEUE: Final = -1
MAX_TURNS: Final = 64
"""The most turns of waiting polls at a time. When very many polls can be served together, as when
the leases of a whole group end, the event loop serves this many at a time."""
_LOOK_AGAIN_S: Final = 0.1
_LOOK_RARELY_S: Final = 3.2

_Attempt: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a poll waits for.

    Attributes:
        queue_id: The one queue, or `ANY_QUEUE`.
        queue_ids: The queue it may be answered from; None: any that its topic has by then.
        limit: The most messages it takes; of a FIFO topic the most message groups.
        attempt_id: Identifies the poll if the client repeats it; empty: nothing does.
        codes: The tag codes that its filter names; None: it takes every message. Or the text of an
            SQL92 expression.
        scans: Knows what there is for the expression; None: it is a filter by tags.
        since_s: When it came to the node that its client asked, in this event loop's time: who has
            waited longest comes first, wherever that was.
        address: Its client's, which has a share of the room to wait.
        line: The connection that it came by there.
    """

    group: str
    topic: Topic
    queue_id: int
    queue_ids: range | None
    limit: int
    attempt_id: str
    codes: Codes | str
    scans: ExpressionScans | None = None
    since_s: float = 0.0
    address: str = ""
    line: str = ""


class NoTurn(enum.Enum):
    """What a poll that gets no turn is to do."""

    NOW = enum.auto()  # it looks whether this node leads, and asks again while it has time
    FOR_GOOD = enum.auto()  # it ends: others wait in its place, or the node is shutting down


class _Waiter:
    """One poll in a line."""

    __slots__ = ("entry", "future", "line", "want")
    entry: Entry[_Waiter]

    def __init__(self, want: Want, line: _Line) -> None:
        self.want, self.line = want, line
        self.future: asyncio.Future[Turn | NoTurn] = asyncio.get_running_loop().create_future()

    def wake(self, turn: Turn | NoTurn = NoTurn.NOW) -> None:
        if not self.future.done():
            self.future.set_result(turn)

    def give_way(self) -> None:
        self.wake(NoTurn.FOR_GOOD)


class _Line:
    """The polls of a group that may be answered with the same messages.

    A line that is *over* is in no list any more: its topic or group was deleted.
    """

    __slots__ = ("again_s", "claimed", "over", "timer", "timer_ms", "waiters", "want")

    def __init__(self, want: Want) -> None:
        self.want = want
        self.waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self.claimed = 0
        self.over = False
        self.timer: asyncio.TimerHandle | None = None
        self.timer_ms = 0.0
        self.again_s = _LOOK_AGAIN_S

    def enter(self, waiter: _Waiter) -> None:
        """Let a poll stand behind those that have waited longer, wherever they came to a node."""
        later = []
        for other in reversed(self.waiters):
            if other.want.since_s <= waiter.want.since_s:
                break
            later.append(other)
        self.waiters[waiter] = None
        for other in reversed(later):
            self.waiters.move_to_end(other)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Turn:
    """The right to propose one RECEIVE; a context manager that gives it back at its end."""

    __slots__ = ("_counted", "_limit", "_line", "_turns")

    def __init__(
        self, turns: LongPollQueue, line: _Line | None, limit: int, *, counted: bool
    ) -> None:
        self._turns, self._line, self._limit, self._counted = turns, line, limit, counted

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.give_back()

    def pass_on(self) -> None:
        """Let the line's next poll be considered although the RECEIVE_AT is not applied yet.

        For a poll that nobody else can take from what it is about to propose.
        """
        if self._line is not None:
            self._turns.end(self._line, self._limit, counted=False)
            self._limit = 0

    def give_back(self) -> None:
        """Let the line's next poll be considered: the RECEIVE is applied, or never will be."""
        if self._line is not None:
            self._turns.end(self._line, self._limit, counted=self._counted)


_Lines: TypeAlias = dict[str, dict[Codes | str, _Line]]
"""The lines of one queue, by group and filter."""


class LongPollQueue:
    """All lines of a node. Single-threaded, on the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lines: defaultdict[tuple[str, int], _Lines] = defaultdict(dict)
        self._attempts: defaultdict[_Attempt, set[_Waiter]] = defaultdict(set)
        self._due: OrderedDict[_Line, None] = OrderedDict()
        self._over = Herd()
        self._share: Share[_Waiter] = Share(MAX_WAITING_POLLS, _Waiter.give_way)
        self._waiting = self._out = 0
        self._closed = False

    def __len__(self) -> int:
        return self._waiting

    async def take(self, want: Want, timeout_s: float) -> Turn | NoTurn:
        """Wait for this poll's turn, which is to be given back.

        If too many wait, the oldest of the address with most gives way.
        """
        if want.attempt_id and self._holds_attempt(want):
            return Turn(self, None, 0, counted=False)
        if timeout_s > 0 and not self._closed:
            waiter = _Waiter(want, self._line(want))
            turn = await self._wait(waiter, timeout_s)
            if turn is not NoTurn.NOW or waiter.line.over:
                return turn
        return self._look(want) or (NoTurn.FOR_GOOD if self._closed else NoTurn.NOW)

    async def _wait(self, waiter: _Waiter, timeout_s: float) -> Turn | NoTurn:
        self._enter(waiter)
        timer = asyncio.get_running_loop().call_later(timeout_s, waiter.wake)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self._hand_on(waiter)
            raise
        finally:
            timer.cancel()
            self._leave(waiter)

    @staticmethod
    def _hand_on(waiter: _Waiter) -> None:
        """Give back the turn of a poll that was cancelled just as it got one."""
        future = waiter.future
        turn = future.result() if future.done() and not future.cancelled() else None
        if isinstance(turn, Turn):
            turn.give_back()

    def _look(self, want: Want) -> Turn | None:
        """Return a turn without waiting if there is something for this poll, else None.

        The poll does not queue behind those that only wait because of `MAX_TURNS`.
        """
        line = self._line(want)
        if self._has_more(line):
            line.claimed += want.limit
            return Turn(self, line, want.limit, counted=False)
        self._drop_if_idle(line)
        return None

    # -- waking ----------------------------------------------------------------------------------

    def notify(self, changes: StateChanges) -> None:
        """Give turns to the polls that *changes* can serve; end the wait for deleted topics."""
        if changes.topics_gone or changes.groups_gone:
            self._end_lines(changes)
        for topic, queue_id in changes.arrived:
            for place in ((topic, queue_id), (topic, ANY_QUEUE)):
                for lines in self._lines.get(place, {}).values():
                    self._due.update(dict.fromkeys(lines.values()))
        for group, topic, queue_id in changes.leases:
            for place in ((topic, queue_id), (topic, ANY_QUEUE)):
                if own := self._lines.get(place, {}).get(group):
                    self._due.update(dict.fromkeys(own.values()))
        for attempt in changes.attempts:
            for waiter in self._attempts.get(attempt, ()):
                waiter.wake(Turn(self, None, 0, counted=False))
        self._serve_due()

    def _end_lines(self, changes: StateChanges) -> None:
        for topic, queues in changes.topics_gone:
            for queue_id in range(ANY_QUEUE, queues):
                for lines in self._lines.pop((topic, queue_id), {}).values():
                    self._end_all(lines.values())
        if changes.groups_gone:
            for place, groups in list(self._lines.items()):
                for group in changes.groups_gone.intersection(groups):
                    self._end_all(groups.pop(group).values())
                if not groups:
                    del self._lines[place]

    def _end_all(self, lines: Iterable[_Line]) -> None:
        for line in lines:
            line.over = True
            line.stop_timer()
            self._due.pop(line, None)
            waiters, line.waiters = line.waiters, OrderedDict()
            self._over.wake(waiter.wake for waiter in waiters)

    def look_again(self) -> None:
        """Wake all polls: leadership changed, or the node is shutting down."""
        for groups in self._lines.values():
            for line in chain.from_iterable(lines.values() for lines in groups.values()):
                for waiter in line.waiters:
                    waiter.wake()

    def close(self) -> None:
        """Wake all polls, and let none wait any more."""
        self._closed = True
        self.look_again()

    def end(self, line: _Line, limit: int, *, counted: bool) -> None:
        """Take a turn back."""
        line.claimed -= limit
        self._out -= counted
        if not line.over:
            self._due[line] = None
        self._serve_due()

    def _serve_due(self) -> None:
        """Give one turn at a time, round robin, to the lines that may have more messages."""
        while self._due and self._out < MAX_TURNS:
            line, _ = self._due.popitem(last=False)
            self._serve(line)

    def _serve(self, line: _Line) -> None:
        if not line.waiters:
            line.stop_timer()
            self._drop_if_idle(line)
        elif self._has_more(line):
            waiter, _ = line.waiters.popitem(last=False)
            if not waiter.future.done():
                line.claimed += waiter.want.limit
                self._out += 1
                waiter.wake(Turn(self, line, waiter.want.limit, counted=True))
            self._due[line] = None
        else:
            self._set_timer(line)

    def _has_more(self, line: _Line) -> bool:
        """Whether the line's queues have more than the polls with a turn will take."""
        want, enough, state = line.want, line.claimed + 1, self._engine.state
        topic = state.topics.get(want.topic.name)
        if topic is None or topic.generation != want.topic.generation:
            return False
        queue_ids = want.queue_ids or range(topic.queues)
        if isinstance(want.codes, str):
            # One at a time looks what there is; it passes on its turn before that is proposed.
            scans = want.scans
            return (
                not line.claimed
                and scans is not None
                and scans.has_more(want.group, topic, queue_ids, want.codes)
            )
        return enough <= state.groups.available(
            want.group,
            topic.name,
            queue_ids,
            self._lived_ms(),
            enough=enough,
            codes=want.codes,
        )

    def _set_timer(self, line: _Line) -> None:
        """Check again when the next lease of these queues ends."""
        want = line.want
        groups, topic = self._engine.state.groups, self._engine.state.topics.get(want.topic.name)
        queue_ids = want.queue_ids or range(topic.queues if topic else 0)
        expiry_ms = groups.next_expiry(want.group, want.topic.name, queue_ids)
        if line.timer is not None and line.timer_ms == expiry_ms:
            return
        line.stop_timer()
        if expiry_ms == float("inf"):
            return
        # Expired leases are left to the polls that have a turn, unless one of them hangs, and to
        # those whose filter names them, which may be away: so the looks become rarer.
        remaining_s = (expiry_ms - self._lived_ms()) / 1000
        delay_s = max(remaining_s, 0.001) if remaining_s > 0 else line.again_s
        is_same = line.timer_ms == expiry_ms and remaining_s <= 0
        line.again_s = min(2 * line.again_s, _LOOK_RARELY_S) if is_same else _LOOK_AGAIN_S
        line.timer_ms = expiry_ms
        line.timer = asyncio.get_running_loop().call_later(delay_s, self._time_is_up, line)

    def _time_is_up(self, line: _Line) -> None:
        line.timer = None
        self._due[line] = None
        self._serve_due()

    # -- standing in line ------------------------------------------------------------------------

    def _line(self, want: Want) -> _Line:
        lines = self._lines[want.topic.name, want.queue_id].setdefault(want.group, {})
        line = lines.get(want.codes)
        if line is None:
            line = lines[want.codes] = _Line(want)
        return line

    def _enter(self, waiter: _Waiter) -> None:
        want, line = waiter.want, waiter.line
        waiter.entry = self._share.enter(want.address, waiter, line=want.line)
        line.enter(waiter)
        self._waiting += 1
        if want.attempt_id:
            self._attempts[want.group, want.topic.name, want.attempt_id].add(waiter)
        self._due[line] = None
        self._serve_due()

    def _leave(self, waiter: _Waiter) -> None:
        want = waiter.want
        self._share.leave(waiter.entry)
        self._waiting -= 1
        attempt = (want.group, want.topic.name, want.attempt_id)
        if want.attempt_id:
            self._attempts[attempt].discard(waiter)
            if not self._attempts[attempt]:
                del self._attempts[attempt]
        waiter.line.waiters.pop(waiter, None)
        self._drop_if_idle(waiter.line)

    def _drop_if_idle(self, line: _Line) -> None:
        if line.waiters or line.claimed or line.over:
            return
        line.stop_timer()
        self._due.pop(line, None)
        want, groups = line.want, self._lines[line.want.topic.name, line.want.queue_id]
        lines = groups.get(want.group, {})
        lines.pop(want.codes, None)
        if not lines:
            groups.pop(want.group, None)
        if not groups:
            del self._lines[want.topic.name, want.queue_id]

    def _holds_attempt(self, want: Want) -> bool:
        """Whether the poll repeats one whose response was lost, and messages wait for it."""
        groups = self._engine.state.groups
        return groups.holds_attempt(want.group, want.topic.name, want.attempt_id)

    def _lived_ms(self) -> int:
        return max(self._engine.lived_ms(), self._engine.state.time.lived_ms)
