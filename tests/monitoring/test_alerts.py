"""The alerts as Prometheus' own tool sees them: well formed, and firing when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.cluster import golang

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts/dledger-operator/monitoring/alerts.yaml"
STORIES = sorted(Path(__file__).parent.glob("*.test.yaml"))


def _promtool(*args: str | Path) -> str:
    done = subprocess.run(
        [golang.provide(golang.PROMTOOL), *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_well_formed() -> None:
    """Expressions parse, templates expand, no alert is there twice."""
    assert "SUCCESS: 32 rules found" in _promtool("check", "rules", "--lint-fatal", RULES)


@pytest.mark.parametrize("stories", STORIES, ids=lambda path: path.name.partition(".")[0])
def test_each_alert_fires_when_its_story_says_so(stories: Path, tmp_path: Path) -> None:
    """With simulated time, so that minutes and days cost little; see alerts.test.yaml."""
    for file in (RULES, stories):
        shutil.copy(file, tmp_path)

    assert "SUCCESS" in _promtool("test", "rules", tmp_path / stories.name)


def test_every_alert_has_a_story() -> None:
    """One that never fired in a test may never fire at all."""
    names = re.findall(r"- alert: (\w+)", RULES.read_text("utf-8"))
    stories = "".join(each.read_text("utf-8") for each in STORIES)
    told_quiet = {name for name in names if f"alertname: {name}, eval_time" in stories}

    assert len(names) == 25
    assert [name for name in names if not re.search(rf"{name}\b.*\n +(eval|exp)", stories)] == []
    assert "expr: 'ALERTS'" in stories, "a healthy group is quiet"
    assert len(told_quiet) > 10
