"""``make growth``: whether a group's bounds hold after a year of use; if not, exit code 1.

In-process cases measure CPU of one thread; live ones run `dledger dev` and ask the nodes for the
CPU of their event loops' turns (`dledger_loop_turn_cpu_seconds`, at most 20 ms too high).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.growth.cases import CASES, ROOT
from e2e.growth.setting import Setting
from e2e.harness import command
from e2e.harness.checks import exit_code, failed, table
from e2e.harness.command import Outcome

logger = logging.getLogger(__name__)

_RESULTS: Final = ROOT / "build" / "growth"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, print the table, write it as JSON; return the exit code."""
    parser = command.parser("python -m e2e.growth", __doc__, list(CASES), _RESULTS)
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; to try it")
    args = parser.parse_args(argv)
    names, at = command.chosen(parser, args.only, list(CASES)), command.now()
    with tempfile.TemporaryDirectory(prefix="growth-", dir=args.data) as work:
        setting = Setting(work=Path(work), scale=args.scale)

        async def one(name: str) -> Outcome:
            try:
                return await CASES[name](setting)
            except Exception as error:
                logger.exception("case %s", name)
                return Outcome(lines=[failed(name, error)])

        running = command.run_cases(names, one, lambda name: f"{name}: {CASES[name].__doc__}")
        found, _ = asyncio.run(running)
    path = args.out / "growth.json"
    command.write(path, at, found.lines, scale=args.scale, figures=found.figures)
    print(f"{table(found.lines)}\n{path}")
    return exit_code([line.verdict for line in found.lines])


if __name__ == "__main__":
    sys.exit(main())
