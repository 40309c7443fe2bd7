"""A planted bug, and whether tests notice it. `make mutants` runs them on copies of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"node": "dledger", "operator": "dledger_operator", "pipeline": "dledger_pipeline"}
"""What bugs are planted in: the directory, and the package in it."""
_OTHERS = ("node", "operator", "pipeline", ".")
SEEDS = 200
CHECK_TIMEOUT_S = 300
SEEDS_TIMEOUT_S = 900
TIMED_OUT = "(ran into the time limit)"
_FAILED_SEED = re.compile(r"^seed (\d+) failed", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug.

    Attributes:
        name: The mistake, in a few words.
        package: The directory it is in, one of `PACKAGES`.
        file: Where, below the package.
        old: The text to replace; it occurs once in the file.
        new: What takes its place.
        why: What goes wrong with it.
        checks: Tests to run, as pytest takes them; one of them fails.
        edge: Whether it is simulated runs of the edge that find it, rather than of the group.
        world: Which worlds of the group's runs find it, if only they do.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    checks: tuple[str, ...] = ()
    package: str = "node"
    edge: bool = False
    world: str = ""

    def path(self, copy: Path) -> Path:
        """Return the file in a copy of the package's directory."""
        return copy / PACKAGES[self.package] / self.file

    def planted(self, text: str) -> str:
        """Return the file's text with the bug.

        Raises:
            ValueError: The text to replace is not there exactly once: the code has moved on.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: the text occurs {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        caught_by: The test that failed, or the simulator's seed; "" if the mutant survived.
    """

    mutant: Mutant
    caught_by: str
    elapsed_s: float


def judge(mutant: Mutant, *, seeds: int = SEEDS) -> Verdict:
    """Plant the bug in a copy; run its checks, and if all pass up to *seeds* simulated runs."""
    started_s = time.monotonic()
    with copy_of(mutant.package) as copy:
        path = mutant.path(copy)
        path.write_text(mutant.planted(path.read_text("utf-8")), "utf-8")
        caught_by = failing_test(copy, mutant.checks) if mutant.checks else ""
        if not caught_by and mutant.package == "node":
            caught_by = _by_a_seed(copy, seeds, _options_of(mutant))
    if caught_by.endswith(TIMED_OUT):
        _not_without_the_bug(mutant)
    return Verdict(mutant=mutant, caught_by=caught_by, elapsed_s=time.monotonic() - started_s)


@contextmanager
def copy_of(package: str) -> Iterator[Path]:
    """Yield the path of a copy of one of `PACKAGES`' directories that goes away afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory) / package
        shutil.copytree(ROOT / package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        yield copy


def failing_test(copy: Path, checks: tuple[str, ...], timeout_s: int = CHECK_TIMEOUT_S) -> str:
    """Return the first of the tests that fails against *copy*; "" if all pass."""
    paths = " ".join([str(copy), *(name for name in _OTHERS if name != copy.name)])
    options = ["-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-o", f"pythonpath={paths}"]
    result = _run([sys.executable, "-m", "pytest", *options, *checks], copy, timeout_s)
    if result is None:
        return f"{checks[0]} {TIMED_OUT}"
    if result.returncode == 0:
        return ""
    failed = _FAILED.search(result.stdout)
    if not failed:
        raise RuntimeError(f"pytest ended with {result.returncode}:\n{result.stdout}")
    return failed[1]


def _not_without_the_bug(mutant: Mutant) -> None:
    """Make sure that it is the bug that takes so long. Raises RuntimeError: it is the machine."""
    with copy_of(mutant.package) as harmless:
        if failed := failing_test(harmless, mutant.checks):
            raise RuntimeError(f"without any planted bug as well: {failed}")


def _options_of(mutant: Mutant) -> list[str]:
    """Return which simulated runs are to find it."""
    return [
        *(["--edge"] if mutant.edge else []),
        *([f"--world={mutant.world}"] if mutant.world else []),
    ]


def _by_a_seed(node: Path, seeds: int, options: Sequence[str]) -> str:
    seed = failing_seed(node, options, first=1, count=seeds) if seeds else None
    if seed is None:
        return ""
    with copy_of("node") as harmless:
        if failing_seed(harmless, options, first=seed, count=1) is not None:
            raise RuntimeError(f"simulator seed {seed} fails without any planted bug")
    return f"simulator seed {seed}"


def failing_seed(node: Path, options: Sequence[str] = (), *, first: int, count: int) -> int | None:
    """Return which simulated run fails first; None if none does within the time limit."""
    command = [sys.executable, "-m", "dledger_sim", "--jobs", "1", *options]
    result = _run([*command, "--first", str(first), "--seeds", str(count)], node, SEEDS_TIMEOUT_S)
    if result is None or result.returncode == 0:
        return None
    failed = _FAILED_SEED.search(result.stdout)
    if not failed:
        raise RuntimeError(f"the simulator ended with {result.returncode}:\n{result.stderr}")
    return int(failed[1])


def _run(command: list[str], copy: Path, timeout_s: int) -> subprocess.CompletedProcess[str] | None:
    """Run *command* against the copy; None if it takes too long, as a hang is noticed, too."""
    others = (str(ROOT / name) for name in _OTHERS if name != copy.name)
    search = os.pathsep.join([str(copy), *others])
    environment = os.environ | {"PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return None
