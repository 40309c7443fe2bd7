"""The alerts as Prometheus' own tool sees them: well formed, and firing when they should."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.cluster import golang

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts/dledger-operator/monitoring/alerts.yaml"
STORIES = Path(__file__).with_name("alerts.test.yaml")


def _promtool(*args: str | Path) -> str:
    done = subprocess.run(
        [golang.provide(golang.PROMTOOL), *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_well_formed() -> None:
    """Expressions parse, templates expand, no alert is there twice."""
    assert "SUCCESS: 6 rules found" in _promtool("check", "rules", "--lint-fatal", RULES)


def test_each_alert_fires_when_its_story_says_so(tmp_path: Path) -> None:
    """With simulated time, so that minutes and days cost nothing; see alerts.test.yaml."""
    for file in (RULES, STORIES):
        shutil.copy(file, tmp_path)

    assert "SUCCESS" in _promtool("test", "rules", tmp_path / STORIES.name)


def test_every_alert_has_a_story() -> None:
    """One that never fired in a test may never fire at all."""
    names = [line.split()[-1] for line in RULES.read_text("utf-8").splitlines() if "alert:" in line]
    stories = STORIES.read_text("utf-8")

    assert len(names) == 6
    assert [name for name in names if name not in stories] == []
