"""What the commands that run named cases have in common: arguments, progress, one JSON file."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from e2e.harness.checks import Check

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What a case found, or all of them."""

    figures: dict[str, Any] = field(default_factory=dict)
    lines: list[Check] = field(default_factory=list)


def parser(
    prog: str, about: str | None, known: Sequence[str], out: Path
) -> argparse.ArgumentParser:
    """Return the command line: which cases, where their data go, and where what they found."""
    made = argparse.ArgumentParser(
        prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--only", default=",".join(known), help=f"of {', '.join(known)} (all)")
    made.add_argument("--data", type=Path, help="directory for groups and logs (a temporary one)")
    made.add_argument("--out", type=Path, default=out, help="directory of the JSON file")
    return made


def chosen(made: argparse.ArgumentParser, text: str, known: Sequence[str]) -> list[str]:
    """Return those of *known* that stand in *text*, by commas; another one is wrong usage."""
    names = text.split(",")
    if unknown := set(names) - set(known):
        made.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return [name for name in known if name in names]


async def run_cases(
    names: Sequence[str],
    one: Callable[[str], Awaitable[Outcome]],
    about: Callable[[str], str],
) -> tuple[Outcome, dict[str, Exception]]:
    """Run one case after the other; return what they found, and which came to nothing and why."""
    found, broken = Outcome(), dict[str, Exception]()
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {about(name)}", flush=True)
        began_s = time.monotonic()
        try:
            outcome = await one(name)
        except Exception as error:
            logger.exception("case %s", name)
            broken[name] = error
            continue
        found.lines += outcome.lines
        found.figures[name] = outcome.figures | {"took_s": round(time.monotonic() - began_s, 1)}
        for line in outcome.lines:
            print(f"  {line}", flush=True)
        print(f"  {json.dumps(found.figures[name])}", flush=True)
    return found, broken


def now() -> str:
    """Return the time, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write(path: Path, at: str, lines: Sequence[Check], **more: object) -> str:
    """Write the checks and *more* of a run that began *at* as JSON; return the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told: dict[str, object] = {"at": at, "load": os.getloadavg(), **more}
    text = json.dumps(told | {"lines": [asdict(line) for line in lines]}, indent=1)
    path.write_text(text, "utf-8")
    return text
