"""``python -m e2e.chaos``: real nodes under faults for some minutes, and what became of the data.

    python -m e2e.chaos --minutes 20
    python -m e2e.chaos --minutes 2 --classes bridge,one-way-cut --seed 7

exit codes: 0 nothing is wrong, 1 something is (docs/internals/chaos.md says how to read it), 2
nothing is but not all was tried, or wrong usage
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

from e2e.chaos.episodes import FaultKind, Outlook, possible
from e2e.chaos.run import Options, run
from e2e.chaos.verdict import Report, table
from e2e.harness.volume import Volume
from e2e.harness.waiting import HarnessError

_BUILD: Final = Path(__file__).resolve().parents[2] / "build" / "chaos"
_SHOWN: Final = 20


def main() -> int:
    """Run what the command line asks for."""
    args = _arguments()
    seed = args.seed if args.seed is not None else random.randrange(1 << 31)
    directory = args.out or _BUILD / f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    own_volume = not args.no_volume and Volume.is_possible(_BUILD / "mount")
    classes = possible(args.classes, has_volume=own_volume)
    for skipped in (one for one in args.classes if one not in classes):
        print(f"skipped: {skipped.value} needs a file system that this process may mount")
    options = Options(
        directory=directory.absolute(),
        seed=seed,
        duration_s=args.minutes * 60,
        nodes=args.nodes,
        own_volume=own_volume,
        durability=args.durability,
        outlook=Outlook(classes=classes),
        factor=args.factor,
        max_episodes=args.episodes,
    )
    print(f"seed {seed}: {' '.join(c.value for c in options.outlook.classes)}", flush=True)
    try:
        report = uvloop.run(run(options, lambda line: print(line, flush=True)))
    except HarnessError as error:
        print(f"chaos: {error}; see {options.directory}", file=sys.stderr)
        return 1
    _show(report, options)
    return report.exit_code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default 20)")
    parser.add_argument("--episodes", type=int, default=100_000, help="end after so many")
    parser.add_argument("--seed", type=int, help="draws episodes and load (default: random)")
    parser.add_argument("--nodes", type=int, default=3, choices=(3, 5), help="(default 3)")
    parser.add_argument(
        "--classes",
        type=_classes,
        default=tuple(FaultKind),
        metavar="A,B",
        help="only these faults",
    )
    parser.add_argument(
        "--factor", type=float, default=3.0,
        help="how much longer than 3 s there may be no leader on a loaded machine (default 3)",
    )  # fmt: skip
    parser.add_argument(
        "--durability",
        default="sync",
        choices=("sync", "osBuffer"),
        help="with osBuffer an older copy is what one power cut leaves (default sync)",
    )
    parser.add_argument("--no-volume", action="store_true", help="mount no tmpfs for a full disk")
    parser.add_argument("--out", type=Path, help="where to keep everything (default build/chaos)")
    return parser.parse_args()


def _classes(text: str) -> tuple[FaultKind, ...]:
    try:
        return tuple(FaultKind(name) for name in text.split(","))
    except ValueError as error:
        known = " ".join(fault.value for fault in FaultKind)
        raise argparse.ArgumentTypeError(f"{error}; known: {known}") from error


def _show(report: Report, options: Options) -> None:
    print()
    print(table(report.classes))
    print()
    for name, count in report.counts.items():
        print(f"{name:22s} {count}")
    for checker, kinds in report.findings.items():
        found = ", ".join(f"{kind} {count}" for kind, count in kinds.items()) or "nothing"
        print(f"{checker:22s} {found}")
    for problem in report.problems[:_SHOWN]:
        print(f"PROBLEM {problem}")
    if len(report.problems) > _SHOWN:
        print(f"PROBLEM and {len(report.problems) - _SHOWN} more")
    for text in report.unmeasured:
        print(f"NOT MEASURED {text}")
    again = f"python -m e2e.chaos --seed {options.seed} --minutes {options.duration_s / 60:g}"
    said = {0: "passed", 1: "FAILED", 2: "NOT MEASURED"}[report.exit_code]
    print(f"{said}: {options.directory}; again: {again}")


if __name__ == "__main__":
    sys.exit(main())
