"""The page about the spool says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from dledger.spool.counters import SpoolCollector, SpoolCounters

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/outage-spool.md").read_text("utf-8")
EXAMPLE = ROOT / "docs/examples/spooling_producer.py"


def test_page_shows_the_example_as_it_is() -> None:
    """Word for word."""
    assert f"```python\n{EXAMPLE.read_text('utf-8')}```" in PAGE


def test_example_runs_without_a_group(tmp_path: Path) -> None:
    """It spools, and says so."""
    command = [sys.executable, str(EXAMPLE), "127.0.0.1:9", str(tmp_path / "spool")]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()

    assert re.fullmatch(r"[0-9a-f]{32} spooled waiting: 1\n", line)


def test_page_names_every_metric() -> None:
    """And none that is not there."""
    names = list(SpoolCounters.__dataclass_fields__)
    figures = SpoolCounters(**dict.fromkeys(names, 0))
    registry = CollectorRegistry()
    registry.register(SpoolCollector({"orders": lambda: figures}))

    there = {sample.name for family in registry.collect() for sample in family.samples}

    assert set(re.findall(r"dledger_spool_\w+", PAGE)) == there
