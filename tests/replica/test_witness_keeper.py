"""How a start asks, what it does with silence, and what of it is kept and told."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random

import pytest

from dledger.common.metrics import NodeMetrics
from dledger.common.reports import Mark, Report
from dledger.errors import NewerFormat
from dledger.files import checked_json
from dledger.files.files import Mode
from dledger.files.memory_files import MemoryFiles
from dledger.raft.config import RaftConfig
from dledger.raft.core import Raft
from dledger.raft.messages import Message
from dledger.replica import witness_keeper
from dledger.replica.reports import ReportRequest, ReportResponse, Reports
from dledger.replica.witness_keeper import ASK_WAIT_S, WitnessKeeper
from dledger.store.witness_file import NAME, WitnessFile
from dledger.types import HardState, NodeId
from tests.raft.bench import ListDisk, ModelSnapshots, log_of
from tests.waiting import eventually

N1, N2, N3 = NodeId("1"), NodeId("2"), NodeId("3")
DATA = Path("/data")


class Clock:
    """A clock that the test sets."""

    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return 1


class Member:
    """Node "1" of three, or another that its log does not name; the test plays the others."""

    def __init__(
        self, *, own_id: NodeId = N1, file: WitnessFile | None = None, entries: bool = True
    ) -> None:
        self.clock, self.sent = Clock(), list[Message]()
        disk = ListDisk(log_of(2, 2) if entries else [], HardState(2))
        self.core = Raft(
            RaftConfig(id=own_id),
            hard_state=disk.hard_state,
            log=disk,
            memberships=disk.memberships(),
            rng=Random(1),
            snapshots=ModelSnapshots(),
            asks=True,
            marks=file.load() if file else None,
        )
        self.reports = Reports(own_id, clock=self.clock, send=self.sent.append, incarnation="a")
        self.metrics = NodeMetrics("g", "n")
        self.failed: list[BaseException] = []
        self.keeper = WitnessKeeper(
            self.core,
            self.reports,
            file=file,
            metrics=self.metrics,
            wake=lambda: None,
            on_failed=self.failed.append,
        )

    def asks(self) -> bool:
        return self.core.asks

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.clock.now_s += 0.05
            self.keeper.tick(self.clock.now_s)

    def answer(self, sender: NodeId, marks: dict[NodeId, Mark], incarnation: str = "b") -> None:
        """Let a member answer the newest question to it."""
        asked = [m for m in self.sent if isinstance(m, ReportRequest) and m.recipient == sender]
        report = Report(incarnation=incarnation, unix_ms=1, marks=marks)
        answer = ReportResponse(
            sender=sender, recipient=N1, term=2, round=asked[-1].round, report=report
        )
        self.reports.receive(answer, term=2)


def test_it_goes_on_as_soon_as_all_others_have_answered() -> None:
    """With what they said."""
    member = Member()
    member.pass_s(0.1)
    member.answer(N2, {N1: Mark(last_term=2, last_index=9, term=2)})
    member.pass_s(0.1)
    assert member.asks()

    member.answer(N3, {})
    member.pass_s(0.05)

    assert not member.asks()
    assert member.core.abstains is not None
    assert member.metrics.older_disks._value.get() == 1


def test_it_asks_again_and_again_for_links_open_late() -> None:
    """The first questions of a start find no link."""
    member = Member()

    member.pass_s(1.0)

    rounds = {m.round for m in member.sent if isinstance(m, ReportRequest)}
    assert len(rounds) > 3


def test_it_waits_for_the_silent_for_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    """And says whose word is missing."""
    caplog.set_level(logging.WARNING)
    member = Member()
    member.pass_s(0.1)
    member.answer(N2, {})

    member.pass_s(ASK_WAIT_S - 0.3)
    assert member.asks()
    member.pass_s(0.4)

    assert not member.asks()
    assert "without the word of 3" in caplog.text


def test_what_a_question_says_counts_where_no_answer_comes() -> None:
    """A node that knows no member yet can ask nobody; the members ask it."""
    member = Member(entries=False)
    report = Report(incarnation="b", unix_ms=1, marks={N1: Mark(last_term=2, last_index=9, term=3)})
    question = ReportRequest(sender=N2, recipient=N1, term=3, round=1, report=report)
    member.reports.receive(question, term=2)

    member.pass_s(ASK_WAIT_S + 0.2)

    assert member.core.abstains == Mark(last_term=2, last_index=9, term=3)


def test_a_node_that_joins_waits_for_the_word_of_somebody_who_is_left() -> None:
    """Those that its log names may be gone; its disk may be a copy of one that voted since."""
    joins, stranger = NodeId("4"), NodeId("9")
    member = Member(own_id=joins)
    promised = Mark(last_term=2, last_index=9, term=3)
    member.pass_s(10 * ASK_WAIT_S)
    assert member.asks()

    report = Report(incarnation="b", unix_ms=1, marks={joins: promised})
    question = ReportRequest(sender=stranger, recipient=joins, term=3, round=1, report=report)
    member.reports.receive(question, term=2)
    member.pass_s(0.05)

    assert not member.asks()
    assert member.core.abstains == promised


def test_another_incarnation_of_a_member_is_told_to_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only another one, and only once."""
    member, told = Member(), list[NodeId]()
    monkeypatch.setattr(member.core, "peer_restarted", told.append)
    member.pass_s(0.1)

    for incarnation in ("b", "b", "c", "c"):
        member.answer(N2, {}, incarnation)

    assert told == [N2]


def test_its_end_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    """An operator who saw the error sees that nothing is left to do."""
    caplog.set_level(logging.WARNING)
    member = Member()
    member.pass_s(0.1)
    for peer in (N2, N3):
        member.answer(peer, {N1: Mark(last_term=2, last_index=9, term=2)})
    member.pass_s(0.05)
    assert "older than it says" in caplog.text

    member.core.witness.release()
    member.pass_s(0.05)

    assert "it votes" in caplog.text


async def test_what_it_knows_outlives_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved about once a second, and only when it changed."""
    monkeypatch.setattr(witness_keeper, "_SAVE_EVERY_S", 0.01)
    files = MemoryFiles()
    files.make_dirs(DATA)
    file = WitnessFile(files, DATA)
    member = Member(file=file)
    member.core.witness.note(N2, term=2, last_term=2, last_index=7)
    keeping = asyncio.create_task(member.keeper.keep())

    await eventually(file.load)

    files.crash(Random(1))
    assert file.load() == {N2: Mark(last_term=2, last_index=7, term=2)}
    assert Member(file=file).core.witness.known == file.load()
    keeping.cancel()
    assert not member.failed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        checked_json.encode(1, {"marks": {"2": [1, 2]}}),
        checked_json.encode(1, {"marks": {"2": [1, 2, -3]}}),
        checked_json.encode(1, {"marks": {"2": [1, 2, 1 << 62]}}),
        checked_json.encode(1, {"marks": [1]}),
        checked_json.encode(1, {"marks": {str(n): [1, 1, 1] for n in range(65)}}),
    ],
)
def test_a_damaged_file_is_told_and_left_out(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It is a memory of others, no promise of this node."""
    assert _file(data).load() == {}

    assert "without knowing what other members had" in caplog.text


def test_a_file_of_a_newer_format_is_refused() -> None:
    """As every file in the directory is."""
    with pytest.raises(NewerFormat, match=NAME):
        _file(checked_json.encode(2, {"marks": {}})).load()


def _file(data: bytes) -> WitnessFile:
    files = MemoryFiles()
    files.make_dirs(DATA)
    files.open(DATA / NAME, Mode.CREATE).pwritev([data], 0)
    return WitnessFile(files, DATA)
