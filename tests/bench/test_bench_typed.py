"""FIFO and delayed messages beside RocketMQ: what became of each, and what the page says of it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.bench import report
from e2e.bench.__main__ import SECTIONS, line, parser
from e2e.bench.contest import Turns, contest
from e2e.bench.rocketmq import NAME
from e2e.bench.rows import OURS, Row, Run, from_json, to_json
from e2e.bench.targets import TARGETS
from e2e.bench.typed_failover import (
    TYPED_FAILOVER,
    TYPES_FAILOVER,
    SteadyPlan,
    typed_failover_rows,
)
from e2e.bench.typed_judging import Got, Sent, count_disordered, got_of, judge, sent_of
from e2e.bench.typed_sends import (
    DELAY_256,
    FIFO_256,
    STEPS,
    TYPED,
    TYPES,
    late_figures,
    typed_contestants,
)

FAULT_MS = 100_000
CALM_MS = FAULT_MS - 10_000
MACHINE = {
    "cpu": "x",
    "cores": 2,
    "memory_gib": 4,
    "kernel": "6",
    "python": "3",
    "load_before": 7.5,
}


def _delayed(number: int, due_ms: int, error: str = "") -> Sent:
    return Sent(key=(0, number), due_ms=due_ms, ended_ms=due_ms - 9_000, error=error)


def test_what_was_acknowledged_and_did_not_come_is_lost() -> None:
    """What was not acknowledged may come or not."""
    sent = [_delayed(0, CALM_MS), _delayed(1, CALM_MS), *(_delayed(n, 1, "no") for n in (2, 3))]
    got = [Got(key=(0, 0), at_ms=CALM_MS), Got(key=(0, 3), at_ms=CALM_MS)]

    figures = judge(sent, got, FAULT_MS)

    assert (figures["acknowledged"], figures["failures"], figures["lost"]) == (2, 2, 1)


def test_a_message_that_comes_again_is_doubled_unless_it_says_so() -> None:
    """The first one to come counts for its time, early by a millisecond or not."""
    sent = [_delayed(0, CALM_MS), _delayed(1, CALM_MS)]
    got = [
        Got(key=(0, 0), at_ms=CALM_MS - 1),
        Got(key=(0, 1), at_ms=CALM_MS),
        Got(key=(0, 0), at_ms=CALM_MS + 1),
        Got(key=(0, 0), at_ms=CALM_MS + 2, attempt=2),
    ]

    figures = judge(sent, got, FAULT_MS)

    assert (figures["doubled"], figures["redelivered"], figures["early"]) == (1, 1, 1)
    assert figures["late_max_ms"] == 0


def test_lateness_before_the_fault_is_told_by_itself() -> None:
    """What is due a moment before waits for the next master, as what is due after it."""
    dues = (CALM_MS, FAULT_MS - 1, FAULT_MS + 1)
    sent = [_delayed(number, due) for number, due in enumerate(dues)]
    late_ms = (5, 3_000, 2_000)
    got = [
        Got(key=each.key, at_ms=each.due_ms + late)
        for each, late in zip(sent, late_ms, strict=True)
    ]

    figures = judge(sent, got, FAULT_MS)

    assert (figures["calm_p50_ms"], figures["calm_p99_ms"], figures["late_max_ms"]) == (5, 5, 3_000)
    assert figures["gap_ms"] == FAULT_MS - 1 - CALM_MS


def test_order_is_that_of_a_message_group_and_of_first_deliveries() -> None:
    """Groups may overtake each other; what comes again, and what was refused, breaks nothing."""
    assert count_disordered([(0, 0), (1, 5), (0, 1), (1, 6)]) == 0
    assert count_disordered([(0, 1), (0, 0), (0, 2)]) == 1
    assert count_disordered([(0, 2), (0, 0), (0, 1)]) == 2
    sent = [Sent(key=(0, n), due_ms=0, ended_ms=n, error="no" * (n == 1)) for n in range(3)]
    keys = [(0, 0), (0, 2), (0, 0), (0, 1)]

    figures = judge(sent, [Got(key=key, at_ms=9) for key in keys], FAULT_MS)

    assert (figures["disordered"], figures["doubled"], figures["early"]) == (0, 1, 0)


def test_any_order_of_deliveries_loses_and_doubles_nothing() -> None:
    """Of one message group, only the sorted one breaks no order."""
    rng, sent = random.Random(1), [Sent(key=(7, n), due_ms=0, ended_ms=n) for n in range(20)]
    for _ in range(50):
        got = [Got(key=each.key, at_ms=30) for each in sent]
        rng.shuffle(got)

        figures = judge(sent, got, FAULT_MS)

        assert (figures["lost"], figures["doubled"]) == (0, 0)
        assert (figures["disordered"] == 0) == (got == sorted(got, key=lambda each: each.key))


def test_the_answer_of_the_load_program_is_read() -> None:
    """By kind; the key is the message group and the number there."""
    answer = {
        "sent": [["fifo", "3 12", 0, 50, ""], ["delay", "0 1", 70, 60, "refused"]],
        "got": [["delay", "0 1", 71, 2], ["fifo", "3 12", 55, 1]],
    }

    assert sent_of(answer, "fifo") == [Sent(key=(3, 12), due_ms=0, ended_ms=50)]
    assert sent_of(answer, "delay") == [Sent(key=(0, 1), due_ms=70, ended_ms=60, error="refused")]
    assert got_of(answer, "fifo") == [Got(key=(3, 12), at_ms=55)]
    assert got_of(answer, "delay") == [Got(key=(0, 1), at_ms=71, attempt=2)]


def test_what_is_sampled_says_how_late_all_are() -> None:
    """Nothing is said of types that nobody samples, and no lateness of what never came."""
    figures = late_figures([3, -1, 10], 2)

    assert (figures["early"], figures["late_p50_ms"], figures["late_max_ms"]) == (1, 3, 10)
    assert figures["missing"] == 2
    assert late_figures([], 0) == {}
    assert late_figures([], 2) == {"sampled": 0, "missing": 2}


def _sends(system: str, name: str, per_s: float, **figures: float) -> Row:
    return Row(
        kind=TYPED,
        system=system,
        name=f"1 KiB, {name}",
        figures={"per_s": per_s, "failures": 0.0, "others_cores": 0.25, **figures},
    )


def test_typed_sends_are_compared_with_rocketmq_of_the_same_run() -> None:
    """By rate; what failed is no figure of ours."""
    rows = (
        _sends(OURS, FIFO_256.name, 3000),
        _sends(NAME, FIFO_256.name, 2000),
        _sends(OURS, DELAY_256.name, 3000, failures=1.0),
        _sends(NAME, DELAY_256.name, 1000),
    )
    run = Run(at="", commit="", machine={}, rows=rows)
    lines = [
        target
        for target in TARGETS
        if FIFO_256.name in target.line or DELAY_256.name in target.line
    ]

    assert [target.value(run) for target in lines] == [1.5, None]
    assert [target.verdict(run) for target in lines] == ["yes", "not measured"]


def test_the_page_has_both_tables_of_the_newest_run_of_each() -> None:
    """Ours beside theirs, with the load, and what others took; without any there is nothing."""
    at = "2026-01-02T03:04:05Z"
    sends = (_sends(OURS, FIFO_256.name, 1234), _sends(NAME, FIFO_256.name, 321))
    lost = {"acknowledged": 8000.0, "lost": 3.0, "late_max_ms": 1500.0}
    killed = Row(kind=TYPED_FAILOVER, system=NAME, name="delayed, 200 a second", figures=lost)
    append = Row(kind="append", system=OURS, name="1 KiB", size_bytes=1024, figures={"per_s": 9.0})
    own = Run(at=at, commit="abc", machine=MACHINE, rows=sends)
    other = replace(own, commit="def", rows=(killed,))
    newest = replace(own, commit="fed", rows=(append,))

    text = report.figures_text(newest, [own, other, newest])

    assert "commit `abc`: load 7.5 before it began, and of 2 cores others took 0.25" in text
    assert "commit `def`: load 7.5 before it began. The master" in text.replace("\n", " ")
    assert f"| {FIFO_256.name} | dledger | 1,234 | 0.25 | 0 |\n" in text
    assert f"| delayed, 200 a second | {NAME} | 8,000 | 3 | 1,500 |\n" in text
    assert "FIFO and delayed messages" not in report.figures_text(newest, [newest])
    assert from_json(to_json(other), "a") == other
    assert "3.0 lost" in line(killed)


def test_both_parts_have_a_name_of_the_command_line() -> None:
    """They are part of a run of everything."""
    turns = Turns(full=False, seconds=1, rounds=1)

    assert parser().parse_args(["--only", "types,types-failover"]).only == [TYPES, TYPES_FAILOVER]
    assert {TYPES, TYPES_FAILOVER} <= set(SECTIONS)
    assert list(typed_contestants(turns)) == ["ours", "rocketmq"]


@pytest.mark.long
def test_every_type_of_ours_comes_through_the_java_sdk(tmp_path: Path) -> None:
    """One short turn of real nodes and the real SDK: nothing fails, is early or is missing."""
    turns = Turns(full=False, seconds=1, rounds=1, warm_up_s=1)
    ours = {"ours": typed_contestants(turns)["ours"]}

    rows = list(contest(ours, turns, tmp_path / "disk", tmp_path / "logs"))

    assert [row.name for row in rows] == [f"1 KiB, {step.name}" for step in STEPS]
    assert all(row.figures["per_s"] > 0 and row.figures["failures"] == 0 for row in rows)
    assert (rows[-1].figures["missing"], rows[-1].figures["early"]) == (0, 0)


@pytest.mark.long
def test_a_killed_leader_of_ours_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A short load with the real SDK: every acknowledged message comes once, in its order."""
    turns = Turns(full=False, seconds=1, rounds=1)
    ours = {"ours": typed_contestants(turns)["ours"]}
    plan = SteadyPlan(per_s=50, from_s=2, to_s=4, warm_up_s=1, before_s=3, after_s=3, quiet_s=1)

    rows = list(typed_failover_rows(ours, plan, tmp_path / "disk", tmp_path / "logs"))

    assert len(rows) == 2
    for row in rows:
        assert row.figures["acknowledged"] > 0
        for name in ("lost", "doubled", "early", "disordered"):
            assert row.figures[name] == 0
