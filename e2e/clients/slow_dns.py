"""How long official clients take to begin where DNS is silent beyond the cluster.

    python -m e2e.clients.slow_dns [LANGUAGE...]

Each gets the name of a Service, ``orders``, and is told of a node by its name in the cluster, as
operators have it. Prints the seconds until a producer and a consumer have started and carried a
message: first where DNS answers beyond the cluster, then where it is silent, then so with what
docs/clients.md advises. Needs root. What is not built, or fails, is said.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dledger.client import Client
from dledger.common.dns import OF_THE_SYSTEM, VARIABLE
from e2e.clients.builds import MissingTool, ensure
from e2e.clients.drivers import ClientFailed, driver
from e2e.clients.sdks import SDKS
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import default_layout
from e2e.harness.dev_group import running
from e2e.harness.swallowing_dns import ANSWERS_ENV, inside

NODE: Final = "orders-0-client.ns.svc"
_RESOLVER: Final = "SDK_RESOLVER"
"""What the client's gRPC is told; this process' own variable is set by the import of ours."""
ADVICE: Final = {_RESOLVER: OF_THE_SYSTEM}
_ITS_OWN: Final = "ares"
_COMMAND_S: Final = 90.0
_INSIDE: Final = "--inside"


async def measure(language: str, command: Sequence[str], work: Path) -> dict[str, float | str]:
    """Return the seconds of each step of one client, or what it failed with."""
    took: dict[str, float | str] = {}
    async with running(work / "group", (f"advertise_host={NODE}",), nodes=1) as group:
        port = int(group.endpoints[0].rpartition(":")[2])
        async with Client(f"{NODE}:{port}", timeout_s=30.0) as client:
            await client.create_topic("slow", queues=8)
        where = {"endpoints": [f"orders:{port}"], "tls": False, "topic": "slow"}
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
                    took["failed"] = f"{step}: {str(failed)[:160]}"
                    break
                took[step] = round(time.monotonic() - began_s, 2)
    return took


def _measure_inside(language: str, command: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as work:
        print(json.dumps(asyncio.run(measure(language, command, Path(work)))))
    return 0


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    if argv and argv[0] == _INSIDE:
        return _measure_inside(argv[1], argv[2:])
    for language in argv or SDKS:
        try:
            command = ensure(default_layout(), language)
        except (MissingTool, ClusterError) as error:
            print(f"{language}: not measured: {str(error).splitlines()[0]}")
            continue
        for what, environment in (
            ("answered", {ANSWERS_ENV: "1"}),
            ("silent", {}),
            ("silent, as advised", ADVICE),
        ):
            ran = subprocess.run(
                inside(sys.executable, "-m", "e2e.clients.slow_dns", _INSIDE, language, *command),
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
            )
            said = ran.stdout.strip().splitlines() or ran.stderr.strip().splitlines()
            print(f"{language}, {what}: {said[-1] if said else 'nothing'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
