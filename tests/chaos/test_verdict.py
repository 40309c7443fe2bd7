"""What a run comes to: every checker's findings become problems, and so do late leaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from e2e.chaos.episodes import Aim, Episode, FaultKind
from e2e.chaos.history import Event, Seen
from e2e.chaos.log_checker import LogEntry
from e2e.chaos.nemesis import Played
from e2e.chaos.verdict import Audit, Report, judge, table
from tests.chaos.messages import GOOD, WRITES, everywhere, queues, refused, stored
from tests.chaos.registers import cas, read, write

CHAIN = cas(0, 1, 0, 5, key="chain-0")
SEARCH = read(2, 3, 0, key="small-0")
SEEN = Seen(node="a", queue=0, offset=0, message_id="m1", digest="d1", at_s=2.0)
LOG = [LogEntry(1, 1, 1000, "", "c1"), LogEntry(2, 1, 1001, "", "c2")]
AUDIT = Audit(2, everywhere(GOOD), {"a": LOG, "b": LOG})
PLAYED = Played(
    episode=Episode(number=7, fault=FaultKind.BRIDGE, target=Aim.LEADER, hold_s=4.0),
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
    events: Sequence[Event] = (), audit: Audit = AUDIT, *played: Played, limit_s: float = 3.0
) -> Report:
    """Return the report on a run of good messages, and what else is given."""
    return judge([*WRITES, *events], audit, played or [PLAYED], leader_limit_s=limit_s)


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


WHOLE = replace(AUDIT, logs=dict.fromkeys(AUDIT.queues, LOG))


def whole(audit: Audit = WHOLE, played: Sequence[Played] = (PLAYED,)) -> Report:
    """Return the report on a run in which everything was done that there is to do."""
    done: list[Event] = [*WRITES, CHAIN, SEARCH, SEEN]
    return judge(done, audit, played, leader_limit_s=3.0, asked=[FaultKind.BRIDGE])


def test_a_run_has_passed_only_if_everything_was_tried() -> None:
    """Then, and only then, the exit code is 0."""
    report = whole()

    assert (report.problems, report.unmeasured, report.exit_code) == ([], [], 0)


def test_a_run_in_which_nothing_was_done_has_not_passed() -> None:
    """No episode, no message, no register, no node: no checker had anything to find a fault in."""
    report = judge([], Audit(0, {}, {}), [], leader_limit_s=3.0, asked=[FaultKind.BRIDGE])

    assert (report.problems, report.exit_code) == ([], 2)
    assert report.unmeasured == [
        "no episode was played",
        "no message was acknowledged",
        "no reader saw a message",
        "no register operation was answered",
        "nothing is known to be committed",
        "no node was audited",
        "bridge: time was up before",
        "linearizability: no register was judged",
    ]


def test_a_fault_that_did_not_hit_was_not_tried() -> None:
    """An I/O error that nothing ran into; one of several is enough."""
    missed = replace(PLAYED, fired=False)

    assert whole(played=[missed]).unmeasured == ["bridge: no episode of it has hit"]
    assert whole(played=[missed, PLAYED]).unmeasured == []


def test_a_node_that_showed_nothing_at_the_end_was_not_compared() -> None:
    """Nothing differs from an empty log."""
    blank = Audit(2, {"a": AUDIT.queues["a"], "b": {}}, {"a": LOG, "b": []})

    unmeasured = whole(audit=blank).unmeasured

    assert unmeasured == ["b showed no message at the end", "b showed no log at the end"]


def test_what_is_wrong_goes_before_what_was_not_tried() -> None:
    """Exit code 1, whatever else."""
    stuck = replace(PLAYED, problem="waited 60 s for all nodes to be whole", fired=False)

    assert judged([], AUDIT, stuck).exit_code == 1


def test_each_class_that_was_played_has_a_row() -> None:
    """With its figures over all its episodes."""
    report = judged([], AUDIT, PLAYED, replace(PLAYED, gap_s=0.5, fired=False))

    (row,) = report.classes
    assert (row["class"], row["episodes"], row["fired"], row["gapMaxS"]) == ("bridge", 2, 1, 2.5)
    assert table(report.classes).splitlines()[1].startswith("bridge ")
