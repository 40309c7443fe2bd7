"""``make fuzz``: seeded inputs for every decoder of outside bytes, in several processes.

exit codes: 0 nothing found; 1 something was, with a command that shows it again; 2 a target that
accepted no input at all: what reads accepted input was not tried
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.fuzz.running import Finding, Tally
from tests.fuzz.sharing import fuzz, slices
from tests.fuzz.target import judge
from tests.fuzz.targets import TARGETS

RESULTS: Final = Path(__file__).parents[2] / "build" / "fuzz"
_SHORT: Final = 400
"""Inputs of so many bytes are shown in the command itself."""


def reproducer(finding: Finding, results: Path) -> str:
    """Return the command that shows a finding again; a long input is kept in a file."""
    encoded = base64.b64encode(finding.data).decode()
    if len(encoded) > _SHORT:
        results.mkdir(parents=True, exist_ok=True)
        path = results / f"{finding.target}-{abs(hash(finding.data)):x}"
        path.write_bytes(finding.data)
        encoded = f"@{path}"
    return f"python -m tests.fuzz --target {finding.target} --input {encoded}"


def table(found: Sequence[Tally]) -> str:
    """Return one row a target."""
    rows = ["target              inputs   accepted  outcomes  slowest   findings"]
    rows += [
        f"{one.target:16} {one.inputs:9,} {one.accepted:10,} {len(one.kinds):9} "
        f"{one.slowest_ms:6.0f} ms {len(one.findings):9}"
        for one in found
    ]
    inputs = sum(one.inputs for one in found)
    return "\n".join([*rows, f"{inputs:,} inputs over {len(found)} targets"])


def exit_code(found: Sequence[Tally]) -> int:
    """Return what the run comes to."""
    if any(one.findings for one in found):
        return 1
    idle = [one.target for one in found if not one.accepted]
    if idle or not found:
        print(f"NOT MEASURED: nothing was accepted by {', '.join(idle) or 'any target'}")
        return 2
    return 0


def again(name: str, encoded: str) -> int:
    """Feed one input and say what comes of it."""
    data = Path(encoded[1:]).read_bytes() if encoded[:1] == "@" else base64.b64decode(encoded)
    target = TARGETS[name]()
    try:
        verdict = judge(target, data)
    finally:
        target.close()
    print(verdict.found or f"nothing is wrong: {verdict.kind}")
    return 1 if verdict.found else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="of the clock, in all (20)")
    parser.add_argument("--inputs", type=int, help="so many in all, instead of a time")
    parser.add_argument("--target", default="", help="targets, by commas (all)")
    parser.add_argument("--seed", default=str(time.time_ns()), help="of all that is drawn")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--input", help="one input to one target, in base64, or @FILE")
    parser.add_argument("--list", action="store_true", help="the targets, and what each is")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, too")
    args = parser.parse_args(argv)
    names = [name for name in args.target.split(",") if name] or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if args.list:
        print(
            "\n".join(
                f"{name:16} {(TARGETS[name].__doc__ or '').split(chr(10))[0]}" for name in names
            )
        )
        return 0
    if args.input is not None:
        return again(names[0], args.input)
    print(f"seed {args.seed}", flush=True)
    parts = list(
        slices(names, seed=args.seed, jobs=args.jobs, minutes=args.minutes, inputs=args.inputs)
    )
    found = list(fuzz(parts, args.jobs).values())
    print(table(found))
    for finding in (finding for one in found for finding in one.findings):
        print(f"{finding.target}: {finding.found}\n  {reproducer(finding, RESULTS)}")
    if args.json:
        rows = [
            {"target": one.target, "inputs": one.inputs, "accepted": one.accepted,
             "outcomes": len(one.kinds), "findings": [each.found for each in one.findings]}
            for one in found
        ]  # fmt: skip
        print(json.dumps({"seed": args.seed, "targets": rows}))
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main())
