"""Where clients' polls wait while others that ask the same stand in line for them.

The members of a consumer group send polls that differ in nothing but their attempt: a thousand of
them with eight queues are eight *crowds* at a node. Of each crowd the oldest few are *in front*:
they go the whole way, over the link if this node follows, and stand in line at the leader
(`long_polls`). The others wait here and cost what a waiter costs. Who is answered leaves the front
to the next by arrival; with messages, to more of them than before, so that a crowd which messages
come for is served as widely as it asks, and one that waits for nothing is a few polls.

What may tell a poll from its crowd is looked at here: its deadline, its client's parting, and its
attempt, for which the group may hold messages whose answer was lost: as this node's state knows, or
will, and then it goes at once. Nothing here depends on who leads, so nothing happens here when that
changes. When a node has all the polls that it takes, the oldest of the address with most is
answered that there is nothing new. Used by `messaging`, for the calls of a node's own clients.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol, TypeAlias

from dledger.broker.state_changes import StateChanges
from dledger.calls.caller import Caller
from dledger.checks.names import is_client_id
from dledger.checks.resources import group_name, topic_name
from dledger.common.herd import Herd
from dledger.common.limits import MAX_WAITING_POLLS
from dledger.common.shares import Entry, Share, address_of
from dledger.errors import DledgerError
from dledger.requests.engine import Engine
from dledger.rocketmq.receiving import attempt_of, wait_of
from dledger.rpc.requests import parsed
from dledger.rpc.rocketmq_stubs import service

AT_FRONT: Final = 8
"""Of a crowd that nothing comes for: the first messages find them at the leader."""
MOST_AT_FRONT: Final = 128
_WORTH_S: Final = 0.25
"""Who has less time left is not brought forward for it: it would go, and come back."""
_TICK_S: Final = 0.02
"""A crowd whose polls end one by one looks for them no more often than this."""

_Attempt: TypeAlias = tuple[str, str, str]


class Waiter(Protocol):
    """Who has a poll wait here."""

    def settle(self, goes_on: bool) -> None:
        """Note that its wait is over, once: it goes on, or is told that there is nothing new."""


class _Crowd:
    """Polls that ask the same."""

    __slots__ = ("at_front", "key", "timer", "waiting", "width")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.waiting: OrderedDict[Poll, None] = OrderedDict()
        self.at_front = 0
        self.width = AT_FRONT
        self.timer: asyncio.TimerHandle | None = None


class Poll:
    """One poll until it is answered, which leaves in the end, however that comes.

    Attributes:
        attempt: Its group, topic and attempt; None: it has none.
        crowd: Those that it waits with; None: none.
        until_s: When it is over, in the event loop's time.
        entry: What it has of the node's share.
        waiter: Who is told how its wait here ends; None: it does not wait, or it has ended.
        is_first: Whether it is in front of its crowd.
        gives_way: Whether it is to end as soon as it is sure that nothing was delivered to it.
    """

    __slots__ = (
        "_room",
        "attempt",
        "crowd",
        "entry",
        "gives_way",
        "is_first",
        "until_s",
        "waiter",
    )

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        self.attempt: _Attempt | None = None
        self.crowd: _Crowd | None = None
        self.entry: Entry[Poll] | None = None
        self.waiter: Waiter | None = None
        self.until_s = 0.0
        self.is_first = self.gives_way = False

    def settle(self, goes_on: bool) -> None:
        """End its wait, unless that has ended otherwise."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.settle(goes_on)

    def give_way(self) -> None:
        """Let another have its share: at once if it waits here, else when it asks again."""
        self.gives_way = True
        self._room.rise(self, goes_on=False)

    def leave(self, *, found: bool) -> None:
        """Leave, once an answer is there; *found*: with messages. More than once does nothing.

        Its client may be slow to take the answer, which must not be in the way of others.
        """
        self._room.leave(self, found=found)


