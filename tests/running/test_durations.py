"""What each test took is noted, of all processes of a run, and the slowest files come first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import durations
from tests.running.durations import Took, by_file, merged, read, table, write

ROOT = Path(__file__).parents[2]
TESTS = """
import time, pytest

@pytest.fixture
def slow():
    time.sleep(0.2)
    yield
    time.sleep(0.1)

@pytest.mark.parametrize("number", range(4))
def test_waits(slow, number): pass

def test_computes():
    until_s = time.process_time() + 0.2
    while time.process_time() < until_s: pass
"""


def _took(call: float) -> Took:
    return {"setup": 0.0, "call": call, "teardown": 0.0, "cpu": 0.0}


def test_every_worker_of_a_run_is_noted(tmp_path: Path) -> None:
    """With setup and teardown, and the CPU that a test took itself."""
    (tmp_path / "test_one.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.running.durations"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        check=True,
        capture_output=True,
    )

    known = json.loads((tmp_path / durations.PATH).read_text())["tests"]

    waits = {f"test_one.py::test_waits[{number}]" for number in range(4)}
    assert known.keys() == waits | {"test_one.py::test_computes"}
    for test in waits:
        assert known[test]["setup"] >= 0.2
        assert known[test]["teardown"] >= 0.1
    assert known["test_one.py::test_computes"]["cpu"] >= 0.15


def test_a_run_is_written_over_what_is_known(tmp_path: Path) -> None:
    """What it did not run stays, but for files that are gone."""
    (tmp_path / "here.py").touch()
    known = {"here.py::a": _took(1.0), "here.py::b": _took(1.0), "gone.py::c": _took(1.0)}

    both = merged(known, {"here.py::b": _took(2.0)}, tmp_path)

    assert {test: took["call"] for test, took in both.items()} == {
        "here.py::a": 1.0,
        "here.py::b": 2.0,
    }


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """A file that is missing, or no JSON, knows nothing."""
    path = tmp_path / "build" / "durations.json"
    assert read(path) == {}

    write(path, {"a.py::b": _took(1.0)})

    assert read(path) == {"a.py::b": _took(1.0)}
    assert list(path.parent.iterdir()) == [path]
    path.write_text("{")
    assert read(path) == {}


def test_the_slowest_file_comes_first_with_its_slowest_test() -> None:
    """Setup and teardown count."""
    tests = {
        "a.py::one": _took(1.0),
        "b.py::two": _took(3.0),
        "b.py::three": {**_took(1.0), "setup": 4.0},
    }

    sums = by_file(tests)

    assert [(each.file, each.tests, each.wall_s, each.slowest) for each in sums] == [
        ("b.py", 2, 8.0, "three"),
        ("a.py", 1, 1.0, "one"),
    ]
    assert table(sums).splitlines()[1].split() == ["8.0", "0.0", "2", "b.py;", "three", "5.0"]


def test_nothing_known_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is no success: somebody looks for figures."""
    path = tmp_path / "durations.json"
    monkeypatch.setattr(sys, "argv", ["durations", "--file", str(path)])

    assert durations.main() == 1
    assert "run some first" in capsys.readouterr().err
