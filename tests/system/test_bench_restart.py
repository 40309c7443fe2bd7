"""``make bench-restart``, small: a log built by the store is served by a real node."""

from __future__ import annotations

from pathlib import Path

from e2e.bench.restart import LogPlan, measure


def test_a_node_with_a_long_log_starts_from_its_snapshot_and_votes(tmp_path: Path) -> None:
    """All figures are there; how small they are is for the benchmark to say."""
    plan = LogPlan(log_bytes=24 << 20, unsnapshot_bytes=4 << 20, segment_bytes=1 << 20)

    report = measure(tmp_path, plan)

    assert report["segments"] > 20
    assert report["messages"] >= 24 << 10
    assert report["snapshot_bytes"] > 0
    assert 0 < report["voting_s"] <= report["leading_s"] <= report["applied_s"]
    log = (tmp_path / "bench-0.log").read_text("utf-8")
    assert f"the log has [1, {report['entries']}]" in log
