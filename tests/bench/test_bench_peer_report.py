"""What is asked beside Kafka and NATS JetStream, and what the page shows of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.bench import report
from e2e.bench.peer_lines import (
    KAFKA_SYNCED,
    NATS,
    NATS_SYNCED,
    PEER_APPEND,
    PEER_FAILOVER,
    PEER_READ,
)
from e2e.bench.rows import OURS, Row, Run
from e2e.bench.targets import TARGETS, Target

FACTS = {
    "cpu": "a processor",
    "cores": 2,
    "memory_gib": 4,
    "kernel": "6.1",
    "python": "3.11",
    "load_before": 0.1,
}


def _row(
    system: str, *samples: float, batch: int = 1, window: int = 256, cost_s: float = 1.0,
    kind: str = PEER_APPEND,
) -> Row:  # fmt: skip
    return Row(
        kind=kind,
        system=system,
        name=f"batch {batch}, window {window}",
        batch=batch,
        window=window,
        figures={"per_s": sorted(samples)[len(samples) // 2], "nodes_100k_s": cost_s, "seconds": 1},
        samples=samples,
    )


def _run(*rows: Row, commit: str = "abc") -> Run:
    return Run(at="2026-01-02T03:04:05Z", commit=commit, machine=FACTS, rows=rows)


def _goal(line: str) -> Target:
    (found,) = [target for target in TARGETS if target.line.startswith(line)]
    return found


def test_rounds_are_compared_with_each_other() -> None:
    """A round in which the machine was slow was slow for both: the median of ratios counts."""
    run = _run(_row(OURS, 30, 10, 90), _row(NATS_SYNCED, 20, 5, 10), _row(NATS[1], 99, 99, 99))

    assert _goal("single appends, 256 under way, beside").value(run) == 2
    assert _goal("single appends, 256 under way, beside").verdict(run) == "aim"
    assert _goal("single appends, 1,024 under way, beside").verdict(run) == "not measured"


def test_batches_are_compared_at_the_best_window_of_each() -> None:
    """Rate and processor time are those of the same rows."""
    run = _run(
        _row(OURS, 100, batch=256, window=4, cost_s=0.1),
        _row(OURS, 130, batch=256, window=16, cost_s=1.4),
        _row(KAFKA_SYNCED, 50, batch=256, window=16, cost_s=9),
        _row(KAFKA_SYNCED, 100, batch=256, window=128, cost_s=2),
    )

    assert _goal("batches of 256, beside").value(run) == pytest.approx(1.3)
    assert _goal("batches of 256: CPU").value(run) == pytest.approx(0.7)
    assert _goal("batches of 256: CPU").verdict(run) == "yes"


def test_reads_are_compared_with_the_faster_nats() -> None:
    """It may be either: a read promises nothing."""
    rows = [
        _row(system, rate, window=1, kind=PEER_READ)
        for system, rate in zip((OURS, *NATS), (80, 50, 100), strict=True)
    ]

    assert _goal("reads of single messages").value(_run(*rows)) == pytest.approx(0.8)
    assert _goal("reads of single messages").value(_run(*rows[:2])) == pytest.approx(1.6)
    assert _goal("reads of single messages").value(_run(*rows[1:])) is None


def test_what_single_messages_cost_is_asked_by_itself() -> None:
    """Less is better; a row without the figure has not been measured."""
    line, row = "single appends, 256 under way: CPU", _row(OURS, 1, cost_s=2.5)

    assert _goal(line).verdict(_run(row)) == "yes"
    assert _goal(line).verdict(_run(replace(row, figures={"per_s": 1.0}))) == "not measured"


def test_the_page_shows_the_newest_run_of_the_peers_beside_the_newest_bench() -> None:
    """Such a run alone is no bench: it replaces nothing of the page, and says which one it is."""
    lost = Row(kind=PEER_FAILOVER, system="nats", name="SIGKILL", figures={"p50_ms": 4500.0})
    bench = _run(replace(_row(OURS, 1234), kind="append"), commit="bench")
    peers = _run(
        _row(OURS, 20_000, 30_000), _row(NATS_SYNCED, 15_000, 10_000), lost, commit="peers"
    )

    text = report.figures_text(bench, [peers, bench])

    assert "commit `bench`" in text
    shown = text.partition("### Beside Kafka and NATS JetStream")[2].partition("###")[0]
    assert "commit `peers`" in shown
    assert "| batch 1, window 256 | nats (synced) | 15,000 | 1 |" in shown
    assert "| SIGKILL | nats | 4,500 |" in shown
    assert "1.5x at most" in shown
    assert "15,000" not in text.partition("### What the nodes took")[2]
    assert report.has(peers, "append") is False


def test_without_such_a_run_there_is_no_table() -> None:
    """The lines are there, and not measured."""
    text = report.figures_text(_run(replace(_row(OURS, 1234), kind="append")))

    assert "### Beside Kafka" not in text
    assert (
        "| batches of 256, beside Kafka synced, both at their best | 1.3 x | 2 x |  | not" in text
    )
