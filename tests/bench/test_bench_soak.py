"""The soak's judgements: what was lost, which election nothing explains, whether memory grows."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from e2e.bench.elections import Made, elections, lines_between
from e2e.bench.sampler import DiskProbe, Life
from e2e.bench.soak import SoakNotes, verdict
from e2e.harness.checks import Verdict
from e2e.harness.sequence import SequenceAudit, SequenceFindings, numbered
from tests.waiting import eventually_blocking


def read(audit: SequenceAudit, *numbers: int, queue_id: int = 0) -> None:
    for number in numbers:
        audit.read(queue_id, numbered(number, 2, b"x"))


def acked(*numbers: int) -> SequenceAudit:
    audit = SequenceAudit()
    for number in numbers:
        audit.acked(number)
    return audit


def test_what_was_acknowledged_and_is_not_read_is_lost() -> None:
    """One that was never acknowledged may be there or not."""
    audit = acked(0, 1, 3)

    read(audit, 0, 2, 3)

    assert audit.found() == SequenceFindings(
        acked=3, lost=1, duplicates=0, out_of_order=0, messages=6
    )


def test_a_batch_that_is_read_twice_is_a_duplicate() -> None:
    """Also when the second one is in another queue."""
    audit = acked(0, 1)

    read(audit, 0, 1)
    read(audit, 1, queue_id=5)

    found = audit.found()
    assert (found.duplicates, found.out_of_order, found.lost) == (1, 0, 0)


def test_a_batch_behind_a_later_one_of_its_queue_is_out_of_order() -> None:
    """Queues are independent of each other."""
    audit = acked(0, 1, 2, 3)

    read(audit, 1, 3, 2)
    read(audit, 0, queue_id=1)

    assert audit.found().out_of_order == 1


@pytest.mark.parametrize("rows", [(1,), (0,), (1, 0)])
def test_rows_that_are_amiss_are_seen(rows: tuple[int, ...]) -> None:
    """A batch is all there, in its order, and at once."""
    audit = acked(0, 1)
    bodies = numbered(0, 2, b"")

    audit.read(0, [bodies[row] for row in rows])
    read(audit, 1)

    found = audit.found()
    assert found.out_of_order >= 1 or found.lost == 1


def test_a_batch_may_come_in_two_parts() -> None:
    """What a reader gets at once is cut by bytes."""
    audit = acked(0)
    first, second = numbered(0, 2, b"")

    audit.read(0, [first])
    assert audit.missing == 1
    audit.read(0, [second])

    assert audit.found() == SequenceFindings(
        acked=1, lost=0, duplicates=0, out_of_order=0, messages=2
    )


def test_an_election_is_explained_by_a_fault_of_the_leader_alone() -> None:
    """While a follower is away the others have no reason to elect anyone."""
    faults = [
        Made(name="SIGKILL of the leader", begin_s=10.5, end_s=13, hits_leader=True),
        Made(name="SIGKILL of a follower", begin_s=20.5, end_s=23, hits_leader=False),
    ]
    terms = [(10, 1), (11, 1), (12, 3), (13, 3), (14, 3), (21, 3), (22, 4), (30, 5)]

    found = [(e.seen_s, e.terms, e.fault) for e in elections(terms, faults)]

    assert found == [(12, 2, "SIGKILL of the leader"), (22, 1, ""), (30, 1, "")]


def test_the_log_around_a_moment_is_found_with_its_tracebacks() -> None:
    """A line without a time belongs to the one before."""
    log = [
        "2026-11-21 23:00:00,100 INFO before\n",
        "2026-11-21 23:00:01,200 WARNING leader lost\n",
        "  a traceback\n",
        "2026-11-21 23:00:05,000 INFO after\n",
        "  of which this is a part\n",
    ]

    found = lines_between(log, datetime(2026, 11, 21, 23, 0, 1), datetime(2026, 11, 21, 23, 0, 2))

    assert found == ["2026-11-21 23:00:01,200 WARNING leader lost", "  a traceback"]


def test_growth_compares_the_last_quarter_with_the_first_after_the_warm_up() -> None:
    """Peaks do not count; a life that is too short says nothing."""
    looks = [(float(at), 50.0 if at < 30 else 100.0 + at / 10) for at in range(131)]
    looks[60] = (60.0, 900.0)
    life = Life(node="n0", rss_mb=looks)

    growth = life.growth(warm_up_s=30, least_s=100)

    assert growth is not None
    assert round(growth, 3) == 0.073
    assert life.peak_mb == 900
    assert life.growth(warm_up_s=30, least_s=101) is None


def test_a_disk_that_hung_explains_an_election(tmp_path: Path) -> None:
    """As told by a look from beside the nodes; a slow sync that is none does not."""
    probe = DiskProbe(tmp_path / "probe")
    probe.took(10.0, 10.3)
    probe.took(20.0, 20.6)

    found = elections([(9.5, 1), (10.5, 2), (19.8, 2), (20.8, 3)], probe.hangs)

    assert [election.fault for election in found] == ["", "the machine's disk hung for 0.6 s"]
    assert probe.longest_s == pytest.approx(0.6)


def test_the_disk_is_looked_at_until_it_is_enough(tmp_path: Path) -> None:
    """Real writes and syncs, which have a length."""
    probe = DiskProbe(tmp_path / "probe")
    probe.start()
    eventually_blocking(lambda: probe.longest_s)
    probe.stop()

    assert (tmp_path / "probe").stat().st_size == 4096


def test_a_witness_that_never_began_may_be_stopped(tmp_path: Path) -> None:
    """The group may not come up."""
    DiskProbe(tmp_path / "probe").stop()


def test_a_run_that_was_offered_more_than_it_took_says_so() -> None:
    """A fault leaves some seconds of load for a look or two; a slower machine ever more."""
    kept, overrun = SoakNotes(per_s=100.0), SoakNotes(per_s=100.0)
    for at_s in range(10, 101, 10):
        kept.acked = 100 * (at_s - 8) if at_s == 60 else 100 * at_s - 3
        kept.looked(at_s)
        overrun.acked = 80 * at_s
        overrun.looked(at_s)

    assert kept.behind() == {"behind_percent": 10}
    assert overrun.behind() == {"behind_percent": 80}
    assert [_falls_short(course) for course in (kept, overrun)] == [[], ["looks with 5 s of load"]]


def _falls_short(course: SoakNotes) -> list[str]:
    broken = [line for line in verdict(course.behind()) if line.verdict is Verdict.BROKEN]
    return [line.what.partition(" waiting")[0] for line in broken]
