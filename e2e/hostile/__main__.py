"""``make hostile``: each attack that was found, on a group of real nodes, beside an honest client.

exit codes: 0 every figure is held; 1 one is not; 2 all that were seen are, and something was not
measured
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.harness import command
from e2e.harness.checks import Check, Verdict, exit_code, table
from e2e.harness.command import Outcome
from e2e.hostile.alone import ALONE
from e2e.hostile.attacks import ATTACKS
from e2e.hostile.running import ROOT, attacked

RESULTS: Final = ROOT / "build" / "hostile"


async def one(name: str, work: Path) -> list[Check]:
    """Make one attack; return its lines."""
    if name in ALONE:
        return await asyncio.to_thread(ALONE[name], work)
    return await attacked(name, work / name)


def _about(name: str) -> str:
    return ATTACKS[name].what if name in ATTACKS else (ALONE[name].__doc__ or "").split("\n")[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, print the table, write it as JSON; return the exit code."""
    names = sorted([*ATTACKS, *ALONE])
    parser = command.parser("python -m e2e.hostile", __doc__, names, RESULTS)
    parser.add_argument("--json", action="store_true", help="print what is written, too")
    args = parser.parse_args(argv)
    names, at = command.chosen(parser, args.only, names), command.now()
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=args.data) as work:

        async def made(name: str) -> Outcome:
            return Outcome(lines=await one(name, Path(work)))

        found, broken = asyncio.run(command.run_cases(names, made, _about))
    unmeasured = [f"{k}: {type(e).__name__}: {str(e)[-200:]}" for k, e in broken.items()]
    path = args.out / "hostile.json"
    written = command.write(path, at, found.lines, unmeasured=unmeasured)
    print(table(found.lines))
    for each in unmeasured:
        print(f"NOT MEASURED {each}")
    print(written if args.json else path)
    missing = [Verdict.UNMEASURED for _ in unmeasured]
    return exit_code([*(line.verdict for line in found.lines), *missing])


if __name__ == "__main__":
    sys.exit(main())
