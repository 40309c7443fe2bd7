"""Run tests many times beside busy loops, and say how often they passed; the way to find a flake.

``python scripts/shake.py [--runs N] [--loops N] TEST...``: each run is a pytest of its own. A run
that fails leaves what it printed in ``build/shake/run-N.log``, and the others go on: how often
matters. Exit code: 0 if every run passed, 1 if one failed, 2 if nothing was named or nothing was
collected, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOGS = Path("build/shake")
STOPPED = 130
"""What a shell gives for a program that Ctrl-C ended."""
NOT_TESTS = frozenset({2, 3, 4, 5})
"""pytest's codes for a run that says nothing about the tests: interrupted, broken, none found."""

# The loop looks at its parent, so that it ends even if this program is killed without a word.
_BUSY = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    sum(range(100_000))
"""


@contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """Keep *count* processes busy until the block ends; yield their process ids."""
    command = [sys.executable, "-c", _BUSY, str(os.getpid())]
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen(command, process_group=0))  # noqa: PERF401, all end
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def shake(tests: list[str], runs: int) -> int:
    """Run *tests* *runs* times, one run after the other; return how many runs passed.

    Raises:
        ValueError: A run could not even find or begin its tests; it says nothing about them.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    passed = 0
    for number in range(1, runs + 1):
        log = LOGS / f"run-{number}.log"
        code = _run(command, log)
        if code in NOT_TESTS:
            raise ValueError(log.read_text("utf-8")[-2000:])
        if code == 0:
            passed += 1
            log.unlink()
        ended = "passed" if code == 0 else f"failed, see {log}"
        print(f"run {number} of {runs}: {ended}", flush=True)
    return passed


def _run(command: list[str], log: Path) -> int:
    """Run *command*, its output in *log*; return its exit code, not before it has cleaned up."""
    with log.open("w", encoding="utf-8") as output:
        run = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        return run.wait()
    except BaseException:
        os.killpg(run.pid, signal.SIGINT)  # as a terminal would: fixtures end what they started
        run.wait()
        raise


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="how often (default 20)")
    parser.add_argument("--loops", type=int, default=4, help="busy loops beside them (default 4)")
    parser.add_argument("tests", nargs="+", help="tests as pytest takes them")
    given = parser.parse_args(arguments)
    # What a shell starts in the background ignores Ctrl-C, and so would the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    try:
        with busy_loops(given.loops):
            passed = shake(given.tests, given.runs)
    except KeyboardInterrupt:
        return STOPPED
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{passed} of {given.runs} runs passed beside {given.loops} busy loops")
    return 0 if passed == given.runs else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
