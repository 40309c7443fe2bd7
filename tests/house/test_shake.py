"""`make shake`: says how often tests pass beside busy loops, and leaves no loop behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from scripts.shake import STOPPED, busy_loops
from tests.waiting import eventually_blocking

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/shake.py"

FLAKY = """
from pathlib import Path

def test_flaky():
    runs = Path("runs.txt")
    runs.write_text((runs.read_text() if runs.exists() else "") + "x")
    assert len(runs.read_text()) != 2
"""
HANGING = """
import os, time
from pathlib import Path

def test_hanging():
    Path("begun.part").write_text(str(os.getpid()))
    os.rename("begun.part", "begun.txt")
    time.sleep(600)
"""
ABANDONS_ITS_LOOPS = """
import os
from scripts.shake import busy_loops

with busy_loops(2) as loops:
    print(*loops, flush=True)
    os._exit(0)
"""


def _ended(process_id: int) -> bool:
    """Tell whether a process is gone, or dead and only not yet asked for."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text("utf-8").split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _shake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--loops", "1", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_one_failure_among_the_runs_is_counted_and_kept(tmp_path: Path) -> None:
    """The others go on: how often it fails is what one wants to know."""
    (tmp_path / "test_flaky.py").write_text(FLAKY, "utf-8")

    shaken = _shake(tmp_path, "--runs", "3", "test_flaky.py::test_flaky")

    assert shaken.returncode == 1, shaken.stderr
    assert shaken.stdout.splitlines()[-1] == "2 of 3 runs passed beside 1 busy loops"
    assert [log.name for log in (tmp_path / "build/shake").iterdir()] == ["run-2.log"]


def test_a_test_that_always_passes_is_success(tmp_path: Path) -> None:
    """Exit code 0, so that it can stand in front of a commit."""
    (tmp_path / "test_calm.py").write_text("def test_calm():\n    pass\n", "utf-8")

    assert _shake(tmp_path, "--runs", "1", "test_calm.py").returncode == 0


@pytest.mark.parametrize("tests", [["test_missing.py"], []])
def test_what_names_no_test_is_an_error(tmp_path: Path, tests: list[str]) -> None:
    """Twenty runs of nothing would pass."""
    assert _shake(tmp_path, "--runs", "1", *tests).returncode == 2


def test_ctrl_c_ends_the_run_and_its_test(tmp_path: Path) -> None:
    """Exit code 130, after the test's own clean-up."""
    (tmp_path / "test_hanging.py").write_text(HANGING, "utf-8")
    begun = tmp_path / "begun.txt"
    command = [sys.executable, str(SCRIPT), "--loops", "1", "test_hanging.py"]

    with subprocess.Popen(command, cwd=tmp_path) as shaking:
        eventually_blocking(begun.exists, "the test did not begin")
        shaking.send_signal(signal.SIGINT)

    assert shaking.returncode == STOPPED
    assert _ended(int(begun.read_text("utf-8")))


def test_the_loops_end_with_the_run() -> None:
    """Whatever ends it."""
    with pytest.raises(KeyboardInterrupt), busy_loops(2) as loops:
        raise KeyboardInterrupt

    assert len(loops) == 2
    assert all(_ended(loop) for loop in loops)


def test_the_loops_end_when_their_parent_was_killed() -> None:
    """Nothing is left on a developer's machine, not even by `kill -9`."""
    abandoned = subprocess.run(
        [sys.executable, "-c", ABANDONS_ITS_LOOPS], cwd=ROOT, capture_output=True, check=True
    )

    for loop in abandoned.stdout.split():
        eventually_blocking(partial(_ended, int(loop)), f"busy loop {loop!r} goes on")
