"""What each test took: `build/durations.json`, and ``make durations`` for the slowest.

Each run writes what its tests took, of all of its processes, over what is known of them. Tests of
files that are gone are left out; one that has another name now stays until the file is removed.
Seconds on the wall are those of this machine and of what else ran on it; CPU seconds, those of the
processes that a test has started and awaited among them, compare.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

PATH: Final = Path("build/durations.json")
_PHASES: Final = ("setup", "call", "teardown")
Took: TypeAlias = dict[str, float]
"""Of one test: seconds of ``setup``, ``call`` and ``teardown``, and of ``cpu`` in all."""


class _Durations:
    """Takes down the reports of the process that prints them: of all others, too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._took: dict[str, Took] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took = self._took.setdefault(report.nodeid, dict.fromkeys((*_PHASES, "cpu"), 0.0))
        if report.when in _PHASES:
            took[report.when] += report.duration
        took["cpu"] += getattr(report, "cpu_s", 0.0)

    def pytest_sessionfinish(self) -> None:
        if self._took:
            root = self._path.parent.parent
            write(self._path, merged(read(self._path), self._took, root))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations(config.rootpath / PATH), "durations-of-tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str, location: object) -> None:
    """Begin to count CPU: what the first phase of a test takes is counted from here."""
    global _cpu_at_s  # noqa: PLW0603 - one test runs at a time in a process
    _cpu_at_s = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Add to a report the CPU seconds since the one before; xdist carries them along."""
    global _cpu_at_s
    report = yield
    now_s = _cpu_s()
    report.cpu_s, _cpu_at_s = now_s - _cpu_at_s, now_s
    return report


def _cpu_s() -> float:
    return sum(os.times()[:4])


_cpu_at_s = _cpu_s()


def read(path: Path) -> dict[str, Took]:
    """Return what is known; of a file that is not there or cannot be read nothing."""
    try:
        found: dict[str, Took] = json.loads(path.read_text("utf-8"))["tests"]
    except (FileNotFoundError, ValueError, KeyError):
        return {}
    return found


def write(path: Path, tests: Mapping[str, Took]) -> None:
    """Write it at once or not at all: several runs may be under way."""
    rounded = {
        test: {name: round(seconds, 3) for name, seconds in took.items()}
        for test, took in sorted(tests.items())
    }
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    part.write_text(json.dumps({"written": written, "tests": rounded}, indent=1) + "\n", "utf-8")
    part.replace(path)


def merged(known: Mapping[str, Took], took: Mapping[str, Took], root: Path) -> dict[str, Took]:
    """Return both, the newer one where there are two, without the tests of files that are gone."""
    both = {**known, **took}
    there = {file: (root / file).exists() for file in map(_file_of, both)}
    return {test: each for test, each in both.items() if there[_file_of(test)]}


@dataclass(frozen=True, slots=True)
class FileSum:
    """What the tests of one file took together, in seconds, and the slowest of them."""

    file: str
    tests: int
    wall_s: float
    cpu_s: float
    slowest: str
    slowest_s: float


def by_file(tests: Mapping[str, Took]) -> list[FileSum]:
    """Return the sums of the files, the slowest first."""
    files: defaultdict[str, dict[str, Took]] = defaultdict(dict)
    for test, took in tests.items():
        files[_file_of(test)][test] = took
    return sorted(
        (_sum_of(file, each) for file, each in files.items()), key=lambda each: -each.wall_s
    )


def _sum_of(file: str, tests: Mapping[str, Took]) -> FileSum:
    slowest = max(tests, key=lambda test: _wall_s(tests[test]))
    return FileSum(
        file=file,
        tests=len(tests),
        wall_s=sum(map(_wall_s, tests.values())),
        cpu_s=sum(took["cpu"] for took in tests.values()),
        slowest=slowest.partition("::")[2],
        slowest_s=_wall_s(tests[slowest]),
    )


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _wall_s(took: Took) -> float:
    return sum(took[phase] for phase in _PHASES)


def table(sums: Iterable[FileSum]) -> str:
    """Return the lines that ``make durations`` prints."""
    head = f"{'wall s':>8} {'CPU s':>8} {'tests':>6}  file; its slowest test"
    rows = (
        f"{each.wall_s:8.1f} {each.cpu_s:8.1f} {each.tests:6}  "
        f"{each.file}; {each.slowest} {each.slowest_s:.1f}"
        for each in sums
    )
    return "\n".join((head, *rows))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.running.durations", description="Prints the slowest files of tests."
    )
    parser.add_argument("--top", type=int, default=20, help="how many files (default 20)")
    parser.add_argument("--file", type=Path, default=PATH, help=f"default {PATH}")
    arguments = parser.parse_args()
    sums = by_file(read(arguments.file))
    if not sums:
        print(f"{arguments.file} knows of no test: run some first", file=sys.stderr)
        return 1
    print(table(sums[: arguments.top]))
    wall_s, cpu_s = sum(each.wall_s for each in sums), sum(each.cpu_s for each in sums)
    print(f"{wall_s:8.1f} {cpu_s:8.1f} {sum(each.tests for each in sums):6}  all {len(sums)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
