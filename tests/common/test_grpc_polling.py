"""How a node's gRPC waits for sockets: without the two threads more of its event engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.common.grpc_polling import VARIABLE

ROOT = Path(__file__).parents[2]
_CALLS = 100
CALLER = f"""
import asyncio, time
from pathlib import Path
import grpc, grpc.aio

def woken():
    statuses = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
    return sum(
        int(status.split("voluntary_ctxt_switches:")[1].split()[0])
        for status in statuses if status.startswith("Name:\\tevent_engine")
    )

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{{port}}") as channel:
        before, began_s = woken(), time.monotonic()
        for _ in range({_CALLS}):
            try:
                await channel.unary_unary("/no.Service/Call")(b"")
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        called, took_s = woken(), time.monotonic() - began_s
        await asyncio.sleep(took_s)
        print(called - before - (woken() - called))
    await server.stop(None)

asyncio.run(main())
"""
"""Makes calls to itself; prints how often threads of gRPC's event engine were woken for them, less
what its timers do in that time without calls."""

ITS_OWN = ""
OURS = "import dledger.cli.main\n"
CHAOS = "import e2e.chaos.node\n"


@pytest.mark.parametrize(
    ("first", "preset", "expected"),
    [
        (ITS_OWN, None, True),
        (OURS, None, False),
        (CHAOS, None, False),
        (OURS, "event_engine_client", True),
    ],
    ids=["gRPC's default", "our commands", "nodes of chaos runs", "whoever sets it, wins"],
)
def test_calls_go_through_the_event_engine(first: str, preset: str | None, expected: bool) -> None:
    """A fifth more CPU a call; the first case fails when gRPC does so no more by itself."""
    environ = {key: value for key, value in os.environ.items() if key != VARIABLE}
    environ |= {"PYTHONPATH": os.pathsep.join(sys.path), "GRPC_VERBOSITY": "NONE"}
    ran = subprocess.run(
        [sys.executable, "-c", first + CALLER],
        env=environ | ({VARIABLE: preset} if preset else {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    woken = int(ran.stdout)
    assert (woken >= _CALLS) is expected
    assert expected or woken < _CALLS / 2
