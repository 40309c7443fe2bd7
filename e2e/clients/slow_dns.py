"""How long official clients take to begin where DNS is silent beyond the cluster.

    python -m e2e.clients.slow_dns [LANGUAGE...]

Each client is given the name of a Service, and is told of a node by its address, as in a cluster.
What is measured is the time until a producer has started and sent a message, and a consumer has
started and received it; of two rounds the quicker one. Four ways: DNS answers beyond the cluster;
it is silent; so with gRPC's variable as docs/clients.md advises; so with the Service's whole name.

Prints a line for each as it comes, then the table of docs/clients.md; all is in
build/slow-dns.json. Needs root and Linux, and what each language's driver is built with. What is
not built, or fails, is said, and the exit code is 1 then.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from dledger.client import Client
from dledger.common.dns import OF_THE_SYSTEM, VARIABLE
from e2e.clients.builds import MissingTool, ensure
from e2e.clients.drivers import ClientFailed, driver
from e2e.clients.sdks import SDKS
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import default_layout
from e2e.harness.dev_group import running
from e2e.harness.swallowing_dns import ANSWERS_ENV, inside
from e2e.harness.world import ROOT

Took: TypeAlias = dict[str, float | str]
"""The seconds of each step, and under `FAILED` what one failed with."""
FAILED: Final = "failed"
NODE: Final = "orders-0-client.ns.svc"
SERVICE: Final = "orders"
_RESOLVER: Final = "SDK_RESOLVER"
"""What the client's gRPC is told; this process' own variable is set by the import of ours."""
_NAME: Final = "SDK_NAME"
_ITS_OWN: Final = "ares"
_COMMAND_S: Final = 90.0
_PATIENCE_S: Final = 600.0
_ROUNDS: Final = 2
_INSIDE: Final = "--inside"


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which each client begins: what it is called, and what that takes."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)


WAYS: Final = (
    Way("answered", {ANSWERS_ENV: "1"}),
    Way("silent"),
    Way("as advised", {_RESOLVER: OF_THE_SYSTEM}),
    Way("whole name", {_NAME: f"{SERVICE}.ns.svc.cluster.local."}),
)


async def measure(language: str, command: Sequence[str], work: Path) -> Took:
    """Return the seconds of each step of one client, or what it failed with."""
    took: Took = {}
    async with running(work / "group", (f"advertise_host={NODE}",), nodes=1) as group:
        port = int(group.endpoints[0].rpartition(":")[2])
        async with Client(f"{NODE}:{port}", timeout_s=30.0) as client:
            await client.create_topic("slow", queues=8)
        asked_for = os.environ.get(_NAME, SERVICE)
        where = {"endpoints": [f"{asked_for}:{port}"], "tls": False, "topic": "slow"}
        resolver = {VARIABLE: os.environ.get(_RESOLVER, _ITS_OWN)}
        async with driver(command, work / f"{language}.log", resolver) as client_process:
            steps: dict[str, dict[str, Any]] = {
                "producer": {"name": "p", **where},
                "send": {"producer": "p", "topic": "slow", "text": "one"},
                "simple": {"name": "c", "group": "g", "await_s": 5, **where},
                "receive": {"consumer": "c", "count": 1, "invisible_s": 30},
            }
            for step, asked in steps.items():
                began_s = time.monotonic()
                try:
                    await client_process.ask(step, timeout_s=_COMMAND_S, **asked)
                except ClientFailed as failed:
                    took[FAILED] = f"{step}: {str(failed)[:160]}"
                    break
                took[step] = round(time.monotonic() - began_s, 2)
    return took


def quicker(rounds: Sequence[Took]) -> Took:
    """Return the round that took least; one that failed counts only where all did."""
    whole = [each for each in rounds if FAILED not in each]
    return min(whole, key=seconds) if whole else rounds[0]


def seconds(took: Took) -> float:
    """Return the sum of the steps that were done."""
    return round(sum(each for each in took.values() if isinstance(each, float | int)), 2)


def table(measured: Mapping[str, Mapping[str, Took]]) -> str:
    """Return all clients' seconds as a table of Markdown, with what failed in words."""
    lines = [
        f"| client | {' | '.join(way.name for way in WAYS)} |",
        f"|---|{'---|' * len(WAYS)}",
    ]
    for language, ways in measured.items():
        cells = [_cell(ways.get(way.name, {})) for way in WAYS]
        lines.append(f"| {language} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(took: Took) -> str:
    if FAILED in took:
        return str(took[FAILED]).replace("|", "/")
    return f"{seconds(took):.2f} s" if took else "not measured"


def _measure_inside(language: str, command: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as work:
        print(json.dumps(asyncio.run(measure(language, command, Path(work)))))
    return 0


def _round(language: str, command: Sequence[str], way: Way) -> Took:
    """Return one round in a network of its own."""
    ran = subprocess.run(
        inside(sys.executable, "-m", "e2e.clients.slow_dns", _INSIDE, language, *command),
        env={**os.environ, **way.environment},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    said = ran.stdout.strip().splitlines()
    if ran.returncode == 0 and said:
        took: Took = json.loads(said[-1])
        return took
    return {FAILED: (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]}


def _measure_all(languages: Sequence[str]) -> dict[str, dict[str, Took]]:
    measured: dict[str, dict[str, Took]] = {}
    for language in languages:
        ways = measured[language] = {}
        try:
            command = ensure(default_layout(), language)
        except (MissingTool, ClusterError) as error:
            print(f"{language}: not measured: {str(error).splitlines()[0]}", flush=True)
            continue
        for way in WAYS:
            try:
                ways[way.name] = quicker([_round(language, command, way) for _ in range(_ROUNDS)])
            except subprocess.TimeoutExpired:
                ways[way.name] = {FAILED: f"not done within {_PATIENCE_S:.0f} s"}
            print(f"{language}, {way.name}: {json.dumps(ways[way.name])}", flush=True)
    return measured


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    if argv and argv[0] == _INSIDE:
        return _measure_inside(argv[1], argv[2:])
    unknown = sorted(set(argv) - SDKS.keys())
    if unknown or os.geteuid() != 0:
        print(
            f"no client of ours: {', '.join(unknown)}; there are {', '.join(SDKS)}"
            if unknown
            else "a network of its own needs root: run this with sudo",
            file=sys.stderr,
        )
        return 2
    measured = _measure_all(argv or tuple(SDKS))
    path = ROOT / "build" / "slow-dns.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")
    print(f"\n{table(measured)}\n\nwith each step in {path.relative_to(ROOT)}")
    is_whole = all(
        ways and not any(FAILED in took for took in ways.values()) for ways in measured.values()
    )
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
