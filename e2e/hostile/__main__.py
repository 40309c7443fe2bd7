"""``make hostile``: each attack that was found, on a group of real nodes, beside an honest client.

exit codes: 0 every figure is held; 1 one is not; 2 all that were seen are, and something was not
measured
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from e2e.harness import command
from e2e.harness.checks import Check, Verdict, exit_code, table
from e2e.harness.command import Outcome
from e2e.hostile.alone import ALONE
from e2e.hostile.attacks import ATTACKS
from e2e.hostile.running import ROOT, attacked
from e2e.hostile.ways import WAYS

RESULTS: Final = ROOT / "build" / "hostile"


async def one(case: str, work: Path) -> list[Check]:
    """Make one attack, ``NAME/WAY``; return its lines."""
    name, _, way = case.partition("/")
    if name in ALONE:
        return await asyncio.to_thread(ALONE[name], work)
    return await attacked(name, way, work / f"{name}-{way}")


def cases(names: Sequence[str], ways: Collection[str]) -> list[str]:
    """Return each attack in each of *ways* in which it comes; those that need no group once."""
    found = list[str]()
    for name in names:
        known = ATTACKS[name].ways if name in ATTACKS else None
        found += [name] if known is None else [f"{name}/{way}" for way in known if way in ways]
    return found


def _about(case: str) -> str:
    name, _, way = case.partition("/")
    return f"{_sentence(name)} {way}".rstrip()


def _sentence(name: str) -> str:
    return ATTACKS[name].what if name in ATTACKS else (ALONE[name].__doc__ or "").split("\n")[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, print the table, write it as JSON; return the exit code."""
    names = sorted([*ATTACKS, *ALONE])
    parser = command.parser("python -m e2e.hostile", __doc__, names, RESULTS)
    parser.add_argument(
        "--ways", default=",".join(WAYS), help=f"how they come: of {', '.join(WAYS)} (all)"
    )
    parser.add_argument("--json", action="store_true", help="print what is written, too")
    args = parser.parse_args(argv)
    names, at = command.chosen(parser, args.only, names), command.now()
    made_in = cases(names, command.chosen(parser, args.ways, list(WAYS)))
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=args.data) as work:

        async def made(name: str) -> Outcome:
            return Outcome(lines=await one(name, Path(work)))

        found, broken = asyncio.run(command.run_cases(made_in, made, _about))
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
