"""Takes figures, prints a table of them, and writes ``build/bench-pipeline.json``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dledger.common.memory import keep_blocks
from e2e.bench.machine import Stolen, commit, facts
from e2e.bench.pipeline.lines import LINES, Line
from e2e.bench.pipeline.measuring import Figure, Unmeasured
from e2e.bench.pipeline.subject import Bench
from e2e.harness.waiting import HarnessError

ROOT: Final = Path(__file__).resolve().parents[3]
REPORT: Final = ROOT / "build" / "bench-pipeline.json"
_EXIT_UNMEASURED: Final = 2

_EPILOG: Final = """\
examples:
  make bench-pipeline                                   all lines, 1 GiB of messages, medians of 3
  make bench-pipeline BENCH_ARGS="--mib 128"            a quick look
  make bench-pipeline BENCH_ARGS="--only archive --only backup"
  python -m e2e.bench.pipeline --mib 64 --only size --json

figures are seconds of a processor, or ratios of what was measured in turn in one run, so that a
busy machine does not spoil them; seconds by the clock stand beside. Stores and nodes are in scratch
directories, on the disk and in /dev/shm, and are gone at the end
exit codes: 0 all was measured, whether or not it is what is asked; 2 a line left something out, or
wrong usage
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A line and what came of it."""

    line: Line
    figure: Figure | None
    load: float
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as it is reported."""
        told: dict[str, Any] = {"name": self.line.name, "what": self.line.what}
        told |= {"asked": self.line.asked, "load": self.load}
        if self.figure is None:
            return told | {"error": self.error}
        return told | {
            "figure": self.figure.median,
            "kept": self.line.kept(self.figure.median),
            "rounds": self.figure.rounds,
            "wallS": self.figure.wall_s,
            "parts": dict(self.figure.parts),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit code."""
    args = _parser().parse_args(argv)
    keep_blocks()  # as the command does
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    (ROOT / "build").mkdir(exist_ok=True)
    machine = facts() | {"commit": commit()}
    stolen = Stolen()
    lines = [line for line in LINES if not args.only or line.name in args.only]
    taken = []
    with Bench(args.data, body_bytes=args.mib << 20, rounds=args.rounds) as bench:
        for line in lines:
            print(f"{line.name} ...", file=sys.stderr, flush=True)
            taken.append(measured(line, bench))
            print(_told(taken[-1]), file=sys.stderr, flush=True)
    machine |= {"stolenPercent": stolen.percent(), "loadAfter": _load(), "mib": args.mib}
    found = {"machine": machine, "lines": [each.as_json() for each in taken]}
    REPORT.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    if args.json:
        print(json.dumps(found))
    else:
        print(_table(machine, taken))
    return exit_code(taken)


def exit_code(measured: Sequence[Measured]) -> int:
    """Return what the bench ends with: whether all was measured."""
    return _EXIT_UNMEASURED if any(each.error for each in measured) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.bench.pipeline",
        description="What backup and restore take of a processor, line by line.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[line.name for line in LINES],
        metavar="LINE",
        help=f"measure this line; may be given again: {', '.join(line.name for line in LINES)}",
    )
    parser.add_argument(
        "--mib", type=_at_least_2, default=1024, help="bodies of messages in the log (1024)"
    )
    parser.add_argument("--rounds", type=_at_least_1, default=3, help="a figure is taken (3)")
    parser.add_argument(
        "--data", type=Path, default=ROOT / "build", help="on which disk to work (build/)"
    )
    parser.add_argument("--json", action="store_true", help="print what the report file holds")
    return parser


def _at_least_1(text: str) -> int:
    return _at_least(1, text)


def _at_least_2(text: str) -> int:
    return _at_least(2, text)


def _at_least(least: int, text: str) -> int:
    if (number := int(text)) < least:
        raise argparse.ArgumentTypeError(f"{number} is too little to measure")
    return number


def measured(line: Line, bench: Bench) -> Measured:
    """Take a line's figure; one that fails does not end the others."""
    try:
        figure = line.measure(bench)
    except (Unmeasured, HarnessError) as error:
        return Measured(line, None, _load(), f"{line.name}: {error}")
    return Measured(line, figure, _load())


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _told(measured: Measured) -> str:
    """Return a line as text: figure, what is asked, spread, seconds by the clock."""
    if measured.figure is None:
        return f"{measured.line.name:16} not measured: {measured.error}"
    figure, line = measured.figure, measured.line
    kept = {True: "kept", False: "MISSED", None: ""}[line.kept(figure.median)]
    spread = f"{min(figure.rounds):g}..{max(figure.rounds):g}" if len(figure.rounds) > 1 else ""
    wall = f"{figure.wall_s[len(figure.wall_s) // 2]:.1f} s" if figure.wall_s else ""
    parts = ", ".join(f"{name} {value:g}" for name, value in figure.parts.items())
    head = f"{line.name:16} {figure.median:>9g} {line.asked:>8} {kept:6} {spread:>15} {wall:>8}"
    return f"{head}  load {measured.load:g}  {line.what}\n{'':18}{parts}".rstrip()


def _table(machine: dict[str, Any], measured: Sequence[Measured]) -> str:
    head = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, commit {machine['commit']}\n"
        f"{machine['mib']} MiB of messages of 1 KiB; load {machine['load_before']} before, "
        f"{machine['loadAfter']} after, {machine['stolenPercent']} % stolen\n"
    )
    rows = "\n".join(map(_told, measured))
    return f"\n{head}\n{rows}\n\nas JSON: {REPORT.relative_to(ROOT)}"


if __name__ == "__main__":
    sys.exit(main())
