"""Short runs of real nodes: a few episodes, everything checked, nothing wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEED = "8"
"""With it nobody hears the leader: a cut between two followers might hold nothing back."""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    "classes",
    [
        "kill-leader,io-error-sync",
        pytest.param(
            "kill-leader,one-way-cut,io-error-sync,wiped-directory", marks=pytest.mark.long
        ),
    ],
)
def test_a_short_run_loses_nothing_and_says_so(tmp_path: Path, classes: str) -> None:
    """The command, its result file, and histories that are not empty."""
    out = tmp_path / "run"
    names = classes.split(",")
    command = [sys.executable, "-m", "e2e.chaos", "--minutes", "2", "--episodes", str(len(names))]
    command += ["--seed", SEED]

    done = subprocess.run(
        [*command, "--classes", classes, "--no-volume", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((out / "result.json").read_text("utf-8"))
    assert result["problems"] == result["unmeasured"] == []
    assert {row["class"] for row in result["classes"]} == set(names)
    assert result["counts"]["messagesAcknowledged"] > 100
    assert result["counts"]["registerSwaps"] > 10
    assert result["findings"]["linearizability"].keys() <= {"linearizable"}
