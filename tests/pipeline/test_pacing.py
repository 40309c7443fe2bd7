"""Nodes are read no faster than was asked, by a clock that only sleeping moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.services import export
from dledger_pipeline.archive.entry_ranges import ExportedRange
from dledger_pipeline.log import pacing
from dledger_pipeline.log.export_client import ExportClient
from dledger_pipeline.log.pacing import Pace
from tests.pipeline.export_server import export_server
from tests.pipeline.logs import GROUP_ID, data_directory, entries


class FakeTime:
    """Seconds that pass by sleeping only."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Return the clock that paces have."""
    fake = FakeTime()
    monkeypatch.setattr(pacing, "time", fake)
    return fake


def test_so_many_bytes_take_so_long(clock: FakeTime) -> None:
    """However they are cut; at every moment, not only at the end."""
    pace, read_bytes, began_s = Pace(1000), 0, clock.now_s

    for size_bytes in (1, 999, 5000, 0, 250):
        pace.has_read(size_bytes)
        read_bytes += size_bytes
        assert clock.now_s - began_s == pytest.approx(read_bytes / 1000)


def test_the_readers_own_time_counts_but_is_not_made_up_for(clock: FakeTime) -> None:
    """After a slow piece the next ones do not come faster than the rate."""
    pace = Pace(1000)
    clock.now_s += 1.5
    pace.has_read(1000)
    assert clock.slept_s == 0

    pace.has_read(1000)
    assert clock.slept_s == pytest.approx(1)

    clock.now_s += 0.4
    pace.has_read(1000)
    assert clock.slept_s == pytest.approx(1.6)


def test_no_rate_is_no_limit(clock: FakeTime) -> None:
    """Nobody sleeps."""
    pace = Pace(0)
    pace.has_read(1 << 40)

    assert clock.slept_s == 0


def test_a_range_is_read_at_the_rate_that_it_was_told(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All record bytes count, those of the last chunk as well: the next range follows at once."""
    monkeypatch.setattr(export, "_CHUNK_BYTES", 5000)
    log = entries(200)
    with export_server(data_directory(tmp_path / "node", log)) as address:
        with ExportClient(address) as exporter:
            (whole,) = exporter.plan().ranges
        paced = ExportedRange(
            addresses=(address,),
            group_id=GROUP_ID,
            first_index=1,
            last_index=200,
            previous_chain=0,
            bytes_per_s=10_000.0,
        )
        rows = sum(batch.num_rows for batch in paced.read())

    assert rows == 200
    assert clock.slept_s == pytest.approx(whole.size_bytes / 10_000)
