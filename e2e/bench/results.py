"""Where results are kept: one JSON file a run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.bench import machine
from e2e.bench.rows import Row, Run, by_identity, to_json

RESULTS: Final = machine.ROOT / "bench" / "results"
BUILD: Final = machine.ROOT / "build" / "bench"
LOGS: Final = BUILD / "logs"


def home(*, record: bool, is_kept: bool) -> Path:
    """Return where a run goes: into the history if asked, and only if it may be kept there.

    One that did not pass is no figure of this system: it says why in its own file, below build.
    """
    if record and not is_kept:
        print("not recorded: only a run that has passed goes into the history")
    return RESULTS if record and is_kept else BUILD


def run_of(rows: Sequence[Row], at: time.struct_time, facts: dict[str, object]) -> Run:
    """Return a run of the checked-out commit that began *at* (UTC)."""
    return Run(
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", at),
        commit=machine.commit(),
        machine=facts,
        rows=by_identity(rows),
    )


def write(run: Run, directory: Path) -> Path:
    """Write the run as ``<date>-<commit>.json``; one more of the same day gets its time, too."""
    directory.mkdir(parents=True, exist_ok=True)
    commit = run.commit.rstrip("+")
    path = directory / f"{run.at[:10]}-{commit}.json"
    if path.exists():
        path = directory / f"{run.at[:19].replace(':', '')}-{commit}.json"
    path.write_text(to_json(run), "utf-8")
    return path


def keep(
    rows: Sequence[Row], at: time.struct_time, facts: dict[str, object], *, into: Path
) -> None:
    """Write a run that began *at* to a directory, and say where."""
    path = write(run_of(rows, at, facts), into)
    print(f"\nas JSON: {path.relative_to(machine.ROOT)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every run takes: where its disks are, and whether its figures are kept."""
    parser.add_argument("--data", type=Path, help="where the nodes' disks are (build/bench)")
    parser.add_argument(
        "--record", action="store_true", help="write to bench/results, the history, if it passed"
    )


def names(text: str) -> list[str]:
    """Return what stands between commas."""
    return text.split(",")
