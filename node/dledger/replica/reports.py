"""The members' reports: each asks every other once a second, beside Raft. Owned by the driver.

A member's answer to a question of this node has an age that this node knows by itself: it was
written between the question and the answer, so by no clock but the own one. Whoever needs a fresh
word (a clock, the room on a disk) takes answers, by `Reports.heard`; what only ever grows, such as
marks, may be taken from any report, a question's too, by a listener.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dledger.common.reports import Mark, Report, Room
from dledger.raft.messages import Message
from dledger.replica.log_clock import Clock
from dledger.types import NodeId

ASK_EVERY_S: Final = 1.0
ANSWER_WITHIN_S: Final = 1.0
"""An answer that took longer is dropped: it may have been written a whole wait ago."""
_MAX_ASKED: Final = 8
"""Questions whose time is remembered; an answer to an older one came too late."""

Listener = Callable[[NodeId, Report], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest(Message):
    """What do you say of yourself? *report* is what the sender says."""

    round: int
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResponse(Message):
    """The answer to the request of the same *round*."""

    round: int
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A member's answer.

    Attributes:
        heard_s: When it arrived, by the own monotonic clock.
        waited_s: How long this node had waited for it: the report is at most this much older.
    """

    report: Report
    heard_s: float
    waited_s: float


class Reports:
    """Asks, answers and remembers.

    Attributes:
        incarnation: Of this start.
        room: What goes out as this member's room; set by who measures the disk.
        marks: Returns what goes out as this member's marks.
        listeners: Called with each report that arrives from a member, in a question or an answer.
    """

    def __init__(
        self,
        own_id: NodeId,
        *,
        clock: Clock,
        send: Callable[[Message], None],
        incarnation: str,
    ) -> None:
        self._own_id, self._clock, self._send = own_id, clock, send
        self.incarnation = incarnation
        self.room: Room | None = None
        self.marks: Callable[[], Mapping[NodeId, Mark]] = dict
        self.listeners: list[Listener] = []
        self._heard: dict[NodeId, Heard] = {}
        self._asked_s: OrderedDict[int, float] = OrderedDict()
        self._round = 0
        self._next_s = clock.monotonic_s()

    def tick(self, now_s: float, members: Iterable[NodeId], *, term: int) -> None:
        """Ask all other *members* if it is time; *term* is this node's own."""
        if now_s >= self._next_s:
            self.ask(members, term=term)

    def ask(self, members: Iterable[NodeId], *, term: int) -> None:
        """Ask now, and forget who is no member any more."""
        now_s = self._clock.monotonic_s()
        others = [node_id for node_id in members if node_id != self._own_id]
        self._heard = {each: self._heard[each] for each in others if each in self._heard}
        self._next_s = now_s + ASK_EVERY_S
        self._round += 1
        self._asked_s[self._round] = now_s
        if len(self._asked_s) > _MAX_ASKED:
            self._asked_s.popitem(last=False)
        report = self._own()
        for other in others:
            self._send(
                ReportRequest(
                    sender=self._own_id,
                    recipient=other,
                    term=term,
                    round=self._round,
                    report=report,
                )
            )

    def receive(self, message: ReportRequest | ReportResponse, *, term: int) -> None:
        """Answer a member's question, or note its answer."""
        if isinstance(message, ReportRequest):
            self._send(
                ReportResponse(
                    sender=self._own_id,
                    recipient=message.sender,
                    term=term,
                    round=message.round,
                    report=self._own(),
                )
            )
        else:
            self._note(message)
        for listener in self.listeners:
            listener(message.sender, message.report)

    def heard(self, within_s: float = 3.0) -> dict[NodeId, Heard]:
        """Return the newest answer of each other member that came in the last *within_s*."""
        since_s = self._clock.monotonic_s() - within_s
        return {each: heard for each, heard in self._heard.items() if heard.heard_s >= since_s}

    def _note(self, message: ReportResponse) -> None:
        asked_s = self._asked_s.get(message.round)
        now_s = self._clock.monotonic_s()
        if asked_s is not None and now_s - asked_s <= ANSWER_WITHIN_S:
            self._heard[message.sender] = Heard(
                report=message.report, heard_s=now_s, waited_s=now_s - asked_s
            )

    def _own(self) -> Report:
        return Report(
            incarnation=self.incarnation,
            unix_ms=max(0, self._clock.unix_ms()),
            room=self.room,
            marks=self.marks(),
        )
