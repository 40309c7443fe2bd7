"""``make hostile``: each attack that was found, on a group of real nodes, beside an honest client.

exit codes: 0 every figure is held; 1 one is not; 2 all that were seen are, and something was not
measured
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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from e2e.harness.checks import Line, table
from e2e.hostile.alone import ALONE
from e2e.hostile.attacks import ATTACKS
from e2e.hostile.judging import exit_code
from e2e.hostile.running import ROOT, attacked

logger = logging.getLogger(__name__)

RESULTS: Final = ROOT / "build" / "hostile"


def names() -> list[str]:
    """Return every attack, in order."""
    return sorted([*ATTACKS, *ALONE])


async def one(name: str, work: Path) -> list[Line]:
    """Make one attack; return its lines."""
    if name in ALONE:
        return await asyncio.to_thread(ALONE[name], work)
    return await attacked(name, work / name)


async def run(chosen: Sequence[str], work: Path) -> tuple[list[Line], list[str]]:
    """Make all that are chosen; return the lines, and what came to none."""
    found: list[Line] = []
    unmeasured: list[str] = []
    for number, name in enumerate(chosen, 1):
        what = ATTACKS[name].what if name in ATTACKS else (ALONE[name].__doc__ or "")
        print(f"[{number}/{len(chosen)}] {what.partition(chr(10))[0]}", flush=True)
        began_s = time.monotonic()
        try:
            seen = await one(name, work)
        except Exception as error:
            logger.exception("attack %s", name)
            unmeasured.append(f"{name}: {type(error).__name__}: {str(error)[-200:]}")
            continue
        found += seen
        for line in seen:
            print(f"  {line}", flush=True)
        print(f"  ({time.monotonic() - began_s:.0f} s)", flush=True)
    return found, unmeasured


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, print the table, write it as JSON; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help=f"by commas, of: {', '.join(names())} (all)")
    parser.add_argument("--data", type=Path, help="directory for the groups (a temporary one)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of hostile.json")
    parser.add_argument("--json", action="store_true", help="print what is written, too")
    args = parser.parse_args(argv)
    chosen = [name for name in args.only.split(",") if name] or names()
    if unknown := set(chosen) - set(names()):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=args.data) as work:
        found, unmeasured = asyncio.run(run(chosen, Path(work)))
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "hostile.json"
    written = json.dumps(
        {
            "at": at,
            "load": os.getloadavg(),
            "lines": [asdict(line) for line in found],
            "unmeasured": unmeasured,
        },
        indent=1,
    )
    path.write_text(written)
    print(table(found))
    for each in unmeasured:
        print(f"NOT MEASURED {each}")
    print(written if args.json else path)
    return exit_code(found, unmeasured)


if __name__ == "__main__":
    sys.exit(main())
