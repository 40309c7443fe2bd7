"""``make growth``: whether a group bears what it is after a year; if not, exit code 1.

In-process cases measure CPU of one thread; live ones run `dledger dev` and ask the nodes for the
CPU of their event loops' turns (`dledger_loop_turn_cpu_seconds`, at most 20 ms too high).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from e2e.growth.cases import CASES, ROOT, Outcome, Setting
from e2e.harness.checks import Line, failed, table

logger = logging.getLogger(__name__)

_RESULTS: Final = ROOT / "build" / "growth"


async def _run(names: list[str], setting: Setting) -> tuple[list[Line], dict[str, Any]]:
    lines: list[Line] = []
    figures: dict[str, Any] = {}
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}: {CASES[name].__doc__}", flush=True)
        began_s = time.monotonic()
        try:
            outcome = await CASES[name](setting)
        except Exception as error:
            logger.exception("case %s", name)
            outcome = Outcome(lines=[failed(name, error)])
        figures[name] = outcome.figures | {"took_s": round(time.monotonic() - began_s, 1)}
        lines += outcome.lines
        for line in outcome.lines:
            print(f"  {line}", flush=True)
        print(f"  {json.dumps(figures[name])}", flush=True)
    return lines, figures


def main(argv: list[str] | None = None) -> int:
    """Run the cases, print the table, write it as JSON; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.growth", description=__doc__)
    parser.add_argument(
        "--only", default=",".join(CASES), help=f"cases, by commas: {', '.join(CASES)} (all)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; to try it")
    parser.add_argument(
        "--data", type=Path, help="directory for the groups' data (a temporary one)"
    )
    parser.add_argument("--out", type=Path, default=_RESULTS, help="directory of growth.json")
    args = parser.parse_args(argv)
    names = args.only.split(",")
    if unknown := set(names) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with tempfile.TemporaryDirectory(prefix="growth-", dir=args.data) as work:
        lines, figures = asyncio.run(_run(names, Setting(work=Path(work), scale=args.scale)))
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "growth.json"
    found = {"at": at, "scale": args.scale, "load": os.getloadavg(), "figures": figures}
    path.write_text(json.dumps(found | {"lines": [asdict(line) for line in lines]}, indent=1))
    print(f"{table(lines)}\n{path}")
    return 0 if lines and all(line.kept for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
