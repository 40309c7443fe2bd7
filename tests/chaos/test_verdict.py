"""What a run comes to: every checker's findings become problems, and so do late leaders."""

from __future__ import annotations

from dataclasses import replace

from e2e.chaos.episodes import Class, Episode, Target
from e2e.chaos.history import Event
from e2e.chaos.log_checker import LogEntry
from e2e.chaos.nemesis import Played
from e2e.chaos.verdict import Audit, Report, judge, table
from tests.chaos.messages import GOOD, WRITES, everywhere, queues, refused, stored
from tests.chaos.registers import cas, read, write

LOG = [LogEntry(1, 1, 1000, "", "c1"), LogEntry(2, 1, 1001, "", "c2")]
AUDIT = Audit(2, everywhere(GOOD), {"a": LOG, "b": LOG})
PLAYED = Played(
    episode=Episode(number=7, fault=Class.BRIDGE, target=Target.LEADER, hold_s=4.0),
    nodes=("a",),
    started_s=10.0,
    healed_s=14.0,
    able_s=10.0,
    gap_s=2.5,
    leader_s=0.1,
    whole_s=0.5,
    fired=True,
)


def judged(
    events: list[Event] | None = None, audit: Audit = AUDIT, *played: Played, limit_s: float = 3.0
) -> Report:
    """Return the report on a run of good messages, and what else is given."""
    return judge([*WRITES, *(events or [])], audit, played or [PLAYED], leader_limit_s=limit_s)


def test_a_good_run_has_no_problems() -> None:
    """And says how much was done."""
    report = judged([cas(0, 1, 0, 5, key="chain-0"), read(2, 3, 0, key="small-0")])

    assert report.problems == []
    assert report.counts["messagesAcknowledged"] == len(WRITES)
    assert report.counts["registerSwaps"] == 1
    assert report.findings["linearizability"] == {"linearizable": 1}


def test_a_finding_of_each_checker_is_a_problem() -> None:
    """Queues, entries, chains, the search."""
    short = Audit(2, everywhere(queues(stored(1, 0), stored(2, 1))), AUDIT.logs)
    forked = Audit(2, AUDIT.queues, {"a": LOG, "b": [LOG[0], replace(LOG[1], term=2)]})
    chain = [cas(0, 1, 0, 5, key="chain-0"), cas(2, 3, 0, 6, key="chain-0")]
    search = [write(0, 1, 1, key="small-0"), read(2, 3, 0, key="small-0")]

    assert "log: loss on a" in judged([], short).problems[0]
    assert "log: divergence on b" in judged([], forked).problems[0]
    assert "register chain-0: fork" in judged(chain).problems[0]
    assert "register small-0: not linearizable" in judged(search).problems[0]


def test_a_refused_message_is_a_problem() -> None:
    """The load has no message that deserves it; a node at fault must not blame the request."""
    assert judged([refused(6)]).problems == [
        "log: m6 was refused at 6.500 s for no fault of its own"
    ]


def test_a_leader_that_comes_too_late_is_a_problem() -> None:
    """The limit has room for a loaded machine; the row counts what was over 3 s all the same."""
    slow = replace(PLAYED, gap_s=3.5)

    assert "3.5 s without a leader" in judged([], AUDIT, slow).problems[0]
    assert judged([], AUDIT, slow, limit_s=9.0).problems == []
    assert judged([], AUDIT, slow, limit_s=9.0).classes[0]["over3S"] == 1


def test_a_recovery_that_fails_is_a_problem() -> None:
    """In its own words."""
    stuck = replace(PLAYED, problem="waited 60 s for all nodes to be whole")

    assert judged([], AUDIT, stuck).problems == [
        "episode 7 (bridge): waited 60 s for all nodes to be whole"
    ]


def test_each_class_that_was_played_has_a_row() -> None:
    """With its figures over all its episodes."""
    report = judged([], AUDIT, PLAYED, replace(PLAYED, gap_s=0.5, fired=False))

    (row,) = report.classes
    assert (row["class"], row["episodes"], row["fired"], row["gapMaxS"]) == ("bridge", 2, 1, 2.5)
    assert table(report.classes).splitlines()[1].startswith("bridge ")
