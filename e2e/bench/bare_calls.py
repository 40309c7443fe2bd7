"""What gRPC itself costs here: unary calls of 1 KiB to a server that does nothing.

No node can serve a call for less than this server does, no Python client make one for less. As a
program it is that server: it answers its port as a line of JSON, and ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from e2e.bench.figures import latency_figures
from e2e.bench.machine import MACHINE
from e2e.bench.processes import BenchError, Child, Command
from e2e.bench.rows import Row
from e2e.bench.seats import HOST

BARE_CALLS: Final = "bare calls"
_SERVICE: Final = "dledger.bench.Bare"
_METHOD: Final = "Call"
_SIZE_BYTES: Final = 1024
_WINDOWS: Final = (64, 1)
_ANSWER_S: Final = 20.0


def bare_rows(seconds: float, log: Path) -> list[Row]:
    """Measure calls a second, how long one takes, and what server and client need for it."""
    server = Child(Command((sys.executable, "-m", "e2e.bench.bare_calls"), answers=True), log)
    try:
        port = server.ask({}, timeout_s=_ANSWER_S)["port"]
        return [_row(server, port, window, seconds) for window in _WINDOWS]
    finally:
        server.stop()


def _row(server: Child, port: int, window: int, seconds: float) -> Row:
    uvloop.run(_call(port, window, seconds / 4))
    before, client_before_s = server.usage(), time.process_time()
    latencies_us = uvloop.run(_call(port, window, seconds))
    after, client_s = server.usage(), time.process_time() - client_before_s
    if before is None or after is None:
        raise BenchError(f"the bare server has ended, see {server.log}")
    calls = len(latencies_us)
    return Row(
        kind=BARE_CALLS,
        system=MACHINE,
        name=f"bare grpc.aio, unary calls of 1 KiB, {window} under way",
        size_bytes=_SIZE_BYTES,
        window=window,
        figures={
            "per_s": calls / seconds,
            "server_us": (after.cpu_s - before.cpu_s) * 1e6 / calls,
            "client_us": client_s * 1e6 / calls,
            **latency_figures(latencies_us),
        },
    )


async def _call(port: int, window: int, seconds: float) -> list[float]:
    """Return how long each call took, in us, of those that began within *seconds*."""
    body, latencies_us = os.urandom(_SIZE_BYTES), list[float]()
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call: Any = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
        end_s = time.monotonic() + seconds

        async def one_after_the_other() -> None:
            while (began_s := time.monotonic()) < end_s:
                await call(body)
                latencies_us.append((time.monotonic() - began_s) * 1e6)

        await asyncio.gather(*(one_after_the_other() for _ in range(window)))
    return latencies_us


async def serve() -> int:
    """Serve until the input ends."""

    async def answer(request: bytes, _: Any) -> bytes:
        return request[:1]

    server = grpc.aio.server()
    handlers = {_METHOD: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps({"port": port}), flush=True)
    await server.stop(None)
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(serve()))
