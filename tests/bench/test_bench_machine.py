"""What the bench says of the machine."""

from __future__ import annotations

from pathlib import Path

from e2e.bench.bare_broker import bare_broker_rows
from e2e.bench.bare_calls import bare_rows
from e2e.bench.machine import Stolen, sync_row

STAT = "cpu  100 0 50 800 10 0 5 {stolen} 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"


def test_what_the_hypervisor_took_is_a_part_of_all_time(tmp_path: Path) -> None:
    """The 8th figure of the first line, since the beginning; nothing when no time has passed."""
    stat = tmp_path / "stat"
    stat.write_text(STAT.format(stolen=35))
    stolen = Stolen(stat)
    before = stolen.percent()

    stat.write_text(STAT.format(stolen=135).replace("cpu  100", "cpu  400"))

    assert (before, stolen.percent()) == (0.0, 25.0)


def test_a_bare_call_costs_its_server_and_its_client_something(tmp_path: Path) -> None:
    """Real calls to a real server, which ends with the measurement: many at once, and alone."""
    rows = bare_rows(0.3, tmp_path / "log")

    assert [row.window for row in rows] == 2 * [64, 16, 1]  # gRPC's server, and ours
    for row in rows:
        assert row.figures["per_s"] > 0
        assert 0 < row.figures["p50_ms"] <= row.figures["p99_ms"]
    for side in ("server_us", "client_us"):  # one row's may be less than a tick of the clock
        assert sum(row.figures[side] for row in rows) > 0
    assert (tmp_path / "log").read_text() == ""


def test_a_sync_counts_from_when_it_was_due(tmp_path: Path) -> None:
    """Real writes by three writers; nothing is left behind."""
    row = sync_row(tmp_path, 0.1)

    assert 0 < row.figures["p50_ms"] <= row.figures["p99_ms"]
    assert list(tmp_path.iterdir()) == []


def test_the_sdk_sends_to_a_broker_that_does_nothing(tmp_path: Path) -> None:
    """The unmodified SDK takes it for one: each send is answered."""
    rows = bare_broker_rows(0.3, tmp_path / "log")

    assert [row.name for row in rows] == [
        "1 KiB, sync sends, 1 thread",
        "1 KiB, async sends, 256 under way",
    ]
    for row in rows:
        assert row.figures["per_s"] > 0
        assert row.figures["failures"] == 0
