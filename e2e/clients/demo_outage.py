"""``make demo-outage``: all nodes of a group are killed for 30 s; four producers notice nothing.

Three nodes run on this machine (`dledger dev`), without a cluster. Unmodified official SDKs of two
languages send, two producers each; each pair has a sidecar (`dledger spool run`) beside it. The
nodes are SIGKILLed, and the process of each sidecar twice. A timeline tells what happens, and the
end what became of each message; build/demo-outage.json has both.

    make demo-outage
    make demo-outage DEMO_ARGS="--outage-s 60"
    make demo-outage DEMO_ARGS="--languages python,java"

Python's SDK comes with `make setup`. Go's is built once, and Go itself comes from PyPI where there
is none; Java takes a JDK 17 and Maven, Node.js takes npm.

exit codes: 0 nothing lost, doubled, out of order, and no error to a send; 1 not so; 2 a language's
tools are not there, or wrong usage
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from e2e.clients.builds import MissingTool, ensure
from e2e.clients.drivers import ClientFailed
from e2e.clients.judging import Spooled
from e2e.clients.sdks import SDKS
from e2e.clients.spool import PRODUCERS, can_run, outage
from e2e.clients.table import spool_table
from e2e.cluster.errors import USAGE, ClusterError
from e2e.cluster.layout import default_layout
from e2e.demo.demos import Timeline, conclude
from e2e.harness.command import chosen
from e2e.harness.waiting import HarnessError
from e2e.harness.world import ROOT

_LANGUAGES: Final = "python,go"
_OUTAGE: Final = "killed"
_OUTAGE_S: Final = 30.0
_PATH: Final = ROOT / "build" / "demo-outage.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    known = [language for language in SDKS if can_run(language)]
    parser = argparse.ArgumentParser(
        prog="python -m e2e.clients.demo_outage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--languages", default=_LANGUAGES, help=f"of {', '.join(known)} ({_LANGUAGES})"
    )
    parser.add_argument(
        "--outage-s", type=float, default=_OUTAGE_S, help=f"how long they are away ({_OUTAGE_S:g})"
    )
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as an interrupt
    return _play(chosen(parser, args.languages, known), args.outage_s)


def _play(languages: Sequence[str], seconds: float) -> int:
    timeline = Timeline()
    try:
        commands = _drivers(languages, timeline)
    except (MissingTool, ClusterError) as lack:
        timeline.say(f"missing: {lack}; choose others by --languages")
        return USAGE
    with tempfile.TemporaryDirectory(prefix="demo-outage-") as work:
        try:
            found = asyncio.run(outage(_OUTAGE, commands, seconds, Path(work), timeline.say))
        except (ClientFailed, HarnessError, ClusterError, AssertionError) as error:
            timeline.say(f"failed: {error}")
            return 1
    return _report(found, timeline)


def _drivers(languages: Sequence[str], timeline: Timeline) -> dict[str, Sequence[str]]:
    """Build the drivers unless they are there. Raises MissingTool, ClusterError."""
    layout = default_layout()
    layout.cache.mkdir(parents=True, exist_ok=True)
    commands: dict[str, Sequence[str]] = {}
    for language in languages:
        timeline.say(f"{language}: {PRODUCERS} producers of {SDKS[language].version}")
        commands[language] = ensure(layout, language)
    return commands


def _report(found: Mapping[str, Spooled], timeline: Timeline) -> int:
    """Print the counts, write them, and judge them."""
    print()
    print(spool_table({(_OUTAGE, language): seen for language, seen in found.items()}))
    return conclude(
        _PATH,
        totals(list(found.values())),
        timeline,
        passed=not any(seen.amiss() for seen in found.values()),
        verdict="no send failed, and all that was answered OK is there, once, in order",
        details={"languages": {language: asdict(seen) for language, seen in found.items()}},
        down="",
    )


def totals(found: Sequence[Spooled]) -> dict[str, int | float]:
    """Return the counts of all languages together."""
    return {
        "sent": sum(seen.sent for seen in found),
        "answeredOk": sum(seen.answered for seen in found),
        "stored": sum(seen.stored for seen in found),
        "lost": sum(seen.lost for seen in found),
        "doubled": sum(seen.stored_twice for seen in found),
        "outOfOrder": sum(seen.out_of_order for seen in found),
        "errors": sum(seen.errors for seen in found),
        "longestSendS": round(max(seen.longest_s for seen in found), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