class WaitingRoom:
    """Of one node. Single-threaded, on the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._crowds: dict[bytes, _Crowd] = {}
        self._attempts: dict[_Attempt, Poll] = {}
        self._share: Share[Poll] = Share(MAX_WAITING_POLLS, Poll.give_way)
        self._herd = Herd()
        self._waiting = 0
        self._closed = False

    def __len__(self) -> int:
        """Return how many wait here; those in front wait elsewhere."""
        return self._waiting

    def poll(self, raw: bytes, caller: Caller) -> Poll:
        """Return a poll that has just come.

        Args:
            raw: The request, valid or not.
            caller: Whose it is. A forwarded one is counted where it waits, and goes on at once.
        """
        poll = Poll(self)
        if caller.forwarded:
            return poll
        poll.entry = self._share.enter(address_of(caller.host), poll, line=caller.line)
        if self._closed or not is_client_id(caller.client_id):
            return poll
        try:
            request = parsed(service.ReceiveMessageRequest, raw)
            group, topic = group_name(request.group), topic_name(request.message_queue.topic)
        except DledgerError:
            return poll  # to be told so
        poll.until_s = min(caller.since_s + wait_of(request), caller.deadline_s)
        if poll.until_s - asyncio.get_running_loop().time() < _WORTH_S:
            return poll
        if attempt_id := attempt_of(request, caller):
            poll.attempt = group, topic, attempt_id
        request.ClearField("attempt_id")
        key = bytes(request.SerializeToString(deterministic=True))
        poll.crowd = self._crowds.get(key)
        if poll.crowd is None:
            poll.crowd = self._crowds[key] = _Crowd(key)
        return poll

    def lets_pass(self, poll: Poll) -> bool:
        """Whether a poll need not wait here."""
        crowd = poll.crowd
        if crowd is None or self._holds(poll):
            return True
        poll.is_first = crowd.at_front < crowd.width  # those that wait all the same end just now
        crowd.at_front += poll.is_first
        return poll.is_first

    def stand(self, poll: Poll, waiter: Waiter) -> None:
        """Let a poll wait that is not let pass, until *waiter* is told."""
        crowd = poll.crowd
        if crowd is None:
            raise RuntimeError("a poll without a crowd waits for nobody")
        poll.waiter = waiter
        crowd.waiting[poll] = None
        self._waiting += 1
        if poll.attempt is not None:
            self._attempts[poll.attempt] = poll
        if crowd.timer is None or poll.until_s < crowd.timer.when():
            self._set_timer(crowd, poll.until_s)

    def rise(self, poll: Poll, *, goes_on: bool) -> None:
        """End a poll's wait, if it waits here."""
        if self._remove(poll):
            poll.settle(goes_on)

    def leave(self, poll: Poll, *, found: bool) -> None:
        """Let others take the place of a poll that is answered, in the order of their arrival."""
        self._remove(poll)
        poll.waiter = None
        entry, crowd = poll.entry, poll.crowd
        poll.entry = poll.crowd = None
        if entry is not None:
            self._share.leave(entry)
        if crowd is None:
            return
        if poll.is_first:
            crowd.at_front -= 1
            crowd.width = min(2 * crowd.width, MOST_AT_FRONT) if found else AT_FRONT
            self._bring_forward(crowd)
        if not crowd.waiting and not crowd.at_front:
            self._crowds.pop(crowd.key, None)

    async def turn(self) -> None:
        """Wait for a turn among the polls that try again, so as not to block the event loop."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._herd.wake((partial(_finish, turn),))
        await turn

    def notify(self, changes: StateChanges) -> None:
        """Let polls go whose attempts were given messages: the answer with them was lost."""
        for attempt in changes.attempts:
            poll = self._attempts.get(attempt)
            if poll is not None:
                self.rise(poll, goes_on=True)

    def close(self) -> None:
        """Answer all that wait, and let none wait any more: the node is shutting down."""
        self._closed = True
        for crowd in tuple(self._crowds.values()):
            self._end(tuple(crowd.waiting), goes_on=False)

    # -- waiting ---------------------------------------------------------------------------------

    def _remove(self, poll: Poll) -> bool:
        """Take a poll from those that wait; return whether it was one."""
        crowd = poll.crowd
        if crowd is None or poll not in crowd.waiting:
            return False
        del crowd.waiting[poll]
        self._waiting -= 1
        if poll.attempt is not None and self._attempts.get(poll.attempt) is poll:
            del self._attempts[poll.attempt]
        if not crowd.waiting and crowd.timer is not None:
            crowd.timer.cancel()
            crowd.timer = None
        return True

    def _bring_forward(self, crowd: _Crowd) -> None:
        """Fill the front with those that have waited longest."""
        worth_s = asyncio.get_running_loop().time() + _WORTH_S
        first: list[Poll] = []
        for poll in crowd.waiting:
            if crowd.at_front + len(first) >= crowd.width:
                break
            if poll.until_s >= worth_s:
                first.append(poll)
        crowd.at_front += len(first)
        for poll in first:
            poll.is_first = True
            self.rise(poll, goes_on=True)

    def _end(self, polls: Iterable[Poll], *, goes_on: bool) -> None:
        """End the wait of any number of polls."""
        ended = [poll for poll in polls if self._remove(poll)]
        self._herd.wake([partial(poll.settle, goes_on) for poll in ended])

    def _set_timer(self, crowd: _Crowd, at_s: float) -> None:
        if crowd.timer is not None:
            crowd.timer.cancel()
        crowd.timer = asyncio.get_running_loop().call_at(at_s, self._time_is_up, crowd)

    def _time_is_up(self, crowd: _Crowd) -> None:
        """End the polls that are late: one that messages are held for, or may be, goes and asks."""
        crowd.timer = None
        now_s = asyncio.get_running_loop().time()
        late = [poll for poll in crowd.waiting if poll.until_s <= now_s]
        asks = [poll for poll in late if self._holds(poll)] if self._is_current() else late
        self._end(asks, goes_on=True)
        self._end(late, goes_on=False)  # the others
        if crowd.waiting:
            next_s = min(poll.until_s for poll in crowd.waiting)
            self._set_timer(crowd, max(next_s, now_s + _TICK_S))

    # -- what this node knows --------------------------------------------------------------------

    def _holds(self, poll: Poll) -> bool:
        """Whether messages wait for a poll's attempt, as far as this node has heard."""
        attempt = poll.attempt
        return attempt is not None and self._engine.state.groups.holds_attempt(*attempt)

    def _is_current(self) -> bool:
        """Whether this node leads, or hears who does: else nobody knows that there is nothing."""
        leader = self._engine.leader()
        return leader is not None and (self._engine.is_leader() or self._engine.hears(leader.id))


def _finish(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
