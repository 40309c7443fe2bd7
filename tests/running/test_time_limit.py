"""A test that hangs fails by its name, says where it hung, and the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dledger_sim.seeds import ended_by_force
from tests.running import time_limit

ROOT = Path(__file__).parents[2]
HANGING = """
import asyncio, os, threading, time
import pytest

async def never(): await asyncio.get_running_loop().create_future()

async def test_of_a_loop():
    waits = asyncio.create_task(never(), name="a task that waits")
    await waits

def test_at_a_lock():
    lock = threading.Lock()
    with lock, lock: pass

async def test_that_catches_what_it_can():
    try:
        while True: time.sleep(0.01); await asyncio.sleep(0)
    except Exception: await never()

@pytest.fixture
async def hangs(): await never()

async def test_behind_a_fixture(hangs): pass

@pytest.fixture
def hangs_later():
    yield
    threading.Event().wait()

def test_before_a_fixture_ends(hangs_later): pass

def test_that_waits_for_a_fork():
    pid = os.fork()
    if not pid:
        threading.Event().wait(20)
        os._exit(0)
    os.waitpid(pid, 0)

@pytest.mark.long
@pytest.mark.parametrize("number", range(5))
def test_that_ends(number): pass
"""
IN_C = """
import ctypes, pytest

def test_in_c():
    mutex, with_the_interpreter = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    for _ in range(2): with_the_interpreter.pthread_mutex_lock(mutex)

@pytest.mark.long
def test_that_ends(): pass
"""

LIMIT_S = "2"
LIMITED = ("-p", "tests.running.time_limit", "--time-limit", LIMIT_S)


def _run(folder: Path, tests: str, *options: str) -> str:
    """Run tests in a process of their own; return what it printed."""
    (folder / "test_hanging.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nmarkers = long\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", *LIMITED, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_whatever_hangs_fails_and_the_rest_goes_on(tmp_path: Path) -> None:
    """In a loop, at a lock, in a fixture before or behind the test, at a process that it forked."""
    said = _run(tmp_path, HANGING, "-n", "2")

    for test, phase in {
        "test_of_a_loop": "call",
        "test_at_a_lock": "call",
        "test_that_catches_what_it_can": "call",
        "test_behind_a_fixture": "setup",
        "test_before_a_fixture_ends": "teardown",
        "test_that_waits_for_a_fork": "call",
    }.items():
        assert f"test_hanging.py::{test} ({phase}) took over {LIMIT_S} s" in said, test
    for number in range(5):
        assert f"PASSED test_hanging.py::test_that_ends[{number}]" in said
    assert "-- task a task that waits" in said
    assert "in never" in said
    assert "with lock, lock: pass" in said


def test_one_process_goes_on_as_well(tmp_path: Path) -> None:
    """As when a developer runs one file."""
    said = _run(tmp_path, HANGING, "-k", "of_a_loop or that_ends")

    assert f"test_hanging.py::test_of_a_loop (call) took over {LIMIT_S} s" in said
    assert "PASSED test_hanging.py::test_that_ends[4]" in said


def test_what_keeps_the_interpreter_ends_its_process_by_name(tmp_path: Path) -> None:
    """No signal reaches it: its worker goes, with its stacks, and another one goes on."""
    said = _run(tmp_path, IN_C, "-n", "1")

    assert "crashed while running 'test_hanging.py::test_in_c'" in said
    assert "in test_in_c" in said
    assert "PASSED test_hanging.py::test_that_ends" in said


def test_the_limit_of_a_marked_test_is_larger(request: pytest.FixtureRequest) -> None:
    """The largest counts; `--time-limit 0` has none of them."""
    config = request.config
    item = request.node
    default = config.getoption("--time-limit")

    assert time_limit.limit_s(item) == default
    item.add_marker(pytest.mark.long)
    assert time_limit.limit_s(item) == max(default, time_limit.LIMITS_S["long"])
    item.add_marker(pytest.mark.e2e)
    assert time_limit.limit_s(item) == max(default, time_limit.LIMITS_S["e2e"])


def test_the_simulators_own_limit_leaves_the_tests_one() -> None:
    """Both are the same timer of the process."""
    before_s, again_s = signal.getitimer(signal.ITIMER_REAL)
    with ended_by_force():
        pass
    after_s, after_again_s = signal.getitimer(signal.ITIMER_REAL)

    assert (before_s > 0) == (after_s > 0)
    assert after_s <= before_s
    assert again_s == after_again_s
