"""Members' reports: asked once a second, beside Raft; an answer has an age that the asker knows."""

from __future__ import annotations

from pathlib import Path

from dledger.common.reports import Mark, Report, Room
from dledger.raft.messages import Message
from dledger.replica.reports import ReportRequest, ReportResponse, Reports
from dledger.types import NodeId
from tests.replica.group import IDS, DriverGroup
from tests.waiting import eventually

OWN, OTHER, THIRD = IDS
ROOM = Room(total_bytes=100, free_bytes=40, own_bytes=20, budget_bytes=90)
MARK = Mark(last_term=2, last_index=7, term=3)


class FakeClock:
    """Both clocks, as the test sets them."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.wall_ms = 1_700_000_000_000

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return self.wall_ms


class Member:
    """A member's reports, and what it sent."""

    def __init__(self, node_id: NodeId = OWN) -> None:
        self.clock = FakeClock()
        self.sent: list[Message] = []
        self.reports = Reports(
            node_id, clock=self.clock, send=self.sent.append, incarnation=f"start of {node_id}"
        )

    def tick(self, members: tuple[NodeId, ...] = IDS) -> list[Message]:
        """Let time be noticed; return what was sent by that."""
        self.sent.clear()
        self.reports.tick(self.clock.now_s, members, term=4)
        return list(self.sent)

    def answer(self, number: int, *, unix_ms: int = 5, sender: NodeId = OTHER) -> None:
        """Take an answer to a question of this number."""
        said = Report(incarnation="x", unix_ms=unix_ms)
        answer = ReportResponse(sender=sender, recipient=OWN, term=4, round=number, report=said)
        self.reports.receive(answer, term=4)


def test_each_other_member_is_asked_once_a_second() -> None:
    """Itself it need not ask."""
    member = Member()

    asked = member.tick()
    again = member.tick()
    member.clock.now_s += 1.0
    later = member.tick()

    assert [message.recipient for message in asked] == [OTHER, THIRD]
    assert all(isinstance(message, ReportRequest) and message.term == 4 for message in asked)
    assert again == []
    assert [message.recipient for message in later] == [OTHER, THIRD]


def test_a_question_is_answered_with_the_own_clock_room_and_marks() -> None:
    """And with the number that it had, by which the asker knows when it asked."""
    member = Member()
    member.reports.room = ROOM
    member.reports.marks = lambda: {THIRD: MARK}
    asks = Report(incarnation="y", unix_ms=1)

    member.reports.receive(
        ReportRequest(sender=OTHER, recipient=OWN, term=9, round=6, report=asks), term=4
    )

    said = Report(
        incarnation="start of n1", unix_ms=member.clock.wall_ms, room=ROOM, marks={THIRD: MARK}
    )
    assert member.sent == [
        ReportResponse(sender=OWN, recipient=OTHER, term=4, round=6, report=said)
    ]


def test_an_answer_is_heard_with_its_age_for_three_seconds() -> None:
    """What was said before that may be anything now."""
    member = Member()
    member.tick()
    member.clock.now_s += 0.25
    member.answer(1, unix_ms=77)

    (heard,) = member.reports.heard().values()

    assert (heard.report.unix_ms, heard.heard_s, heard.waited_s) == (77, 10.25, 0.25)
    member.clock.now_s += 3.0
    assert OTHER in member.reports.heard()
    member.clock.now_s += 0.01
    assert member.reports.heard() == {}


def test_an_answer_that_took_over_a_second_is_not_heard() -> None:
    """A frozen member's answer says what its clock was then, and nobody can say when that was."""
    member = Member()
    member.tick()
    member.clock.now_s += 1.01

    member.answer(1)

    assert member.reports.heard() == {}


def test_an_answer_to_no_question_is_not_heard() -> None:
    """Its age is not known, whatever number it names."""
    member = Member()
    member.tick()

    member.answer(2)

    assert member.reports.heard() == {}


def test_who_is_no_member_any_more_is_forgotten() -> None:
    """Its clock must not date the log of a group that it has left."""
    member = Member()
    member.tick()
    member.answer(1)
    member.clock.now_s += 1.0

    member.tick((OWN, THIRD))

    assert member.reports.heard() == {}


def test_listeners_get_every_report() -> None:
    """A question's marks are as good as an answer's: they only grow."""
    member, got = Member(), []
    member.reports.listeners.append(lambda sender, report: got.append((sender, report)))
    said = Report(incarnation="x", unix_ms=5, marks={OWN: MARK})
    for kind in (ReportRequest, ReportResponse):
        told = kind(sender=OTHER, recipient=OWN, term=4, round=1, report=said)
        member.reports.receive(told, term=4)

    assert got == [(OTHER, said), (OTHER, said)]


def test_marks_merge_to_the_later_log_in_rafts_order_and_the_higher_term() -> None:
    """By term first: a longer log of an earlier term is the older one (Raft 5.4.1)."""
    longer = Mark(last_term=1, last_index=90, term=8)

    assert MARK.merged(longer) == Mark(last_term=2, last_index=7, term=8)
    assert longer.merged(MARK) == MARK.merged(longer)


async def test_the_members_of_a_real_group_hear_each_other(tmp_path: Path) -> None:
    """Without a leader as well: who starts asks before there is one."""
    group = DriverGroup(tmp_path)
    group.start(OWN, OTHER)
    try:
        heard = await eventually(group.nodes[OWN].driver.reports.heard)
        assert heard[OTHER].report.incarnation == group.nodes[OTHER].driver.reports.incarnation
        assert THIRD not in heard
    finally:
        await group.stop()


async def test_a_stranger_is_neither_answered_nor_heard(tmp_path: Path) -> None:
    """What is no member has no say in the group's time."""
    group = DriverGroup(tmp_path)
    group.start(OWN)
    try:
        said = Report(incarnation="x", unix_ms=5)
        stranger = NodeId("stranger")
        for kind in (ReportRequest, ReportResponse):
            for number in range(1, 4):
                message = kind(sender=stranger, recipient=OWN, term=1, round=number, report=said)
                group.nodes[OWN].driver.receive(message)

        assert not [message for message in group.sent if message.recipient == stranger]
        assert stranger not in group.nodes[OWN].driver.reports.heard()
    finally:
        await group.stop()


async def test_a_node_that_joins_hears_a_stranger(tmp_path: Path) -> None:
    """Those that its log names may all be gone; who is left has a word of what it promised."""
    group, joins, stranger = DriverGroup(tmp_path), NodeId("joins"), NodeId("stranger")
    group.start(joins)
    try:
        said = Report(incarnation="x", unix_ms=5)
        asked = ReportRequest(sender=stranger, recipient=joins, term=1, round=1, report=said)

        group.nodes[joins].driver.receive(asked)

        assert [one for one in group.sent if one.recipient == stranger]
    finally:
        await group.stop()
